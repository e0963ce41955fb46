"""The oracle: the operators' formulas as they are written, in float64 NumPy, nothing clever.

float64 tensors are treated in longdouble, where the platform has a wider one. Each function takes
NumPy arrays (any strides, any of the dtypes) and returns, for each output by name, its exact value
and its *scale*: the same formula with every term replaced by its absolute value, (x − μ) counting
as one term, a sum as the sum of absolute values. Error bounds are multiples of the scale; see
:mod:`normgrad.precision`.

The inputs are taken as the arithmetic reads them: beside float32 or half tensors, a float64
per-channel value is rounded to float32 first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Exact(NamedTuple):
    """An output's value and scale, in float64 or longdouble."""

    value: Array
    scale: Array


class _Arithmetic:
    """How inputs are read, and what is computed in."""

    def __init__(self, grad_out: Array, data: Array) -> None:
        double = np.dtype(np.float64) in (grad_out.dtype, data.dtype)
        self.real = np.dtype(np.float64 if double else np.float32)
        self.wide = np.dtype(np.longdouble if double else np.float64)

    def read(self, values: Array | None, default: float, count: int) -> Array:
        """A per-channel vector, rounded to the arithmetic's type and widened."""
        if values is None:
            return np.full(count, default, self.wide)
        return np.asarray(values).astype(self.real).astype(self.wide)

    def tensor(self, values: Array) -> Array:
        return values.astype(self.wide)


def _others(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(index for index in range(rank) if index != axis)


def _along(values: Array, rank: int, axis: int) -> Array:
    """A per-channel vector, shaped to broadcast along the channel axis."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    save_mean: Array | None = None,
    save_invstd: Array | None = None,
    *,
    training: bool,
    eps: float = 1e-5,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """grad_input, grad_weight and grad_bias; see :func:`normgrad.batch_norm_backward`."""
    arithmetic = _Arithmetic(grad_out, input)
    dy, x = arithmetic.tensor(grad_out), arithmetic.tensor(input)
    axis = channel_axis % x.ndim
    channels = x.shape[axis]
    others = _others(x.ndim, axis)
    m = x.size // max(1, channels)

    def along(values: Array) -> Array:
        return _along(values, x.ndim, axis)

    with np.errstate(all="ignore"):
        w = arithmetic.read(weight, 1, channels)
        if training:
            if save_mean is None:
                save_mean = (x.sum(others) / m).astype(arithmetic.real)
            mean = arithmetic.read(save_mean, 0, channels)
            xmu = x - along(mean)
            if save_invstd is None:
                save_invstd = 1 / np.sqrt((xmu * xmu).sum(others) / m + eps)
                save_invstd = save_invstd.astype(arithmetic.real)
            r = arithmetic.read(save_invstd, 1, channels)
        else:
            mean = arithmetic.read(running_mean, 0, channels)
            xmu = x - along(mean)
            r = 1 / np.sqrt(arithmetic.read(running_var, 1, channels) + arithmetic.wide.type(eps))

        def formula(dy: Array, xmu: Array, w: Array, r: Array, minus: int) -> tuple[Array, ...]:
            sum_dy = dy.sum(others)
            sum_dy_xmu = (dy * xmu).sum(others)
            if x.size == 0:
                return dy, np.zeros_like(w), np.zeros_like(w)
            if training:
                inner = along(sum_dy / m) + xmu * along(r * r) * along(sum_dy_xmu / m)
                grad_input = along(w * r) * (dy + minus * inner)
            else:
                grad_input = dy * along(r) * along(w)
            return grad_input, r * sum_dy_xmu, sum_dy

        values = formula(dy, xmu, w, r, -1)
        scales = formula(abs(dy), abs(xmu), abs(w), abs(r), 1)
    names = ("grad_input", "grad_weight", "grad_bias")
    return {name: Exact(*pair) for name, *pair in zip(names, values, scales, strict=True)}


def batch_norm_stats(input: Array, *, eps: float = 1e-5, channel_axis: int = 1) -> dict[str, Exact]:
    """mean and invstd; see :func:`normgrad.batch_norm_stats`.

    The scale of invstd is its own: the terms of a variance are squares.
    """
    arithmetic = _Arithmetic(input, input)
    x = arithmetic.tensor(input)
    axis = channel_axis % x.ndim
    others = _others(x.ndim, axis)
    m = x.size // max(1, x.shape[axis])
    if x.size == 0:
        zeros = np.zeros(x.shape[axis], arithmetic.wide)
        return {"mean": Exact(zeros, zeros), "invstd": Exact(zeros, zeros)}
    with np.errstate(all="ignore"):
        mean = x.sum(others) / m
        centred = x - _along(mean, x.ndim, axis)
        # Whatever rounding has left of the mean is not the variance's.
        rest = centred.sum(others) / m
        variance = (centred * centred).sum(others) / m - rest * rest
        invstd = 1 / np.sqrt(variance + arithmetic.wide.type(eps))
        return {
            "mean": Exact(mean, abs(x).sum(others) / m),
            "invstd": Exact(invstd, abs(invstd)),
        }


def batch_norm_backward_reduce(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None = None,
    *,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """The four sums; see :func:`normgrad.batch_norm_backward_reduce`."""
    arithmetic = _Arithmetic(grad_out, input)
    dy, x = arithmetic.tensor(grad_out), arithmetic.tensor(input)
    axis = channel_axis % x.ndim
    others = _others(x.ndim, axis)
    channels = x.shape[axis]
    with np.errstate(all="ignore"):
        xmu = x - _along(arithmetic.read(mean, 0, channels), x.ndim, axis)
        r = arithmetic.read(invstd, 1, channels)

        def formula(dy: Array, xmu: Array, r: Array) -> tuple[Array, ...]:
            sum_dy = dy.sum(others)
            sum_dy_xmu = (dy * xmu).sum(others)
            grad_weight = sum_dy_xmu * r if x.size else np.zeros_like(sum_dy)
            return sum_dy, sum_dy_xmu, grad_weight, sum_dy

        values = formula(dy, xmu, r)
        scales = formula(abs(dy), abs(xmu), abs(r))
    names = ("sum_dy", "sum_dy_xmu", "grad_weight", "grad_bias")
    return {name: Exact(*pair) for name, *pair in zip(names, values, scales, strict=True)}


def batch_norm_backward_elemt(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None,
    sum_dy: Array,
    sum_dy_xmu: Array,
    count: Array,
    *,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """grad_input; see :func:`normgrad.batch_norm_backward_elemt`."""
    arithmetic = _Arithmetic(grad_out, input)
    dy, x = arithmetic.tensor(grad_out), arithmetic.tensor(input)
    axis = channel_axis % x.ndim
    channels = x.shape[axis]

    def along(values: Array) -> Array:
        return _along(values, x.ndim, axis)

    with np.errstate(all="ignore"):
        w = arithmetic.read(weight, 1, channels)
        r = arithmetic.read(invstd, 1, channels)
        xmu = x - along(arithmetic.read(mean, 0, channels))
        total = arithmetic.read(sum_dy, 0, channels)
        projection = arithmetic.read(sum_dy_xmu, 0, channels)
        n = np.asarray(count).astype(np.float64).sum()

        def formula(
            dy: Array, xmu: Array, w: Array, r: Array, total: Array, projection: Array, minus: int
        ) -> Array:
            inner = along(total / n) + xmu * along(r * r) * along(projection / n)
            grad_input: Array = along(w * r) * (dy + minus * inner)
            return grad_input

        value = formula(dy, xmu, w, r, total, projection, -1)
        scale = formula(abs(dy), abs(xmu), abs(w), abs(r), abs(total), abs(projection), 1)
    return {"grad_input": Exact(value, scale)}


def group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None = None,
    *,
    num_groups: int,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """grad_input, grad_gamma and grad_beta; see :func:`normgrad.group_norm_backward`."""
    arithmetic = _Arithmetic(grad_out, input)
    axis = channel_axis % input.ndim
    shape = np.moveaxis(input, axis, 1).shape
    samples, channels = shape[:2]
    per_group = channels // num_groups
    # (N, G, channels of the group, positions)
    split = (samples, num_groups, per_group, int(np.prod(shape[2:])))
    dy = np.moveaxis(arithmetic.tensor(grad_out), axis, 1).reshape(split)
    x = np.moveaxis(arithmetic.tensor(input), axis, 1).reshape(split)
    size = per_group * split[3]
    with np.errstate(all="ignore"):
        per_set = (samples, num_groups, 1, 1)
        mu = arithmetic.read(mean, 0, 0).reshape(per_set)
        r = arithmetic.read(rstd, 1, 0).reshape(per_set)
        g = arithmetic.read(gamma, 1, channels).reshape(1, num_groups, per_group, 1)
        xmu = x - mu

        def formula(
            dy: Array, xmu: Array, r: Array, g: Array, minus: int
        ) -> tuple[Array, Array, Array]:
            grad_beta = dy.sum((0, 3)).reshape(channels)
            grad_gamma = (r[..., 0] * (dy * xmu).sum(3)).sum(0).reshape(channels)
            if x.size == 0:
                return dy, np.zeros_like(grad_gamma), grad_beta
            xhat = xmu * r
            sums = (g * dy).sum((2, 3), keepdims=True)
            projections = (g * dy * xhat).sum((2, 3), keepdims=True)
            grad_input = r * (g * dy + minus * (sums + xhat * projections) / size)
            return grad_input, grad_gamma, grad_beta

        values = formula(dy, xmu, r, g, -1)
        scales = formula(abs(dy), abs(xmu), abs(r), abs(g), 1)

    def back(values: Sequence[Array]) -> list[Array]:
        return [np.moveaxis(values[0].reshape(shape), 1, axis), *values[1:]]

    names = ("grad_input", "grad_gamma", "grad_beta")
    return {
        name: Exact(*pair) for name, *pair in zip(names, back(values), back(scales), strict=True)
    }
