"""PyTorch's own test data: its samples for these functions and layers, inside and outside."""

from __future__ import annotations

import contextlib
from functools import cache

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

OPERATORS = (
    "nn.functional.batch_norm",
    "native_batch_norm",
    "nn.functional.group_norm",
    "nn.functional.instance_norm",
)
LAYERS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d",
          "InstanceNorm2d", "InstanceNorm3d")  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
OURS = {
    "nn.functional.batch_norm": nt.functional.batch_norm,
    "nn.functional.group_norm": nt.functional.group_norm,
}


#: Where PyTorch keeps them. They take seconds to import, so that only tests do.
SHIPPED = "torch.testing._internal"


@cache
def operators():
    methods = pytest.importorskip(f"{SHIPPED}.common_methods_invocations")
    found = {info.name: info for info in methods.op_db if info.name in OPERATORS}
    assert set(found) == set(OPERATORS)
    return found


@cache
def layers():
    modules = pytest.importorskip(f"{SHIPPED}.common_modules")
    return {
        name: next(info for info in modules.module_db if info.module_cls is getattr(torch.nn, name))
        for name in LAYERS
    }


def samples(name, dtype):
    torch.manual_seed(0)
    return list(operators()[name].sample_inputs("cpu", dtype, requires_grad=True))


def tensors(sample):
    everything = (sample.input, *sample.args, *sample.kwargs.values())
    return [value for value in everything if isinstance(value, torch.Tensor)]


def gradients(function, sample):
    """The output, its gradients, and what became of the other tensors."""
    cloned = sample.transform(
        lambda value: value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor) else value
    )  # fmt: skip
    output = function(cloned.input, *cloned.args, **cloned.kwargs)
    first = output if isinstance(output, torch.Tensor) else output[0]
    wanted = [value for value in tensors(cloned) if value.requires_grad]
    dy = torch.linspace(-1, 2, first.numel(), dtype=first.dtype).reshape(first.shape)
    if not first.requires_grad:
        return first, [], tensors(cloned)
    found = torch.autograd.grad(first, wanted, dy, allow_unused=True)
    return first, list(found), [value for value in tensors(cloned) if not value.requires_grad]


def compare(ours, theirs, dtype):
    tolerance = {"rtol": 2**-6, "atol": 2**-4} if dtype == torch.bfloat16 else {}
    if dtype == torch.float32:
        tolerance = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_samples_of_functions(name, dtype):
    """PyTorch's function inside the override, and outside."""
    function = operators()[name].op
    for sample in samples(name, dtype):
        theirs = gradients(function, sample)
        with nt.override():
            ours = gradients(function, sample)
        compare(ours, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OURS)
def test_samples_by_our_functions(name, dtype):
    for sample in samples(name, dtype):
        compare(gradients(OURS[name], sample), gradients(operators()[name].op, sample), dtype)


def function_of(function, sample, wanted):
    """The function of a sample's tensors that want gradients, with copies of the others.

    Running statistics must be the same each time.
    """

    def result(*given):
        places = dict(zip(map(id, wanted), given, strict=True))

        def moved(value):
            if isinstance(value, torch.Tensor):
                return places.get(id(value), value.detach().clone())
            return value

        sent = sample.transform(moved)
        output = function(sent.input, *sent.args, **sent.kwargs)
        return output if isinstance(output, torch.Tensor) else output[0]

    return result


@pytest.mark.parametrize("name", OPERATORS)
def test_gradcheck(name):
    """As PyTorch's tests of gradients do, by our kernels."""
    checked = 0
    for sample in samples(name, torch.float64):
        wanted = tuple(value for value in tensors(sample) if value.requires_grad)
        if not wanted or sample.input.numel() == 0:
            continue
        with nt.override():
            function = function_of(operators()[name].op, sample, wanted)
            assert torch.autograd.gradcheck(function, wanted, fast_mode=True)
        if name in OURS:
            function = function_of(OURS[name], sample, wanted)
            assert torch.autograd.gradcheck(function, wanted, fast_mode=True)
            assert torch.autograd.gradgradcheck(function, wanted, fast_mode=True)
        checked += 1
    assert checked


def layer_results(info, given, dtype, training, how):
    constructor = given.constructor_input
    torch.manual_seed(0)
    layer = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(training)
    for parameter in layer.parameters():
        torch.nn.init.uniform_(parameter)
    with how(layer) as used:
        arguments = [value.detach().clone().requires_grad_() for value in given.forward_input.args]
        output = used(*arguments)
        dy = torch.linspace(-1, 2, output.numel(), dtype=dtype).reshape(output.shape)
        found = torch.autograd.grad(output, (*arguments, *used.parameters()), dy)
    return output, list(found), list(used.buffers())


@contextlib.contextmanager
def inside(layer):
    with nt.override():
        yield layer


@contextlib.contextmanager
def converted(layer):
    yield nt.convert(layer)


@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore:normgrad.torch.convert left")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("how", [inside, converted])
def test_samples_of_layers(name, dtype, how):
    """PyTorch's layers inside the override, and converted; in training and in evaluation."""
    info = layers()[name]
    for training in (True, False):
        torch.manual_seed(0)
        given = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for sample in given:
            results = [
                layer_results(info, sample, dtype, training, each)
                for each in (how, contextlib.nullcontext)
            ]
            compare(*results, dtype)
