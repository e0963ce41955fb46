"""What the operators do: normgrad's functions under ATen's arguments.

A result that is absent (masked off, or a statistic that was not given) is an empty tensor of shape
(0,): a schema's result is a tensor, and traced programs have no other way to hold none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .. import operators
from ..frameworks import allocating


def wide(*tensors: Tensor) -> torch.dtype:
    """What is computed in: float64 as soon as one of the data tensors is, else float32."""
    return torch.float64 if torch.float64 in [t.dtype for t in tensors] else torch.float32


def absent(dtype: torch.dtype, like: Tensor) -> Tensor:
    """A result that is not there."""
    return torch.empty(0, dtype=dtype, device=like.device)


def output_for(input: Tensor) -> Tensor | None:
    """A new output where normgrad's own would be laid out unlike PyTorch's; else None.

    PyTorch's are contiguous, or channels-last where the input is; programs that call ``view`` on
    them count on it. normgrad's have the order of the input's axes, whatever it is.
    """
    if input.is_contiguous():
        return None
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    if last is not None and input.is_contiguous(memory_format=last):
        return None
    with allocating("output", input.nbytes):
        return torch.empty(
            input.shape, dtype=input.dtype, device=input.device,
            memory_format=suggest_memory_format(input),
        )  # fmt: skip


def check_sizes(input: Tensor, N: Any, C: Any, HxW: Any) -> None:  # noqa: N803 - ATen's names
    """Raise a ValueError where group norm's sizes are not its input's."""
    shape = tuple(input.shape)
    if input.dim() < 2 or shape[:2] != (N, C) or input.numel() != N * C * HxW:
        raise ValueError(
            f"input: shape {shape}; allowed: (N, C, ...) of N*C*HxW elements, with N={N}, C={C} "
            f"and HxW={HxW}"
        )


def _or_absent(results: Sequence[Any], dtype: torch.dtype, like: Tensor) -> tuple[Tensor, ...]:
    return tuple(absent(dtype, like) if value is None else value for value in results)


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The output, the batch's statistics, and new running statistics where old ones are given.

    In evaluation there is nothing but the output.
    """
    results = operators.batch_norm(
        input, weight, bias, running_mean, running_var,
        training=training, momentum=momentum, eps=eps,
        out=(output_for(input), None, None, None, None),
    )  # fmt: skip
    return _or_absent(results, wide(input), input)


def native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Batch norm's gradients."""
    results = operators.batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_invstd,
        training=train, eps=eps, output_mask=tuple(output_mask),  # type: ignore[arg-type]
    )  # fmt: skip
    return _or_absent(results, input.dtype, input)


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Each channel's mean and 1/std."""
    return tuple(operators.batch_norm_stats(input, eps=eps))


def wide_stats(input: Tensor, eps: float) -> tuple[Tensor, ...]:
    """The same in float64, whatever the data."""
    out = tuple(
        torch.empty(input.shape[1], dtype=torch.float64, device=input.device) for _ in range(2)
    )
    return tuple(operators.batch_norm_stats(input, eps=eps, out=out))


def batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """The output from given statistics; ``eps`` is in ``invstd`` already."""
    return operators.batch_norm_elemt(input, weight, bias, mean, invstd, out=output_for(input))


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, ...]:
    """All ranks' statistics together, and new running statistics where old ones are given."""
    results = operators.batch_norm_gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, counts, momentum=momentum, eps=eps
    )
    return _or_absent(results, mean.dtype, mean)


def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, ...]:
    """The local sums of synchronised batch norm's gradients."""
    results = operators.batch_norm_backward_reduce(
        grad_out, input, mean, invstd, weight, input_g=input_g, weight_g=weight_g, bias_g=bias_g
    )
    return _or_absent(results, mean.dtype, mean)


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The element-wise half of synchronised batch norm's gradients."""
    return operators.batch_norm_backward_elemt(
        grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count
    )


def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,  # noqa: N803 - ATen's names
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """The output, and each sample's groups' mean and 1/std."""
    check_sizes(input, N, C, HxW)
    out = (output_for(input), None, None)
    return tuple(operators.group_norm(input, weight, bias, num_groups=group, eps=eps, out=out))


def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,  # noqa: N803
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Group norm's gradients."""
    check_sizes(input, N, C, HxW)
    results = operators.group_norm_backward(
        grad_out, input, mean, rstd, weight, num_groups=group,
        output_mask=tuple(output_mask),  # type: ignore[arg-type]
    )  # fmt: skip
    return _or_absent(results, input.dtype, input)


_KERNELS: tuple[Callable[..., Any], ...] = (
    native_batch_norm,
    native_batch_norm_backward,
    batch_norm_stats,
    batch_norm_elemt,
    batch_norm_gather_stats_with_counts,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
    native_group_norm,
    native_group_norm_backward,
)

#: The kernels by their operators' names.
KERNELS = {kernel.__name__: kernel for kernel in _KERNELS}
