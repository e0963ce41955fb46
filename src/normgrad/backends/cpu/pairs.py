"""Double-double arithmetic: numbers with the errors of their roundings, and arrays of them.

A pair is a float64 and its rounding error. Many pairs are a tuple of two arrays, of the numbers and
of their errors, so that LLVM vectorises loops over them. The error of an infinite number may be
NaN, and is disregarded.
"""

from __future__ import annotations

from math import isfinite

from . import block as B
from .helpers import helper
from .intrinsics import doubles_at, fma, get, not_inlined, put, shift, two_sum

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def times(a, b):
    """The product of two pairs."""
    value = a[0] * b[0]
    return value, fma(a[0], b[0], -value) + a[0] * b[1] + a[1] * b[0]


@helper
def plus(a, b):
    """The sum of two pairs."""
    value, error = two_sum(a[0], b[0])
    return value, error + (a[1] + b[1])


@helper
def over(a, divisor):
    """A pair divided by a number of elements; if that is infinite, the error is 0."""
    value = a[0] / divisor
    rest = (fma(-value, divisor, a[0]) + a[1]) / divisor
    return value, rest if isfinite(divisor) else 0.0


@helper
def rounded(a):
    """The sum of a pair's number and error, rounded to one number."""
    return a[0] + a[1] if isfinite(a[0]) else a[0]


@helper
def array(block, field, at):
    """An array of float64 in the workspace, at the offset in a field, from an element on."""
    return shift(doubles_at(get(block, B.WORKSPACE) + get(block, field)), at)


@helper
def pairs(block, field, at):
    """An array of numbers and the array of their errors, whose offset is in the next field."""
    return array(block, field, at), array(block, field + 1, at)


@helper
def get_pair(numbers, i):
    """Read number i of an array, with its error."""
    return get(numbers[0], i), get(numbers[1], i)


@helper
def put_pair(numbers, i, number):
    """Write number i of an array, with its error."""
    put(numbers[0], i, number[0])
    put(numbers[1], i, number[1])


@helper
def clear_pairs(numbers, count):
    """Set an array's numbers and errors to zero."""
    not_inlined()
    for i in range(count):
        put_pair(numbers, i, (0.0, 0.0))


@helper
def add_pair(numbers, i, number):
    """Add a number with its error to number i of an array."""
    value, rounding = two_sum(get(numbers[0], i), number[0])
    put(numbers[0], i, value)
    put(numbers[1], i, get(numbers[1], i) + (rounding + number[1]))


@helper
def add_array(block, numbers, field, at, count):
    """Add an array in the workspace to another, element by element.

    In float32 arithmetic their errors are left out.
    """
    not_inlined()
    others = pairs(block, field, at)
    if get(block, B.SINGLE) != 0:
        for i in range(count):
            put(numbers[0], i, get(numbers[0], i) + get(others[0], i))
    else:
        for i in range(count):
            add_pair(numbers, i, get_pair(others, i))
