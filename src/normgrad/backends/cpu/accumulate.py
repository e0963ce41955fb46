"""Accumulators: how additions in the arithmetic's type are folded into sums in float64.

In float64 arithmetic the rounding error of each addition is carried too: otherwise a long tensor's
chain of additions would break the bound. In float32 arithmetic float64 is exact enough by itself.
A function is compiled for one of the two by the type of ``zero``, lanes in the arithmetic's type,
or of other lanes.

Three kinds of accumulators take sums from the lanes to channels. A *total* is in registers, for
rows. A *batch* holds the totals of up to eight channels, whose lanes are added up together. *Column
sums* are in memory, one for each element of a row.
"""

from __future__ import annotations

from numba import types

from .helpers import by_types, helper
from .intrinsics import double_buffer, get, not_inlined, put, shift, smaller, two_sum
from .lanes import (
    EIGHT,
    HALF,
    LANES,
    double_lanes,
    halves_added,
    in_sequence,
    load_lanes,
    put_lanes,
    splat,
    sum_and_error_of_lanes,
    sum_of_lanes,
    sums_of_eight,
)
from .pairs import add_pair, get_pair
from .parts import load_some

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The size of a batch of sums in the arithmetic's type, which is twice that of one in float64.
BATCH = EIGHT * LANES


@by_types
def is_compensated(zero):
    """Whether sums carry the errors of their roundings, as in float64 arithmetic."""
    compensated = zero.real == types.float64
    return lambda zero: compensated


@by_types
def start_total(zero):
    """A total that is zero."""
    if zero.real == types.float64:
        return lambda zero: (zero, zero)
    return lambda zero: halves_added(zero)


@by_types
def add_to_total(total, lanes, error):
    """Add lanes, whose rounding error is given, to a total."""
    if isinstance(total, types.BaseTuple):

        def compensated(total, lanes, error):
            value, rest = two_sum(total[0], lanes)
            return value, total[1] + (rest + error)

        return compensated
    return lambda total, lanes, error: total + halves_added(lanes)


@helper
def add_chains(totals, a, b, zero):
    """Add two chains of two sums each to two totals."""
    return add_to_total(totals[0], a[0] + b[0], zero), add_to_total(totals[1], a[1] + b[1], zero)


@by_types
def sum_of_total(total):
    """Reduce a total to a number and its error."""
    if isinstance(total, types.BaseTuple):

        def compensated(total):
            value, error = sum_and_error_of_lanes(total[0])
            return value, error + sum_of_lanes(total[1])

        return compensated
    return lambda total: (sum_of_lanes(total), 0.0)


@by_types
def put_in_batch(batch, i, totals, sums, c):
    """Put two totals of channel c into a batch.

    In float64 arithmetic they are added to the channel's sums now, with their errors.
    """
    if isinstance(totals[0], types.BaseTuple):

        def compensated(batch, i, totals, sums, c):
            add_pair(sums[0], c, sum_of_total(totals[0]))
            add_pair(sums[1], c, sum_of_total(totals[1]))

        return compensated

    def single(batch, i, totals, sums, c):
        put_lanes(batch[0], i * HALF, totals[0])
        put_lanes(batch[1], i * HALF, totals[1])

    return single


@helper
def add_batch(zero, batch, n, sums, first, step):
    """Add a batch of n channels to the sums of every ``step``-th channel from ``first`` on."""
    if not is_compensated(zero):
        numbers = double_buffer(LANES)
        put_lanes(numbers, 0, sums_of_eight(batch[0]))
        put_lanes(shift(numbers, EIGHT), 0, sums_of_eight(batch[1]))
        for i in range(n):
            c = first + i * step
            put(sums[0][0], c, get(sums[0][0], c) + get(numbers, i))
            put(sums[1][0], c, get(sums[1][0], c) + get(numbers, EIGHT + i))


@helper
def start_sums(columns, width, zero):
    """Set two arrays of column sums to zero, in whole lanes."""
    for i in range(0, width, LANES):
        put_lanes(columns[0][0], i, splat(0.0))
        put_lanes(columns[1][0], i, splat(0.0))
        if is_compensated(zero):
            put_lanes(columns[0][1], i, splat(0.0))
            put_lanes(columns[1][1], i, splat(0.0))


@helper
def fold(zero, sums, index, lanes, error):
    """Add lanes, whose rounding error is given, to column sums."""
    if is_compensated(zero):
        value, rest = two_sum(load_lanes(sums[0], index), double_lanes(lanes))
        put_lanes(sums[0], index, value)
        put_lanes(sums[1], index, load_lanes(sums[1], index) + rest + double_lanes(error))
    else:
        put_lanes(sums[0], index, load_lanes(sums[0], index) + double_lanes(lanes))


@helper
def add_columns(zero, columns, channels, run, repeat, sums, first):
    """Add column sums to the sums of their channels, from ``first`` on.

    The row repeats all channels ``repeat`` times, with ``run`` elements of each.
    """
    row, totals = columns[0], sums[0]
    if is_compensated(zero):
        # The inner loop goes over channels, so that no addition waits for the last. Errors have the
        # same order as sums, since lanes of float64 are never reordered.
        for at in range(0, channels * run * repeat, channels * run):
            for i in range(run):
                for c in range(channels):
                    add_pair(sums, first + c, get_pair(columns, at + c * run + i))
    elif run > 1:
        for c in range(channels):
            total = splat(0.0)
            for i in range(0, run, LANES):
                total = total + load_some(row, c * run + i, smaller(LANES, run - i))
            put(totals, first + c, get(totals, first + c) + sum_of_lanes(total))
    else:
        for at in range(0, channels * repeat, channels):
            for c in range(channels):
                put(totals, first + c, get(totals, first + c) + get(row, at + c))


@helper
def gather_sums(columns, first, channels, run, repeat, tensor, zero, sums):
    """Add two arrays of column sums, in the order in which a tensor is loaded, to channels'."""
    not_inlined()
    for i in range(0, channels * run * repeat, LANES):
        put_lanes(columns[0][0], i, in_sequence(tensor, load_lanes(columns[0][0], i)))
        put_lanes(columns[1][0], i, in_sequence(tensor, load_lanes(columns[1][0], i)))
    add_columns(zero, columns[0], channels, run, repeat, sums[0], first)
    add_columns(zero, columns[1], channels, run, repeat, sums[1], first)
