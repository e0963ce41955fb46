"""``torch.nn.functional``'s normalisation functions, computed by normgrad on the CPU and on GPUs.

Calls that normgrad does not support (another device, a dtype, a wrong argument) go to PyTorch's own
function, which computes them or raises its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import contract, devices
from . import collectives, layers, watching
from .nodes import call_and_store


def _compute(function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Tensor:
    """Compute one of the functions below, or let a class or mode of PyTorch's handle the call."""
    if has_torch_function(arguments) and not any(map(watching.has_rules, arguments)):
        output: Tensor = handle_torch_function(function, arguments, *arguments)
        return output
    return layers.compute(function.__name__, arguments)


def wants_gradients(*tensors: Any) -> bool:
    """Whether eager autograd saves tensors for the gradients of some of these."""
    wanted = any(isinstance(each, Tensor) and each.requires_grad for each in tensors)
    # What changes in a compiled program changes copies.
    return wanted and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def saves_copy(input: Any) -> bool:
    """Whether PyTorch's RMS norm saves a copy of its input, in float32, so that it may change."""
    return isinstance(input, Tensor) and input.is_cpu and input.dtype.itemsize == 2


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
    return _compute(batch_norm, arguments)


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
    arguments = (input, running_mean, running_var, weight, bias, batches, eps)
    return _compute(cumulative_batch_norm, arguments)


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
    if not isinstance(momentum, layers.NUMBERS):
        kind = type(momentum).__name__
        raise TypeError(f"sync_batch_norm(): argument 'momentum' must be float, not {kind}")
    if not eps > 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    _check_synchronised(input, running_mean, running_var, weight, bias)
    tensors = input, weight, bias, running_mean, running_var
    choices = momentum, eps, collectives.name_of(group), key

    def store(results: Sequence[Tensor]) -> None:
        layers.update_running((running_mean, running_var), results[3:5], batches)

    output: Tensor = call_and_store("sync_batch_norm", (*tensors, *choices), store)[0]
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
    if input.is_cuda and not layers.is_usable(input.device.index):
        devices.check("input", str(input.device))
    names = ("running_mean", "running_var", "weight", "bias")
    for name, tensor in (("input", input), *zip(names, vectors, strict=True)):
        if tensor is None:
            continue
        if tensor.device != input.device:
            devices.check_same(name, str(tensor.device), str(input.device), "input")
        if tensor.dtype not in layers.FLOATS:
            allowed = ", ".join(str(dtype) for dtype in layers.FLOATS)
            raise TypeError(f"{name}: {tensor.dtype}; allowed: {allowed}")
        if tensor is not input and tensor.shape != (channels,):
            raise RuntimeError(f"{name} should contain {channels} elements not {tensor.numel()}")


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
    return _compute(group_norm, (input, num_groups, weight, bias, eps))


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
    return _compute(layer_norm, (input, normalized_shape, weight, bias, eps))


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
    if saves_copy(input) and wants_gradients(input):
        input = input.clone()
    return _compute(rms_norm, (input, normalized_shape, weight, eps))


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
    return _compute(instance_norm, arguments)
