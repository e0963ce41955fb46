"""The norms' functions as operators of PyTorch, each of which does all that its function does.

An operator has the arguments of PyTorch's function, and updates running statistics in place. It
decides when it runs whether normgrad or PyTorch computes. The library of C++ kernels (extension.py)
computes the operators of :data:`IN_CPP` on plain tensors; all other calls are computed here.
Since they take no sizes, ``torch.jit.trace`` records them, and traced programs take every size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from .. import contract, devices
from ..plans import call
from . import extension, watching
from .kernels import output_for
from .nodes import NORMS, Norm, any_requires_grad, called, clones

_BATCH_NORM, _GROUP_NORM = NORMS["batch_norm"], NORMS["group_norm"]
_LAYER_NORM, _RMS_NORM = NORMS["layer_norm"], NORMS["rms_norm"]

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def _is_number(value: Any) -> bool:
    """Whether the operators take a value as a number; PyTorch's functions also take booleans."""
    return isinstance(value, NUMBERS) and not isinstance(value, bool)


def batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: Any,
    momentum: Any, eps: Any,
) -> Tensor:  # fmt: skip
    """Compute :func:`.functional.batch_norm`."""
    arguments = (input, running_mean, running_var, weight, bias, training, momentum, eps)
    tensors = (input, weight, bias, running_mean, running_var)
    return _norm("batch_norm", _BATCH_NORM, _supports_batch_norm, tensors, arguments[5:], arguments)


def cumulative_batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, batches: Any, eps: Any
) -> Tensor:  # fmt: skip
    """Compute :func:`.functional.cumulative_batch_norm`."""
    choices = (True, 1.0, eps)
    arguments = (input, running_mean, running_var, weight, bias, *choices)
    tensors = (input, weight, bias, running_mean, running_var)
    return _norm(
        "batch_norm", _BATCH_NORM, _supports_batch_norm, tensors, choices, arguments, batches
    )


def group_norm(input: Any, num_groups: Any, weight: Any, bias: Any, eps: Any) -> Tensor:
    """Compute :func:`.functional.group_norm`."""
    tensors, choices = (input, weight, bias), (num_groups, eps)
    arguments = (input, num_groups, weight, bias, eps)
    return _norm("group_norm", _GROUP_NORM, _supports_group_norm, tensors, choices, arguments)


def layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> Tensor:
    """Compute :func:`.functional.layer_norm`."""
    tensors, choices = (input, weight, bias), (_sizes(normalized_shape), eps)
    arguments = (input, normalized_shape, weight, bias, eps)
    return _norm("layer_norm", _LAYER_NORM, _supports_rows, tensors, choices, arguments)


def rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Tensor:
    """Compute :func:`.functional.rms_norm`."""
    tensors, choices = (input, weight), (_sizes(normalized_shape), eps)
    arguments = (input, normalized_shape, weight, eps)
    return _norm("rms_norm", _RMS_NORM, _supports_rows, tensors, choices, arguments)


def instance_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, use_input_stats: Any,
    momentum: Any, eps: Any,
) -> Tensor:  # fmt: skip
    """Compute :func:`.functional.instance_norm`."""
    arguments = (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    if any(map(watching.has_rules, arguments[:5])):
        return torch.nn.functional.instance_norm(*arguments)
    if is_traced() and takes("instance_norm", arguments):
        return operator("instance_norm")(*arguments)
    absent = running_mean is None and running_var is None
    fits = (
        isinstance(input, Tensor)
        and input.dim() > 2
        and prod(input.shape[2:]) > 1
        and isinstance(use_input_stats, bool)
        and _is_number(momentum)
    )
    # PyTorch's function saves copies: all but the input may change before the backward pass.
    tensors: tuple[Any, ...] = (input, _copy(weight), bias)
    name = "instance_norm"
    if fits and use_input_stats and absent:
        choices = (input.shape[1], eps)
        of_groups = input, choices[0], *tensors[1:], eps
        if (
            "group_norm" in _in_cpp
            and input.is_cpu  # unlike group norm, CUDA's autocast leaves it as it is
            and _suits("group_norm", of_groups)
            and _supports_group_norm(tensors, choices)
        ):
            return _by_cpp("group_norm", of_groups)
        return _norm(name, _GROUP_NORM, _supports_group_norm, tensors, choices, arguments)
    if fits and not use_input_stats and not absent:
        tensors, options = (
            (*tensors, *map(_copy, (running_mean, running_var))),
            (False, momentum, eps),
        )
        return _norm(name, _BATCH_NORM, _supports_batch_norm, tensors, options, arguments)
    return torch.nn.functional.instance_norm(*arguments)


def _copy(value: Any) -> Any:
    """A copy of a tensor whose changes autograd would see; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) and torch.is_grad_enabled() else value


def _sizes(normalized_shape: Any) -> tuple[Any, ...]:
    """The sizes as a tuple; an empty one for what PyTorch's functions do not take as sizes."""
    return tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else ()


_AFFINE = "Tensor? weight, Tensor? bias"
_RUNNING = "Tensor? running_mean, Tensor? running_var"
_ROW = "Tensor input, int[] normalized_shape, Tensor? weight"
#: The arguments of the operators. The tensors come first, but for a number of groups or sizes.
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
#: The operators that C++ kernels compute.
IN_CPP = ("batch_norm", "group_norm", "layer_norm", "rms_norm")


def _is_sizes(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_KINDS["int"], value))


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


#: The questions whether an operator takes a value, by the kind of the argument.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda value: isinstance(value, Tensor),
    "Tensor?": lambda value: value is None or isinstance(value, Tensor),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_size,
    "float": _is_number,
    "float?": lambda value: value is None or _is_number(value),
    "int[]": _is_sizes,
}
#: The questions for all arguments of each operator.
_KINDS_OF = {
    name: [_KINDS[argument.split()[0]] for argument in text.split(", ")]
    for name, text in ARGUMENTS.items()
}


def operator(name: str) -> Callable[..., Tensor]:
    """The operator of a function."""
    overload: Callable[..., Tensor] = getattr(torch.ops.normgrad, name).default
    return overload


def takes(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a function's operator takes arguments of these types, as its schema says.

    PyTorch's functions refuse, or take, others.
    """
    return all(takes(value) for takes, value in zip(_KINDS_OF[name], arguments, strict=True))


def exports_onnx() -> bool:
    """Whether a model is being exported to ONNX, which supports only PyTorch's own operators."""
    onnx = sys.modules.get("torch.onnx")  # an export has loaded it
    return onnx is not None and onnx.is_in_onnx_export()


exports_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Whether torch.jit.trace records operators."""
    return torch._C._get_tracing_state() is not None and not exports_onnx()


def update(running: Sequence[Tensor], new: Sequence[Tensor], batches: Tensor | None) -> None:
    """Update running statistics in place, as the average over this many batches if it is given.

    The number stays in its tensor, since reading it would break a compiled graph. PyTorch's batch
    norm leaves the versions as they are, unless a mode sees it.
    """
    if watching.unwatched() and watching.readable(*running):
        running = [value.data for value in running]
    for value, other in zip(running, new, strict=True):
        if batches is None:
            value.copy_(other)
        else:
            value.lerp_(other, batches.to(value.dtype).reciprocal())


def _by(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], batches: Tensor | None
) -> Tensor:
    """Call a function that has PyTorch's arguments, which does not know of ``batches``."""
    if batches is None:
        return function(*arguments)
    input, *running = arguments[:3]
    # The copies begin with the old values, which an empty batch does not change.
    new = clones(running)
    output = function(input, *new, *arguments[3:])
    update(running, new, batches)
    return output


def _norm(
    name: str,
    norm: Norm,
    supports: Callable[[tuple[Any, ...], tuple[Any, ...]], bool],
    tensors: tuple[Any, ...],
    choices: tuple[Any, ...],
    arguments: tuple[Any, ...],
    batches: Tensor | None = None,
) -> Tensor:
    """Compute a norm of input, weight, bias and, in batch norm, running statistics.

    ``name`` is that of PyTorch's function. ``supports`` tells whether normgrad computes the norm
    for these tensors and choices; otherwise PyTorch does. ``choices`` are the other arguments in
    the order of normgrad's operator, but for the channel axis, which is its last; ``arguments`` are
    all in the order of PyTorch's function. ``batches`` is as in
    :func:`.functional.cumulative_batch_norm`.

    Each time the dispatcher calls Python costs an operator some microseconds. If no transform,
    mode, tracer or tensor subclass needs to see the norm's operator, the call bypasses it. The
    kernels and the autograd nodes are the same.
    """
    theirs: Callable[..., Tensor] = getattr(torch.nn.functional, name)
    if any(map(watching.has_rules, tensors)):
        return _by(theirs, arguments, batches)
    if is_traced() and takes(name, arguments):
        if batches is None:
            return operator(name)(*arguments)
        return operator("cumulative_batch_norm")(*arguments[:5], batches, arguments[-1])
    if not supports(tensors, choices):
        return _by(theirs, arguments, batches)
    running = tensors[3:]
    is_stored = bool(running and choices[0] and running[0] is not None)  # batch norm's ``training``
    # CUDA's autocast leaves batch norm and instance norm as they are.
    if (
        name not in ("batch_norm", "instance_norm")
        and tensors[0].is_cuda
        and torch.is_autocast_enabled("cuda")
    ):
        tensors = tuple(map(_as_autocast_has_it, tensors))
    if watching.unwatched() and watching.readable(*tensors):
        updated = running if is_stored and batches is None else ()
        results = _planned(norm, tensors, choices, updated)
        if is_stored and batches is not None:
            update(running, results[3:], batches)
        return _with_node(norm, results, tensors, choices)
    fits = True

    def store(results: Sequence[Tensor]) -> None:
        nonlocal fits
        try:
            update(running, results[3:], batches)
        except RuntimeError:
            # A transform has computed the new ones, as one for each member of vmap's batch.
            fits = False

    results = called(norm.schema, (*tensors, *choices), store if is_stored else None)
    if not fits:
        # PyTorch's function raises an error that names a remedy.
        return _by(theirs, arguments, batches)
    first: Tensor = results[0]
    return first


def _planned(
    norm: Norm, tensors: tuple[Any, ...], choices: tuple[Any, ...], updated: tuple[Any, ...]
) -> Any:
    """The results of a norm's operator by its plan, which overwrites these running statistics."""
    extension.mention(tensors[0].is_cuda)
    output, operator = output_for(tensors[0]), norm.schema.operator
    out = None
    if output is not None or updated:
        absent = len(operator.all_outputs) - 1 - len(updated)
        out = (output, *[None] * absent, *updated)
    plans: list[Any] = []
    results = call(operator, tensors, out, choices, read_next=True, counts=False, tell=plans.append)
    extension.hand_over(plans[0], operator.names, tensors, results)
    return results


def _with_node(norm: Norm, results: Any, tensors: tuple[Any, ...], choices: Any) -> Tensor:
    """The output, with an autograd node if gradients may be wanted."""
    output: Tensor = results[0]
    if not torch.is_grad_enabled() or not any_requires_grad(*tensors[:3]):
        return output
    saved = norm.saved(tensors)
    if norm is _RMS_NORM and not saved[0].requires_grad:
        # PyTorch's RMS norm saves neither of them here, so that both may change.
        saved = saved[0].clone(), None if saved[1] is None else saved[1].data
    # A later batch may update the running statistics, which does not count as a change.
    statistics = results[1:3] if choices[0] else clones(tensors[3:])
    context = output, statistics, norm.shared(choices), saved
    result: Tensor = norm.node.apply(context, *tensors[:3])
    return result


def _as_autocast_has_it(tensor: Any) -> Any:
    """A tensor as CUDA's autocast would pass it to a norm: in float32, unless it is float64."""
    return tensor if tensor is None or tensor.dtype is torch.float64 else tensor.float()


def is_usable(index: int) -> bool:
    """Whether normgrad computes on the GPU with an index."""
    return devices.unusable(index) is None


# This is what torch.compiler.assume_constant_result does, but that imports the compiler, which
# takes seconds. Dynamo then takes the answer as a constant, and does not trace Triton and CUDA's
# driver.
is_usable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_ours(tensor: Any) -> bool:
    """Whether normgrad supports a tensor's device, dtype and layout."""
    return (
        isinstance(tensor, Tensor)
        and (tensor.is_cpu or (tensor.is_cuda and is_usable(tensor.device.index)))
        and tensor.dtype in FLOATS
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def _supports(input: Any, parameters: tuple[Any, ...], axes: slice, eps: Any) -> bool:
    """Whether normgrad takes these tensors; ``axes`` are the input's axes that parameters have."""
    if not (
        _is_ours(input)
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
        each is None or (_is_ours(each) and each.device == input.device and each.shape == shape)
        for each in parameters
    )


def _supports_batch_norm(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    input, weight, bias, *running = tensors
    training, momentum, eps = choices
    if not (
        isinstance(training, bool)
        and _is_number(momentum)
        and _supports(input, (weight, bias, *running), slice(1, 2), eps)
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
    (input, *parameters), (group, eps) = tensors, choices
    return (
        isinstance(group, (int, torch.SymInt))
        and not isinstance(group, bool)
        and group > 0
        and _supports(input, tuple(parameters), slice(1, 2), eps)
        and input.shape[1] % group == 0
        # PyTorch raises an error if a single sample has a single value per group, and only then.
        and input.numel() != group
    )


def _supports_rows(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    (input, *parameters), (shape, eps) = tensors, choices
    if eps is None and len(parameters) == 1:
        eps = 0.0  # a stand-in that passes the check; the operator has a default of its own
    return (
        len(shape) > 0
        and _supports(input, tuple(parameters), slice(-len(shape), None), eps)
        and tuple(input.shape[-len(shape) :]) == shape
        # PyTorch's functions have special rules for empty inputs.
        and input.numel() != 0
    )


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "batch_norm": batch_norm,
    "cumulative_batch_norm": cumulative_batch_norm,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "instance_norm": instance_norm,
}


#: The operators with C++ kernels, if the library is loaded.
_in_cpp: dict[str, Callable[..., Tensor]] = {}


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
            _in_cpp[name] = operator(name)


#: The types of arguments with which C++ kernels may compute, by function.
_suited: dict[str, set[tuple[type, ...]]] = {name: set() for name in IN_CPP}
_PLAIN = (Tensor, torch.nn.Parameter, bool, int, float, tuple, type(None))


@contextmanager
def in_python() -> Iterator[None]:
    """Compute as without the C++ library inside this context, to compare both ways."""
    with_library = dict(_in_cpp)
    _in_cpp.clear()
    try:
        yield
    finally:
        _in_cpp.update(with_library)


def computed(name: str, arguments: tuple[Any, ...]) -> Tensor:
    """Compute a function: by its operator in C++ if that takes the arguments, else in Python."""
    if name in _in_cpp and _suits(name, arguments):
        return _by_cpp(name, arguments)
    return _FUNCTIONS[name](*arguments)


def _by_cpp(name: str, arguments: tuple[Any, ...]) -> Tensor:
    """Call a function's operator in C++; of numbers that C++ cannot hold, Python speaks."""
    try:
        return _in_cpp[name](*arguments)
    except RuntimeError:
        if not any(map(_is_large, arguments)):
            raise
    return _FUNCTIONS[name](*arguments)


def _is_large(value: Any) -> bool:
    """Whether an argument is, or has, an integer of more than 64 bits."""
    if isinstance(value, tuple):
        return any(map(_is_large, value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def _suits(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a function's operator in C++ takes these arguments, and is not recorded."""
    if watching.is_recorded():  # first: a compiler would watch the set of types, and the set grows
        return False
    types = tuple(map(type, arguments))
    if types[1] is tuple:
        types += tuple(map(type, arguments[1]))
    if types not in _suited[name]:
        if not (all(kind in _PLAIN for kind in types) and takes(name, arguments)):
            return False
        _suited[name].add(types)
    return True
