"""Sums in float64, to which chains of additions in the arithmetic's type are added.

In float64 arithmetic the rounding error of each addition is carried too: otherwise a long tensor's
chain of additions would break the bound. In float32 arithmetic float64 is exact enough by itself.
A function is compiled for one of the two by the type of ``zero``, lanes in the arithmetic's type,
or of other lanes.
"""

from __future__ import annotations

from typing import Any

from numba import types

from .elements import further
from .helpers import by_types, helper
from .intrinsics import double_buffer, fma, get, load, put, shift, smaller, two_sum
from .lanes import (
    EIGHT,
    HALF,
    LANES,
    as_loaded,
    double_lanes,
    fused,
    halves_added,
    load_lanes,
    minus,
    product,
    put_lanes,
    splat,
    sum_and_error_of_lanes,
    sum_of_lanes,
    sums_of_eight,
)
from .layout import SHORT
from .pairs import add_pair, get_pair
from .parts import load_some, merge_part, store_part

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The elements of all sums in registers that are reduced together.
LOTS = EIGHT * HALF


def _is_double(lanes: Any) -> bool:
    return bool(lanes.real == types.float64)


@by_types
def start_total(zero):
    """A sum in registers that starts at zero."""
    if _is_double(zero):
        return lambda zero: (zero, zero)
    return lambda zero: halves_added(zero)


@by_types
def add_chain(total, lanes):
    """Add the lanes of a chain to a sum in registers."""
    if _is_double(lanes):

        def compensated(total, lanes):
            value, error = two_sum(total[0], lanes)
            return value, total[1] + error

        return compensated
    return lambda total, lanes: total + halves_added(lanes)


@helper
def add_chains(totals, a, b):
    """Add two chains of two sums each to the sums in registers."""
    return add_chain(totals[0], a[0] + b[0]), add_chain(totals[1], a[1] + b[1])


@by_types
def total_of(total):
    """Reduce a sum in registers to a number and its error."""
    if isinstance(total, types.BaseTuple):

        def compensated(total):
            value, error = sum_and_error_of_lanes(total[0])
            return value, error + sum_of_lanes(total[1])

        return compensated
    return lambda total: (sum_of_lanes(total), 0.0)


@by_types
def keep_totals(kept, i, totals, sums, c):
    """Keep two sums in registers, so that several channels' are reduced together later.

    In float64 arithmetic they are added to channel c's sums now, with their errors.
    """
    if isinstance(totals[0], types.BaseTuple):

        def compensated(kept, i, totals, sums, c):
            add_pair(sums[0], c, total_of(totals[0]))
            add_pair(sums[1], c, total_of(totals[1]))

        return compensated

    def plain(kept, i, totals, sums, c):
        put_lanes(kept[0], i * HALF, totals[0])
        put_lanes(kept[1], i * HALF, totals[1])

    return plain


@by_types
def add_kept_totals(zero, kept, n, sums, first, apart):
    """Add the kept sums of n channels to the sums of every ``apart``-th channel from ``first``."""
    if _is_double(zero):
        return lambda zero, kept, n, sums, first, apart: None

    def plain(zero, kept, n, sums, first, apart):
        some = double_buffer(LANES)
        put_lanes(some, 0, sums_of_eight(kept[0]))
        put_lanes(shift(some, EIGHT), 0, sums_of_eight(kept[1]))
        for i in range(n):
            c = first + i * apart
            put(sums[0][0], c, get(sums[0][0], c) + get(some, i))
            put(sums[1][0], c, get(sums[1][0], c) + get(some, EIGHT + i))

    return plain


@by_types
def is_short(zero, rows, run):
    """Whether a channel has a single row, short enough to be summed entirely in float32.

    The bound leaves 9 roundings to additions (see rows.py): 256 elements take 3 in each of 64
    lanes, and 6 to add the lanes up.
    """
    if _is_double(zero):
        return lambda zero, rows, run: False
    return lambda zero, rows, run: rows == 1 and LANES <= run <= SHORT


@by_types
def few_terms(operation, tensors, steps, rows, count, mean, terms, sums, c):
    """Add the sums of rows that have fewer elements than lanes, with each term in float64.

    In a statistic over few elements the rounding of each term would show.
    """
    along, evaluates = operation.along, operation.operation == "evaluate"
    if any(tensor.dtype == types.float64 for tensor in tensors):

        def compensated(operation, tensors, steps, rows, count, mean, terms, sums, c):
            dy, x, dx = tensors
            for r in range(rows):
                for k in range(count):
                    d = load(dy, r * steps[0] + k)
                    w = load(terms[2], k) if along else 1.0
                    # w·d·(x − mean), with the error of each rounding.
                    value, rest = two_sum(load(x, r * steps[1] + k), -mean)
                    d, d_rest = d * w, fma(d, w, -(d * w))
                    product_ = d * value
                    rounding = fma(d, value, -product_) + d * rest + d_rest * value
                    add_pair(sums[0], c, (d, d_rest))
                    add_pair(sums[1], c, (product_, rounding))
                if evaluates:
                    values = load_some(dy, r * steps[0], count)
                    store_part(dx, r * steps[2], terms[1] * values, count, False)

        return compensated

    def plain(operation, tensors, steps, rows, count, mean, terms, sums, c):
        for r in range(rows):
            here = further(tensors, steps, r)
            d, value = terms_of_few(operation, here, count, mean, terms)
            add_pair(sums[0], c, (sum_of_lanes(d), 0.0))
            add_pair(sums[1], c, (sum_of_lanes(value), 0.0))

    return plain


@by_types
def terms_of_few(operation, tensors, count, mean, terms):
    """The terms of the sums of one row of few elements, in lanes of float64.

    Evaluation writes dx too.
    """
    along, evaluates = operation.along, operation.operation == "evaluate"

    def terms_of_few(operation, tensors, count, mean, terms):
        dy, x, dx = tensors
        values = load_some(dy, 0, count)
        d = double_lanes(values)
        if along:
            d = product(d, double_lanes(as_loaded(dy, load_some(terms[2], 0, count))))
        value = product(d, double_lanes(load_some(x, 0, count)) - splat(mean))
        if evaluates:
            store_part(dx, 0, terms[1] * values, count, False)
        return d, merge_part(dy, value, splat(0.0), count)

    return terms_of_few


@by_types
def keep_few_terms(operation, tensors, count, mean, terms, kept, i, sums, c):
    """Keep the terms of one row that has fewer elements than lanes, as ``keep_totals``."""
    if any(tensor.dtype == types.float64 for tensor in tensors):
        return lambda operation, tensors, count, mean, terms, kept, i, sums, c: few_terms(
            operation, tensors, (0, 0, 0), 1, count, mean, terms, sums, c
        )

    def plain(operation, tensors, count, mean, terms, kept, i, sums, c):
        d, value = terms_of_few(operation, tensors, count, mean, terms)
        put_lanes(kept[0], i * HALF, halves_added(d))
        put_lanes(kept[1], i * HALF, halves_added(value))

    return plain


@by_types
def fold_lanes(zero, sums, index, lanes):
    """Add lanes to adjacent sums in float64."""
    if _is_double(zero):

        def compensated(zero, sums, index, lanes):
            s, e = two_sum(load_lanes(sums[0], index), lanes)
            put_lanes(sums[0], index, s)
            put_lanes(sums[1], index, load_lanes(sums[1], index) + e)

        return compensated

    def plain(zero, sums, index, lanes):
        put_lanes(sums[0], index, load_lanes(sums[0], index) + double_lanes(lanes))

    return plain


@by_types
def clear_lanes(zero, sums, index):
    """Set adjacent sums to zero."""
    if _is_double(zero):

        def compensated(zero, sums, index):
            put_lanes(sums[0], index, splat(0.0))
            put_lanes(sums[1], index, splat(0.0))

        return compensated
    return lambda zero, sums, index: put_lanes(sums[0], index, splat(0.0))


@by_types
def add_columns(zero, columns, channels, run, repeat, sums, first):
    """Add the sums of a row's elements to the sums of their channels, from ``first`` on.

    The row repeats all channels ``repeat`` times, with ``run`` elements of each.
    """
    if _is_double(zero):

        def compensated(zero, columns, channels, run, repeat, sums, first):
            # The inner loop goes over channels, so that no addition waits for the last. Errors have
            # the same order as sums, since lanes of float64 are never reordered.
            for at in range(0, channels * run * repeat, channels * run):
                for i in range(run):
                    for c in range(channels):
                        add_pair(sums, first + c, get_pair(columns, at + c * run + i))

        return compensated

    def plain(zero, columns, channels, run, repeat, sums, first):
        row, totals = columns[0], sums[0]
        if run > 1:
            for c in range(channels):
                total = splat(0.0)
                for i in range(0, run, LANES):
                    total = total + load_some(row, c * run + i, smaller(LANES, run - i))
                put(totals, first + c, get(totals, first + c) + sum_of_lanes(total))
        else:
            some = double_buffer(LANES)
            for start in range(0, channels, LANES):
                total = splat(0.0)
                for at in range(start, channels * repeat, channels):
                    total = total + load_lanes(row, at)
                k = first + start
                if start + LANES <= channels:
                    put_lanes(totals, k, load_lanes(totals, k) + total)
                    continue
                put_lanes(some, 0, total)
                for c in range(channels - start):
                    put(totals, k + c, get(totals, k + c) + get(some, c))

    return plain


@by_types
def add_errors(zero, sums, index, lanes):
    """Add to the errors of adjacent sums, if the arithmetic has them."""
    if _is_double(zero):
        return lambda zero, sums, index, lanes: put_lanes(
            sums[1], index, load_lanes(sums[1], index) + lanes
        )
    return lambda zero, sums, index, lanes: None


@by_types
def add_terms(zero, sums, c, tensor, dy, x, mean, part):
    """Add the terms of a part of a row, in float64, to adjacent sums."""
    if _is_double(zero):

        def compensated(zero, sums, c, tensor, dy, x, mean, part):
            xmu, xmu_error = two_sum(x, minus(mean))
            value = product(dy, xmu)
            rounding = fused(dy, xmu, minus(value)) + product(dy, xmu_error)
            fold_lanes(zero, sums[0], c, dy)
            fold_lanes(zero, sums[1], c, merge_part(tensor, value, splat(0.0), part))
            add_errors(zero, sums[1], c, merge_part(tensor, rounding, splat(0.0), part))

        return compensated

    def plain(zero, sums, c, tensor, dy, x, mean, part):
        d = double_lanes(dy)
        value = product(d, double_lanes(x) - double_lanes(mean))
        fold_lanes(zero, sums[0], c, d)
        fold_lanes(zero, sums[1], c, merge_part(tensor, value, splat(0.0), part))

    return plain
