"""What the operators' results look like: shapes, strides and dtypes, without data.

An operator whose contract stands in a table is read off it; so a fake result can only differ from
the real one where the kernel breaks its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import contract, layout
from ..contract import Kind, Operator, Options
from ..operators.batch_norm import BATCH_NORM_BACKWARD
from ..operators.group_norm import GROUP_NORM_BACKWARD
from ..operators.statistics import BATCH_NORM_STATS
from ..operators.sync_batch_norm import BATCH_NORM_BACKWARD_ELEMT, BATCH_NORM_BACKWARD_REDUCE
from .kernels import absent, check_sizes, output_for, wide


def _like(data: Tensor) -> Tensor:
    strides = layout.dense_like(data.shape, data.stride())
    return torch.empty_strided(data.shape, strides, dtype=data.dtype, device=data.device)


def _output(input: Tensor) -> Tensor:
    found = output_for(input)
    return _like(input) if found is None else found


def _vector(like: Tensor, size: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)


def _results(
    operator: Operator, options: Options, tensors: Mapping[str, Tensor | None], gone: torch.dtype
) -> tuple[Tensor, ...]:
    """The results that the operator's table promises; ``gone`` is the dtype of absent ones."""
    present = contract.counted(operator, options, tensors)
    data = present["input"]
    results = []
    for output in operator.outputs(options):
        if not output.wanted:
            results.append(absent(gone, data))
        elif output.kind is Kind.DATA:
            results.append(_like(data))
        else:
            source = next(present[name] for name in output.dtype_from if name in present)
            dtype = wide(source) if output.is_wide else source.dtype
            results.append(_vector(data, data.shape[1], dtype))
    return tuple(results)


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
    """As :func:`.kernels.native_batch_norm`."""
    dtype = wide(input)
    if not training:
        return _output(input), *[absent(dtype, input) for _ in range(4)]
    statistics = [_vector(input, input.shape[1], dtype) for _ in range(2)]
    return _output(input), *statistics, *_running((running_mean, running_var), dtype, input)


def _running(old: Sequence[Tensor | None], gone: torch.dtype, like: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        absent(gone, like) if value is None else _vector(value, value.shape[0], value.dtype)
        for value in old
    )


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
    """As :func:`.kernels.native_batch_norm_backward`."""
    options = Options(training=train, mask=tuple(output_mask))
    tensors = {
        "grad_out": grad_out,
        "input": input,
        "weight": weight,
        "running_mean": running_mean,
        "running_var": running_var,
        "save_mean": save_mean,
        "save_invstd": save_invstd,
    }
    return _results(BATCH_NORM_BACKWARD, options, tensors, input.dtype)


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, ...]:
    """As :func:`.kernels.batch_norm_stats`."""
    return _results(BATCH_NORM_STATS, Options(), {"input": input}, input.dtype)


def batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """As :func:`.kernels.batch_norm_elemt`."""
    return _output(input)


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
    """As :func:`.kernels.batch_norm_gather_stats_with_counts`."""
    statistics = [_vector(mean, mean.shape[1], mean.dtype) for _ in range(2)]
    return *statistics, *_running((running_mean, running_var), mean.dtype, mean)


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
    """As :func:`.kernels.batch_norm_backward_reduce`."""
    options = Options(mask=(input_g, weight_g, bias_g))
    tensors = {"input": input, "mean": mean, "weight": weight}
    return _results(BATCH_NORM_BACKWARD_REDUCE, options, tensors, mean.dtype)


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
    """As :func:`.kernels.batch_norm_backward_elemt`."""
    return _results(BATCH_NORM_BACKWARD_ELEMT, Options(), {"input": input}, input.dtype)[0]


def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Any,  # noqa: N803 - ATen's names
    C: Any,  # noqa: N803
    HxW: Any,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """As :func:`.kernels.native_group_norm`."""
    check_sizes(input, N, C, HxW)
    shape, dtype = (input.shape[0], group), wide(input)
    return _output(input), _vector(input, shape, dtype), _vector(input, shape, dtype)


def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: Any,  # noqa: N803
    C: Any,  # noqa: N803
    HxW: Any,  # noqa: N803
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    """As :func:`.kernels.native_group_norm_backward`."""
    check_sizes(input, N, C, HxW)
    options = Options(mask=tuple(output_mask), num_groups=group)
    tensors = {"input": input, "mean": mean, "gamma": weight}
    return _results(GROUP_NORM_BACKWARD, options, tensors, input.dtype)


def all_reduce_sum(values: Tensor, group_name: str) -> Tensor:
    """As :func:`.synchronised.all_reduce_sum`."""
    return torch.empty(values.shape, dtype=values.dtype, device=values.device)


def sync_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    group_name: str,
    key: int,
) -> tuple[Tensor, ...]:
    """As :func:`.synchronised.sync_batch_norm`."""
    dtype = wide(input)
    statistics = [_vector(input, input.shape[1], dtype) for _ in range(2)]
    running = _running((running_mean, running_var), dtype, input)
    return _output(input), *statistics, *running, _vector(input, 1, torch.int64)


def sync_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    count: Tensor,
    group_name: str,
    output_mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    """As :func:`.synchronised.sync_batch_norm_backward`."""
    wanted, *of_parameters = output_mask
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        _like(input) if wanted else absent(input.dtype, input),
        *(
            _vector(input, input.shape[1], dtype) if want else absent(dtype, mean)
            for want in of_parameters
        ),
    )


_FAKES: tuple[Callable[..., Any], ...] = (
    native_batch_norm,
    native_batch_norm_backward,
    batch_norm_stats,
    batch_norm_elemt,
    batch_norm_gather_stats_with_counts,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
    native_group_norm,
    native_group_norm_backward,
    all_reduce_sum,
    sync_batch_norm,
    sync_batch_norm_backward,
)

#: The fake kernels by their operators' names.
FAKES = {fake.__name__: fake for fake in _FAKES}
