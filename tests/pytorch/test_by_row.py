"""Layer norm, RMS norm and instance norm in PyTorch: values, derivatives, layers, the override."""

from __future__ import annotations

import copy
import itertools

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
F, theirs = nt.functional, torch.nn.functional

DTYPES = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-12}


def tensor(*shape, dtype=torch.float64, seed=0):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_()


def alike(ours, other, tolerance):
    for mine, expected in zip(ours, other, strict=True):
        assert mine.shape == expected.shape
        scale = expected.double().abs().max()
        assert (mine.double() - expected.double()).abs().max() <= tolerance * scale


def gradients(function, tensors):
    output = function(*tensors)
    dy = torch.linspace(-1, 1, output.numel()).to(output.dtype).reshape(output.shape)
    return output, *torch.autograd.grad(output, tensors, dy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6,), (5, 6)])
def test_functions(shape, dtype):
    """PyTorch's values in float64, the first time and again, from any layout."""
    w, b = tensor(*shape, dtype=dtype, seed=1), tensor(*shape, dtype=dtype, seed=2)
    for x in (tensor(3, 4, 5, 6, dtype=dtype), tensor(4, 3, 5, 6, dtype=dtype).transpose(0, 1)):
        for _ in range(2):
            for ours, other, tensors in (
                (F.layer_norm, theirs.layer_norm, (x, w, b)),
                (F.rms_norm, theirs.rms_norm, (x, w)),
            ):
                found = gradients(lambda x, *p, f=ours: f(x, shape, *p, eps=1e-3), tensors)
                wide = tuple(each.detach().double().requires_grad_() for each in tensors)
                exact = gradients(lambda x, *p, f=other: f(x, shape, *p, eps=1e-3), wide)
                assert {value.dtype for value in found} == {dtype}
                alike(found, exact, DTYPES[dtype])


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # PyTorch's, of a weight's dtype
@pytest.mark.parametrize("parameters", [None, *DTYPES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_has_pytorch_s_own_eps(dtype, parameters):
    """On data as small as its root: functions and layers, in both passes."""
    w = None if parameters is None else tensor(6, dtype=parameters, seed=1)
    for size in (1e-3, 1e-8):
        x = (size * tensor(4, 6).detach()).to(dtype).requires_grad_()
        tensors = (x,) if w is None else (x, w)
        layer = nt.nn.RMSNorm(6, elementwise_affine=w is not None)
        if w is not None:
            layer.weight = torch.nn.Parameter(w.detach())
        with torch.no_grad():
            expected, found = theirs.rms_norm(x, (6,), w), layer(x)
            assert found.dtype == expected.dtype
            alike((found,), (expected,), DTYPES[dtype])
        expected = gradients(lambda x, *p: theirs.rms_norm(x, (6,), *p), tensors)
        found = gradients(lambda x, *p: F.rms_norm(x, (6,), *p), tensors)
        alike(found, expected, max(DTYPES[each.dtype] for each in tensors))


def test_instance_norm():
    x, w, b = tensor(3, 4, 5, 6), tensor(4, seed=1), tensor(4, seed=2)
    mean, var = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.5
    for running, own in (((None, None), True), ((mean, var), False), ((mean, var), True)):
        expected = theirs.instance_norm(x, *(copy.copy(each) for each in running), w, b, own)
        found = F.instance_norm(x, *(copy.copy(each) for each in running), w, b, own)
        alike((found,), (expected,), 1e-12)


@pytest.mark.parametrize("shape", [(3, 0, 5), (0, 0, 5), (1, 0, 2), (3, 0, 5, 6), (0, 5)])
def test_instance_norm_without_channels(shape):
    """Empty results, or PyTorch's IndexError: a number of channels divides nothing."""
    outcomes = []
    for module in (torch.nn, nt.nn):
        kind = getattr(module, f"InstanceNorm{max(1, len(shape) - 2)}d")
        of_one = {}
        for affine, tracks, training in itertools.product((False, True), repeat=3):
            layer = kind(0, affine=affine, track_running_stats=tracks).train(training)
            x = torch.zeros(shape, requires_grad=True)
            try:
                output = layer(x)
                (gradient,) = torch.autograd.grad(output.sum(), x)
                of_one[affine, tracks, training] = output.shape, gradient.shape
            except IndexError as error:
                of_one[affine, tracks, training] = str(error)
        outcomes.append(of_one)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][False, False, True] == (shape, shape)


def test_instance_norm_is_pytorch_s_to_modes():
    """Function modes and errors know it by its own name."""

    class Counting(torch.overrides.TorchFunctionMode):
        names = ()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.names += (function.__name__,)
            return function(*args, **(kwargs or {}))

    x, v = torch.randn(3, 4, 5), torch.ones(4)
    for running in ((None, None), (v, v)):
        with Counting() as mode:
            F.instance_norm(x, *running, use_input_stats=running[0] is None)
        assert next(name for name in mode.names if "_norm" in name) == "instance_norm"
        with pytest.raises(TypeError, match=r"^instance_norm\(\): argument 'eps'"):
            F.instance_norm(x, *running, use_input_stats=running[0] is None, eps="small")


def test_instance_norm_is_compiled():
    x, v = torch.randn(3, 4, 5), torch.ones(4)

    def both(x, v):
        return F.instance_norm(x), F.instance_norm(x, v, v, use_input_stats=False)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    alike(compiled(x, v), both(x, v), 1e-6)
    empty = x[:, :0], v[:0]
    assert [each.shape for each in torch.compile(both, backend="aot_eager")(*empty)] == [
        empty[0].shape
    ] * 2


def test_derivatives_of_any_order():
    x, w, b = tensor(3, 4, 5), tensor(4, 5, seed=1), tensor(4, 5, seed=2)

    def layer(x, w, b):
        return F.layer_norm(x, (4, 5), w, b)

    def rms(x, w):
        return F.rms_norm(x, (4, 5), w, 1e-5)

    for function, tensors in ((layer, (x, w, b)), (rms, (x, w))):
        assert torch.autograd.gradcheck(function, tensors, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_vmap(name):
    batch, weights = torch.randn(4, 3, 5), torch.randn(4, 5)

    def call(x, w):
        return getattr(F, name)(x, (5,), w, eps=1e-5)

    found = torch.vmap(call)(batch, weights)
    torch.testing.assert_close(found, torch.stack([*map(call, batch, weights)]))


def test_layers_are_converted_and_reverted():
    model = torch.nn.Sequential(
        torch.nn.LayerNorm((5, 6)), torch.nn.RMSNorm(6), torch.nn.InstanceNorm2d(4, affine=True)
    )
    kinds = [type(layer) for layer in model]
    x = torch.randn(3, 4, 5, 6)
    expected, parameters = model(x), [*model.parameters()]
    assert nt.convert(model) is model
    assert [type(layer) for layer in model] == [getattr(nt.nn, kind.__name__) for kind in kinds]
    assert all(mine is other for mine, other in zip(model.parameters(), parameters, strict=True))
    torch.testing.assert_close(model(x), expected)
    assert [type(layer) for layer in nt.revert(model)] == kinds


def test_what_is_not_taken_is_pytorch_s():
    x = torch.randn(3, 4)
    for wrong in ((5,), (3, 5), (2, 3, 4)):
        with pytest.raises(RuntimeError, match="normalized_shape"):
            F.layer_norm(x, wrong)
    assert F.layer_norm(torch.randn(0, 4), (4,)).shape == (0, 4)


def test_override():
    x, w, b = (torch.randn(*shape, requires_grad=True) for shape in ((3, 4, 6), (6,), (6,)))

    def step(x, w, b):
        return theirs.layer_norm(x, (6,), w, b)

    expected = gradients(step, (x, w, b))
    with nt.override():
        alike(gradients(step, (x, w, b)), expected, 1e-5)
        many = torch.randn(2, *[1] * 7, 2, 6, requires_grad=True)
        theirs.layer_norm(many, (6,)).square().sum().backward()
    assert many.grad.shape == many.shape


def test_compiled():
    compiled = torch.compile(
        lambda x: F.layer_norm(x, (6,)) + F.rms_norm(x, (6,)), fullgraph=True, backend="aot_eager"
    )
    x = torch.randn(3, 6, requires_grad=True)
    alike((compiled(x),), (theirs.layer_norm(x, (6,)) + theirs.rms_norm(x, (6,)),), 1e-5)
    compiled(x).sum().backward()
    assert x.grad.abs().max() < 10
