"""Batch norm and group norm, and their gradients, as nodes of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import derivatives
from .derivatives import Normalisation, like
from .kernels import wide
from .nodes import Node, along, given, kept_statistics, operator


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
        statistics = results[1:3] if training else kept_statistics(running_mean, running_var)
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
    @along
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
        dtype = torch.promote_types(wide(data), variance.dtype)
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
    @along
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
    @along
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
    @along
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
