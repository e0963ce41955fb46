"""What all kernels use: the decorators, sums with errors, and a single rounding of results.

Where a GPU's float64 arithmetic is slow, a program's sums of float32 terms are pairs of a number
and the rounding errors of the additions to it. Otherwise the errors are constant zeros, which the
compiler removes.
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


def constant(value: int | str) -> Any:
    """Make a constant of a module usable in kernels."""
    return value if triton.knobs.runtime.interpret else tl.constexpr(value)


#: Whether Triton interprets the kernels.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Pair(NamedTuple):
    """A sum, and the rounding errors of the additions to it."""

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
def settled(a):
    """A pair as one number; the error of an infinite value is NaN, and is not added."""
    return tl.where(is_finite(a.value), a.value + a.error, a.value)


@helper
def added(a, b, ERRORS: tl.constexpr):
    """The sum of two pairs, with the rounding error of the addition if errors are kept."""
    if ERRORS:
        s = two_sum(a.value, b.value)
        return Pair(s.value, a.error + (s.error + b.error))
    else:
        return Pair(a.value + b.value, a.error)


@helper
def masked(a, there):
    """A pair where a mask is true, and 0 elsewhere."""
    return Pair(tl.where(there, a.value, 0.0), tl.where(there, a.error, 0.0))


@triton.jit
def _add_pairs(a, a_error, b, b_error):
    s = a + b
    z = s - a
    return s, (a_error + b_error) + ((a - (s - z)) + (b - z))


@helper
def sum_along(a, AXIS: tl.constexpr, ERRORS: tl.constexpr):
    """The sum of pairs along an axis, as a number; its order depends on the shape alone."""
    if ERRORS:
        value, error = tl.reduce((a.value, a.error), AXIS, _add_pairs)
        return settled(Pair(value.to(tl.float64), error.to(tl.float64)))
    else:
        return tl.sum(a.value, AXIS)


@helper
def real(value, WIDE: tl.constexpr):
    """Convert a number to the arithmetic's type."""
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
