"""What a result must be, where the documents promise it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from common import units_of

from normgrad.operators import precision, reference
from normgrad.tensors import dtypes

from .hostile import Operator

Array = Any


class _Range:
    """Which channels' intermediates stay in the normal range of what is computed in.

    The bound holds for these. What is not finite is left out: it goes through as in the reference.

    Args:
        shape, axis: of the data, and of its channels.
        real: the type that is computed in.
    """

    def __init__(self, shape: tuple[int, ...], axis: int, real: Any) -> None:
        self._shape, self._axis = shape, axis
        limits = np.finfo(real)
        self._least, self._most = limits.tiny, limits.max
        self.channels = np.ones(shape[axis], np.bool_)

    def add(self, *terms: Array) -> None:
        """Intermediates: shaped like the data, or to broadcast with it."""
        for term in terms:
            size = abs(np.asarray(term))
            normal = (size == 0) | (size >= self._least) & (size <= self._most)
            normal |= ~np.isfinite(size)
            self._keep(normal)

    def exclude(self, bad: Array) -> None:
        """Channels of which nothing is promised for another reason."""
        self._keep(~bad)

    def _keep(self, good: Array) -> None:
        whole = np.broadcast_to(good, np.broadcast_shapes(good.shape, self._shape))
        others = tuple(index for index in range(whole.ndim) if index != self._axis)
        self.channels &= whole.all(others)

    def moments(self, x: Array, others: tuple[int, ...], eps: float) -> None:
        """The mean and the variance of what is not known before."""
        low, high = x.min(others, keepdims=True), x.max(others, keepdims=True)
        self.add(x, (high - low) ** 2 * x.size)
        order = np.sort(np.moveaxis(x, self._axis, 0).reshape(x.shape[self._axis], -1), axis=-1)
        steps = np.diff(order, axis=-1)
        shape = [1] * x.ndim
        shape[self._axis] = -1
        for step in (steps, steps**2):
            least = np.where(step > 0, step, np.inf).min(-1, initial=np.inf)
            self.add(least.reshape(shape))
        var = x.var(others, keepdims=True)
        # A negative eps that cancels the variance is no error of rounding.
        self.exclude(var + eps < var / 2)


def _in_range(
    operator: Operator,
    tensors: Mapping[str, Array | None],
    options: Mapping[str, Any],
    axis: int,
    real: Any,
    wide: Any,
) -> Array:
    """The channels of which the bound is promised."""
    x = tensors["input"]
    assert x is not None
    found = _Range(x.shape, axis, real)
    others = tuple(index for index in range(x.ndim) if index != axis)

    def along(values: Array) -> Array:
        shape = [1] * x.ndim
        shape[axis] = -1
        return values.reshape(shape)

    def read(name: str, default: float, rounded_to: Any = real) -> Array:
        values = tensors.get(name)
        if values is None:
            return np.full([1] * x.ndim, default, wide)
        values = values.astype(rounded_to).astype(wide)
        if values.ndim == 2 and operator.name.startswith("group"):
            return per_group(values)
        return along(values)

    def given(name: str, default: float) -> Array:
        return read(name, default, wide)

    def per_group(values: Array) -> Array:
        each = np.repeat(values, x.shape[axis] // values.shape[1], axis=1)
        shape = [1] * x.ndim
        shape[0], shape[axis] = each.shape
        return each.reshape(shape)

    x = x.astype(wide)
    eps = float(options.get("eps", 0))
    if operator.name == "batch_norm_gather_stats_with_counts":
        return _gathered_in_range(tensors, eps, float(options["momentum"]), real, wide)
    if not x.size:  # nothing is computed
        return found.channels
    weight, bias = read("weight", 1), read("bias", 0)
    if operator.name.startswith("group"):
        weight, bias = read("weight", 1), read("bias", 0)
    found.add(x, weight, bias)

    trained = options.get("training", True)
    if operator.name in ("batch_norm", "batch_norm_stats") and trained:
        found.moments(x, others, eps)
        mean, var = x.mean(others, keepdims=True), x.var(others, keepdims=True)
        spread = 1 / np.sqrt(var + wide(eps))
        share = wide(float(options.get("momentum", 0)))
        for name, new in (("running_mean", mean), ("running_var", 2 * var)):
            found.add(read(name, 0), share * new, (1 - share) * read(name, 0))
    elif operator.name == "group_norm":
        groups = options["num_groups"]
        moved = np.moveaxis(x, axis, 1)
        split = moved.reshape(x.shape[0], int(groups), -1)
        inner = _Range(split.shape, 1, real)
        for sample in split:
            inner.moments(sample[None], (0, 2), eps)
        mean = per_group(split.mean(-1))
        spread = per_group(1 / np.sqrt(split.var(-1) + wide(eps)))
        found.channels &= np.repeat(inner.channels, x.shape[axis] // int(groups))
    elif operator.name in ("batch_norm", "batch_norm_backward") and not trained:
        mean = given("running_mean", 0)
        spread = 1 / np.sqrt(given("running_var", 1) + wide(eps))
    else:
        mean = given("save_mean" if "save_mean" in tensors else "mean", 0)
        if trained and operator.name == "batch_norm_backward" and tensors["save_mean"] is None:
            found.moments(x, others, eps)
            mean = x.mean(others, keepdims=True)
        names = [each for each in ("save_invstd", "invstd", "rstd") if each in tensors]
        spread = given(names[0], 1)
        if trained and operator.name == "batch_norm_backward" and tensors["save_invstd"] is None:
            found.moments(x, others, eps)
            var = ((x - mean) ** 2).mean(others, keepdims=True)
            found.exclude(var + eps < var / 2)
            found.add((x - mean) ** 2)
            spread = 1 / np.sqrt(var + wide(eps))
    centred = x - mean
    gain = weight * spread
    if operator.name == "group_norm_backward":
        # Of an infinite 1/std or weight γ·dy·x̂ is infinite or NaN element by element, which sums
        # of dy·(x − mean) do not tell apart.
        found.exclude(np.isinf(spread) | np.isinf(weight))
    found.add(mean, spread, centred, gain, centred * spread, gain * centred)

    grad_out = tensors.get("grad_out")
    if grad_out is None:
        return found.channels
    dy = grad_out.astype(wide)
    product = dy * centred
    found.add(dy, product, dy * gain, weight * dy, weight * product)
    if operator.name == "group_norm_backward":
        return _grouped_in_range(found, weight * dy, weight * product, centred, spread, axis, x)
    if operator.name == "batch_norm_backward_elemt":
        count = tensors["count"]
        assert count is not None
        n = count.astype(np.float64).sum()
        sums, projections = read("sum_dy", 0), read("sum_dy_xmu", 0)
        found.add(sums, projections)
    else:
        n = max(1, x.size // max(1, x.shape[axis]))
        sums = abs(dy).sum(others, keepdims=True)
        projections = abs(product).sum(others, keepdims=True)
        found.add(sums, projections, projections * spread)
        # Rounding decides whether a sum that cancels is 0, and an infinite 1/std times 0 is NaN.
        rounding = precision.ANY_DATA[dtypes.float32] * np.finfo(real).eps * projections
        cancels = (abs(product.sum(others, keepdims=True)) <= rounding) & (projections > 0)
        found.exclude(np.isinf(spread) & cancels)
    shift, slope = sums / n, spread * spread * projections / n
    inner_terms = (shift, projections / n, spread * spread, slope, centred * slope)
    found.add(*inner_terms, gain * shift, gain * slope, gain * centred * slope)
    # The sum of two terms, which is subtracted from dy, may overflow where dx does not.
    found.add(abs(shift) + abs(centred * slope), abs(gain * shift) + abs(gain * centred * slope))
    return found.channels


def _grouped_in_range(
    found: _Range, dy: Array, product: Array, centred: Array, spread: Array, axis: int, x: Array
) -> Array:
    """The sums of group norm are of a group: its channels are in range together."""
    samples = tuple(index for index in range(x.ndim) if index not in (0, axis))
    sums = abs(dy).sum((*samples, axis), keepdims=True)
    projections = abs(product).sum((*samples, axis), keepdims=True)
    size = max(1, x.size // max(1, x.shape[0]))
    # The sums of all groups are no smaller than one's, its terms no larger than they are.
    for n in (1, size):
        slope = spread * spread * projections / n
        found.add(sums / n, projections * spread, spread**2, slope, slope * centred)
        found.add(spread * sums / n, spread * slope, spread * slope * centred)
        found.add(sums / n + abs(slope * centred), spread * (sums / n + abs(slope * centred)))
    least = np.where(product == 0, np.inf, abs(product)) / size
    found.add(spread**2 * least, spread**3 * least)
    # What one channel has out of range, its group has.
    found.channels &= found.channels.all()
    return found.channels


def _gathered_in_range(
    tensors: Mapping[str, Array | None], eps: float, momentum: float, real: Any, wide: Any
) -> Array:
    mean, invstd, counts = (tensors[name] for name in ("mean", "invstd", "counts"))
    assert mean is not None
    assert invstd is not None
    assert counts is not None
    found = _Range(mean.shape, 1, real)
    means, spreads = (each.astype(real).astype(wide) for each in (mean, invstd))
    weights = counts.astype(wide).reshape(-1, 1)
    n = weights.sum()
    found.add(means, spreads, 1 / spreads**2, weights * means, weights / spreads**2)
    if means.size:
        low, high = means.min(0), means.max(0)
        found.add((high - low)[None], ((high - low) ** 2)[None], (weights / n) * means)
    for name in ("running_mean", "running_var"):
        running = tensors.get(name)
        if running is not None:
            old = running.astype(real).astype(wide)[None]
            found.add(old, (1 - momentum) * old)
            found.add(momentum * means, momentum / spreads**2)
        # The ranks' mean is rounded to float64, and the square of that is taken for a deviation.
        rounding = np.finfo(np.float64).eps * abs(means).max(0, initial=0)
        found.exclude((rounding**2 > np.finfo(np.float64).eps / spreads**2).any(0)[None])
    # Counts of both signs cancel, and so do means and eps: the scale does not know of it.
    if (weights < 0).any():
        found.channels[:] = False
    return found.channels


def check_of_variance(
    operator: Operator,
    tensors: Mapping[str, Array | None],
    variance: Array,
    results: Mapping[str, Array | None],
) -> None:
    """The same of batch norm in training, where the spread is a variance and there is no eps.

    The reference takes 1/std, and no variance: in evaluation it takes the variance, but has another
    formula for grad_input. So 1/std goes in as what float64 makes of it.
    """
    with np.errstate(all="ignore"):
        given = {**tensors, "save_invstd": 1 / np.sqrt(variance)}
        exact = reference.batch_norm_backward(**given, training=True)
        options = {"training": True}
        good = _in_range(operator, given, options, 1, np.float32, np.float64)
        for name, value in results.items():
            assert value is not None
            _judge(operator, name, value, exact[name], dtypes.float32, good, 1)


def check(
    operator: Operator,
    tensors: Mapping[str, Array | None],
    options: Mapping[str, Any],
    axis: int,
    results: Mapping[str, Array | None],
) -> None:
    """Every result is within the bound of any data, where that is promised."""
    leading = ("mean", "invstd") if "counts" in tensors else ("grad_out", "input")
    data = [value for name in leading if (value := tensors.get(name)) is not None]
    arithmetic = dtypes.arithmetic(*(dtypes.parse(value.dtype) for value in data))
    double = arithmetic is dtypes.float64
    wide = np.longdouble if double else np.float64
    plain = _plain(operator, options)
    with np.errstate(all="ignore"):
        exact = getattr(reference, operator.name)(**tensors, **plain)
        good = _in_range(operator, tensors, options, axis, arithmetic.numpy.type, wide)
        for name, value in results.items():
            if value is None:
                continue
            if name in exact:
                _judge(operator, name, value, exact[name], arithmetic, good, axis)


def _judge(
    operator: Operator,
    name: str,
    value: Array,
    exact: reference.Exact,
    arithmetic: dtypes.DType,
    good: Array,
    axis: int,
) -> None:
    """An output is within its bound, in the channels of which that is promised."""
    assert value.shape == exact.value.shape, name
    judged = _spread_over(good, operator.outputs[name][0], value.shape, axis)
    wanted = reference.Exact(exact.value[judged], exact.scale[judged])
    worst = units_of(value[judged], wanted, arithmetic).max(initial=0.0)
    assert worst <= 1, f"{name}: {worst:.3g} of the bound"


def _plain(operator: Operator, options: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if name in ("eps", "momentum"):
            plain[name] = float(value)
        elif name in ("channel_axis", "num_groups"):
            plain[name] = int(value)
        elif name == "training":
            plain[name] = bool(value)
    return plain


def _spread_over(good: Array, about: str, shape: tuple[int, ...], axis: int) -> Array:
    """Channels that are in range, for a tensor of some kind."""
    if about == "channel":
        return good.copy()
    if about == "group":
        groups = good.reshape(shape[1], -1).all(-1)
        return np.broadcast_to(groups, shape).copy()
    full = [1] * len(shape)
    full[axis] = -1
    return np.broadcast_to(good.reshape(full), shape).copy()
