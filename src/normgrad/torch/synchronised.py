"""Synchronised batch norm's two operators: each is two local parts with a collective between them.

The ranks exchange float64 for data of any dtype. With 2·C values the width hardly affects the time
of the collective. The result is that of one rank with the whole batch, without loss of accuracy for
a mean far larger than the deviation or for a thousand ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import dtypes
from ..operators import sync_batch_norm as parts
from ..plans import call
from . import collectives
from .kernels import KERNELS, arithmetic, output_for

#: A part of an operator, of which autograd is told as a whole.
_call = partial(call, is_recorded=True)
#: The axis of the channels.
_AXIS = 1
_DTYPES = tuple(dtype.name for dtype in dtypes.FLOATS)

#: The pairs of a layer's key and a group's name for which the ranks have passed the check.
_agreements: set[tuple[int, str]] = set()


def _check_ranks_agree(key: int, group: Any, facts: Mapping[str, Any], like: Tensor) -> None:
    """Raise a ValueError on every rank if the ranks' arguments disagree.

    A collective with different sizes on different ranks ends the process, so this one, whose size
    is fixed, comes first.
    """
    marker = key, collectives.name_of(group)
    if key < 0 or marker in _agreements:
        return
    if like.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # a CUDA graph's capture cannot read results; a later call outside does the check
    mine = torch.tensor(
        [float(fact) for fact in facts.values()], dtype=torch.float64, device=like.device
    )
    everyone = collectives.all_gather("sync_batch_norm: check", mine, group).tolist()
    for index, name in enumerate(facts):
        values = [rank[index] for rank in everyone]
        if len(set(values)) > 1:
            by_rank = ", ".join(
                f"{_spelled(name, v)} on rank {rank}" for rank, v in enumerate(values)
            )
            raise ValueError(
                f"sync_batch_norm: {name}: {by_rank}; allowed: the same on all ranks of group "
                f"{marker[1]!r}"
            )
    _agreements.add(marker)


def _spelled(name: str, value: float) -> str:
    if name == "dtype":
        return _DTYPES[int(value)]
    if name in ("weight", "running statistics"):
        return "there" if value else "none"
    return f"{value:g}"


def all_reduce_sum(values: Tensor, group_name: str) -> Tensor:
    """The sum of the values over all ranks; the gradient is the same operation."""
    total = values.contiguous().clone()
    return collectives.all_reduce(
        "sync_batch_norm: second derivatives", total, collectives.by_name(group_name)
    )


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
    """The output, all ranks' mean and 1/std, new running statistics and the number of elements.

    The ranks do one all-gather of each rank's mean, 1/std and number of elements. A rank without
    elements takes part in it with weight 0.
    """
    group = collectives.by_name(group_name)
    channels = input.shape[1]
    dtype = _DTYPES.index(str(input.dtype).removeprefix("torch."))
    facts = {
        "channels": channels,
        "dtype": dtype,
        "eps": eps,
        "momentum": momentum,
        "weight": weight is not None,
        "running statistics": running_mean is not None,
    }
    _check_ranks_agree(key, group, facts, input)
    mean, invstd = torch.empty(2, channels, dtype=torch.float64, device=input.device)
    _call(parts.BATCH_NORM_STATS, (input,), (mean, invstd), (eps, _AXIS))
    mine = input.numel() // max(1, channels)
    local = torch.cat((mean, invstd, mean.new_full((1,), mine)))
    everyone = collectives.all_gather("sync_batch_norm: statistics", local, group)
    counts = everyone[:, -1].to(torch.int64)
    means, invstds = everyone[:, :channels], everyone[:, channels : 2 * channels]
    statistics = input, means, invstds, running_mean, running_var, counts
    mean, invstd, *running = _call(
        parts.BATCH_NORM_GATHER_STATS_WITH_COUNTS, statistics, None, (momentum, eps)
    )
    real = arithmetic(input)
    mean, invstd = mean.to(real), invstd.to(real)
    running = [mean.new_empty(0) if new is None else new for new in running]
    tensors = input, weight, bias, mean, invstd
    output = _call(parts.BATCH_NORM_ELEMT, tensors, output_for(input), (_AXIS,))
    return output, mean, invstd, *running, counts.sum().reshape(1)


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
    """The gradients: grad_input from the sums of all ranks, the parameters' from this rank's only.

    If grad_input is wanted, the ranks do one all-reduce of Σdy and Σdy·(x − mean).
    """
    group = collectives.by_name(group_name)
    # The sums take the mean's dtype, float64, and the parameters' gradients the weight's; without a
    # weight the mean stands in for it.
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = KERNELS["batch_norm_backward_reduce"](
        grad_out, input, mean.double(), invstd, mean if weight is None else weight, *output_mask
    )
    grad_input = input.new_empty(0)
    if output_mask[0]:
        both = torch.cat((sum_dy, sum_dy_xmu))
        collectives.all_reduce("sync_batch_norm: gradients", both, group)
        sum_dy, sum_dy_xmu = both.chunk(2)
        tensors = grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count
        grad_input = _call(parts.BATCH_NORM_BACKWARD_ELEMT, tensors, None, (_AXIS,))
    return grad_input, grad_weight, grad_bias
