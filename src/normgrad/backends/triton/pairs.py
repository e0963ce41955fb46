"""What all kernels use: the decorators, double-double arithmetic, and a single rounding of results.

In float64 arithmetic ("wide") sums and products of a few per-channel numbers carry their rounding
errors. With float32 data, float64 alone is exact enough; the errors are then constant zeros, which
the compiler removes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


def helper(function: Callable[..., Any]) -> Any:
    """Make a function callable from kernels.

    For the interpreter the function does not change: a decorated one would patch Triton's language
    at every call, which takes as long as everything else.
    """
    return function if triton.knobs.runtime.interpret else triton.jit(function)


def constant(value: int) -> Any:
    """Make a constant of a module usable in kernels."""
    return value if triton.knobs.runtime.interpret else tl.constexpr(value)


#: Whether Triton interprets the kernels.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Pair(NamedTuple):
    """A number, and its rounding error."""

    value: Any
    error: Any


@helper
def exact(value):
    """A pair of a number and the error 0."""
    return Pair(value, tl.zeros_like(value))


@helper
def number(bits):
    """The float64 with these bits."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@helper
def is_finite(value):
    """Whether a float64 is neither infinite nor NaN."""
    return tl.abs(value) <= 1.7976931348623157e308


@helper
def two_sum(a, b):
    """a + b as a pair of the rounded sum and its exact rounding error."""
    s = a + b
    z = s - a
    return Pair(s, (a - (s - z)) + (b - z))


@helper
def as_number(a, WIDE: tl.constexpr):
    """A pair as one number: the value plus its error, if the arithmetic keeps errors.

    The error of an infinite value is NaN, and is not added.
    """
    if WIDE:
        return tl.where(is_finite(a.value), a.value + a.error, a.value)
    else:
        return a.value


@helper
def as_float64(a):
    """A pair of float32 as a float64 number without an error."""
    return exact(as_number(Pair(a.value.to(tl.float64), a.error.to(tl.float64)), True))


@helper
def added(a, b, WIDE: tl.constexpr):
    """The sum of two pairs."""
    if WIDE:
        s = two_sum(a.value, b.value)
        return Pair(s.value, a.error + (s.error + b.error))
    else:
        return Pair(a.value + b.value, a.error)


@helper
def masked(a, there):
    """A pair where a mask is true, and 0 elsewhere."""
    return Pair(tl.where(there, a.value, 0.0), tl.where(there, a.error, 0.0))


@helper
def negative(a):
    """The negative of a pair."""
    return Pair(-a.value, -a.error)


@triton.jit
def _add_pairs(a, a_error, b, b_error):
    s = a + b
    z = s - a
    return s, (a_error + b_error) + ((a - (s - z)) + (b - z))


@helper
def sum_along(a, AXIS: tl.constexpr, WIDE: tl.constexpr):
    """The sum of pairs along an axis, in an order that depends on the shape alone."""
    if WIDE:
        value, error = tl.reduce((a.value, a.error), AXIS, _add_pairs)
        return Pair(value, error)
    else:
        return exact(tl.sum(a.value, AXIS))


@helper
def times(a, b, WIDE: tl.constexpr):
    """The product of two pairs."""
    product = a.value * b.value
    if WIDE:
        rounding = tl.fma(a.value, b.value, -product)
        return Pair(product, rounding + a.value * b.error + a.error * b.value)
    else:
        return Pair(product, a.error)


@helper
def divided(a, divisor, inverse, WIDE: tl.constexpr):
    """The quotient of a pair and a divisor, computed with the divisor's inverse.

    A float64 division would be a function call, for which registers have to be freed.
    """
    quotient = a.value * inverse
    if WIDE:
        rounding = (tl.fma(-quotient, divisor, a.value) + a.error) * inverse
        # If the number of elements is infinite, the error is 0.
        return Pair(quotient, tl.where(inverse == 0.0, 0.0, rounding))
    else:
        return Pair(quotient, a.error)


@helper
def inverse_root(a, more, WIDE: tl.constexpr):
    """1/sqrt(a + more) of a pair and a number."""
    value = two_sum(a.value, more)
    r = tl.rsqrt(value.value)
    if WIDE:
        # The error follows from a Newton step: its relative size is (1 − r²·value)/2.
        square = times(exact(r), exact(r), True)
        lack = tl.fma(-square.value, value.value, 1.0) - square.error * value.value
        error = 0.5 * r * (lack - square.value * (value.error + a.error))
        return Pair(r, tl.where(is_finite(error), error, 0.0))
    else:
        return exact(r)


@helper
def is_normal(value, WIDE: tl.constexpr):
    """Whether the arithmetic's type holds a number with full precision."""
    size = tl.abs(value)
    if WIDE:
        inside = (size >= 2.2250738585072014e-308) & (size <= 1.7976931348623157e308)
    else:
        inside = (size >= 1.1754943508222875e-38) & (size <= 3.4028234663852886e38)
    return (size == 0.0) | inside


@helper
def real(value, WIDE: tl.constexpr):
    """Convert a pair to the arithmetic's type."""
    if WIDE:
        return value.to(tl.float64)
    else:
        return value.to(tl.float32)


@helper
def rounded_to_odd(value):
    """Round a float64 to odd as a float32, so that rounding that to a half type rounds only once.

    A number that is not exact becomes the neighbour whose last bit is 1, so that a later rounding
    does not see a tie where there is none (Boldo and Melquiond, "Emulation of a FMA and Correctly
    Rounded Sums", 2008).
    """
    near = value.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    back = near.to(tl.float64)
    away = tl.abs(back) < tl.abs(value)
    # A zero has the value's sign, so that adding 1 to its bits moves it towards the value.
    neighbour = tl.where(away, bits + 1, bits - 1).to(tl.float32, bitcast=True)
    is_exact = (back == value) | (value != value) | (tl.abs(near) == float("inf"))
    return tl.where(is_exact | ((bits & 1) == 1), near, neighbour)


@helper
def as_bfloat16(value):
    """Round a float32 to a bfloat16's value by its bits, since the interpreter truncates."""
    bits = value.to(tl.int32, bitcast=True)
    up = bits + 0x7FFF + ((bits >> 16) & 1)
    bits = tl.where(value == value, up, 0x7FC00000) & -65536
    return bits.to(tl.float32, bitcast=True)


@helper
def below_overflow(value):
    """float32 that float16 makes ±65504 of where it would round ±65520 to infinity.

    float16 overflows from 65520 on, and a result that is a little smaller may be 65520 in float32:
    to round that by itself would round twice. bfloat16 is left as it is: intermediate values
    overflow float32 next to where it overflows.
    """
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(tl.abs(value) == 65520.0, bits - 1, bits).to(tl.float32, bitcast=True)


@helper
def rounded(value, CODE: tl.constexpr):
    """Round a number once, to nearest even, to the dtype that has this code (see dtypes.py).

    ±65520 become ±65504 in float16: see ``below_overflow``.
    """
    if CODE == 0:
        return value.to(tl.float32)
    elif CODE == 1:
        return value.to(tl.float64)
    else:
        if value.dtype == tl.float64:
            single = rounded_to_odd(value)
        else:
            single = value
        if CODE == 2:
            return below_overflow(single).to(tl.float16)
        else:
            if INTERPRETED:
                single = as_bfloat16(single)
            return single.to(tl.bfloat16)
