"""The norms' functions as operators of PyTorch, each of which does all that its function does.

An operator has the arguments of PyTorch's function, and updates running statistics in place. It
decides when it runs whether normgrad or PyTorch computes. The library of C++ kernels (extension.py)
computes the operators of :data:`IN_CPP` on plain tensors; all other calls are computed here.
Since they take no sizes, ``torch.jit.trace`` records them, and traced programs take every size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .. import contract, devices
from ..plans import call
from . import extension, watching
from .kernels import output_for
from .nodes import NORMS, Norm, any_requires_grad, call_schema, clones
from .schemas import overload

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_SIZES = (int, torch.SymInt)

_AFFINE = "Tensor? weight, Tensor? bias"
_RUNNING = "Tensor? running_mean, Tensor? running_var"
_ROW = "Tensor input, int[] normalized_shape, Tensor? weight"
#: The arguments of the operators.
ARGUMENTS = {
    "batch_norm": f"Tensor input, {_RUNNING}, {_AFFINE}, bool training, float momentum, float eps",
    "cumulative_batch_norm": (
        f"Tensor input, Tensor running_mean, Tensor running_var, {_AFFINE}, Tensor batches, "
        "float eps"
    ),
    "group_norm": f"Tensor input, int num_groups, {_AFFINE}, float eps",
    "layer_norm": f"{_ROW}, Tensor? bias, float eps",
    "rms_norm": f"{_ROW}, float? eps",
    "instance_norm": (
        f"Tensor input, {_RUNNING}, {_AFFINE}, bool use_input_stats, float momentum, float eps"
    ),
}


def _is_number(value: Any, kinds: tuple[type, ...] = NUMBERS) -> bool:
    """Whether the operators take a value as a number; PyTorch's functions also take booleans."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_number(value, _SIZES)


#: The tests whether an operator takes a value, by the type of the argument.
_TESTS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda value: isinstance(value, Tensor),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_size,
    "int[]": lambda value: isinstance(value, (tuple, list)) and all(map(_is_size, value)),
    "float": _is_number,
}
#: The types of each operator's arguments.
_TYPES = {
    name: [argument.split()[0] for argument in text.split(", ")] for name, text in ARGUMENTS.items()
}


def accepts(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a function's operator takes arguments of these types, as its schema says.

    PyTorch's functions refuse, or take, others.
    """
    return all(
        (value is None and kind[-1] == "?") or _TESTS[kind.rstrip("?")](value)
        for kind, value in zip(_TYPES[name], arguments, strict=True)
    )


def exports_onnx() -> bool:
    """Whether a model is being exported to ONNX, which supports only PyTorch's own operators."""
    onnx = sys.modules.get("torch.onnx")  # an export has loaded it
    return onnx is not None and onnx.is_in_onnx_export()


def is_usable(index: int) -> bool:
    """Whether normgrad computes on the GPU with an index."""
    return devices.unusable(index) is None


# This is what torch.compiler.assume_constant_result does, but that imports the compiler, which
# takes seconds. Dynamo then takes the answers as constants, and does not trace Triton and CUDA's
# driver.
exports_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]
is_usable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Whether torch.jit.trace records operators."""
    return torch._C._get_tracing_state() is not None and not exports_onnx()


def update_running(
    running: Sequence[Tensor | None], new: Sequence[Tensor], batches: Tensor | None
) -> None:
    """Update running statistics in place, as the average over this many batches if it is not None.

    The number stays in its tensor, since reading it would break a compiled graph. PyTorch's batch
    norm leaves the versions as they are, unless a mode sees it.
    """
    keeps_versions = watching.unwatched() and watching.readable(*running)
    for value, other in zip(running, new, strict=True):
        if value is None:
            continue
        old = value.data if keeps_versions else value
        if batches is None:
            old.copy_(other)
        else:
            old.lerp_(other, batches.to(old.dtype).reciprocal())


def _is_supported(tensor: Any) -> bool:
    """Whether normgrad supports a tensor's device, dtype and layout."""
    return (
        isinstance(tensor, Tensor)
        and (tensor.is_cpu or (tensor.is_cuda and is_usable(tensor.device.index)))
        and tensor.dtype in FLOATS
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def _supports(input: Any, parameters: Sequence[Any], axes: slice, eps: Any) -> bool:
    """Whether normgrad takes these tensors; ``axes`` are the input's axes that parameters have."""
    if not (
        _is_supported(input)
        and input.dim() <= contract.MAX_RANK
        and _is_number(eps)
        and eps >= 0  # PyTorch's functions compute with, or refuse, NaN and negative numbers
        and not exports_onnx()
    ):
        if isinstance(input, Tensor) and input.is_quantized:
            raise TypeError(
                "input: a quantised tensor; allowed: one of floating point; "
                "normgrad.torch.revert(model) first"
            )
        return False
    shape = input.shape[axes]
    return len(shape) > 0 and all(
        each is None
        or (_is_supported(each) and each.device == input.device and each.shape == shape)
        for each in parameters
    )


def _supports_batch_norm(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    (input, *parameters), (training, momentum, eps) = tensors, choices
    running = parameters[2:]
    if not (
        isinstance(training, bool)
        and _is_number(momentum)
        and _supports(input, parameters, slice(1, 2), eps)
        # PyTorch does not update the running statistics from an empty input.
        and input.numel() != 0
        # normgrad computes no derivatives by running statistics.
        and all(map(watching.is_constant, running))
    ):
        return False
    absent = [value is None for value in running]
    if not training:
        return not any(absent)
    several = input.numel() != input.shape[1]  # more than one value per channel
    return absent[0] == absent[1] and several and bool(eps > 0)


def _supports_group_norm(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    (input, *parameters), (groups, eps) = tensors, choices
    return (
        _is_size(groups)
        and groups > 0
        and _supports(input, parameters, slice(1, 2), eps)
        and input.shape[1] % groups == 0
        # PyTorch raises an error if a single sample has a single value per group, and only then.
        and input.numel() != groups
    )


def _supports_rows(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    (input, *parameters), (shape, eps) = tensors, choices
    if eps is None and len(parameters) == 1:
        eps = 0.0  # a stand-in that passes the check; the operator has a default of its own
    return (
        len(shape) > 0
        and _supports(input, parameters, slice(-len(shape), None), eps)
        and tuple(input.shape[-len(shape) :]) == shape
        # PyTorch's functions have special rules for empty inputs.
        and input.numel() != 0
    )


def _sizes(normalized_shape: Any) -> tuple[Any, ...]:
    """The sizes as a tuple; an empty one for what PyTorch's functions do not take as sizes."""
    return tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else ()


#: Whether normgrad computes a norm for the tensors and choices of :func:`_compute`.
_SUPPORTS = {
    "batch_norm": _supports_batch_norm,
    "group_norm": _supports_group_norm,
    "layer_norm": _supports_rows,
    "rms_norm": _supports_rows,
}
#: The tensors and choices of :func:`_compute`, from the arguments of each norm's function.
_SPLITS: dict[str, Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]] = {
    "batch_norm": lambda x, mean, var, weight, bias, *rest: ((x, weight, bias, mean, var), rest),
    "group_norm": lambda x, groups, weight, bias, eps: ((x, weight, bias), (groups, eps)),
    "layer_norm": lambda x, shape, weight, bias, eps: ((x, weight, bias), (_sizes(shape), eps)),
    "rms_norm": lambda x, shape, weight, eps: ((x, weight), (_sizes(shape), eps)),
}
#: The operators that C++ kernels compute.
IN_CPP = tuple(_SPLITS)


def _call_stock(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], batches: Tensor | None
) -> Tensor:
    """Call PyTorch's function, which does not know of ``batches``."""
    if batches is None:
        return function(*arguments)
    input, *running = arguments[:3]
    # The copies begin with the old values, which an empty batch does not change.
    new = clones(running)
    output = function(input, *new, *arguments[3:])
    update_running(running, new, batches)
    return output


def _compute(
    name: str,
    norm: Norm,
    tensors: tuple[Any, ...],
    choices: tuple[Any, ...],
    arguments: tuple[Any, ...],
    batches: Tensor | None = None,
) -> Tensor:
    """Compute a norm of input, weight, bias and, in batch norm, running statistics.

    ``name`` is that of PyTorch's function, and ``arguments`` are in its order. ``choices`` are
    those that are not tensors in the order of normgrad's operator, but for the channel axis, which
    is its last. ``batches`` is as in :func:`.functional.cumulative_batch_norm`.

    Each time the dispatcher calls Python costs an operator some microseconds. If no transform,
    mode, tracer or tensor subclass needs to see the norm's operator, the call bypasses it. The
    kernels and the autograd nodes are the same.
    """
    stock: Callable[..., Tensor] = getattr(torch.nn.functional, name)
    if any(map(watching.has_rules, tensors)):
        return _call_stock(stock, arguments, batches)
    if is_traced() and accepts(name, arguments):
        if batches is not None:
            name, arguments = "cumulative_batch_norm", (*arguments[:5], batches, arguments[-1])
        output: Tensor = overload(name)(*arguments)
        return output
    if not _SUPPORTS[norm.name](tensors, choices):
        return _call_stock(stock, arguments, batches)
    running = tensors[3:]
    is_training = choices[0]  # of batch norm, which alone has running statistics
    updates_running = bool(running and is_training and running[0] is not None)
    # CUDA's autocast leaves batch norm and instance norm as they are.
    if (
        name not in ("batch_norm", "instance_norm")
        and tensors[0].is_cuda
        and torch.is_autocast_enabled("cuda")
    ):
        tensors = tuple(map(_as_autocast, tensors))
    if watching.unwatched() and watching.readable(*tensors):
        running_out = running if updates_running and batches is None else ()
        results = _run_plan(norm, tensors, choices, running_out)
        if updates_running and batches is not None:
            update_running(running, results[3:], batches)
        return _attach_node(norm, results, tensors, choices)
    fits = True

    def store(results: Sequence[Tensor]) -> None:
        nonlocal fits
        try:
            update_running(running, results[3:], batches)
        except RuntimeError:
            # A transform has computed the new ones, as one for each member of vmap's batch.
            fits = False

    results = call_schema(norm.schema, (*tensors, *choices), store if updates_running else None)
    if not fits:
        # PyTorch's function raises an error that names a remedy.
        return _call_stock(stock, arguments, batches)
    first: Tensor = results[0]
    return first


def _run_plan(
    norm: Norm, tensors: tuple[Any, ...], choices: tuple[Any, ...], running_out: tuple[Any, ...]
) -> Any:
    """The results of a norm's operator by its plan, which overwrites these running statistics."""
    extension.mention(tensors[0].is_cuda)
    output, operator = output_for(tensors[0]), norm.schema.operator
    out = None
    if output is not None or running_out:
        absent = len(operator.all_outputs) - 1 - len(running_out)
        out = (output, *[None] * absent, *running_out)
    plans: list[Any] = []
    results = call(
        operator, tensors, out, choices, read_next=True, is_recorded=True, tell=plans.append
    )
    extension.hand_over(plans[0], operator.names, tensors, results)
    return results


def _attach_node(norm: Norm, results: Any, tensors: tuple[Any, ...], choices: Any) -> Tensor:
    """The output, with an autograd node if it may get a gradient."""
    output: Tensor = results[0]
    if not torch.is_grad_enabled() or not any_requires_grad(*tensors[:3]):
        return output
    saved = norm.tensors_to_save(tensors)
    if norm.name == "rms_norm" and not saved[0].requires_grad:
        # PyTorch's RMS norm saves neither of them here, so that both may change.
        saved = saved[0].clone(), None if saved[1] is None else saved[1].data
    # A later batch may update the running statistics, which does not count as a change.
    statistics = results[1:3] if choices[0] else clones(tensors[3:])
    context = output, statistics, norm.shared_options(choices), saved
    result: Tensor = norm.node.apply(context, *tensors[:3])
    return result


def _as_autocast(tensor: Any) -> Any:
    """A tensor as CUDA's autocast would pass it to a norm: in float32, unless it is float64."""
    return tensor if tensor is None or tensor.dtype is torch.float64 else tensor.float()


def _function(name: str) -> Callable[..., Tensor]:
    """The function of a norm in :data:`_SPLITS`."""
    norm, split = NORMS[name], _SPLITS[name]
    return lambda *arguments: _compute(name, norm, *split(*arguments), arguments)


def _cumulative_batch_norm(*arguments: Any) -> Tensor:
    """Compute :func:`.functional.cumulative_batch_norm`."""
    *tensors, batches, eps = arguments
    arguments = (*tensors, True, 1.0, eps)
    split = _SPLITS["batch_norm"](*arguments)
    return _compute("batch_norm", NORMS["batch_norm"], *split, arguments, batches)


def _instance_norm(*arguments: Any) -> Tensor:
    """Compute :func:`.functional.instance_norm`."""
    stock: Callable[..., Tensor] = torch.nn.functional.instance_norm
    name = "instance_norm"
    input, mean, var, weight, bias, use_input_stats, momentum, eps = arguments
    if any(map(watching.has_rules, arguments[:5])):
        return stock(*arguments)
    if is_traced() and accepts(name, arguments):
        output: Tensor = overload(name)(*arguments)
        return output
    if not (
        isinstance(input, Tensor)
        and input.dim() > 2
        and prod(input.shape[2:]) > 1
        and isinstance(use_input_stats, bool)
        and _is_number(momentum)
        and use_input_stats == (mean is None and var is None)
    ):
        return stock(*arguments)
    # PyTorch's function saves copies: all but the input may change before the backward pass.
    tensors: tuple[Any, ...] = (input, _copy(weight), bias)
    if not use_input_stats:
        tensors = (*tensors, _copy(mean), _copy(var))
        return _compute(name, NORMS["batch_norm"], tensors, (False, momentum, eps), arguments)
    choices = input.shape[1], eps
    of_groups = input, choices[0], *tensors[1:], eps
    if (
        "group_norm" in operators_in_cpp
        and input.is_cpu  # unlike group norm, CUDA's autocast leaves it as it is
        and _suits_cpp("group_norm", of_groups)
        and _supports_group_norm(tensors, choices)
    ):
        return _by_cpp("group_norm", of_groups)
    return _compute(name, NORMS["group_norm"], tensors, choices, arguments)


def _copy(value: Any) -> Any:
    """A copy of a tensor whose changes autograd would see; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) and torch.is_grad_enabled() else value


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: _function(name) for name in _SPLITS},
    "cumulative_batch_norm": _cumulative_batch_norm,
    "instance_norm": _instance_norm,
}

#: The operators with C++ kernels, if the library is loaded.
operators_in_cpp: dict[str, Callable[..., Tensor]] = {}


def define(library: torch.library.Library) -> None:
    """Define the operators, and their twins of Python that the C++ kernels call."""
    for name, text in ARGUMENTS.items():
        names = [name, f"{name}_python"] if extension.is_loaded() and name in IN_CPP else [name]
        for each in names:
            # By default the compiler of traced programs assumes that an operator may write to its
            # arguments, as these do to running statistics.
            library.define(f"{each}({text}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
            library.impl(each, _FUNCTIONS[name], "CompositeImplicitAutograd")
        if len(names) > 1:
            # C++ kernels have no rule for vmap, and do not convert as autocast does.
            library.impl(name, _FUNCTIONS[name], "FuncTorchBatched")
            library.impl(name, _FUNCTIONS[name], "AutocastCUDA")
            operators_in_cpp[name] = overload(name)


#: The types of arguments with which C++ kernels may compute, by function.
_suitable: dict[str, set[tuple[type, ...]]] = {name: set() for name in IN_CPP}
_BASIC_TYPES = (Tensor, torch.nn.Parameter, bool, int, float, tuple, type(None))


def compute(name: str, arguments: tuple[Any, ...]) -> Tensor:
    """Compute a function: by its operator in C++ if that takes the arguments, else in Python."""
    if name in operators_in_cpp and _suits_cpp(name, arguments):
        return _by_cpp(name, arguments)
    return _FUNCTIONS[name](*arguments)


def _by_cpp(name: str, arguments: tuple[Any, ...]) -> Tensor:
    """Call a function's operator in C++; Python refuses numbers that C++ cannot hold."""
    try:
        return operators_in_cpp[name](*arguments)
    except RuntimeError:
        if not any(map(_is_large, arguments)):
            raise
    return _FUNCTIONS[name](*arguments)


def _is_large(value: Any) -> bool:
    """Whether an argument is, or has, an integer of more than 64 bits."""
    if isinstance(value, tuple):
        return any(map(_is_large, value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def _suits_cpp(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a function's operator in C++ takes these arguments, and is not recorded."""
    if watching.is_recorded():  # first: a compiler would watch the set of types, and the set grows
        return False
    types = tuple(map(type, arguments))
    if types[1] is tuple:
        types += tuple(map(type, arguments[1]))
    if types not in _suitable[name]:
        if not (all(kind in _BASIC_TYPES for kind in types) and accepts(name, arguments)):
            return False
        _suitable[name].add(types)
    return True
