"""Sums in float64, in the workspace and in kernels.

Float64 is exact enough beside float32 data, however long a sum is. For sums of float64 data terms
are added up in trees: an error grows with the number of a tree's levels. In the workspace such a
sum has several *levels*, copies of its array. Terms are added to the first; when it has RADIX of
them, these are added to the next as one term of that level.
"""

from __future__ import annotations

from ..schedule import block as B
from ..schedule.layout import DOUBLE_LANES, RADIX
from ..vector.helpers import helper
from ..vector.intrinsics import doubles_at, get, not_inlined, put, shift
from ..vector.lanes import load_lanes, splat, sum_of_lanes

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def array(block, field, at):
    """An array of float64 in the workspace, at the offset in a field, from an element on."""
    return shift(doubles_at(get(block, B.WORKSPACE) + get(block, field)), at)


@helper
def clear(sums, count):
    """Set sums to zero."""
    not_inlined()
    for i in range(count):
        put(sums, i, 0.0)


@helper
def add(sums, i, value):
    """Add a number to sum i."""
    put(sums, i, get(sums, i) + value)


@helper
def add_array(sums, others, count):
    """Add sums to others, element by element."""
    not_inlined()
    for i in range(count):
        put(sums, i, get(sums, i) + get(others, i))


@helper
def carry(sums, apart, levels, terms, count):
    """Add full levels of sums to the next ones, after so many terms; levels are ``apart``."""
    while levels > 1 and terms % RADIX == 0:
        add_array(shift(sums, apart), sums, count)
        clear(sums, count)
        sums, levels, terms = shift(sums, apart), levels - 1, terms // RADIX


@helper
def add_copies(sums, apart, copies, count):
    """Add all copies of some sums, which are ``apart``, to the first, in a tree."""
    not_inlined()
    distance = 1
    while distance < copies:
        for i in range(0, copies - distance, 2 * distance):
            add_array(shift(sums, i * apart), shift(sums, (i + distance) * apart), count)
        distance *= 2


@helper
def sum_of(terms, first, count):
    """The sum of some numbers: of eights in lanes, four of them at a time, and of a rest."""
    total, few, four = splat(0.0), 0.0, 4 * DOUBLE_LANES
    long, whole = first + count // four * four, first + count // DOUBLE_LANES * DOUBLE_LANES
    for i in range(first, long, four):
        a = load_lanes(terms, i) + load_lanes(terms, i + DOUBLE_LANES)
        total = total + (
            a + (load_lanes(terms, i + 2 * DOUBLE_LANES) + load_lanes(terms, i + 3 * DOUBLE_LANES))
        )
    for i in range(long, whole, DOUBLE_LANES):
        total = total + load_lanes(terms, i)
    for i in range(whole, first + count):
        few += get(terms, i)
    return sum_of_lanes(total) + few if count >= DOUBLE_LANES else few


@helper
def join_neighbours(sums, count, several):
    """Put into each of so many places the sum of several neighbours, which follow each other."""
    not_inlined()
    for i in range(count):
        put(sums, i, sum_of(sums, i * several, several))
