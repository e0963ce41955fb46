"""Batch norm and group norm, and their gradients, as nodes of autograd."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..contract import Operator
from ..operators.by_name import PLANNED
from ..plans import call, call_again
from . import derivatives
from .derivatives import Normalisation, like
from .kernels import wide
from .nodes import Node, along, given, kept_statistics, operator
from .watching import kernels_suffice, unwatched


class Forward(Node):
    """A norm's forward pass, whose first three arguments are input, weight and bias.

    Attributes:
        gradient: the functional operator of its gradients, and PyTorch's name for that.
        others: how many arguments there are beside those three.
        statistics: how many of the results are no output.
        normalised: the data, of the options that are the gradients' too and the statistics.
    """

    gradient: ClassVar[tuple[Operator, str]]
    others: ClassVar[int]
    statistics: ClassVar[int]
    normalised: ClassVar[Callable[..., Normalisation]]

    @staticmethod
    def asked(ctx: Any, grad_out: Any) -> tuple[Any, ...]:
        """The tensors that the gradients are made of, in the operator's order."""
        raise NotImplementedError

    @staticmethod
    def sizes(input: Tensor) -> tuple[Any, ...]:
        """The sizes that PyTorch's operator of the gradients takes beside."""
        return ()

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients: by the functional operator where nothing watches, else by PyTorch's."""
        node: type[Forward] = ctx._forward_cls
        mask = ctx.needs_input_grad[1:4]
        if grad_out is None:
            return (None,) * (4 + node.others)
        gradient, name = node.gradient
        tensors, choices = node.asked(ctx, grad_out), ctx.choices
        found = None
        if not torch.is_grad_enabled() and unwatched():
            all_choices = (*choices, mask, 1)
            found = call_again(gradient, tensors, None, all_choices)
            if found is None and kernels_suffice(grad_out):
                found = call(gradient, tensors, None, all_choices)
        if found is None:
            found = given(operator(name)(*tensors, *node.sizes(tensors[1]), *choices, mask), mask)
        return None, *found, *[None] * node.others

    @staticmethod
    @along
    def jvp(ctx: Any, kept: Any, _: Any, input: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        """Along tangents."""
        node: type[Forward] = ctx._forward_cls
        data, gamma, *statistics = kept
        norm = node.normalised(ctx.choices, data, *statistics)
        return like(norm.output_along(gamma, input, weight, bias), data), *[None] * node.statistics


class Gradients(Node):
    """A norm's gradients, whose tensors include grad_out, input and weight.

    Attributes:
        weight: which of the arguments is the weight, counted from grad_out.
        count: how many arguments there are.
        normalised: as in :class:`Forward`.
    """

    differentiable = frozenset({0, 1, 2})
    weight: ClassVar[int]
    count: ClassVar[int]
    normalised: ClassVar[Callable[..., Normalisation]]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The second derivatives."""
        node: type[Gradients] = ctx._forward_cls
        grad_out, input, weight, *statistics = ctx.saved_tensors
        norm = node.normalised(ctx.choices, input, *statistics)
        found = norm.second(grad_out, weight, *cotangents)
        for_all: list[Any] = [None] * node.count
        for_all[0], for_all[1], for_all[node.weight] = map(like, found, (grad_out, input, weight))
        return None, *given(tuple(for_all), ctx.needs_input_grad[1:])

    @staticmethod
    @along
    def jvp(ctx: Any, kept: Any, _: Any, *tangents: Any) -> Any:
        """Along tangents."""
        node: type[Gradients] = ctx._forward_cls
        dy, data, gamma, *statistics = kept
        norm = node.normalised(ctx.choices, data, *statistics)
        moved = norm.gradients_along(dy, gamma, tangents[0], tangents[1], tangents[node.weight])
        moved = (moved[0].reshape(data.shape), *moved[1:])
        return tuple(
            None if dtype is None else value.to(dtype)
            for value, dtype in zip(moved, ctx.gradients, strict=True)
        )


def _described(results: Any, mask: Any) -> tuple[torch.dtype | None, ...]:
    """The gradients' dtypes, None where masked off."""
    return tuple(
        value.dtype if wanted else None for value, wanted in zip(results, mask, strict=True)
    )


def _of_channels(choices: Any, data: Tensor, mean: Any, spread: Any) -> Normalisation:
    """Data normalised as batch norm does."""
    training, eps = choices
    if not training:
        channels = data.shape[1]
        mean = data.new_zeros(channels) if mean is None else mean
        variance = data.new_ones(channels) if spread is None else spread
        dtype = torch.promote_types(wide(data), variance.dtype)
        spread = (variance.to(dtype) + eps).rsqrt()
    grid = derivatives.batch_grid(data)
    return Normalisation(grid, data, mean, spread, constant=not training, eps=eps)


def _of_groups(choices: Any, data: Tensor, mean: Any, rstd: Any) -> Normalisation:
    """Data normalised as group norm does."""
    grid = derivatives.group_grid(data, *choices)
    return Normalisation(grid, data, mean, rstd, constant=False)


class NativeBatchNorm(Forward):
    """Batch norm."""

    gradient = PLANNED["batch_norm_backward"], "native_batch_norm_backward"
    others, statistics = 5, 4
    normalised = staticmethod(_of_channels)

    @staticmethod
    def kept(  # noqa: D102 - described once, in the base class
        ctx: Any, results: Any, input: Any, weight: Any, bias: Any, running_mean: Any,
        running_var: Any, training: bool, momentum: float, eps: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.choices = training, eps
        statistics = results[1:3] if training else kept_statistics(running_mean, running_var)
        return input, weight, *statistics

    @staticmethod
    def asked(ctx: Any, grad_out: Any) -> Any:  # noqa: D102
        input, weight, mean, spread = ctx.saved_tensors
        if ctx.choices[0]:
            return grad_out, input, weight, None, None, mean, spread
        return grad_out, input, weight, mean, spread, None, None


class NativeBatchNormBackward(Gradients):
    """Batch norm's gradients."""

    weight, count = 2, 10
    normalised = staticmethod(_of_channels)

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, weight: Any, running_mean: Any,
        running_var: Any, save_mean: Any, save_invstd: Any, train: bool, eps: float, mask: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.choices = train, eps
        ctx.gradients = _described(results, mask)
        statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
        return grad_out, input, weight, *statistics


class NativeGroupNorm(Forward):
    """Group norm."""

    gradient = PLANNED["group_norm_backward"], "native_group_norm_backward"
    others, statistics = 5, 2
    normalised = staticmethod(_of_groups)

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, input: Any, weight: Any, bias: Any, samples: Any, channels: Any,
        positions: Any, group: int, eps: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.choices = (group,)
        return input, weight, *results[1:3]

    @staticmethod
    def asked(ctx: Any, grad_out: Any) -> Any:  # noqa: D102
        input, weight, mean, rstd = ctx.saved_tensors
        return grad_out, input, mean, rstd, weight

    @staticmethod
    def sizes(input: Tensor) -> tuple[Any, ...]:  # noqa: D102
        return input.shape[0], input.shape[1], prod(input.shape[2:])


class NativeGroupNormBackward(Gradients):
    """Group norm's gradients."""

    weight, count = 4, 10
    normalised = staticmethod(_of_groups)

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any,
        samples: Any, channels: Any, positions: Any, group: int, mask: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.choices = (group,)
        ctx.gradients = _described(results, mask)
        return grad_out, input, weight, mean, rstd
