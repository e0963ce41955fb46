"""``torch.nn.functional``'s normalisation functions, computed by normgrad on the CPU and on GPUs.

Calls that normgrad does not support (another device, a dtype, a wrong argument) go to PyTorch's own
function, which computes them or raises its own error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import contract, devices
from ..plans import call
from . import collectives, watching
from .kernels import output_for
from .nodes import NORMS, Norm, any_requires_grad, called, clones, stored

_BATCH_NORM, _GROUP_NORM = NORMS["batch_norm"], NORMS["group_norm"]
_LAYER_NORM, _RMS_NORM = NORMS["layer_norm"], NORMS["rms_norm"]

is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def _is_number(value: Any) -> bool:
    """Whether the operators take a value as a number; PyTorch's functions also take booleans."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm, as :func:`torch.nn.functional.batch_norm`.

    Args:
        input: (N, C, ...), 2 to 8 axes; float32, float16, bfloat16 or float64, in any layout, which
            the result keeps.
        running_mean, running_var: (C,), both or neither; updated in place in training, used in
            evaluation.
        weight, bias: (C,). These and the running statistics may have dtypes unlike the input's.
        training: whether to use the batch's statistics.
        momentum: the weight of the batch's statistics in the updated running statistics.
        eps: the number added to the variance.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's function.
    """
    tensors = (input, weight, bias, running_mean, running_var)
    given = (input, running_mean, running_var, weight, bias, training, momentum, eps)
    choices = (training, momentum, eps)
    return _norm(_BATCH_NORM, batch_norm, _takes_batch_norm, tensors, choices, given)


def cumulative_batch_norm(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batches: Tensor,
    eps: float,
) -> Tensor:
    """Batch norm in training whose running statistics become the average over all batches.

    The arguments are as for :func:`batch_norm`; ``batches`` is the number of batches so far, with
    this one, as a tensor of one integer.
    """
    tensors = (input, weight, bias, running_mean, running_var)
    choices = (True, 1.0, eps)
    given = (input, running_mean, running_var, weight, bias, *choices)
    return _norm(_BATCH_NORM, batch_norm, _takes_batch_norm, tensors, choices, given, batches)


def _takes_batch_norm(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    input, weight, bias, *running = tensors
    training, momentum, eps = choices
    if not (
        isinstance(training, bool)
        and _is_number(momentum)
        and _takes(input, (weight, bias, *running), slice(1, 2), eps)
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


def _update(running: Sequence[Tensor], new: Sequence[Tensor], batches: Tensor | None) -> None:
    """Update running statistics in place, as the average over this many batches if it is given.

    The number stays in its tensor, since reading it would break a compiled graph. PyTorch's batch
    norm leaves the versions as they are, unless a mode sees it.
    """
    if watching.unwatched() and watching.plain(*running):
        running = [value.data for value in running]
    for value, other in zip(running, new, strict=True):
        if batches is None:
            value.copy_(other)
        else:
            value.lerp_(other, batches.to(value.dtype).reciprocal())


def _by(function: Callable[..., Tensor], given: tuple[Any, ...], batches: Tensor | None) -> Tensor:
    """Call a function that has PyTorch's arguments, which does not know of ``batches``."""
    if batches is None:
        return function(*given)
    input, *running = given[:3]
    # The copies begin with the old values, which an empty batch does not change.
    new = clones(running)
    output = function(input, *new, *given[3:])
    _update(running, new, batches)
    return output


def _norm(
    norm: Norm,
    function: Callable[..., Tensor],
    takes: Callable[[tuple[Any, ...], tuple[Any, ...]], bool],
    tensors: tuple[Any, ...],
    choices: tuple[Any, ...],
    given: tuple[Any, ...],
    batches: Tensor | None = None,
) -> Tensor:
    """Compute a norm of input, weight, bias and, in batch norm, running statistics.

    ``function`` is the caller, which PyTorch's protocols are told of. ``takes`` tells whether
    normgrad takes the tensors and choices; otherwise PyTorch computes.
    ``choices`` are the other arguments in the order of normgrad's operator, but for the channel
    axis, which is its last; ``given`` are all arguments in the order of PyTorch's function.
    ``batches`` is as in :func:`cumulative_batch_norm`.

    Each time the dispatcher calls Python costs an operator some microseconds. If no transform,
    mode, tracer or tensor subclass needs to see the operator, the call bypasses PyTorch's
    dispatcher. The kernels and the autograd nodes are the same.
    """
    running = tensors[3:]
    is_stored = bool(running and choices[0] and running[0] is not None)  # batch norm's ``training``
    updated = running if is_stored and batches is None else ()
    out = (None, None, None, *updated) if updated else None
    # CUDA's autocast leaves batch norm and instance norm as they are.
    converts = (
        len(running) == 0
        and function is not instance_norm
        and is_any_autocast_enabled()
        and torch.is_autocast_enabled("cuda")
        and isinstance(tensors[0], Tensor)
        and tensors[0].is_cuda
    )
    alone = watching.unwatched() and watching.plain(*tensors)
    theirs: Callable[..., Tensor] = getattr(torch.nn.functional, function.__name__)
    if not alone:
        if any(map(watching.has_rules, tensors)):
            return _by(theirs, given, batches)
        if has_torch_function(tensors):
            return _by(partial(handle_torch_function, function, tensors), given, batches)
        flags = 1 if running else 0
        values = choices[flags:-1] if choices[-1] is None and norm is _RMS_NORM else choices[flags:]
        if _is_traced(choices[:flags], values):
            if batches is None:
                return _recorded(function.__name__, *given)
            return _recorded("cumulative_batch_norm", *given[:5], batches, choices[-1])
    if not takes(tensors, choices):
        return _by(theirs, given, batches)
    if converts:
        tensors = tuple(map(_as_autocast_has_it, tensors))
    if alone:
        made_here, operator = output_for(tensors[0]), norm.schema.operator
        if made_here is not None:
            absent = len(operator.all_outputs) - 1 - len(updated)
            out = (made_here, *[None] * absent, *updated)
        made = call(operator, tensors, out, choices, read_next=True, counts=False)
        if batches is not None:
            _update(running, made[3:], batches)
        return _with_node(norm, made, tensors, choices)
    fits = True

    def store(results: Sequence[Tensor]) -> None:
        nonlocal fits
        try:
            _update(running, results[3:], batches)
        except RuntimeError:
            # A transform has computed the new ones, as one for each member of vmap's batch.
            fits = False

    results = called(norm.schema, (*tensors, *choices), store if is_stored else None)
    if not fits:
        # PyTorch's function raises an error that names a remedy.
        return _by(theirs, given, batches)
    first: Tensor = results[0]
    return first


def _with_node(norm: Norm, made: Any, tensors: tuple[Any, ...], choices: Any) -> Tensor:
    """The output, with an autograd node if gradients may be wanted."""
    output: Tensor = made[0]
    if not torch.is_grad_enabled() or not any_requires_grad(*tensors[:3]):
        return output
    saved = norm.saved(tensors)
    if norm is _RMS_NORM and not saved[0].requires_grad:
        # PyTorch's RMS norm saves neither of them here, so that both may change.
        saved = saved[0].clone(), saved[1].data
    # A later batch may update the running statistics, which does not count as a change.
    statistics = made[1:3] if choices[0] else clones(tensors[3:])
    kept = output, statistics, norm.shared(choices), saved
    result: Tensor = norm.node.apply(kept, *tensors[:3])
    return result


def _is_usable(index: int) -> bool:
    return devices.unusable(index) is None


# This is what torch.compiler.assume_constant_result does, but that imports the compiler, which
# takes seconds. Dynamo then takes the answer as a constant, and does not trace Triton and CUDA's
# driver.
_is_usable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _exports_onnx() -> bool:
    """Whether a model is being exported to ONNX, which supports only PyTorch's own operators."""
    onnx = sys.modules.get("torch.onnx")  # an export has loaded it
    return onnx is not None and onnx.is_in_onnx_export()


_exports_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_traced(flags: Sequence[Any], values: Sequence[Any]) -> bool:
    """Whether torch.jit.trace records the call, by an operator that takes these options.

    The values are numbers or tuples of sizes. PyTorch's functions refuse, or take, other options.
    """
    return (
        torch._C._get_tracing_state() is not None
        and not _exports_onnx()
        and all(isinstance(flag, bool) for flag in flags)
        and all(value if isinstance(value, tuple) else _is_number(value) for value in values)
    )


def _recorded(name: str, *arguments: Any) -> Tensor:
    """Call a function by its operator of :mod:`.tracing`, which a traced program then calls."""
    output: Tensor = getattr(torch.ops.normgrad, name).default(*arguments)
    return output


def _is_ours(tensor: Any) -> bool:
    """Whether normgrad supports a tensor's device, dtype and layout."""
    return (
        isinstance(tensor, Tensor)
        and (tensor.is_cpu or (tensor.is_cuda and _is_usable(tensor.device.index)))
        and tensor.dtype in _FLOATS
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def _takes(input: Any, parameters: tuple[Any, ...], axes: slice, eps: Any) -> bool:
    """Whether normgrad takes these tensors; ``axes`` are the input's axes that parameters have."""
    if not (
        _is_ours(input)
        and input.dim() <= contract.MAX_RANK
        and _is_number(eps)
        and eps >= 0  # PyTorch's functions compute with, or refuse, NaN and negative numbers
        and not _exports_onnx()
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


def sync_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    process_group: Any = None,
    *,
    key: int = -1,
    batches: Tensor | None = None,
) -> Tensor:
    """Batch norm over the batches of all ranks of a process group.

    Every rank of the group must call this function, with the same number of channels; batches may
    differ in size and may be empty. The forward pass does one all-gather of 2·C + 1 values, the
    backward pass one all-reduce of 2·C values, in float64. The gradients of the parameters are sums
    over this rank's elements only: the caller adds or averages them over ranks, as for every other
    layer. Without a group, in a group of one rank and in evaluation the function does the same as
    :func:`batch_norm`.

    Args:
        input: (N, C, ...), 2 to 8 axes; float32, float16, bfloat16 or float64, in any layout, which
            the result keeps. On the CPU, or on a GPU where Triton is installed.
        running_mean, running_var, weight, bias, training, momentum, eps: as for
            :func:`batch_norm`.
        process_group: a process group of torch.distributed; None for all ranks.
        key: a number that identifies the place of this call in the program. At the first call with
            a key and a group, the group's ranks check that their arguments agree. A negative key
            turns the check off.
        batches: in training, the number of batches so far, with this one, as a tensor of one
            integer: the running statistics become the average over all batches, and ``momentum`` is
            1. None for the weight ``momentum``.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's function for this rank's arguments.
        ValueError: the ranks disagree about the channels, the dtype or the options.
        RuntimeError: a rank died, or did not call this within the group's timeout; the message
            names the collective.
    """
    group = collectives.default_group() if process_group is None else process_group
    if training is not True or group is None or collectives.size(group) == 1:
        if training is True and batches is not None and running_mean is not None:
            assert running_var is not None
            return cumulative_batch_norm(
                input, running_mean, running_var, weight, bias, batches, eps
            )
        return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not isinstance(momentum, _NUMBERS):
        kind = type(momentum).__name__
        raise TypeError(f"sync_batch_norm(): argument 'momentum' must be float, not {kind}")
    if not eps > 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    _check_synchronised(input, running_mean, running_var, weight, bias)
    tensors = input, weight, bias, running_mean, running_var
    choices = momentum, eps, collectives.name_of(group), key

    def store(results: Sequence[Tensor]) -> None:
        pairs = zip((running_mean, running_var), results[3:5], strict=True)
        kept = [(old, new) for old, new in pairs if old is not None]
        _update([old for old, _ in kept], [new for _, new in kept], batches)

    output: Tensor = stored("sync_batch_norm", (*tensors, *choices), store)[0]
    return output


def _check_synchronised(input: Tensor, *vectors: Tensor | None) -> None:
    """Check this rank's arguments before the first collective, with PyTorch's messages.

    An error after it would leave the other ranks waiting.
    """
    if input.dim() < contract.MIN_RANK:
        raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
    if input.dim() > contract.MAX_RANK:
        raise ValueError(f"expected at most {contract.MAX_RANK}D input (got {input.dim()}D input)")
    channels = input.shape[1]
    if channels == 0:
        raise ValueError("SyncBatchNorm number of input channels should be non-zero")
    if input.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"SyncBatchNorm expected input tensor to be on cpu or cuda, but got {input.device}"
        )
    if input.is_cuda and not _is_usable(input.device.index):
        devices.check("input", str(input.device))
    names = ("running_mean", "running_var", "weight", "bias")
    for name, tensor in (("input", input), *zip(names, vectors, strict=True)):
        if tensor is None:
            continue
        if tensor.device != input.device:
            devices.check_same(name, str(tensor.device), str(input.device), "input")
        if tensor.dtype not in _FLOATS:
            allowed = ", ".join(str(dtype) for dtype in _FLOATS)
            raise TypeError(f"{name}: {tensor.dtype}; allowed: {allowed}")
        if tensor is not input and tensor.shape != (channels,):
            raise RuntimeError(f"{name} should contain {channels} elements not {tensor.numel()}")


def _as_autocast_has_it(tensor: Any) -> Any:
    """A tensor as CUDA's autocast would pass it to a norm: in float32, unless it is float64."""
    return tensor if tensor is None or tensor.dtype is torch.float64 else tensor.float()


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group norm, as :func:`torch.nn.functional.group_norm`.

    CUDA's autocast converts its tensors to float32, as for PyTorch's function.

    Args:
        input: (N, C, ...), 2 to 8 axes; float32, float16, bfloat16 or float64, in any layout, which
            the result keeps.
        num_groups: a divisor of C.
        weight, bias: (C,), which may have dtypes of their own.
        eps: added to the variance.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's function.
    """
    tensors, choices = (input, weight, bias), (num_groups, eps)
    given = (input, num_groups, weight, bias, eps)
    return _norm(_GROUP_NORM, group_norm, _takes_group_norm, tensors, choices, given)


def _takes_group_norm(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    (input, *parameters), (group, eps) = tensors, choices
    return (
        isinstance(group, (int, torch.SymInt))
        and not isinstance(group, bool)
        and group > 0
        and _takes(input, tuple(parameters), slice(1, 2), eps)
        and input.shape[1] % group == 0
        # PyTorch raises an error if a single sample has a single value per group, and only then.
        and input.numel() != group
    )


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm, as :func:`torch.nn.functional.layer_norm`.

    CUDA's autocast converts its tensors to float32, as for PyTorch's function.

    Args:
        input: 1 to 8 axes, of which the last are ``normalized_shape``; float32, float16, bfloat16
            or float64, in any layout.
        normalized_shape: sizes.
        weight, bias: of that shape, which may have dtypes of their own.
        eps: added to the variance.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's function.
    """
    given = (input, normalized_shape, weight, bias, eps)
    tensors, choices = (input, weight, bias), (_sizes(normalized_shape), eps)
    return _norm(_LAYER_NORM, layer_norm, _takes_rows, tensors, choices, given)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """RMS norm, as :func:`torch.nn.functional.rms_norm`.

    CUDA's autocast converts its tensors to float32, as for PyTorch's function.

    Args:
        input, normalized_shape, weight: as for :func:`layer_norm`.
        eps: added to the mean of squares; None for the machine epsilon of the arithmetic's type:
            float32's, or float64's for a float64 ``input``, whatever the dtype of ``weight``.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's function.
    """
    given = (input, normalized_shape, weight, eps)
    tensors, choices = (input, weight), (_sizes(normalized_shape), eps)
    return _norm(_RMS_NORM, rms_norm, _takes_rows, tensors, choices, given)


def _sizes(normalized_shape: Any) -> tuple[Any, ...]:
    """The sizes as a tuple; an empty one for what PyTorch's functions do not take as sizes."""
    return tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else ()


def _takes_rows(tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> bool:
    (input, *parameters), (shape, eps) = tensors, choices
    if eps is None and len(parameters) == 1:
        eps = 0.0  # a stand-in that passes the check; the operator has a default of its own
    return (
        len(shape) > 0
        and _takes(input, tuple(parameters), slice(-len(shape), None), eps)
        and tuple(input.shape[-len(shape) :]) == shape
        # PyTorch's functions have special rules for empty inputs.
        and input.numel() != 0
    )


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Instance norm, as :func:`torch.nn.functional.instance_norm`.

    With each sample's own statistics it is group norm with one channel per group, and with running
    statistics it is batch norm in evaluation. Calls that update running statistics go to PyTorch.

    Args:
        input: (N, C, ...), 3 to 8 axes.
        running_mean, running_var, weight, bias, momentum, eps: as for :func:`batch_norm`.
        use_input_stats: whether each sample's own statistics are used.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's function.
    """
    given = (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    if _is_traced((use_input_stats,), (momentum, eps)) and not has_torch_function(given[:5]):
        return _recorded("instance_norm", *given)
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
    if fits and use_input_stats and absent:
        choices = (input.shape[1], eps)
        return _norm(_GROUP_NORM, instance_norm, _takes_group_norm, tensors, choices, given)
    if fits and not use_input_stats and not absent:
        tensors, options = (
            (*tensors, *map(_copy, (running_mean, running_var))),
            (False, momentum, eps),
        )
        return _norm(_BATCH_NORM, instance_norm, _takes_batch_norm, tensors, options, given)
    return torch.nn.functional.instance_norm(*given)


def _copy(value: Any) -> Any:
    """A copy of a tensor whose changes autograd would see; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) and torch.is_grad_enabled() else value
