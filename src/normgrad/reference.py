"""The oracle: the operators' formulas, written plainly in float64 NumPy.

float64 tensors are treated in longdouble, where the platform has a wider one. Each function takes
NumPy arrays (any strides, any of the dtypes) and returns, for each output by name, its exact value
and its *scale*: the same formula with every term replaced by its absolute value, (x − μ) counting
as one term, a sum as the sum of absolute values. Error bounds are multiples of the scale; see
:mod:`normgrad.precision`.

The inputs are taken as the arithmetic reads them: beside float32 or half tensors, a float64
per-channel value is rounded to float32 first. Statistics that a gradient has to find itself are not
rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import dtypes

Array = npt.NDArray[Any]


class Exact(NamedTuple):
    """An output's value and scale, in float64 or longdouble."""

    value: Array
    scale: Array


class _Arithmetic:
    """The type that inputs are rounded to, and the one that is computed in."""

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


def _exact(names: Sequence[str], formula: Callable[..., Any], *terms: Array) -> dict[str, Exact]:
    """A formula's results, with its results for absolute values and positive signs as scales."""
    values, scales = formula(*terms, -1), formula(*map(abs, terms), 1)
    return {name: Exact(*pair) for name, *pair in zip(names, values, scales, strict=True)}


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
                mean, rest = _means(np.moveaxis(input, axis, 0).reshape(channels, m))
                xmu = x - along(mean) - along(rest)
            else:
                xmu = x - along(arithmetic.read(save_mean, 0, channels))
            if save_invstd is None:
                r = 1 / np.sqrt((xmu * xmu).sum(others) / m + arithmetic.wide.type(eps))
            else:
                r = arithmetic.read(save_invstd, 1, channels)
        else:
            xmu = x - along(arithmetic.read(running_mean, 0, channels))
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

        return _exact(("grad_input", "grad_weight", "grad_bias"), formula, dy, xmu, w, r)


def _means(rows: Array) -> tuple[Array, Array]:
    """Each row's mean, rounded to float64, and its rounding error.

    An element may be nearer to the mean than what rounding leaves of it.
    """
    means = np.zeros((2, len(rows)))
    for index, row in enumerate(rows.astype(np.float64)):
        values = row.tolist()
        try:
            total = math.fsum(values)
            exact = Fraction(total) + Fraction(math.fsum((*values, -total)))
            means[0, index] = float(exact / len(values))
            means[1, index] = float(exact / len(values) - Fraction(means[0, index]))
        except (ArithmeticError, ValueError):  # no elements, or some that are not finite
            means[0, index] = row.sum() / np.float64(row.size)
    return means[0], means[1]


def batch_norm_stats(input: Array, *, eps: float = 1e-5, channel_axis: int = 1) -> dict[str, Exact]:
    """mean and invstd; see :func:`normgrad.batch_norm_stats`."""
    found = batch_norm(input, training=True, eps=eps, channel_axis=channel_axis)
    return {name: found[name] for name in ("mean", "invstd")}


def _statistics(x: Array, over: tuple[int, ...], eps: float) -> tuple[Exact, Exact, Array]:
    """The mean, 1/std and variance over some axes, which are kept with length 1.

    The scale of 1/std and of a variance is its own: the terms of a variance are squares.
    """
    m = 1
    for axis in over:
        m *= x.shape[axis]
    mean = x.sum(over, keepdims=True) / m if m else x.sum(over, keepdims=True)
    centred = x - mean
    # Whatever rounding has left of the mean is not the variance's.
    rest = centred.sum(over, keepdims=True) / m if m else mean
    variance = (centred * centred).sum(over, keepdims=True) / m - rest * rest if m else mean
    invstd = 1 / np.sqrt(variance + x.dtype.type(eps)) if m else mean
    scale = abs(x).sum(over, keepdims=True) / m if m else mean
    return Exact(mean, scale), Exact(invstd, abs(invstd)), variance


def _updated(
    arithmetic: _Arithmetic, old: Array, momentum: float, new: Array, scale: Array, n: float
) -> Exact:
    """The updated running statistics; unchanged where there are no elements."""
    before = arithmetic.read(old, 0, 0)
    if n == 0:
        return Exact(before, abs(before))
    share = arithmetic.wide.type(momentum)
    rest = 1 - share
    return Exact(rest * before + share * new, abs(rest * before) + abs(share) * scale)


def _unbiased(n: float) -> float:
    """The factor that makes a variance over n elements unbiased."""
    return n / (n - 1) if n > 1 else 1.0


def _normalised(x: Array, mean: Array, invstd: Array, weight: Array, bias: Array) -> Exact:
    """weight·invstd·(x − mean) + bias, of arrays that broadcast."""
    value = weight * invstd * (x - mean)
    return Exact(value + bias, abs(value) + abs(bias))


def batch_norm_elemt(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    invstd: Array,
    *,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """output; see :func:`normgrad.batch_norm_elemt`."""
    arithmetic = _Arithmetic(input, input)
    x = arithmetic.tensor(input)
    axis = channel_axis % x.ndim
    channels = x.shape[axis]
    vectors = ((mean, 0.0), (invstd, 1.0), (weight, 1.0), (bias, 0.0))
    with np.errstate(all="ignore"):
        read = [arithmetic.read(vector, default, channels) for vector, default in vectors]
        return {"output": _normalised(x, *(_along(values, x.ndim, axis) for values in read))}


def batch_norm(
    input: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """output, and in training mean, invstd and the running statistics that are given.

    See :func:`normgrad.batch_norm`.
    """
    arithmetic = _Arithmetic(input, input)
    x = arithmetic.tensor(input)
    axis = channel_axis % x.ndim
    channels = x.shape[axis]
    n = x.size // max(1, channels)
    found: dict[str, Exact] = {}
    with np.errstate(all="ignore"):
        if training:
            mean, invstd, variance = _statistics(x, _others(x.ndim, axis), eps)
            flat = [Exact(*(part.reshape(channels) for part in exact)) for exact in (mean, invstd)]
            found = dict(zip(("mean", "invstd"), flat, strict=True))
            if running_mean is not None:
                found["running_mean"] = _updated(
                    arithmetic, running_mean, momentum, flat[0].value, flat[0].scale, n
                )
            if running_var is not None:
                var = variance.reshape(channels) * _unbiased(n)
                found["running_var"] = _updated(arithmetic, running_var, momentum, var, var, n)
            mu, r = (exact.value.astype(arithmetic.real) for exact in flat)
        else:
            mu = arithmetic.read(running_mean, 0, channels)
            var = arithmetic.read(running_var, 1, channels)
            r = 1 / np.sqrt(var + arithmetic.wide.type(eps))
        w = arithmetic.read(weight, 1, channels)
        b = arithmetic.read(bias, 0, channels)
        vectors = (mu.astype(arithmetic.wide), r.astype(arithmetic.wide), w, b)
        output = _normalised(x, *(_along(values, x.ndim, axis) for values in vectors))
    return {"output": output, **found}


def batch_norm_gather_stats_with_counts(
    input: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    counts: Array,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> dict[str, Exact]:
    """The statistics of all ranks; see :func:`normgrad.batch_norm_gather_stats_with_counts`.

    The scale of 1/std is its own, and a running variance's has eps as a term.
    """
    arithmetic = _Arithmetic(mean, invstd)
    present = np.asarray(counts).astype(np.float64).reshape(-1) != 0
    weights = np.asarray(counts).astype(arithmetic.wide).reshape(-1)[present]
    n = weights.sum()
    with np.errstate(all="ignore"):
        means = arithmetic.read(mean, 0, 0)[present]
        spreads = 1 / arithmetic.read(invstd, 0, 0)[present] ** 2
        if n == 0:
            total = total_scale = spread = np.zeros(mean.shape[1], arithmetic.wide)
            r = total
        else:
            total = weights @ means / n
            total_scale = abs(weights) @ abs(means) / n
            spread = weights @ (spreads + (means - total) ** 2) / n
            r = 1 / np.sqrt(spread)
        found = {"mean": Exact(total, total_scale), "invstd": Exact(r, abs(r))}
        small = arithmetic.wide.type(eps)
        var = np.maximum(spread - small, 0) * _unbiased(float(n))
        var_scale = (spread + small) * _unbiased(float(n))
        if running_mean is not None:
            found["running_mean"] = _updated(
                arithmetic, running_mean, momentum, total, total_scale, float(n)
            )
        if running_var is not None:
            found["running_var"] = _updated(
                arithmetic, running_var, momentum, var, var_scale, float(n)
            )
    return found


def group_norm(
    input: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    num_groups: int,
    eps: float = 1e-5,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """output, mean and rstd; see :func:`normgrad.group_norm`."""
    arithmetic = _Arithmetic(input, input)
    axis = channel_axis % input.ndim
    moved = np.moveaxis(arithmetic.tensor(input), axis, 1)
    samples, channels = moved.shape[:2]
    per_group = channels // num_groups
    split = (samples, num_groups, per_group, int(np.prod(moved.shape[2:])))
    x = moved.reshape(split)
    with np.errstate(all="ignore"):
        mean, rstd, _ = _statistics(x, (2, 3), eps)
        flat = [Exact(*(part.reshape(split[:2]) for part in exact)) for exact in (mean, rstd)]
        vectors = [
            arithmetic.read(vector, default, channels).reshape(1, num_groups, per_group, 1)
            for vector, default in ((gamma, 1.0), (beta, 0.0))
        ]
        rounded = [
            exact.value.astype(arithmetic.real).astype(arithmetic.wide) for exact in (mean, rstd)
        ]
        output = _normalised(x, *rounded, *vectors)

    def back(values: Array) -> Array:
        return np.moveaxis(values.reshape(moved.shape), 1, axis)

    return {"output": Exact(*map(back, output)), "mean": flat[0], "rstd": flat[1]}


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


def _rows(input: Array, normalized_shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """The axes of a row's elements."""
    count = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    return tuple(range(input.ndim - count, input.ndim))


def layer_norm(
    input: Array,
    normalized_shape: int | tuple[int, ...],
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
) -> dict[str, Exact]:
    """output, mean and rstd; see :func:`normgrad.layer_norm`."""
    arithmetic = _Arithmetic(input, input)
    x, over = arithmetic.tensor(input), _rows(input, normalized_shape)
    shape = input.shape[over[0] :]
    with np.errstate(all="ignore"):
        mean, rstd, _ = _statistics(x, over, eps)
        rounded = (
            exact.value.astype(arithmetic.real).astype(arithmetic.wide) for exact in (mean, rstd)
        )
        vectors = (
            np.broadcast_to(arithmetic.read(vector, default, 1), shape)
            for vector, default in ((weight, 1.0), (bias, 0.0))
        )
        return {"output": _normalised(x, *rounded, *vectors), "mean": mean, "rstd": rstd}


def layer_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    *,
    normalized_shape: int | tuple[int, ...],
) -> dict[str, Exact]:
    """grad_input, grad_weight and grad_bias; see :func:`normgrad.layer_norm_backward`."""
    arithmetic = _Arithmetic(grad_out, input)
    dy, x = arithmetic.tensor(grad_out), arithmetic.tensor(input)
    over = _rows(input, normalized_shape)
    rows = tuple(range(over[0]))
    size = math.prod(input.shape[over[0] :])
    with np.errstate(all="ignore"):
        xmu = x - arithmetic.read(mean, 0, 0)
        r, w = arithmetic.read(rstd, 1, 0), arithmetic.read(weight, 1, 1)

        def formula(dy: Array, xmu: Array, r: Array, w: Array, minus: int) -> tuple[Array, ...]:
            grad_bias = dy.sum(rows)
            grad_weight = (dy * (xmu * r)).sum(rows)
            if x.size == 0:
                return dy, np.zeros_like(grad_bias), grad_bias
            d, xhat = w * dy, xmu * r
            sums = d.sum(over, keepdims=True)
            projections = (d * xhat).sum(over, keepdims=True)
            return r * (d + minus * (sums + xhat * projections) / size), grad_weight, grad_bias

        return _exact(("grad_input", "grad_weight", "grad_bias"), formula, dy, xmu, r, w)


def rms_norm(
    input: Array,
    normalized_shape: int | tuple[int, ...],
    weight: Array | None = None,
    *,
    eps: float | None = None,
) -> dict[str, Exact]:
    """output and rstd; see :func:`normgrad.rms_norm`."""
    arithmetic = _Arithmetic(input, input)
    x, over = arithmetic.tensor(input), _rows(input, normalized_shape)
    eps = 2 * dtypes.parse(input.dtype).unit_roundoff if eps is None else eps
    with np.errstate(all="ignore"):
        size = math.prod(input.shape[over[0] :])
        squares = (x * x).sum(over, keepdims=True)
        rstd = 1 / np.sqrt(squares / size + arithmetic.wide.type(eps)) if size else squares
        r = rstd.astype(arithmetic.real).astype(arithmetic.wide)
        value = arithmetic.read(weight, 1, 1) * r * x
    return {"output": Exact(value, abs(value)), "rstd": Exact(rstd, abs(rstd))}


def rms_norm_backward(
    grad_out: Array,
    input: Array,
    rstd: Array,
    weight: Array | None = None,
    *,
    normalized_shape: int | tuple[int, ...],
) -> dict[str, Exact]:
    """grad_input and grad_weight; see :func:`normgrad.rms_norm_backward`."""
    arithmetic = _Arithmetic(grad_out, input)
    dy, x = arithmetic.tensor(grad_out), arithmetic.tensor(input)
    over = _rows(input, normalized_shape)
    size = max(1, math.prod(input.shape[over[0] :]))
    with np.errstate(all="ignore"):
        r, w = arithmetic.read(rstd, 1, 0), arithmetic.read(weight, 1, 1)

        def formula(dy: Array, x: Array, r: Array, w: Array, minus: int) -> tuple[Array, Array]:
            d, xhat = w * dy, x * r
            projections = (d * xhat).sum(over, keepdims=True)
            grad_weight = (dy * xhat).sum(tuple(range(over[0])))
            return r * (d + minus * xhat * projections / size), grad_weight

        return _exact(("grad_input", "grad_weight"), formula, dy, x, r, w)
