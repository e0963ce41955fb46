"""``torch.nn.functional``'s normalisation functions, by normgrad on the CPU and on GPUs.

What normgrad does not take (another device, a dtype, a wrong argument) goes to PyTorch's own
function: it computes it, or raises its own error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .. import contract, devices
from . import collectives, eager, ops, watching

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def _is_number(value: Any) -> bool:
    """What the operators take for one: PyTorch's own functions take booleans too."""
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
        weight, bias: (C,). All of these may have dtypes of their own.
        training: whether to use the batch's statistics.
        momentum: the new batch's part in the running statistics.
        eps: added to the variance.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's own.
    """
    arguments = input, running_mean, running_var, weight, bias, training, momentum, eps
    unwatched = watching.unwatched()
    if unwatched:
        again = eager.batch_norm_again(*arguments)
        if again is not None:
            return again
    alone = unwatched and watching.plain(*arguments[:5])
    if not alone and has_torch_function_variadic(input, running_mean, running_var, weight, bias):
        return handle_torch_function(batch_norm, arguments[:5], *arguments)
    vectors = (running_mean, running_var, weight, bias)
    if not (
        _is_number(momentum)
        and _takes(input, vectors, eps)
        # PyTorch leaves the running statistics alone where there is nothing to learn from.
        and input.numel() != 0
        and (
            _trains(input, running_mean, running_var, eps)
            if training
            else running_mean is not None and running_var is not None and eps >= 0
        )
    ):
        return torch.nn.functional.batch_norm(*arguments)
    if alone:
        return eager.batch_norm(*arguments)
    output, _, _, new_mean, new_var = ops.native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if not (training and running_mean is not None and running_var is not None):
        return output
    try:
        running_mean.copy_(new_mean)
    except RuntimeError:
        if not torch._C._are_functorch_transforms_active():
            raise
    else:
        running_var.copy_(new_var)
        return output
    # One cannot be updated by each member of a batch of vmap's. PyTorch's words say what to do.
    return torch.nn.functional.batch_norm(*arguments)


def _trains(input: Tensor, running_mean: Any, running_var: Any, eps: float) -> bool:
    return (
        (running_mean is None) == (running_var is None)
        and input.numel() != input.shape[1]  # more than one value per channel
        and eps > 0
    )


def _is_usable(index: int) -> bool:
    return devices.unusable(index) is None


# What torch.compiler.assume_constant_result does, which takes seconds to import the compiler:
# that the answer is a constant for it, and not to be traced through Triton and CUDA's driver.
_is_usable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _exports_onnx() -> bool:
    """Whether a model is being exported to ONNX, which knows PyTorch's operators only."""
    onnx = sys.modules.get("torch.onnx")  # whoever exports has loaded it
    return onnx is not None and onnx.is_in_onnx_export()


_exports_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _takes(input: Any, vectors: tuple[Any, ...], eps: Any) -> bool:
    """Whether normgrad takes these tensors; running statistics stand first."""
    if not (
        isinstance(input, Tensor)
        and (input.is_cpu or (input.is_cuda and _is_usable(input.device.index)))
        and input.dtype in _FLOATS
        and input.layout is torch.strided
        and not input.is_nested
        and contract.MIN_RANK <= input.dim() <= contract.MAX_RANK
        and _is_number(eps)
        and not _exports_onnx()
    ):
        if isinstance(input, Tensor) and input.is_quantized:
            raise TypeError(
                "input: a quantised tensor; allowed: one of floating point; "
                "normgrad.torch.revert(model) first"
            )
        return False
    channels, on_cpu = (input.shape[1],), input.is_cpu
    for index, vector in enumerate(vectors):
        if vector is not None and not (
            isinstance(vector, Tensor)
            and (vector.is_cpu if on_cpu else vector.device == input.device)
            and vector.dtype in _FLOATS
            and vector.layout is torch.strided
            and vector.shape == channels
            # Nobody differentiates running statistics.
            and (index > 1 or not vector.requires_grad)
        ):
            return False
    return True


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

    Every rank of the group has to call it, with the same channels; batches may differ in size and
    be empty. There is one all-gather of 2·C + 1 values, and one all-reduce of 2·C in the backward
    pass, in float64. The parameters' gradients are of this rank's
    elements: to be added up, or averaged, like those of every other layer. Without a group, in a
    group of one, and in evaluation it is :func:`batch_norm`.

    Args:
        input: (N, C, ...), 2 to 8 axes; float32, float16, bfloat16 or float64, in any layout, which
            the result keeps. On the CPU, or on a GPU where Triton is installed.
        running_mean, running_var, weight, bias, training, momentum, eps: as for
            :func:`batch_norm`.
        process_group: of torch.distributed; None for all ranks.
        key: a number by which this place in a program is known on its rank: the first time that a
            group comes by, its ranks are checked to be about to do the same. Negative: never.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's own for this rank's arguments.
        ValueError: the ranks disagree about the channels, or whatever else they share.
        RuntimeError: a rank died, or did not come within the group's timeout; the message names the
            collective.
    """
    group = collectives.default_group() if process_group is None else process_group
    if not training or group is None or collectives.size(group) == 1:
        return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not isinstance(momentum, _NUMBERS):
        kind = type(momentum).__name__
        raise TypeError(f"sync_batch_norm(): argument 'momentum' must be float, not {kind}")
    if not eps > 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    _check_synchronised(input, running_mean, running_var, weight, bias)
    output, _, _, new_mean, new_var, _ = ops.sync_batch_norm(
        input, weight, bias, running_mean, running_var, momentum, eps,
        collectives.name_of(group), key,
    )  # fmt: skip
    if running_mean is not None:
        running_mean.copy_(new_mean)
    if running_var is not None:
        running_var.copy_(new_var)
    return output


def _check_synchronised(input: Tensor, *vectors: Tensor | None) -> None:
    """What has to be found wrong before the other ranks are told anything, in PyTorch's words."""
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
    """In float32, but for float64."""
    return tensor if tensor is None or tensor.dtype is torch.float64 else tensor.float()


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group norm, as :func:`torch.nn.functional.group_norm`.

    Under CUDA's autocast it is in float32, as PyTorch's is.

    Args:
        input: (N, C, ...), 2 to 8 axes; float32, float16, bfloat16 or float64, in any layout, which
            the result keeps.
        num_groups: a divisor of C.
        weight, bias: (C,), which may have dtypes of their own.
        eps: added to the variance.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's own.
    """
    unwatched = watching.unwatched()
    if unwatched:
        again = eager.group_norm_again(input, weight, bias, num_groups, eps)
        if again is not None:
            return again
    alone = unwatched and watching.plain(input, weight, bias)
    if not alone and has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            group_norm, (input, weight, bias), input, num_groups, weight, bias, eps
        )
    if not (
        isinstance(num_groups, (int, torch.SymInt))
        and not isinstance(num_groups, bool)
        and num_groups > 0
        and _takes(input, (None, None, weight, bias), eps)
        and input.shape[1] % num_groups == 0
        # PyTorch refuses a single value for each group in a single sample, and no more than that.
        and input.numel() != num_groups
    ):
        return torch.nn.functional.group_norm(input, num_groups, weight, bias, eps)
    if input.is_cuda and torch.is_autocast_enabled("cuda"):
        input = _as_autocast_has_it(input)
        weight, bias = _as_autocast_has_it(weight), _as_autocast_has_it(bias)
    if alone:
        return eager.group_norm(input, weight, bias, num_groups, eps)
    samples, channels = input.shape[0], input.shape[1]
    positions = prod(input.shape[2:])
    return ops.native_group_norm(
        input, weight, bias, samples, channels, positions, num_groups, eps
    )[0]


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm, as :func:`torch.nn.functional.layer_norm`.

    Under CUDA's autocast it is in float32, as PyTorch's is.

    Args:
        input: 1 to 8 axes, of which the last are ``normalized_shape``; float32, float16, bfloat16
            or float64, in any layout.
        normalized_shape: sizes.
        weight, bias: of that shape, which may have dtypes of their own.
        eps: added to the variance.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's own.
    """
    tensors, shape = (input, weight, bias), tuple(normalized_shape)
    unwatched = watching.unwatched()
    if unwatched:
        again = eager.by_row_again("layer_norm", tensors, shape, eps)
        if again is not None:
            return again
    alone = unwatched and watching.plain(*tensors)
    if not alone and has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            layer_norm, tensors, input, normalized_shape, weight, bias, eps
        )
    if not (_is_number(eps) and _takes_rows(input, shape, weight, bias)):
        return torch.nn.functional.layer_norm(input, list(shape), weight, bias, eps)
    if input.is_cuda and torch.is_autocast_enabled("cuda"):
        tensors = tuple(map(_as_autocast_has_it, tensors))
    if alone:
        return eager.by_row("layer_norm", tensors, shape, eps)
    input, weight, bias = tensors
    return ops.native_layer_norm(input, shape, weight, bias, eps)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """RMS norm, as :func:`torch.nn.functional.rms_norm`.

    Under CUDA's autocast it is in float32, as PyTorch's is.

    Args:
        input, normalized_shape, weight: as for :func:`layer_norm`.
        eps: added to the mean of squares; None for the machine epsilon of ``input``'s dtype.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's own.
    """
    tensors, shape = (input, weight), tuple(normalized_shape)
    unwatched = watching.unwatched()
    if unwatched:
        again = eager.by_row_again("rms_norm", tensors, shape, eps)
        if again is not None:
            return again
    alone = unwatched and watching.plain(*tensors)
    if not alone and has_torch_function_variadic(input, weight):
        return handle_torch_function(rms_norm, tensors, input, normalized_shape, weight, eps)
    if not ((eps is None or _is_number(eps)) and _takes_rows(input, shape, weight)):
        return torch.nn.functional.rms_norm(input, list(shape), weight, eps)
    if input.is_cuda and torch.is_autocast_enabled("cuda"):
        tensors = tuple(map(_as_autocast_has_it, tensors))
    if alone:
        return eager.by_row("rms_norm", tensors, shape, eps)
    input, weight = tensors
    return ops._fused_rms_norm(input, shape, weight, eps)[0]


def _takes_rows(input: Any, shape: tuple[Any, ...], *parameters: Any) -> bool:
    """Whether normgrad takes these tensors, whose parameters are of a shape."""
    if not (
        isinstance(input, Tensor)
        and shape
        and 1 <= input.dim() <= contract.MAX_RANK
        and tuple(input.shape[-len(shape) :]) == shape
        # PyTorch's functions have rules of their own where there is nothing.
        and input.numel() != 0
    ):
        return False
    return all(
        each is None
        or (_is_ours(each) and each.device == input.device and tuple(each.shape) == shape)
        for each in parameters
    ) and _is_ours(input)


def _is_ours(tensor: Any) -> bool:
    """Whether a tensor is one that normgrad computes with, where it is."""
    return (
        isinstance(tensor, Tensor)
        and (tensor.is_cpu or (tensor.is_cuda and _is_usable(tensor.device.index)))
        and tensor.dtype in _FLOATS
        and tensor.layout is torch.strided
        and not tensor.is_nested
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

    It is group norm with a channel to each group, and with running statistics in use batch norm's
    evaluation. Running statistics that are to be updated are left to PyTorch.

    Args:
        input: (N, C, ...), 3 to 8 axes.
        running_mean, running_var, weight, bias, momentum, eps: as for :func:`batch_norm`.
        use_input_stats: whether each sample's own statistics are used.

    Raises:
        TypeError, ValueError, RuntimeError: as PyTorch's own.
    """
    absent = running_mean is None and running_var is None
    fits = isinstance(input, Tensor) and input.dim() > 2 and prod(input.shape[2:]) > 1
    if fits and use_input_stats and absent:
        return group_norm(input, input.shape[1], weight, bias, eps)
    if fits and not use_input_stats and not absent:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return torch.nn.functional.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )
