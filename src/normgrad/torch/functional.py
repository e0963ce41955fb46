"""``torch.nn.functional``'s normalisation functions, computed by normgrad on the CPU and on GPUs.

Eager calls on plain tensors run normgrad's kernels, in C++. Every other call is PyTorch's own
function: for what normgrad does not support, and wherever a compiler, transform, tracer, mode or
subclass of tensors has to see the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import collectives, native, synchronised

_stock = torch.nn.functional


def _compute(
    norm: Callable[..., Any], stock: Callable[..., Tensor], arguments: tuple[Any, ...]
) -> Tensor:
    """Compute one of the functions below, or have PyTorch's function compute it."""
    # A constant in compiled code, which has only PyTorch's function.
    if not torch.compiler.is_dynamo_compiling():
        output: Tensor = norm(*arguments)
        if output is not NotImplemented:
            return output
    return stock(*arguments)


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
    arguments = (input, running_mean, running_var, weight, bias, training, momentum, eps)
    return _compute(native.batch_norm, _stock.batch_norm, arguments)


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

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's function for this rank's arguments.
        ValueError: the ranks disagree about the channels, the dtype or the options.
        RuntimeError: a rank died, or did not call this within the group's timeout; the message
            names the collective.
    """
    group = collectives.default_group() if process_group is None else process_group
    if training is not True or group is None or collectives.size(group) == 1:
        return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return synchronised.batch_norm(
        input, running_mean, running_var, weight, bias, momentum, eps, group, key
    )


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
    return _compute(native.group_norm, _stock.group_norm, (input, num_groups, weight, bias, eps))


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
    arguments = (input, normalized_shape, weight, bias, eps)
    return _compute(native.layer_norm, _stock.layer_norm, arguments)


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
    return _compute(native.rms_norm, _stock.rms_norm, (input, normalized_shape, weight, eps))


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
    arguments = (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return _compute(_instance_norm, _stock.instance_norm, arguments)


def _instance_norm(*arguments: Any) -> Any:
    """Instance norm by group norm or batch norm; NotImplemented if PyTorch has to compute it."""
    input, mean, var, weight, bias, use_input_stats, momentum, eps = arguments
    if not (
        native.has_observers() is False  # they would see all that is done here
        and type(input) is Tensor
        and input.dim() > 2
        and input.shape[2:].numel() > 1
        and use_input_stats is (mean is None and var is None)
        and type(momentum) is float  # PyTorch checks it, although nothing depends on it here
    ):
        return NotImplemented
    # PyTorch's function saves copies: all but the input may change before the backward pass.
    weight = _copy(weight)
    if not use_input_stats:
        return native.batch_norm(input, _copy(mean), _copy(var), weight, bias, False, momentum, eps)
    if input.is_cuda and torch.is_autocast_enabled("cuda"):  # which leaves instance norm as it is
        return NotImplemented
    return native.group_norm(input, input.shape[1], weight, bias, eps)


def _copy(value: Any) -> Any:
    """A copy of a tensor whose changes autograd would see; anything else as it is."""
    is_plain = type(value) in (Tensor, torch.nn.Parameter)  # another class would see the copy
    return value.clone() if is_plain and torch.is_grad_enabled() else value
