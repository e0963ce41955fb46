"""Numbers for the arithmetic of channels: float64, in float64 arithmetic with rounding errors.

In float64 arithmetic a number is a pair, which is a float64 and its rounding error (double-double).
Many pairs are a tuple of two arrays, of the numbers and of their errors, so that LLVM vectorises
loops over them. The error of an infinite number may be NaN, and is disregarded. In float32
arithmetic a float64 is exact enough by itself. The functions below compute with either, as their
arguments' types say; ``zero``, a zero of the kind, chooses where there is no other argument.
"""

from __future__ import annotations

from math import isfinite

from numba import types

from . import block as B
from .helpers import by_types, helper
from .intrinsics import doubles_at, fma, get, not_inlined, put, shift, two_sum

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@by_types
def number(zero, value):
    """A float64 as a number without an error."""
    if isinstance(zero, types.BaseTuple):
        return lambda zero, value: (value, 0.0)
    return lambda zero, value: value


@by_types
def value_of(a):
    """A number without its error."""
    return (lambda a: a[0]) if isinstance(a, types.BaseTuple) else lambda a: a


@by_types
def times(a, b):
    """The product of two numbers."""
    if not isinstance(a, types.BaseTuple):
        return lambda a, b: a * b

    def of_pairs(a, b):
        value = a[0] * b[0]
        return value, fma(a[0], b[0], -value) + a[0] * b[1] + a[1] * b[0]

    return of_pairs


@by_types
def plus(a, b):
    """The sum of two numbers."""
    if not isinstance(a, types.BaseTuple):
        return lambda a, b: a + b

    def of_pairs(a, b):
        value, error = two_sum(a[0], b[0])
        return value, error + (a[1] + b[1])

    return of_pairs


@by_types
def over(a, divisor):
    """A number divided by a count of elements; if that is infinite, a pair's error is 0.

    A loop divides once, for the reciprocal. A pair's error also has what that is off by.
    """
    if not isinstance(a, types.BaseTuple):
        return lambda a, divisor: a * (1.0 / divisor)

    def of_pairs(a, divisor):
        one = 1.0 / divisor
        value = a[0] * one
        rest = (fma(-value, divisor, a[0]) + a[1]) * one
        return value, rest if isfinite(divisor) else 0.0

    return of_pairs


@by_types
def rounded(a):
    """A number, to which its error is added."""
    if not isinstance(a, types.BaseTuple):
        return lambda a: a
    return lambda a: a[0] + a[1] if isfinite(a[0]) else a[0]


@helper
def array(block, field, at):
    """An array of float64 in the workspace, at the offset in a field, from an element on."""
    return shift(doubles_at(get(block, B.WORKSPACE) + get(block, field)), at)


@helper
def pairs(block, field, at):
    """An array of numbers and the array of their errors, whose offset is in the next field."""
    return array(block, field, at), array(block, field + 1, at)


@by_types
def numbers_at(zero, block, field, at):
    """An array of numbers in the workspace, from an element on."""
    if isinstance(zero, types.BaseTuple):
        return lambda zero, block, field, at: pairs(block, field, at)
    return lambda zero, block, field, at: array(block, field, at)


@by_types
def get_number(numbers, i):
    """Read number i of an array."""
    if isinstance(numbers, types.BaseTuple):
        return lambda numbers, i: get_pair(numbers, i)
    return lambda numbers, i: get(numbers, i)


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
