"""Synchronised batch norm and its parts as nodes of autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, ClassVar

import torch

from . import derivatives
from .derivatives import SynchronisedNormalisation, like, pulled_back
from .nodes import Node, operator, wanted


class _Named(Node):
    """A node that is told by name which arguments have derivatives, and what else it keeps."""

    tensors: ClassVar[tuple[str, ...]]
    constants: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:
        given = dict(zip(schema.names, arguments, strict=True))
        names = (cls.tensors, cls.constants, cls.options)
        return tuple(tuple([given[name] for name in each]) for each in names)


def _part(name: str, formula: Callable[..., Any], differentiable: int) -> type[Node]:
    """The node of a part of synchronised batch norm, from its formula in plain torch.

    What the formula takes by position has derivatives, and what it takes by name is constant; of
    the results the first ones are differentiable.
    """
    parameters = signature(formula).parameters.values()

    class Part(_Named):
        tensors = tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY)
        options = tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            of_choices = partial(formula, **dict(zip(Part.options, ctx.choices, strict=True)))
            mask = ctx.needs_input_grad[1:]
            return None, *pulled_back(of_choices, ctx.saved_tensors, cotangents, mask)

    Part.differentiable = frozenset(range(differentiable))
    Part.__name__ = "".join(word.title() for word in name.split("_"))
    return Part


class BatchNormElemt(_Named):
    """Normalisation by given statistics."""

    tensors, options = ("input", "weight", "bias", "mean", "invstd"), ("eps",)

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        """For every tensor, from the sums of synchronised batch norm."""
        if grad_out is None:
            return (None,) * 6
        saved = input, weight, _, mean, invstd = ctx.saved_tensors
        mask = for_input, for_weight, for_bias, for_mean, for_invstd = ctx.needs_input_grad[1:]
        found: list[Any] = [None] * 5
        if for_input:
            # The same without mean and bias.
            zeros = torch.zeros_like(mean)
            found[0] = operator("batch_norm_elemt")(
                grad_out, weight, None, zeros, invstd, *ctx.choices
            )
        statistics = for_mean or for_invstd
        if statistics or for_weight or for_bias:
            sum_dy, sum_dy_xmu, found[1], found[2] = operator("batch_norm_backward_reduce")(
                grad_out, input, mean, invstd, weight, statistics, for_weight, for_bias
            )
            if statistics:
                dtype = sum_dy.dtype
                gain = 1.0 if weight is None else weight.to(dtype)
                found[3:] = -gain * invstd.to(dtype) * sum_dy, gain * sum_dy_xmu
        return None, *map(like, wanted(found, mask), saved)


class AllReduceSum(_Named):
    """The sum over ranks: each rank's values are in every rank's sum."""

    tensors, options, saved = ("values",), ("group_name",), 0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The sum of what every rank's loss asks of these values."""
        return None, operator("all_reduce_sum")(gradient, *ctx.choices)


class SyncBatchNorm(_Named):
    """Synchronised batch norm."""

    tensors, options, saved = ("input", "weight", "bias"), ("group_name",), 2

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:  # noqa: D102 - as Node's
        tensors, _, choices = super().read(schema, arguments, results)
        return tensors, (*results[1:3], results[5]), choices

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients, by the operator of that name."""
        mask = ctx.needs_input_grad[1:]
        if grad_out is None:
            return (None,) * 4
        gradients = operator("sync_batch_norm_backward")
        return None, *wanted(gradients(grad_out, *ctx.saved_tensors, *ctx.choices, mask), mask)


class SyncBatchNormBackward(_Named):
    """Synchronised batch norm's gradients."""

    differentiable = frozenset({0, 1, 2})
    tensors = ("grad_out", "input", "weight")
    constants, options = ("mean", "invstd", "count"), ("group_name",)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The second derivatives."""
        grad_out, input, weight, *statistics = ctx.saved_tensors
        norm = SynchronisedNormalisation(input, *statistics, *ctx.choices)
        found = norm.second(grad_out, weight, *cotangents)
        gradients = map(like, found, (grad_out, input, weight))
        return None, *wanted(gradients, ctx.needs_input_grad[1:])


#: The nodes by their operators' names.
NODES: dict[str, type[Node]] = {
    "batch_norm_elemt": BatchNormElemt,
    "all_reduce_sum": AllReduceSum,
    "sync_batch_norm": SyncBatchNorm,
    "sync_batch_norm_backward": SyncBatchNormBackward,
    **{
        name: _part(name, formula, differentiable)
        for name, formula, differentiable in (
            ("batch_norm_stats", derivatives.stats, 2),
            ("batch_norm_gather_stats_with_counts", derivatives.gather, 2),
            ("batch_norm_backward_reduce", derivatives.reduce, 4),
            ("batch_norm_backward_elemt", derivatives.backward_elemt, 1),
        )
    },
}
