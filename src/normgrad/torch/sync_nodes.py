"""Synchronised batch norm and its parts as nodes of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import partial
from .derivatives import SynchronisedNormalisation, like
from .nodes import Node, given, operator


class BatchNormStats(Node):
    """The statistics of a batch."""

    differentiable = frozenset({0, 1})

    @staticmethod
    def kept(ctx: Any, results: Any, input: Any, eps: float) -> tuple[Any, ...]:  # noqa: D102
        return input, *results

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """For the data."""
        input, mean, invstd = ctx.saved_tensors
        return None, like(partial.stats(input, mean, invstd, *cotangents), input), None


class BatchNormElemt(Node):
    """Normalisation by given statistics."""

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, input: Any, weight: Any, bias: Any, mean: Any, invstd: Any,
        eps: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.eps = eps
        return input, weight, bias, mean, invstd

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        """For every tensor, from the sums of synchronised batch norm."""
        if grad_out is None:
            return (None,) * 7
        input, weight, bias, mean, invstd = ctx.saved_tensors
        _, for_input, for_weight, for_bias, for_mean, for_invstd, _ = ctx.needs_input_grad
        if for_input:
            # The same without mean and bias.
            zeros = torch.zeros_like(mean)
            for_input = operator("batch_norm_elemt")(grad_out, weight, None, zeros, invstd, ctx.eps)
        statistics = for_mean or for_invstd
        if not (statistics or for_weight or for_bias):
            return None, for_input or None, *[None] * 5
        *sums, grad_weight, grad_bias = operator("batch_norm_backward_reduce")(
            grad_out, input, mean, invstd, weight, statistics, for_weight, for_bias
        )
        both = partial.elemt(weight, invstd, *sums) if statistics else (None, None)
        return (
            None,
            like(for_input, input) if isinstance(for_input, Tensor) else None,
            like(grad_weight, weight) if for_weight else None,
            like(grad_bias, bias) if for_bias else None,
            *map(like, both, (mean, invstd)),
            None,
        )


class BatchNormGather(Node):
    """All ranks' statistics together."""

    differentiable = frozenset({0, 1})

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, input: Any, mean: Any, invstd: Any, running_mean: Any,
        running_var: Any, momentum: float, eps: float, counts: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        return mean, invstd, counts, *results[:2]

    @staticmethod
    def backward(ctx: Any, to_mean: Any, to_invstd: Any, *_: Any) -> Any:
        """For the ranks' statistics."""
        mean, invstd, counts, all_mean, all_invstd = ctx.saved_tensors
        found = partial.gather(mean, invstd, counts, all_mean, all_invstd, to_mean, to_invstd)
        return None, None, *map(like, found, (mean, invstd)), *[None] * 5


class BatchNormBackwardReduce(Node):
    """The sums of synchronised batch norm's gradients."""

    differentiable = frozenset({0, 1, 2, 3})

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, mean: Any, invstd: Any, *rest: Any
    ) -> tuple[Any, ...]:
        return grad_out, input, mean, invstd

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """For every tensor but the weight, which takes no part."""
        tensors = ctx.saved_tensors
        found = partial.reduce(*tensors, *cotangents)
        return None, *map(like, found, tensors), *[None] * 4


class BatchNormBackwardElemt(Node):
    """The element-wise half of synchronised batch norm's gradients."""

    @staticmethod
    def kept(ctx: Any, results: Any, *tensors: Any) -> tuple[Any, ...]:  # noqa: D102
        return tensors

    @staticmethod
    def backward(ctx: Any, to_input: Any) -> Any:
        """For every tensor but the count."""
        if to_input is None:
            return (None,) * 9
        tensors = ctx.saved_tensors
        found = partial.backward_elemt(to_input, *tensors)
        return None, *map(like, found, tensors[:-1]), None


class AllReduceSum(Node):
    """The sum over ranks: each rank's values are in every rank's sum."""

    @staticmethod
    def kept(ctx: Any, results: Any, values: Any, group_name: str) -> tuple[Any, ...]:  # noqa: D102
        ctx.group_name = group_name
        return ()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The sum of what every rank's loss asks of these values."""
        return None, operator("all_reduce_sum")(gradient, ctx.group_name), None


class SyncBatchNorm(Node):
    """Synchronised batch norm."""

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, input: Any, weight: Any, bias: Any, running_mean: Any,
        running_var: Any, momentum: float, eps: float, group_name: str, key: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.group_name = group_name
        return input, weight, *results[1:3], results[5]

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients, by the operator of that name."""
        mask = ctx.needs_input_grad[1:4]
        if grad_out is None:
            return (None,) * 10
        gradients = operator("sync_batch_norm_backward")(
            grad_out, *ctx.saved_tensors, ctx.group_name, mask
        )
        return None, *given(gradients, mask), *[None] * 6


class SyncBatchNormBackward(Node):
    """Synchronised batch norm's gradients."""

    differentiable = frozenset({0, 1, 2})

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, weight: Any, mean: Any, invstd: Any,
        count: Any, group_name: str, mask: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.group_name = group_name
        return grad_out, input, weight, mean, invstd, count

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The second derivatives."""
        grad_out, input, weight, mean, invstd, count = ctx.saved_tensors
        norm = SynchronisedNormalisation(input, mean, invstd, count, ctx.group_name)
        found = norm.second(grad_out, weight, *cotangents)
        gradients = map(like, found, (grad_out, input, weight))
        return None, *given(tuple(gradients), ctx.needs_input_grad[1:4]), *[None] * 5
