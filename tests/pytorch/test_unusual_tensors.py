"""Tensors that normgrad does not take, as inputs and as gradients: what PyTorch's layers do."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch")
two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")

from layer_pairs import LAYERS, data, pair  # noqa: E402
from torch.overrides import BaseTorchFunctionMode  # noqa: E402
from torch.utils._device import DeviceContext  # noqa: E402

from normgrad.torch import functional, native  # noqa: E402

F = torch.nn.functional
FUNCTIONS = [F.batch_norm, F.group_norm, F.layer_norm, F.rms_norm, F.instance_norm]


class Subclass(torch.Tensor):
    """A class without rules of its own."""


class Handled(torch.Tensor):
    """A class that knows PyTorch's functions, and no others."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in FUNCTIONS:
            return f"its own {function.__name__}"
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A class that has rules for PyTorch's operators, and no others."""

    @staticmethod
    def __new__(cls, whole):
        made = torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=whole.dtype)
        made.whole = whole
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function.namespace != "aten":
            raise NotImplementedError(f"no rule for {function}")
        inner = torch.utils._pytree.tree_map_only(cls, lambda value: value.whole, args)
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, cls, function(*inner, **kwargs or {})
        )


def made_in_inference_mode(x):
    with torch.inference_mode():
        return x.clone()


#: What makes a tensor of each kind from a plain one.
KINDS = {
    "a subclass": lambda x: x.as_subclass(Subclass),
    "with rules for functions": lambda x: x.as_subclass(Handled),
    "with rules for operators": Wrapped,
    "two tensors": lambda x: two_tensor.TwoTensor(x, 2 * x),
    "for functionalize": torch._to_functional_tensor,
    "of zeros": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "negated": torch._neg_view,
    "an imaginary part": lambda x: torch.complex(x, x).conj().imag,
    "complex": lambda x: torch.complex(x, x),
    "a conjugate": lambda x: torch.complex(x, x).conj(),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.flatten(0, -2).to_sparse_csr(),
    "MKL-DNN's": lambda x: x.float().to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[0], x[1, :1]], layout=torch.jagged),
    "without data": lambda x: x.to("meta"),
    "expanded": lambda x: x[:1].expand(x.shape),
    "one element": lambda x: x.flatten()[0].expand(x.shape),
    "integers": lambda x: x.long(),
    "booleans": lambda x: x > 0,
    "eight bits": lambda x: x.to(torch.float8_e4m3fn),
    "a parameter": torch.nn.Parameter,
    "of inference mode": made_in_inference_mode,
    "a list": lambda x: x.tolist(),
}


def shown(value):
    """What a test compares of a result: for tensors, their class, form and values."""
    if not isinstance(value, torch.Tensor):
        return value
    form = type(value), value.dtype, value.device, value.layout, value.requires_grad
    value = value.detach()
    if torch._is_functional_tensor(value):
        torch._sync(value)
        value = torch._from_functional_tensor(value)
    if isinstance(value, two_tensor.TwoTensor):
        return form, value.a, value.b
    if isinstance(value, Wrapped):
        return form, value.whole
    if value.is_nested:
        return form, list(value.unbind())
    if value.is_meta:
        return form, value.shape, value.stride()
    value = value.as_subclass(torch.Tensor).resolve_neg()
    return form, value if value.layout is torch.strided else value.to_dense()


def error(raised):
    """An error's type and text, without the names of nodes, operators and symbols."""
    text = re.sub(r"\b(aten|normgrad)(::|\.)|\bj\d+|0x[0-9a-f]+|\w+Backward\d*", "", str(raised))
    return type(raised).__name__, text[:200]


@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore")  # of sparse and nested tensors, and what PyTorch deprecates
@pytest.mark.parametrize("kind", KINDS)
def test_inputs(kind):
    """The first call, and one whose plan is ready."""
    for name in LAYERS:
        if kind == "of inference mode" and name == "RMSNorm":
            continue  # PyTorch's function saves no inputs here
        if kind == "of zeros" and name == "GroupNorm":
            continue  # PyTorch's function raises an error of its kernel's
        for training in (True, False):
            for again in (False, True):
                outcomes = []
                for layer in pair(name, training):
                    if again:
                        layer(data(name))
                    try:
                        y = layer(KINDS[kind](data(name)))
                        results = [y, *layer.buffers()]
                        if isinstance(y, torch.Tensor) and y.requires_grad:
                            y.backward(torch.ones_like(y) * 2)
                            results += [each.grad for each in layer.parameters()]
                        outcomes.append([*map(shown, results)])
                    except Exception as raised:
                        outcomes.append(error(raised))
                same(outcomes, (name, training, again))


def same(outcomes, where):
    theirs, ours = outcomes
    if isinstance(theirs, (list, tuple)):
        assert type(ours) is type(theirs), (where, ours, theirs)
        assert len(ours) == len(theirs), (where, ours, theirs)
        for each in zip(ours, theirs, strict=True):
            same(each, where)
    elif isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, msg=lambda text: f"{where}: {text}")
    else:
        assert ours == theirs, where


class ExtendedDevice(DeviceContext):
    """A mode that may do more than to say where tensors are made."""


@pytest.mark.filterwarnings("ignore")  # of sparse and nested tensors
def test_which_tensors_kernels_read():
    """As inputs and as parameters; the calls of others are PyTorch's."""
    x, w = torch.ones(2, 3, 4), torch.ones(4)

    def reads(x, w):
        return native.layer_norm(x, (4,), w, None, 1e-5) is not NotImplemented

    assert all(reads(x.requires_grad_(), each) for each in (None, w, w.half(), w.double()))
    plain = {"expanded", "one element", "a parameter", "of inference mode"}
    assert {kind for kind, of in KINDS.items() if reads(of(torch.ones(2, 3, 4)), w)} == plain
    assert not reads(x, w.as_subclass(Subclass))
    for is_mode, contexts in (
        (False, [torch.device("meta"), torch.device("cpu")]),
        (True, [torch.device("cpu"), BaseTorchFunctionMode(), torch.device("cpu")]),
        (True, [ExtendedDevice("cpu")]),
    ):
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            assert reads(x, w) is not is_mode, contexts
    of_new_shape = torch.ones(7, 3, 4)
    torch.set_default_device("meta")
    try:
        assert reads(of_new_shape, w)
    finally:
        torch.set_default_device(None)


#: What kinds of tensors are tried as gradients, and what else.
GRADIENTS = {
    **{
        name: KINDS[name]
        for name in (
            "a subclass", "with rules for functions", "with rules for operators", "two tensors",
            "for functionalize", "of zeros", "negated", "an imaginary part", "expanded",
            "one element", "a parameter", "of inference mode", "without data",
        )
    },
    "of another dtype": lambda x: x.float(),
    "of a wrong shape": lambda x: x[:1],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "that requires gradients": lambda x: x.clone().requires_grad_(),
}  # fmt: skip


@pytest.mark.every_case
@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients(kind):
    """The first backward pass, one whose plan is ready, and one that autograd records."""
    for name in LAYERS:
        if kind == "of zeros" and name == "GroupNorm":
            continue  # PyTorch's own node raises an error of its kernel's; see below
        for training in (True, False):
            for way in ("first", "again", "recorded"):
                outcomes = []
                for layer in pair(name, training):
                    x = data(name).requires_grad_()
                    if way == "again":
                        torch.autograd.grad(layer(x).sum(), x)
                    leaves = x, *layer.parameters()
                    try:
                        y, gradient = layer(x), GRADIENTS[kind](data(name, 5))
                        if way == "recorded" and kind not in (
                            "of zeros",
                            "with rules for functions",
                        ):
                            found = torch.autograd.grad(y, leaves, gradient, create_graph=True)
                            found = [value.detach() for value in found]
                        else:
                            found = torch.autograd.grad(y, leaves, gradient)
                        outcomes.append([*map(shown, found)])
                    except Exception as raised:
                        outcomes.append(error(raised))
                same(outcomes, (name, training, way))


def test_a_gradient_of_zeros_is_zero():
    for name in LAYERS:
        for training in (True, False):
            _, layer = pair(name, training)
            x = data(name).requires_grad_()
            zeros = torch._efficientzerotensor(x.shape, dtype=x.dtype)
            for _ in range(2):
                for value in torch.autograd.grad(layer(x), (x, *layer.parameters()), zeros):
                    assert not value.any()


@pytest.mark.every_case
@pytest.mark.parametrize("name", LAYERS)
def test_functionalize(name):
    """It wraps what the layer computes, but not the layer's own tensors."""
    for training in (True, False):
        results = []
        for layer in pair(name, training):
            layer.requires_grad_(False)
            call = torch.func.functionalize(layer)
            results.append([call(data(name, seed)) for seed in range(2)] + [*layer.buffers()])
        same(results, training)


def test_classes_with_rules_see_pytorch_s_functions():
    for function, arguments in zip(
        FUNCTIONS, [(None, None, None, None, True), (2,), ((5,),), ((5,),), ()], strict=True
    ):
        ours = getattr(functional, function.__name__)
        x = torch.randn(3, 4, 5).as_subclass(Handled)
        assert ours(x, *arguments) == f"its own {function.__name__}"
        plain, w = torch.randn(3, 4, 5), torch.ones(5).as_subclass(Handled)
        if function is F.layer_norm:
            assert ours(plain, (5,), w) == "its own layer_norm"
