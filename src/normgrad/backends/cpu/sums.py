"""Sums that are carried in float64 from one block to the next.

In float64 arithmetic the rounding error of each addition is carried too: otherwise a long tensor's
chain of additions would break the bound. In float32 arithmetic float64 is exact enough by itself,
and the pointer to the errors is only a type.
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

from numba import types
from numba.core.extending import overload

from .intrinsics import HELPER, double_buffer, fma, get, helper, load, put, two_sum
from .lanes import (
    LANES,
    double_lanes,
    fused,
    get_lanes,
    keep_part,
    keep_some,
    load_some,
    minus,
    product,
    put_lanes,
    splat,
    sum_and_error_of_lanes,
    sum_of_lanes,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Elements of two vectors of lanes.
TWO_LOTS = 2 * LANES


def fold(total: Any, error: Any, index: Any, value: Any) -> None:
    """Add a block's sum to a running total in float64.

    In float64 arithmetic the error of each addition is kept too: otherwise a long tensor's chain
    of additions would break the bound. In float32 arithmetic float64 is exact enough by itself.
    """
    raise NotImplementedError


@overload(fold, jit_options=HELPER)
def _fold(total, error, index, value):
    if error.dtype == types.float64:

        def compensated(total, error, index, value):
            s, e = two_sum(get(total, index), value)
            put(total, index, s)
            put(error, index, get(error, index) + e)

        return compensated

    def plain(total, error, index, value):
        put(total, index, get(total, index) + value)

    return plain


def fold_sum(total: Any, error: Any, index: Any, lanes: Any) -> None:
    """``fold`` for the sum of lanes, which are added with their errors in float64 arithmetic."""
    raise NotImplementedError


@overload(fold_sum, jit_options=HELPER)
def _fold_sum(total, error, index, lanes):
    if error.dtype == types.float64:

        def compensated(total, error, index, lanes):
            value, rounding = sum_and_error_of_lanes(lanes)
            fold(total, error, index, value)
            put(error, index, get(error, index) + rounding)

        return compensated
    return lambda total, error, index, lanes: fold(total, error, index, sum_of_lanes(lanes))


def clear(total: Any, error: Any, index: Any) -> None:
    """Start a sum from zero."""
    raise NotImplementedError


@overload(clear)
def _clear(total, error, index):
    if error.dtype == types.float64:

        def compensated(total, error, index):
            put(total, index, 0.0)
            put(error, index, 0.0)

        return compensated
    return lambda total, error, index: put(total, index, 0.0)


def add_error(into: Any, at: Any, error: Any, index: Any) -> None:
    """Add one error term to another, where the arithmetic keeps them."""
    raise NotImplementedError


@overload(add_error)
def _add_error(into, at, error, index):
    if error.dtype == types.float64:
        return lambda into, at, error, index: put(into, at, get(into, at) + get(error, index))
    return lambda into, at, error, index: None


@helper
def corrected(total, error):
    """A compensated sum. The error of an infinite one is NaN and must not spoil it."""
    return total + error if isfinite(total) else total


def kept_sum(total: Any, error: Any, index: Any) -> Any:
    """A sum, with its error term where the arithmetic keeps one."""
    raise NotImplementedError


@overload(kept_sum)
def _kept_sum(total, error, index):
    if error.dtype == types.float64:
        return lambda total, error, index: corrected(get(total, index), get(error, index))
    return lambda total, error, index: get(total, index)


def sum_and_error(total: Any, error: Any, index: Any) -> Any:
    """A sum and its error term; 0 where the arithmetic keeps none, or the sum is infinite."""
    raise NotImplementedError


@overload(sum_and_error)
def _sum_and_error(total, error, index):
    if error.dtype == types.float64:

        def compensated(total, error, index):
            value = get(total, index)
            return value, get(error, index) if isfinite(value) else 0.0

        return compensated
    return lambda total, error, index: (get(total, index), 0.0)


def error_of(error: Any, index: Any) -> Any:
    """An error term; 0 where the arithmetic keeps none."""
    raise NotImplementedError


@overload(error_of)
def _error_of(error, index):
    if error.dtype == types.float64:
        return lambda error, index: get(error, index)
    return lambda error, index: 0.0


def put_error(error: Any, index: Any, value: Any) -> None:
    """Write an error term, where the arithmetic keeps one."""
    raise NotImplementedError


@overload(put_error)
def _put_error(error, index, value):
    if error.dtype == types.float64:
        return lambda error, index, value: put(error, index, value)
    return lambda error, index, value: None


# Products and quotients of a few per-channel numbers. In float64 arithmetic they carry the error
# of each rounding; beside float32 data float64 itself is exact enough.


def times(real: Any, value: Any, error: Any, factor: Any, factor_error: Any) -> Any:
    """A product of two numbers and their errors, with the error of the product."""
    raise NotImplementedError


@overload(times, jit_options=HELPER)
def _times(real, value, error, factor, factor_error):
    if real.dtype == types.float64:

        def compensated(real, value, error, factor, factor_error):
            product = value * factor
            rounding = fma(value, factor, -product)
            return product, rounding + value * factor_error + error * factor

        return compensated
    return lambda real, value, error, factor, factor_error: (value * factor, 0.0)


def divided(real: Any, value: Any, error: Any, divisor: Any) -> Any:
    """A quotient, with its error."""
    raise NotImplementedError


@overload(divided, jit_options=HELPER)
def _divided(real, value, error, divisor):
    if real.dtype == types.float64:

        def compensated(real, value, error, divisor):
            quotient = value / divisor
            rounding = (fma(-quotient, divisor, value) + error) / divisor
            # By an infinite number of elements nothing is left over.
            return quotient, rounding if isfinite(divisor) else 0.0

        return compensated
    return lambda real, value, error, divisor: (value / divisor, 0.0)


def inverse_root(real: Any, value: Any, error: Any) -> Any:
    """1/sqrt of a number, with its error."""
    raise NotImplementedError


@overload(inverse_root, jit_options=HELPER)
def _inverse_root(real, value, error):
    if real.dtype == types.float64:

        def compensated(real, value, error):
            root = 1.0 / sqrt(value)
            # By a step of Newton's: of 1 − root²·value half is what the root lacks, relative to it.
            square, square_error = times(real, root, 0.0, root, 0.0)
            lack = fma(-square, value, 1.0) - square_error * value - square * error
            rest = 0.5 * root * lack
            return root, rest if isfinite(rest) else 0.0

        return compensated
    return lambda real, value, error: (1.0 / sqrt(value), 0.0)


def finished(real: Any, value: Any, error: Any) -> Any:
    """A number with its error added."""
    raise NotImplementedError


@overload(finished, jit_options=HELPER)
def _finished(real, value, error):
    if real.dtype == types.float64:
        return lambda real, value, error: corrected(value, error)
    return lambda real, value, error: value


@helper
def add_term(sums, c, dy, x, mean):
    """Add one element's terms to channel c's sums, in float64 arithmetic without a rounding.

    Where a statistic is over few elements, the rounding of each term shows in the result.
    """
    total, total_error, projection, projection_error = sums
    xmu, xmu_error = two_sum(x, -mean)
    value = dy * xmu
    rounding = fma(dy, xmu, -value) + dy * xmu_error
    fold(total, total_error, c, dy)
    fold(projection, projection_error, c, value)
    put(projection_error, c, get(projection_error, c) + rounding)


def fold_lanes(total: Any, error: Any, index: Any, lanes: Any) -> None:
    """``fold`` for totals that follow each other."""
    raise NotImplementedError


@overload(fold_lanes, jit_options=HELPER)
def _fold_lanes(total, error, index, lanes):
    if error.dtype == types.float64:

        def compensated(total, error, index, lanes):
            s, e = two_sum(get_lanes(total, index), lanes)
            put_lanes(total, index, s)
            put_lanes(error, index, get_lanes(error, index) + e)

        return compensated

    def plain(total, error, index, lanes):
        put_lanes(total, index, get_lanes(total, index) + double_lanes(lanes))

    return plain


def add_terms(sums: Any, c: Any, tensor: Any, dy: Any, x: Any, mean: Any, part: Any) -> None:
    """``add_term`` for the lanes of a part of a tensor's row, whose sums follow each other."""
    raise NotImplementedError


@overload(add_terms, jit_options=HELPER)
def _add_terms(sums, c, tensor, dy, x, mean, part):
    if sums[1].dtype == types.float64:

        def compensated(sums, c, tensor, dy, x, mean, part):
            total, total_error, projection, projection_error = sums
            xmu, xmu_error = two_sum(x, minus(mean))
            value = product(dy, xmu)
            rounding = fused(dy, xmu, minus(value)) + product(dy, xmu_error)
            fold_lanes(total, total_error, c, dy)
            fold_lanes(projection, projection_error, c, keep_part(tensor, value, part))
            error = get_lanes(projection_error, c) + keep_part(tensor, rounding, part)
            put_lanes(projection_error, c, error)

        return compensated

    def plain(sums, c, tensor, dy, x, mean, part):
        total, total_error, projection, projection_error = sums
        d = double_lanes(dy)
        value = product(d, double_lanes(x) - double_lanes(mean))
        fold_lanes(total, total_error, c, d)
        fold_lanes(projection, projection_error, c, keep_part(tensor, value, part))

    return plain


def add_deviation(error: Any, tensor: Any, x: Any, mean: Any, s: Any, e: Any, part: Any) -> Any:
    """x − mean of a part of a tensor's row in float64, and it added to a sum and its error, lanes.

    In float64 arithmetic no rounding is lost: what is left of a mean has to be right for elements
    that are far nearer to the mean than others.
    """
    raise NotImplementedError


@overload(add_deviation, jit_options=HELPER)
def _add_deviation(error, tensor, x, mean, s, e, part):
    if error.dtype == types.float64:

        def compensated(error, tensor, x, mean, s, e, part):
            d, rest = two_sum(x, minus(mean))
            d, rest = keep_part(tensor, d, part), keep_part(tensor, rest, part)
            total, left = two_sum(s, d)
            return d, total, e + (left + rest)

        return compensated

    def plain(error, tensor, x, mean, s, e, part):
        d = keep_part(tensor, x - mean, part)
        return d, s + d, e

    return plain


def fold_deviations(total: Any, error: Any, index: Any, s: Any, s2: Any, e: Any) -> None:
    """``fold_sum`` for two sums of deviations and their error."""
    raise NotImplementedError


@overload(fold_deviations, jit_options=HELPER)
def _fold_deviations(total, error, index, s, s2, e):
    if error.dtype == types.float64:

        def compensated(total, error, index, s, s2, e):
            row = double_buffer(TWO_LOTS)
            put_lanes(row, 0, s)
            put_lanes(row, LANES, s2)
            for lane in range(TWO_LOTS):
                fold(total, error, index, get(row, lane))
            put(error, index, get(error, index) + sum_of_lanes(e))

        return compensated
    return lambda total, error, index, s, s2, e: fold_sum(total, error, index, s + s2)


def add_errors(error: Any, index: Any, lanes: Any) -> None:
    """Add to errors that follow each other, where the arithmetic keeps them."""
    raise NotImplementedError


@overload(add_errors, jit_options=HELPER)
def _add_errors(error, index, lanes):
    if error.dtype == types.float64:
        return lambda error, index, lanes: put_lanes(error, index, get_lanes(error, index) + lanes)
    return lambda error, index, lanes: None


def add_row_of_terms(sums: Any, c: Any, dy: Any, x: Any, mean: Any, count: Any) -> None:
    """``add_term`` for a row of fewer elements than lanes, of one channel."""
    raise NotImplementedError


@overload(add_row_of_terms, jit_options=HELPER)
def _add_row_of_terms(sums, c, dy, x, mean, count):
    if sums[1].dtype == types.float64:

        def compensated(sums, c, dy, x, mean, count):
            for i in range(count):
                add_term(sums, c, load(dy, i), load(x, i), mean)

        return compensated

    def plain(sums, c, dy, x, mean, count):
        total, total_error, projection, projection_error = sums
        d = double_lanes(load_some(dy, 0, count))
        value = product(d, double_lanes(load_some(x, 0, count)) - double_lanes(splat(mean)))
        fold_sum(total, total_error, c, d)
        fold_sum(projection, projection_error, c, keep_some(dy, value, count))

    return plain
