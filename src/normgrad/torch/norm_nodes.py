"""Batch norm and group norm, and their gradients, as nodes of autograd."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import itemgetter
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
    """A norm's forward pass.

    Attributes:
        gradient: the functional operator of its gradients, and PyTorch's name for that.
        count: how many arguments there are.
        places: where input, weight and, if there is one, bias are among them, counted from 1.
        statistics: how many of the results are no output.
        axis: the functional operator's last argument, if it has channels.
        normalised: the data, of the options that are the gradients' too and the statistics.
    """

    gradient: ClassVar[tuple[Operator, str]]
    count: ClassVar[int]
    places: ClassVar[tuple[int, ...]] = (1, 2, 3)
    statistics: ClassVar[int]
    axis: ClassVar[tuple[int, ...]] = (1,)
    normalised: ClassVar[Callable[..., Normalisation]]

    @staticmethod
    def asked(ctx: Any, grad_out: Any) -> tuple[Any, ...]:
        """The tensors that the gradients are made of, in the operator's order."""
        raise NotImplementedError

    @staticmethod
    def arguments(tensors: tuple[Any, ...], choices: Any, mask: Any) -> tuple[Any, ...]:
        """The arguments of PyTorch's operator of the gradients."""
        return *tensors, *choices, mask

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients: by the functional operator where nothing watches, else by PyTorch's."""
        node: type[Forward] = ctx._forward_cls
        if grad_out is None:
            return (None,) * (1 + node.count)
        mask = itemgetter(*node.places)(ctx.needs_input_grad)
        gradient, name = node.gradient
        tensors, choices = node.asked(ctx, grad_out), ctx.choices
        found = None
        if not torch.is_grad_enabled() and unwatched():
            all_choices = (*choices, mask, *node.axis)
            found = call_again(gradient, tensors, None, all_choices)
            if found is None and kernels_suffice(grad_out):
                found = call(gradient, tensors, None, all_choices)
        if found is None:
            found = given(operator(name)(*node.arguments(tensors, choices, mask)), mask)
        for_all: list[Any] = [None] * (1 + node.count)
        for place, gradient_ in zip(node.places, found, strict=True):
            for_all[place] = gradient_
        return tuple(for_all)

    @staticmethod
    @along
    def jvp(ctx: Any, kept: Any, *tangents: Any) -> Any:
        """Along tangents."""
        node: type[Forward] = ctx._forward_cls
        data, gamma, *statistics = kept
        norm = node.normalised(ctx.choices, data, *statistics)
        input, weight, *bias = (tangents[place] for place in node.places)
        moved = norm.output_along(gamma, input, weight, *(bias or [None]))
        return like(moved, data), *[None] * node.statistics


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
        none = [None] * (3 - len(cotangents))
        found = norm.second(grad_out, weight, *cotangents, *none)
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
        return tuple(
            None if looks is None else value.reshape(looks[0]).to(looks[1])
            for value, looks in zip(moved, ctx.gradients, strict=False)
        )


def _described(results: Any, mask: Any) -> tuple[tuple[Any, torch.dtype] | None, ...]:
    """The gradients' shapes and dtypes, None where masked off."""
    return tuple(
        (value.shape, value.dtype) if wanted else None
        for value, wanted in zip(results, mask, strict=True)
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


def _of_rows(choices: Any, data: Tensor, mean: Any, rstd: Any) -> Normalisation:
    """Data normalised as layer norm does."""
    grid = derivatives.row_grid(data, *choices)
    return Normalisation(grid, data, mean, rstd, constant=False)


def _by_squares(choices: Any, data: Tensor, rstd: Any) -> Normalisation:
    """Data normalised as RMS norm does."""
    grid = derivatives.row_grid(data, *choices)
    return Normalisation(grid, data, None, rstd, constant=False, centred=False)


class NativeBatchNorm(Forward):
    """Batch norm."""

    gradient = PLANNED["batch_norm_backward"], "native_batch_norm_backward"
    count, statistics = 8, 4
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
    count, statistics = 8, 2
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
    def arguments(tensors: Any, choices: Any, mask: Any) -> tuple[Any, ...]:  # noqa: D102
        shape = tensors[1].shape
        return *tensors, shape[0], shape[1], prod(shape[2:]), *choices, mask


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


class NativeLayerNorm(Forward):
    """Layer norm."""

    gradient = PLANNED["layer_norm_backward"], "native_layer_norm_backward"
    count, statistics, places, axis = 5, 2, (1, 3, 4), ()
    normalised = staticmethod(_of_rows)

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, input: Any, normalized_shape: Any, weight: Any, bias: Any,
        eps: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.choices = (tuple(normalized_shape),)
        return input, weight, *results[1:]

    @staticmethod
    def asked(ctx: Any, grad_out: Any) -> Any:  # noqa: D102
        input, weight, *statistics = ctx.saved_tensors
        return grad_out, input, *statistics, weight

    @staticmethod
    def arguments(tensors: Any, choices: Any, mask: Any) -> tuple[Any, ...]:  # noqa: D102
        # PyTorch's has a bias, of which nothing is read.
        return *tensors[:2], *choices, *tensors[2:], None, mask


class NativeLayerNormBackward(Gradients):
    """Layer norm's gradients."""

    weight, count = 5, 8
    normalised = staticmethod(_of_rows)

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, normalized_shape: Any, mean: Any,
        rstd: Any, weight: Any, bias: Any, mask: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.choices = (tuple(normalized_shape),)
        ctx.gradients = _described(results, mask)
        return grad_out, input, weight, mean, rstd


class FusedRmsNorm(Forward):
    """RMS norm."""

    gradient = PLANNED["rms_norm_backward"], "_fused_rms_norm_backward"
    count, statistics, places, axis = 4, 1, (1, 3), ()
    normalised = staticmethod(_by_squares)
    asked = staticmethod(NativeLayerNorm.asked)

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, input: Any, normalized_shape: Any, weight: Any, eps: Any
    ) -> tuple[Any, ...]:
        ctx.choices = (tuple(normalized_shape),)
        return input, weight, *results[1:]

    @staticmethod
    def arguments(tensors: Any, choices: Any, mask: Any) -> tuple[Any, ...]:  # noqa: D102
        return *tensors[:2], *choices, *tensors[2:], mask


class FusedRmsNormBackward(Gradients):
    """RMS norm's gradients."""

    differentiable = frozenset({0, 1})
    weight, count = 4, 6
    normalised = staticmethod(_by_squares)

    @staticmethod
    def kept(  # noqa: D102
        ctx: Any, results: Any, grad_out: Any, input: Any, normalized_shape: Any, rstd: Any,
        weight: Any, mask: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        ctx.choices = (tuple(normalized_shape),)
        ctx.gradients = _described(results, mask)
        return grad_out, input, weight, rstd
