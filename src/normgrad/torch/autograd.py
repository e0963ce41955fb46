"""How the operators are differentiated.

An operator's kernel at the dispatcher's Autograd key computes what is below it, then attaches a
node of autograd to the results. What a node computes is differentiable again: that of a forward
pass calls the operator of its gradients, and theirs are plain torch.

The nodes are single-level functions, the sort that torch.func itself is built on: each transform
runs the kernel for its own level, so grad, vjp, jvp and vmap nest as for torch's own operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from . import derivatives, partial
from .derivatives import Normalisation, SynchronisedNormalisation, like
from .schemas import NAMESPACE

Tensor = torch.Tensor
_transforms_active = torch._C._are_functorch_transforms_active
_any_requires_grad = torch._C._any_requires_grad
_BelowAutograd = torch._C._AutoDispatchBelowAutograd


def operator(name: str) -> Any:
    """An operator of ours, called through the dispatcher."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


class Node(_SingleLevelFunction):
    """A node for results that are there already; made by :func:`attach`.

    ``differentiable`` says which of the results, by position, have derivatives. ``backward`` and
    ``jvp`` get and give one entry for each argument, after one for the results.
    """

    differentiable: ClassVar[frozenset[int]] = frozenset({0})

    @classmethod
    def forward(
        cls, ctx: Any, made: tuple[tuple[Tensor, ...], tuple[bool, bool]], *arguments: Any
    ) -> Any:
        """Keep what the derivatives need, and pass the results through.

        ``made`` are the results, and whether they were computed with gradients enabled, backwards
        and forwards: here neither is.
        """
        results, ctx.modes = made
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[
                value
                for index, value in enumerate(results)
                if index not in cls.differentiable or value.shape == (0,)
            ]
        )
        kept = cls.kept(ctx, results, *arguments)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        return results if len(results) > 1 else results[0]

    @staticmethod
    def kept(ctx: Any, results: tuple[Tensor, ...], *arguments: Any) -> tuple[Any, ...]:
        """The tensors to keep; other things are set on ``ctx``."""
        raise NotImplementedError


def attach(node: type[Node], results: Any, arguments: tuple[Any, ...]) -> Any:
    """The results with a node, where one is needed."""
    needed = torch.is_grad_enabled() and _any_requires_grad(*arguments)
    if not needed and forward_ad._current_level < 0:
        return results
    modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    made = (results if isinstance(results, tuple) else (results,)), modes
    if _transforms_active():
        with enable_single_level_autograd_function():
            return node.apply(made, *arguments)
    return node.apply(made, *arguments)


def kernel(name: str) -> Callable[..., Any]:
    """An operator's kernel for the Autograd key."""
    call, node = operator(name), NODES[name]

    def differentiable(*arguments: Any) -> Any:
        with _BelowAutograd():
            results = call(*arguments)
        return attach(node, results, arguments)

    return differentiable


def given(gradients: tuple[Any, ...], wanted: tuple[bool, ...]) -> tuple[Any, ...]:
    """The gradients, None where they are not wanted."""
    return tuple(
        gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)
    )


def _along(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """A node's ``jvp``, which gets the kept tensors without tangents and may itself be moved."""

    @wraps(jvp)
    def moved(ctx: Any, *tangents: Any) -> Any:
        primals = [
            value if value is None else forward_ad.unpack_dual(value, level=0).primal
            for value in ctx.saved_tensors
        ]
        grad, fwd_grad = ctx.modes
        with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(fwd_grad):
            return jvp(ctx, primals, *tangents)

    return moved


def _described(results: Any, mask: Any) -> tuple[torch.dtype | None, ...]:
    """The gradients' dtypes, None where masked off."""
    return tuple(
        value.dtype if wanted else None for value, wanted in zip(results, mask, strict=True)
    )


def _as_described(ctx: Any, data: Tensor, moved: Any) -> tuple[Tensor | None, ...]:
    """What moves the gradients, as they are themselves."""
    moved = (moved[0].reshape(data.shape), *moved[1:])
    return tuple(
        None if dtype is None else value.to(dtype)
        for value, dtype in zip(moved, ctx.gradients, strict=True)
    )


class NativeBatchNorm(Node):
    """Batch norm."""

    @staticmethod
    def kept(  # noqa: D102 - described once, in the base class
        ctx: Any, results: Any, input: Any, weight: Any, bias: Any, running_mean: Any,
        running_var: Any, training: bool, momentum: float, eps: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.training, ctx.eps = training, eps
        # In training the running statistics may be overwritten before the gradients are asked for.
        statistics = results[1:3] if training else (running_mean, running_var)
        return input, weight, *statistics

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients, by the operator of that name."""
        mask = ctx.needs_input_grad[1:4]
        if grad_out is None:
            return (None,) * 9
        gradients = operator("native_batch_norm_backward")(
            *_batch_norm_arguments(ctx, grad_out), mask
        )
        return None, *given(gradients, mask), *[None] * 5

    @staticmethod
    @_along
    def jvp(ctx: Any, kept: Any, _: Any, input: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        """Along tangents."""
        data, gamma, *statistics = kept
        norm = _batch_normalisation(ctx, data, *statistics)
        moved = norm.output_along(gamma, input, weight, bias)
        return like(moved, data), None, None, None, None


def _batch_norm_arguments(ctx: Any, grad_out: Any) -> tuple[Any, ...]:
    input, weight, mean, spread = ctx.saved_tensors
    statistics = (None, None, mean, spread) if ctx.training else (mean, spread, None, None)
    return grad_out, input, weight, *statistics, ctx.training, ctx.eps


def _batch_normalisation(ctx: Any, data: Tensor, mean: Any, spread: Any) -> Normalisation:
    grid = derivatives.batch_grid(data)
    if not ctx.training:
        channels = data.shape[1]
        mean = data.new_zeros(channels) if mean is None else mean
        variance = data.new_ones(channels) if spread is None else spread
        dtype = torch.promote_types(derivatives.wide(data), variance.dtype)
        spread = (variance.to(dtype) + ctx.eps).rsqrt()
    return Normalisation(grid, data, mean, spread, constant=not ctx.training, eps=ctx.eps)


class NativeBatchNormBackward(Node):
    """Batch norm's gradients."""

    differentiable = frozenset({0, 1, 2})

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, weight: Any, running_mean: Any,
        running_var: Any, save_mean: Any, save_invstd: Any, train: bool, eps: float, mask: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.training, ctx.eps = train, eps
        ctx.gradients = _described(results, mask)
        statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
        return grad_out, input, weight, *statistics

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The second derivatives."""
        grad_out, input, weight, *statistics = ctx.saved_tensors
        norm = _batch_normalisation(ctx, input, *statistics)
        found = norm.second(grad_out, weight, *cotangents)
        gradients = map(like, found, (grad_out, input, weight))
        return None, *given(tuple(gradients), ctx.needs_input_grad[1:4]), *[None] * 7

    @staticmethod
    @_along
    def jvp(ctx: Any, kept: Any, _: Any, grad_out: Any, input: Any, weight: Any, *rest: Any) -> Any:
        """Along tangents."""
        dy, data, gamma, *statistics = kept
        norm = _batch_normalisation(ctx, data, *statistics)
        return _as_described(ctx, data, norm.gradients_along(dy, gamma, grad_out, input, weight))


class NativeGroupNorm(Node):
    """Group norm."""

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, input: Any, weight: Any, bias: Any, samples: Any, channels: Any,
        positions: Any, group: int, eps: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.sizes, ctx.group = (samples, channels, positions), group
        return input, weight, *results[1:3]

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients, by the operator of that name."""
        mask = ctx.needs_input_grad[1:4]
        if grad_out is None:
            return (None,) * 9
        input, weight, mean, rstd = ctx.saved_tensors
        gradients = operator("native_group_norm_backward")(
            grad_out, input, mean, rstd, weight, *ctx.sizes, ctx.group, mask
        )
        return None, *given(gradients, mask), *[None] * 5

    @staticmethod
    @_along
    def jvp(ctx: Any, kept: Any, _: Any, input: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        """Along tangents."""
        data, gamma, *statistics = kept
        norm = _group_normalisation(ctx, data, *statistics)
        return like(norm.output_along(gamma, input, weight, bias), data), None, None


def _group_normalisation(ctx: Any, data: Tensor, mean: Any, rstd: Any) -> Normalisation:
    grid = derivatives.group_grid(data, ctx.group)
    return Normalisation(grid, data, mean, rstd, constant=False)


class NativeGroupNormBackward(Node):
    """Group norm's gradients."""

    differentiable = frozenset({0, 1, 2})

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any,
        samples: Any, channels: Any, positions: Any, group: int, mask: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.group = group
        ctx.gradients = _described(results, mask)
        return grad_out, input, weight, mean, rstd

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The second derivatives."""
        grad_out, input, weight, *statistics = ctx.saved_tensors
        norm = _group_normalisation(ctx, input, *statistics)
        found = norm.second(grad_out, weight, *cotangents)
        for_dy, for_x, for_weight = map(like, found, (grad_out, input, weight))
        return None, for_dy, for_x, None, None, for_weight, *[None] * 5

    @staticmethod
    @_along
    def jvp(
        ctx: Any,
        kept: Any,
        _: Any,
        grad_out: Any,
        input: Any,
        mean: Any,
        rstd: Any,
        weight: Any,
        *rest: Any,
    ) -> Any:
        """Along tangents."""
        dy, data, gamma, *statistics = kept
        norm = _group_normalisation(ctx, data, *statistics)
        return _as_described(ctx, data, norm.gradients_along(dy, gamma, grad_out, input, weight))


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
        mean, invstd, counts, *everywhere = ctx.saved_tensors
        found = partial.gather(mean, invstd, counts, *everywhere, to_mean, to_invstd)
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
        found = partial.backward_elemt(*tensors, to_input)
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
        grad_out, input, weight, *statistics = ctx.saved_tensors
        norm = SynchronisedNormalisation(input, *statistics, ctx.group_name)
        found = norm.second(grad_out, weight, *cotangents)
        gradients = map(like, found, (grad_out, input, weight))
        return None, *given(tuple(gradients), ctx.needs_input_grad[1:4]), *[None] * 5


#: The nodes by their operators' names.
NODES: dict[str, type[Node]] = {
    "native_batch_norm": NativeBatchNorm,
    "native_batch_norm_backward": NativeBatchNormBackward,
    "batch_norm_stats": BatchNormStats,
    "batch_norm_elemt": BatchNormElemt,
    "batch_norm_gather_stats_with_counts": BatchNormGather,
    "batch_norm_backward_reduce": BatchNormBackwardReduce,
    "batch_norm_backward_elemt": BatchNormBackwardElemt,
    "native_group_norm": NativeGroupNorm,
    "native_group_norm_backward": NativeGroupNormBackward,
    "all_reduce_sum": AllReduceSum,
    "sync_batch_norm": SyncBatchNorm,
    "sync_batch_norm_backward": SyncBatchNormBackward,
}
