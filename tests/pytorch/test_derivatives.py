"""Derivatives of every order: the first by kernels, the others and transforms are PyTorch's."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
func = torch.func
theirs = torch.nn.functional
gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck

EPS = 0.1
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=GENERATOR, dtype=dtype)


MEAN, VAR = normal(4), normal(4).square() + 0.5
X, W, B = normal(3, 4, 2, 3), normal(4), normal(4)
ROW, ROW_B = normal(2, 3), normal(2, 3)

#: Each norm as a function of a module and of tensors, and those tensors.
NORMS = {
    "train": (lambda m, x, w, b: m.batch_norm(x, None, None, w, b, True, 0.1, EPS), (X, W, B)),
    "evaluate": (lambda m, x, w, b: m.batch_norm(x, MEAN, VAR, w, b, False, 0.1, EPS), (X, W, B)),
    "group": (lambda m, x, w, b: m.group_norm(x, 2, w, b, EPS), (X, W, B)),
    "layer": (lambda m, x, w, b: m.layer_norm(x, (2, 3), w, b, EPS), (X, ROW, ROW_B)),
    "rms": (lambda m, x, w: m.rms_norm(x, (2, 3), w, EPS), (X, ROW)),
    "instance": (lambda m, x, w, b: m.instance_norm(x, weight=w, bias=b, eps=EPS), (X, W, B)),
    "train, no affine": (lambda m, x: m.batch_norm(x, None, None, training=True, eps=EPS), (X,)),
    "group, no affine": (lambda m, x: m.group_norm(x, 2, eps=EPS), (X,)),
    "layer, weight": (lambda m, x, w: m.layer_norm(x, (2, 3), w, eps=EPS), (X, ROW)),
    "frozen weight": (lambda m, x, b: m.batch_norm(x, MEAN, VAR, W, b, False, 0.1, EPS), (X, B)),
}  # fmt: skip


def of(module, norm):
    call, tensors = NORMS[norm]
    return (lambda *given: call(module, *given)), tensors


def leaves(*tensors):
    return tuple(t.clone().requires_grad_() for t in tensors)


@pytest.mark.every_case
@pytest.mark.parametrize("norm", NORMS)
def test_gradcheck(norm):
    """First and second derivatives, backwards, forwards over backwards, and batched."""
    function, tensors = of(nt.functional, norm)
    assert gradcheck(function, leaves(*tensors), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(
        function, leaves(*tensors), check_fwd_over_rev="group" not in norm, check_batched_grad=True
    )


def powers(function, tensors, order):
    """The derivatives of an order: each is of the sum of the cubes of those before it."""
    given = leaves(*tensors)
    values = (function(*given),)
    for _ in range(order):
        total = sum(value.pow(3).sum() for value in values)
        values = torch.autograd.grad(total, given, create_graph=True, materialize_grads=True)
    return [value.detach() for value in values]


@pytest.mark.every_case
@pytest.mark.parametrize("norm", NORMS)
def test_derivatives_of_the_gradients_are_pytorch_s(norm):
    """Of the third order too, some of which are wrong in PyTorch: batch, instance and layer norm's.

    Instance norm is computed as group norm, whose third derivatives PyTorch has right.
    """
    for order in (1, 2) if norm == "instance" else (1, 2, 3):
        expected, found = (
            powers(*of(module, norm), order) for module in (theirs, nt.functional)
        )  # fmt: skip
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.every_case
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_that_are_recorded_agree_with_those_of_kernels(norm):
    """And kernels compute again afterwards, with the graph that is kept."""
    function, tensors = of(nt.functional, norm)
    given = leaves(*tensors)
    output, dy = function(*given), normal(*X.shape)

    def gradients(**options):
        return torch.autograd.grad(output, given, dy, retain_graph=True, **options)

    before, recorded, after = gradients(), gradients(create_graph=True), gradients()
    assert all(value.grad_fn is not None for value in recorded[:1])
    assert all(map(torch.equal, before, after))
    torch.testing.assert_close(recorded, before, rtol=1e-9, atol=1e-9)


@pytest.mark.every_case
@pytest.mark.parametrize("norm", NORMS)
def test_batched_gradients(norm):
    function, tensors = of(nt.functional, norm)
    given, many = leaves(*tensors), normal(3, *X.shape)
    output = function(*given)
    together = torch.autograd.grad(output, given, many, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(output, given, one, retain_graph=True) for one in many]
    for found, *expected in zip(together, *each, strict=True):
        torch.testing.assert_close(found, torch.stack(expected))


def loss(norm):
    return lambda *tensors: norm(*tensors).pow(3).sum()


TRANSFORMS = {
    "grad": lambda f, x, w: func.grad(loss(f), (0, 1))(x, w),
    "vjp": lambda f, x, w: func.vjp(f, x, w)[1](X),
    "jvp": lambda f, x, w: func.jvp(f, (x, w), (x, w + 1)),
    "jacrev": lambda f, x, w: func.jacrev(f, (0, 1))(x, w),
    "jacfwd": lambda f, x, w: func.jacfwd(f, (0, 1))(x, w),
    "hessian": lambda f, x, w: func.hessian(loss(f), (0, 1))(x, w),
    "jacrev of jacrev": lambda f, x, w: func.jacrev(func.jacrev(loss(f), (0, 1)), (0, 1))(x, w),
    "vmap": lambda f, x, w: func.vmap(f)(torch.stack([x, -x]), torch.stack([w, w + 1])),
    "vmap of grad": lambda f, x, w: func.vmap(func.grad(loss(f), (0, 1)), (0, None))(
        torch.stack([x, x + 1]), w
    ),
    "grad of autograd": lambda f, x, w: func.grad(
        lambda x: sum(g.square().sum() for g in func.grad(loss(f), (0, 1))(x, w))
    )(x),
}


@pytest.mark.every_case
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("norm", ["train", "evaluate", "group", "layer", "rms"])
def test_transforms(norm, transform):
    """PyTorch's functions, to the bit; or its error."""
    outcomes = []
    for module in (theirs, nt.functional):
        function, (x, w, *bias) = of(module, norm)
        try:
            found = TRANSFORMS[transform](lambda x, w, f=function, b=bias: f(x, w, *b), x, w)
            outcomes.append(torch.utils._pytree.tree_leaves(found))
        except RuntimeError as error:
            outcomes.append(str(error))
    expected, found = outcomes
    if isinstance(expected, str):
        assert found == expected
    else:
        assert all(map(torch.equal, found, expected))


@pytest.mark.every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["train", "evaluate", "group", "layer", "rms"])
def test_second_derivatives_of_halves_are_pytorch_s(norm, dtype):
    """Of the same gradients' graph: cotangents of the first derivatives, without a loss between."""
    x, dy, u = (normal(3, 4, 2, 3).to(dtype) for _ in range(3))
    outcomes = []
    for module in (theirs, nt.functional):
        function, (_, w, *bias) = of(module, norm)
        if norm == "evaluate":
            mean, var = MEAN.float(), VAR.float()

            def function(x, w, b, m=module, mean=mean, var=var):
                return m.batch_norm(x, mean, var, w, b, False, 0.1, EPS)

        given = leaves(x, dy, w.to(dtype if norm == "rms" else torch.float32))
        output = function(given[0], given[2], *(b.float() for b in bias))
        first = torch.autograd.grad(output, given[::2], given[1], create_graph=True)
        outcomes.append(torch.autograd.grad(first, given, (u, copy.copy(given[2].detach()))))
    assert all(map(torch.equal, *outcomes))


def test_modes_of_forward_derivatives():
    """Tangents are differentiable only where gradients are enabled."""
    from torch.autograd import forward_ad

    function, (x, w, b) = of(nt.functional, "train")
    (x,) = leaves(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, X)
        assert forward_ad.unpack_dual(function(dual, w, b)).tangent.requires_grad
        with torch.no_grad():
            output = function(dual, w, b)
            assert not output.requires_grad
            assert not forward_ad.unpack_dual(output).tangent.requires_grad
