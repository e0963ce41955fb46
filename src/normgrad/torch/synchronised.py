"""Synchronised batch norm: each pass is two local parts with a collective between them.

The ranks exchange float64 for data of any dtype. With 2·C values the width hardly affects the time
of the collective. The result is that of one rank with the whole batch, without loss of accuracy for
a mean far larger than the deviation or for a thousand ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..declarations import contract
from ..operators.sync_batch_norm import (
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
    batch_norm_elemt,
    batch_norm_gather_stats_with_counts,
    batch_norm_stats,
)
from ..tensors import devices, dtypes
from . import collectives
from .dynamo import hide_from_dynamo

_DTYPES = tuple(dtype.name for dtype in dtypes.FLOATS)
_FLOATS = tuple(getattr(torch, name) for name in _DTYPES)

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


def _check_arguments(input: Tensor, *vectors: Tensor | None) -> None:
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
    if input.is_cuda:
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


class _Sum(torch.autograd.Function):
    """The sum of values over all ranks, which is its own derivative: every rank's loss uses it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        ctx.group = group
        what = "sync_batch_norm: second derivatives"
        return collectives.all_reduce(what, values.contiguous().clone(), group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Sum.apply(gradient, ctx.group), None


def _by_formula(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Any
) -> Tensor:
    """The output in float64 and in PyTorch's operators, which have derivatives of any order."""
    axes, shape = [0, *range(2, input.dim())], [1, -1, *[1] * (input.dim() - 2)]
    x = input.double()
    count = _Sum.apply(x.new_tensor([x[:, :1].numel()]), group)
    centred = x - (_Sum.apply(x.sum(axes), group) / count).view(shape)
    variance = _Sum.apply(centred.square().sum(axes), group) / count
    y = centred * (variance + eps).rsqrt().view(shape)
    if weight is not None:
        y = y * weight.double().view(shape)
    return y if bias is None else y + bias.double().view(shape)


class _SyncBatchNorm(torch.autograd.Function):
    """The output; and the gradients, in which the parameters' are sums over this rank's elements.

    The ranks gather each one's mean, 1/std and number of elements, in which a rank without elements
    has weight 0; and, if the input's gradient is wanted, add up Σdy and Σdy·(x − mean).
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
        group: Any,
    ) -> Tensor:
        channels = input.shape[1]
        mean, invstd = torch.empty(2, channels, dtype=torch.float64, device=input.device)
        batch_norm_stats(input, eps=eps, out=(mean, invstd))
        local = torch.cat((mean, invstd, mean.new_full((1,), input[:, :1].numel())))
        everyone = collectives.all_gather("sync_batch_norm: statistics", local, group)
        counts = everyone[:, -1].to(torch.int64)
        # As by PyTorch's layers, the update leaves the statistics' versions as they are.
        running_mean, running_var = (None if each is None else each.data for each in running)
        running = running_mean, running_var
        batch_norm_gather_stats_with_counts(
            input, everyone[:, :channels], everyone[:, channels : 2 * channels], *running, counts,
            momentum=momentum, eps=eps, out=(mean, invstd, *running),
        )  # fmt: skip
        output = torch.empty_like(input, memory_format=_format_of(input))
        batch_norm_elemt(input, weight, bias, mean, invstd, out=output)
        ctx.save_for_backward(input, weight, bias, mean, invstd, counts.sum().reshape(1))
        ctx.eps, ctx.group = eps, group
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        input, weight, bias, mean, invstd, count = ctx.saved_tensors
        mask = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradients are differentiated too
            # Views, since the tensors' own hooks run in the caller's backward pass.
            leaves: list[Any] = [
                None if each is None else each.view_as(each) for each in (input, weight, bias)
            ]
            output = _by_formula(leaves[0], leaves[1], leaves[2], ctx.eps, ctx.group)
            wanted = [each for each, is_wanted in zip(leaves, mask, strict=True) if is_wanted]
            found = iter(
                torch.autograd.grad(output, wanted, grad_out.to(output.dtype), create_graph=True)
            )
            return *[next(found) if is_wanted else None for is_wanted in mask], *[None] * 4
        # The sums take the mean's dtype, float64, and the parameters' gradients the weight's;
        # without a weight the mean stands in for it.
        sum_dy, sum_dy_xmu, grad_weight, grad_bias = batch_norm_backward_reduce(
            grad_out, input, mean, invstd, mean if weight is None else weight,
            input_g=mask[0], weight_g=mask[1], bias_g=mask[2],
        )  # fmt: skip
        grad_input = None
        if mask[0]:
            both = torch.cat((sum_dy, sum_dy_xmu))
            collectives.all_reduce("sync_batch_norm: gradients", both, ctx.group)
            sum_dy, sum_dy_xmu = both.chunk(2)
            grad_input = batch_norm_backward_elemt(
                grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count
            )
        return grad_input, grad_weight, grad_bias, *[None] * 4


def _format_of(input: Tensor) -> torch.memory_format:
    """The format of PyTorch's output: channels-last if the input is, else contiguous."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    if last is not None and input.is_contiguous(memory_format=last):
        return last
    return torch.contiguous_format


@hide_from_dynamo
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    group: Any,
    key: int,
) -> Tensor:
    """Compute :func:`.functional.sync_batch_norm` in training, with the ranks of a group."""
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "sync_batch_norm: training in an exported program; allowed: evaluation, in which it is "
            "batch norm"
        )
    if not isinstance(momentum, (int, float)):
        kind = type(momentum).__name__
        raise TypeError(f"sync_batch_norm(): argument 'momentum' must be float, not {kind}")
    if not eps > 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    _check_arguments(input, running_mean, running_var, weight, bias)
    facts = {
        "channels": input.shape[1],
        "dtype": _FLOATS.index(input.dtype),
        "eps": eps,
        "momentum": momentum,
        "weight": weight is not None,
        "running statistics": running_mean is not None,
    }
    _check_ranks_agree(key, group, facts, input)
    running = running_mean, running_var
    output: Tensor = _SyncBatchNorm.apply(input, weight, bias, running, momentum, eps, group)
    return output
