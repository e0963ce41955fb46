"""The oracle: the operators' formulas in plain float64 NumPy.

For float64 tensors they are computed in longdouble, if that is wider on the platform. Each
function takes NumPy arrays (any strides, any of the dtypes) and returns the value and the
*scale* of each output, by name. The scale is the same formula with every term replaced by its
absolute value; (x − μ) counts as one term, and a sum becomes the sum of absolute values. The mean
of a forward pass is a sum too: in its output's scale |x − μ| is |x − μ| + Σ|x − μ|/m. Error bounds
follow from the value and the scale; see :mod:`normgrad.operators.precision`. The *plain* scale is
to first order that in which (x − μ) counts as two terms, since plain float32 arithmetic rounds the
mean or multiplies x and μ apart.

No statistic is rounded: those that an operator computes are the formula's, and those that it is
given (mean, invstd, running_mean in evaluation, and so on) are used as they are. Other per-channel
values are rounded as the operators round them: with float32 or half-precision tensors, a float64
value is rounded to float32 first.

Of the arguments only ``normalized_shape`` is checked. :func:`normgrad.plan` checks all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Exact(NamedTuple):
    """An output's value, scale and plain scale (if None, the scale), in float64 or longdouble."""

    value: Array
    scale: Array
    plain: Array | None = None

    @property
    def widest(self) -> Array:
        """The plain scale, or the scale without one."""
        return self.scale if self.plain is None else self.plain

    def each(self, change: Callable[[Array], Array]) -> Exact:
        """The same with another shape: the change is made to all three."""
        plain = None if self.plain is None else change(self.plain)
        return Exact(change(self.value), change(self.scale), plain)


class _Arithmetic:
    """The types ``real``, to which inputs are rounded, and ``wide``, in which it computes.

    Only a vector's type may be wider than ``real``, so rounding does not change the data tensors.
    No type is wider than ``wide``.

    Attributes, of tensors with a channel axis:
        channels, size: the number of channels, and of the elements of a channel.
        others: the other axes.
    """

    def __init__(self, grad_out: Array, data: Array, channel_axis: int | None = None) -> None:
        double = np.dtype(np.float64) in (grad_out.dtype, data.dtype)
        self.real = np.dtype(np.float64 if double else np.float32)
        self.wide = np.dtype(np.longdouble if double else np.float64)
        if channel_axis is not None:
            axis = channel_axis % data.ndim
            self.channels = data.shape[axis]
            self.size = data.size // max(1, self.channels)
            self.others = tuple(index for index in range(data.ndim) if index != axis)

    def read(self, values: Array | None, default: float = 0, count: int = 1) -> Array:
        """A tensor, rounded to the arithmetic's type and widened; the default if it is absent."""
        return self.given(None if values is None else np.asarray(values, self.real), default, count)

    def given(self, values: Array | None, default: float = 0, count: int = 1) -> Array:
        """Statistics that a caller gives, widened without rounding; the default if absent."""
        return np.full(count, default, self.wide) if values is None else values.astype(self.wide)

    def along(self, values: Array) -> Array:
        """A per-channel vector, shaped to broadcast along the channel axis."""
        return np.expand_dims(values, self.others)


#: The step of the difference quotient that a plain scale has for a derivative.
_STEP = 2.0**-30


def of_formula(
    names: Sequence[str],
    formula: Callable[..., Any],
    *terms: Array,
    apart: Array | float,
    sizes: Sequence[Array] = (),
) -> dict[str, Exact]:
    """A formula's results; their scales are its results for the terms' sizes and plus signs.

    Args:
        names: the results' names.
        formula: takes the terms, of which x − μ is the second, and the sign of what is subtracted.
        terms: the terms.
        apart: the size of x − μ as two terms, |x| + |μ|.
        sizes: the terms' sizes; without them, the absolute values.
    """
    dy, xmu, *others = sizes or [abs(term) for term in terms]
    values, scales = formula(*terms, -1), formula(dy, xmu, *others, 1)
    wider = formula(dy, xmu + _STEP * apart, *others, 1)
    found = zip(names, values, scales, wider, strict=True)
    return {name: Exact(value, s, s + (w - s) / _STEP) for name, value, s, w in found}


#: The factor of the scales of gradients that find the statistics of float64 data themselves: these
#: have as many roundings as all else, and enter several times.
OWN_STATISTICS = 2


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
    arithmetic = _Arithmetic(grad_out, input, channel_axis)
    dy, x = arithmetic.read(grad_out), arithmetic.read(input)
    along, others, m = arithmetic.along, arithmetic.others, arithmetic.size
    with np.errstate(all="ignore"):
        w = arithmetic.read(weight, 1)
        if training:
            is_given = save_mean is not None
            mu = along(arithmetic.given(save_mean)) if is_given else mean_of(abs(x), others)
            xmu = x - mu if is_given else centred(x, others)
            width = abs(xmu) if is_given else abs(xmu) + mean_of(abs(xmu), others)
            if save_invstd is None:
                r = 1 / np.sqrt((xmu * xmu).sum(others) / m + arithmetic.wide.type(eps))
            else:
                r = arithmetic.given(save_invstd)
        else:
            mu = along(arithmetic.given(running_mean))
            xmu = x - mu
            width = abs(xmu)
            r = 1 / np.sqrt(arithmetic.given(running_var, 1) + arithmetic.wide.type(eps))

        def formula(dy: Array, xmu: Array, w: Array, r: Array, minus: int) -> tuple[Array, ...]:
            sum_dy = dy.sum(others)
            sum_dy_xmu = (dy * xmu).sum(others)
            grad_weight = r * sum_dy_xmu if x.size else np.zeros_like(sum_dy)
            if training:
                inner = along(sum_dy / m) + xmu * along(r * r) * along(sum_dy_xmu / m)
                grad_input = along(w * r) * (dy + minus * inner)
            else:
                grad_input = dy * along(r) * along(w)
            return grad_input, grad_weight, sum_dy

        names = ("grad_input", "grad_weight", "grad_bias")
        sizes = (abs(dy), width, abs(w), abs(r))
        outputs = of_formula(names, formula, dy, xmu, w, r, apart=abs(x) + abs(mu), sizes=sizes)
    is_own = training and (save_mean is None or save_invstd is None)
    if is_own and arithmetic.real == np.float64:
        for name in names[:2]:
            value, scale, plain = outputs[name]
            outputs[name] = Exact(value, OWN_STATISTICS * scale, plain)
    return outputs


def mean_of(x: Array, over: tuple[int, ...]) -> Array:
    """The mean over some axes, which are kept with length 1; 0 of no elements.

    NumPy adds contiguous elements in pairs, so that the error hardly grows with their number.
    """
    m = math.prod(x.shape[axis] for axis in over)
    moved = np.ascontiguousarray(np.moveaxis(x, over, range(-len(over), 0)))
    rows = moved.reshape(*moved.shape[: -len(over)], m)
    return np.expand_dims(rows.sum(-1) / max(1, m), over)


def centred(x: Array, over: tuple[int, ...]) -> Array:
    """x less its mean over some axes.

    The mean of what a rounded mean leaves is subtracted too, since an element may differ from the
    mean by less than the rounding.
    """
    rest = x - mean_of(x, over)
    return rest - mean_of(rest, over)


def batch_norm_stats(input: Array, *, eps: float = 1e-5, channel_axis: int = 1) -> dict[str, Exact]:
    """mean and invstd; see :func:`normgrad.batch_norm_stats`."""
    outputs = batch_norm(input, training=True, eps=eps, channel_axis=channel_axis)
    return {name: outputs[name] for name in ("mean", "invstd")}


def _statistics(x: Array, over: tuple[int, ...], eps: float) -> tuple[Exact, Exact, Exact, Array]:
    """(x − mean)·1/std with its scale, the mean, 1/std and the variance over some axes.

    The scale of 1/std and of a variance is its value, since the terms of a variance are squares.
    Their plain scale allows for a mean that is off by as much as a standard deviation.
    """
    xmu = centred(x, over)
    variance = mean_of(xmu * xmu, over)
    there = math.prod(x.shape[axis] for axis in over)
    r = 1 / np.sqrt(variance + x.dtype.type(eps)) if there else variance
    size = mean_of(abs(x), over)
    width = abs(xmu) + mean_of(abs(xmu), over)
    xhat = Exact(xmu * r, width * r, (width + abs(x) + size) * r)
    invstd = Exact(r, abs(r), abs(r) * (1 + size * r))
    return xhat, Exact(mean_of(x, over), size), invstd, variance


def _running(
    arithmetic: _Arithmetic,
    momentum: float,
    n: float,
    **statistics: tuple[Array | None, Exact],
) -> dict[str, Exact]:
    """The updated running statistics by name, of the old and the new ones; n = 0 changes none."""
    share = arithmetic.wide.type(momentum if n else 0)
    updated = {}
    for name, (old, new) in statistics.items():
        if old is not None:
            before = (1 - share) * arithmetic.read(old)
            # Without elements the new statistics may be NaN, which times 0 would remain.
            step = new.each(lambda part: share * part) if n else Exact(*np.zeros((2, 1)))
            scale, plain = (abs(before) + abs(part) for part in (step.scale, step.widest))
            updated[name] = Exact(before + step.value, scale, plain)
    return updated


def _unbiased(n: float) -> float:
    """The factor that makes a variance over n elements unbiased."""
    return n / (n - 1) if n > 1 else 1.0


def _affine(xhat: Exact, weight: Array, bias: Array) -> Exact:
    """weight·x̂ + bias, of arrays that broadcast."""
    scale, plain = (abs(weight) * size + abs(bias) for size in (xhat.scale, xhat.widest))
    return Exact(weight * xhat.value + bias, scale, plain)


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
    arithmetic = _Arithmetic(input, input, channel_axis)
    along, x = arithmetic.along, arithmetic.read(input)
    with np.errstate(all="ignore"):
        mu, r = along(arithmetic.given(mean)), along(arithmetic.given(invstd))
        xhat = Exact((x - mu) * r, abs(x - mu) * abs(r), (abs(x) + abs(mu)) * abs(r))
        vectors = along(arithmetic.read(weight, 1)), along(arithmetic.read(bias))
        return {"output": _affine(xhat, *vectors)}


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
    """output, and in training the statistics too; see :func:`normgrad.batch_norm`."""
    arithmetic = _Arithmetic(input, input, channel_axis)
    x, n = arithmetic.read(input), arithmetic.size
    statistics: dict[str, Exact] = {}
    with np.errstate(all="ignore"):
        if training:
            xhat, mean, invstd, variance = _statistics(x, arithmetic.others, eps)
            mean, invstd = (exact.each(np.ravel) for exact in (mean, invstd))
            var = variance.ravel() * _unbiased(n)
            new = {
                "running_mean": (running_mean, mean),
                "running_var": (
                    running_var,
                    Exact(var, var, var * (1 + mean.scale * invstd.value)),
                ),
            }
            statistics = {
                "mean": mean,
                "invstd": invstd,
                **_running(arithmetic, momentum, n, **new),
            }
            vectors = arithmetic.read(weight, 1), arithmetic.read(bias)
            output = _affine(xhat, *map(arithmetic.along, vectors))
        else:
            r = 1 / np.sqrt(arithmetic.given(running_var, 1) + arithmetic.wide.type(eps))
            mu = arithmetic.given(running_mean)
            elemt = batch_norm_elemt(input, weight, bias, mu, r, channel_axis=channel_axis)
            output = elemt["output"]
    return {"output": output, **statistics}


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

    The scale of 1/std is its value, and that of a running variance has eps as a term.
    """
    arithmetic = _Arithmetic(mean, invstd)
    present = np.asarray(counts).astype(np.float64).reshape(-1) != 0
    weights = np.asarray(counts).astype(arithmetic.wide).reshape(-1)[present]
    n = weights.sum()
    with np.errstate(all="ignore"):
        means = arithmetic.read(mean)[present]
        spreads = 1 / arithmetic.read(invstd)[present] ** 2
        m = n or 1
        total = weights @ means / m
        total_scale = abs(weights) @ abs(means) / m
        spread = weights @ (spreads + (means - total) ** 2) / m
        # To first order, with the means' differences as two terms.
        wider = spread + weights @ (2 * abs(means - total) * (abs(means) + abs(total))) / m
        r = 1 / np.sqrt(spread) if n else spread
        mean_of_all = Exact(total, total_scale)
        small, unbiased = arithmetic.wide.type(eps), _unbiased(float(n))
        var = Exact(np.maximum(spread - small, 0), spread + small, wider + small)
        statistics = {"mean": mean_of_all, "invstd": Exact(r, abs(r), abs(r) * (wider / spread))}
    new = {
        "running_mean": (running_mean, mean_of_all),
        "running_var": (running_var, var.each(lambda part: part * unbiased)),
    }
    return statistics | _running(arithmetic, momentum, float(n), **new)


def group_norm(
    input: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    num_groups: int,
    eps: float = 1e-5,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """output, mean and rstd; see :func:`normgrad.group_norm`."""
    arithmetic = _Arithmetic(input, input)
    x, back = _split(arithmetic.read(input), num_groups, channel_axis)
    channels = (1, *x.shape[1:3], 1)
    with np.errstate(all="ignore"):
        xhat, mean, rstd, _ = _statistics(x, (2, 3), eps)
        flat = [exact.each(lambda part: part[..., 0, 0]) for exact in (mean, rstd)]
        w = arithmetic.read(weight, 1, math.prod(channels)).reshape(channels)
        b = arithmetic.read(bias, 0, math.prod(channels)).reshape(channels)
    return {"output": _affine(xhat, w, b).each(back), "mean": flat[0], "rstd": flat[1]}


def _split(values: Array, groups: int, axis: int) -> tuple[Array, Callable[[Array], Array]]:
    """A tensor in the shape (N, G, channels of a group, positions), and the inverse function."""
    moved = np.moveaxis(values, axis, 1)
    samples, channels = moved.shape[:2]
    shape = (samples, groups, channels // groups, math.prod(moved.shape[2:]))
    return moved.reshape(shape), lambda new: np.moveaxis(new.reshape(moved.shape), 1, axis)


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
    arithmetic = _Arithmetic(grad_out, input, channel_axis)
    with np.errstate(all="ignore"):
        x, mu = arithmetic.read(input), arithmetic.along(arithmetic.given(mean))

        def formula(dy: Array, xmu: Array, r: Array, _: int) -> tuple[Array, ...]:
            sum_dy = dy.sum(arithmetic.others)
            sum_dy_xmu = (dy * xmu).sum(arithmetic.others)
            grad_weight = sum_dy_xmu * r if input.size else np.zeros_like(sum_dy)
            return sum_dy, sum_dy_xmu, grad_weight, sum_dy

        names = ("sum_dy", "sum_dy_xmu", "grad_weight", "grad_bias")
        terms = arithmetic.read(grad_out), x - mu, arithmetic.given(invstd)
        return of_formula(names, formula, *terms, apart=abs(x) + abs(mu))


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
    arithmetic = _Arithmetic(grad_out, input, channel_axis)
    along = arithmetic.along
    with np.errstate(all="ignore"):
        x, mu = arithmetic.read(input), along(arithmetic.given(mean))
        vectors = arithmetic.read(weight, 1), arithmetic.given(invstd)
        sums = arithmetic.read(sum_dy), arithmetic.read(sum_dy_xmu)
        n = np.asarray(count).astype(np.float64).sum()

        def formula(
            dy: Array, xmu: Array, w: Array, r: Array, total: Array, projection: Array, minus: int
        ) -> tuple[Array]:
            inner = along(total / n) + xmu * along(r * r) * along(projection / n)
            return (along(w * r) * (dy + minus * inner),)

        terms = arithmetic.read(grad_out), x - mu, *vectors, *sums
        return of_formula(("grad_input",), formula, *terms, apart=abs(x) + abs(mu))


def group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    *,
    num_groups: int,
    channel_axis: int = 1,
) -> dict[str, Exact]:
    """grad_input, grad_weight and grad_bias; see :func:`normgrad.group_norm_backward`."""
    arithmetic = _Arithmetic(grad_out, input)
    dy, back = _split(arithmetic.read(grad_out), num_groups, channel_axis)
    x, _ = _split(arithmetic.read(input), num_groups, channel_axis)
    per_set, per_channel = (*x.shape[:2], 1, 1), (1, *x.shape[1:3], 1)
    size = math.prod(x.shape[2:])
    with np.errstate(all="ignore"):
        mu, r = (arithmetic.given(each).reshape(per_set) for each in (mean, rstd))
        g = arithmetic.read(weight, 1, math.prod(per_channel)).reshape(per_channel)

        def formula(dy: Array, xmu: Array, r: Array, g: Array, minus: int) -> tuple[Array, ...]:
            grad_bias = dy.sum((0, 3)).ravel()
            grad_weight = (r[..., 0] * (dy * xmu).sum(3)).sum(0).ravel()
            if x.size == 0:
                grad_weight = np.zeros_like(grad_weight)
            xhat = xmu * r
            sums = (g * dy).sum((2, 3), keepdims=True)
            projections = (g * dy * xhat).sum((2, 3), keepdims=True)
            grad_input = r * (g * dy + minus * (sums + xhat * projections) / size)
            return back(grad_input), grad_weight, grad_bias

        names = ("grad_input", "grad_weight", "grad_bias")
        return of_formula(names, formula, dy, x - mu, r, g, apart=abs(x) + abs(mu))


def _rows(input: Array, normalized_shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """The axes of a row's elements."""
    row = tuple(int(size) for size in np.atleast_1d(normalized_shape))
    over = tuple(range(input.ndim - len(row), input.ndim))
    if len(row) > input.ndim or row != input.shape[input.ndim - len(row) :]:
        raise ValueError(
            f"normalized_shape: {row}; allowed: the last axes of input's shape {input.shape}"
        )
    return over


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
    x, over = arithmetic.read(input), _rows(input, normalized_shape)
    with np.errstate(all="ignore"):
        xhat, mean, rstd, _ = _statistics(x, over, eps)
        output = _affine(xhat, arithmetic.read(weight, 1), arithmetic.read(bias))
        return {"output": output, "mean": mean, "rstd": rstd}


def layer_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array | None,
    rstd: Array,
    weight: Array | None = None,
    *,
    normalized_shape: int | tuple[int, ...],
) -> dict[str, Exact]:
    """grad_input, grad_weight and grad_bias; see :func:`normgrad.layer_norm_backward`.

    Without a mean the statistics are those of x itself, as in RMS norm.
    """
    arithmetic = _Arithmetic(grad_out, input)
    dy, x = arithmetic.read(grad_out), arithmetic.read(input)
    over = _rows(input, normalized_shape)
    rows = tuple(range(over[0]))
    size = math.prod(input.shape[over[0] :])
    with np.errstate(all="ignore"):
        mu = np.zeros(1, arithmetic.wide) if mean is None else arithmetic.given(mean)
        apart = 0 if mean is None else abs(x) + abs(mu)
        r, w = arithmetic.given(rstd), arithmetic.read(weight, 1)

        def formula(dy: Array, xmu: Array, r: Array, w: Array, minus: int) -> tuple[Array, ...]:
            grad_bias = dy.sum(rows)
            grad_weight = (dy * (xmu * r)).sum(rows)
            d, xhat = w * dy, xmu * r
            sums = xhat * (d * xhat).sum(over, keepdims=True)
            if mean is not None:
                sums = sums + d.sum(over, keepdims=True)
            return r * (d + minus * sums / size), grad_weight, grad_bias

        names = ("grad_input", "grad_weight", "grad_bias")
        return of_formula(names, formula, dy, x - mu, r, w, apart=apart)


def rms_norm(
    input: Array,
    normalized_shape: int | tuple[int, ...],
    weight: Array | None = None,
    *,
    eps: float | None = None,
) -> dict[str, Exact]:
    """output and rstd; see :func:`normgrad.rms_norm`."""
    arithmetic = _Arithmetic(input, input)
    x, over = arithmetic.read(input), _rows(input, normalized_shape)
    if eps is None:  # the machine epsilon of the arithmetic's type
        eps = float(np.finfo(np.float64 if input.dtype == np.float64 else np.float32).eps)
    with np.errstate(all="ignore"):
        squares = mean_of(x * x, over)
        size = math.prod(input.shape[over[0] :])
        rstd = 1 / np.sqrt(squares + arithmetic.wide.type(eps)) if size else squares
        value = arithmetic.read(weight, 1) * rstd * x
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
    gradients = layer_norm_backward(
        grad_out, input, None, rstd, weight, normalized_shape=normalized_shape
    )
    return {name: gradients[name] for name in ("grad_input", "grad_weight")}
