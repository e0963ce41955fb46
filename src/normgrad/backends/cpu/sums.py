"""Sums in float64, in the workspace and in kernels.

Beside float32 data float64 is exact enough by itself. In float64 arithmetic a sum is two arrays, of
numbers and of the rounding errors of the additions to them (Neumaier, "Rundungsfehleranalyse
einiger Verfahren zur Summation endlicher Summen", 1974), which :func:`settle` adds to the numbers
when all terms are there. So its error does not grow with the number of terms.
"""

from __future__ import annotations

from math import isfinite

from numba import types

from . import block as B
from .helpers import by_types, helper
from .intrinsics import doubles_at, get, not_inlined, put, shift, two_sum

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def array(block, field, at):
    """An array of float64 in the workspace, at the offset in a field, from an element on."""
    return shift(doubles_at(get(block, B.WORKSPACE) + get(block, field)), at)


@helper
def sums_at(block, field, at):
    """An array of sums and the array of their errors, whose offset is in the next field."""
    return array(block, field, at), array(block, field + 1, at)


@helper
def clear(sums, count):
    """Set sums and their errors to zero."""
    not_inlined()
    for i in range(count):
        put(sums[0], i, 0.0)
        put(sums[1], i, 0.0)


@by_types
def is_compensated(zero):
    """Whether sums carry errors, by lanes in the arithmetic's type."""
    compensated = zero.real == types.float64
    return lambda zero: compensated


@helper
def add_exactly(sums, i, value):
    """Add a number to sum i, and its rounding error to the sum's."""
    total, error = two_sum(get(sums[0], i), value)
    put(sums[0], i, total)
    put(sums[1], i, get(sums[1], i) + error)


@helper
def add(zero, sums, i, value):
    """Add a number to sum i, in the arithmetic's type, which is that of the lanes ``zero``."""
    if is_compensated(zero):
        add_exactly(sums, i, value)
    else:
        put(sums[0], i, get(sums[0], i) + value)


@helper
def settled(total, error):
    """A sum with its error, which is NaN, and is not added, if the sum is infinite."""
    return total + error if isfinite(total) else total


@helper
def settle(sums, count):
    """Add the errors of some sums to them."""
    not_inlined()
    for i in range(count):
        put(sums[0], i, settled(get(sums[0], i), get(sums[1], i)))
        put(sums[1], i, 0.0)


@helper
def add_array(block, sums, others, count):
    """Add sums to others, element by element."""
    not_inlined()
    if get(block, B.SINGLE) != 0:
        for i in range(count):
            put(sums[0], i, get(sums[0], i) + get(others[0], i))
    else:
        for i in range(count):
            add_exactly(sums, i, get(others[0], i))
            put(sums[1], i, get(sums[1], i) + get(others[1], i))
