"""The moments of rows: Σ(x − mean) and Σ(x − mean)² of each channel, in the two ways of statistics.

Half types' moments are taken in float32 about their own means, others' in float64.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from numba import types

from . import block as B
from .helpers import by_types, helper
from .intrinsics import (
    double,
    double_buffer,
    doubles_at,
    get,
    inlined,
    larger,
    not_inlined,
    shift,
    smaller,
)
from .lanes import EIGHT, LANES, splat, splat_like, zero_lanes
from .moments import add_part, fold_moments, keep_moments, points_of, start_moments
from .parts import load_part
from .rows import BLOCK, sums_of, sums_of_rows
from .sums import LOTS, add_chain, add_kept_totals, add_sum, start_total, total_of

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Elements whose moments are taken about one point: 8 KiB of float32 are still in the L1 cache when
#: they are read again.
ABOUT_ONE = 4 * BLOCK
#: The longest chain, in elements, of float32 data's moments in float64, whose roundings are as far
#: below float32's.
ONE_CHAIN = 32 * BLOCK


@helper
def total_of_rows(x, step, rows, count):
    """The sum of some rows."""
    zero = zero_lanes(x, x)
    total = start_total(zero)
    for r in range(rows):
        for start in range(0, count, BLOCK):
            row, end = shift(x, r * step + start), smaller(BLOCK, count - start)
            s, s2 = zero, zero
            i = 0
            while i + 2 * LANES <= end:
                s, s2 = s + load_part(row, i, None), s2 + load_part(row, i + LANES, None)
                i += 2 * LANES
            if i + LANES <= end:
                s = s + load_part(row, i, None)
                i += LANES
            if i < end:
                s2 = s2 + load_part(row, i, end - i)
            total = add_chain(total, s + s2)
    return total_of(total)[0]


@helper
def moments_about_means(operation, x, step, rows, run, about, sums, c):
    """Add the moments of some rows of half data to channel c's, about the elements' own means.

    Squares are taken about the mean of ABOUT_ONE elements at a time, which are read twice. So
    float32 is exact enough for squares, and an outlier's effect on that mean is limited to its
    neighbours. Sums of a few numbers of 8 or 11 bits lose next to nothing in float32. In float64
    both are shifted to the channel's point.
    """
    height = larger(1, ABOUT_ONE // run)
    for r in range(0, rows, height):
        n = smaller(height, rows - r)
        for k in range(0, run, ABOUT_ONE):
            block, count = shift(x, r * step + k), smaller(ABOUT_ONE, run - k)
            total, m = total_of_rows(block, step, n, count), double(n * count)
            mean = double(np.float32(total / m))
            mean = mean if isfinite(mean) else 0.0
            tensors, terms = (block, block, block), (splat_like(x, x, mean), zero_lanes(x, x), x)
            _, squares = sums_of_rows(
                operation, tensors, (step, step, step), n, count, terms, False, False
            )
            away, deviations = mean - about, total - m * mean
            moved = total_of(squares)[0] + away * (2.0 * deviations + m * away)
            add_sum(sums[0], sums[1], c, (total - m * about, 0.0))
            add_sum(sums[2], sums[3], c, (moved, 0.0))


@helper
def exact_moments_of_block(zero, x, step, rows, count, mean):
    """The moments of some elements of some rows, in a chain of float64 lanes."""
    inlined()
    whole, points, moments = (
        count // LANES * LANES,
        points_of(zero, splat(mean)),
        start_moments(zero),
    )
    for r in range(rows):
        row = shift(x, r * step)
        for i in range(0, whole, LANES):
            moments = add_part(row, i, points, moments, None)
        if whole < count:
            moments = add_part(row, whole, points, moments, count - whole)
    return moments


@helper
def in_whole_lanes(count):
    """The number of elements, rounded up to whole lanes: the end of a row takes an addition too."""
    return -(-count // LANES) * LANES


@by_types
def exact_chain(zero):
    """The elements of a chain of moments in float64.

    In float64 arithmetic it has 16 additions to a lane: with 32, squares just below half a unit in
    the last place of their sum gave an error of 1.06 of the bound.
    """
    return (lambda zero: ONE_CHAIN) if zero.real == types.float32 else (lambda zero: BLOCK)


@helper
def exact_moments_of_rows(x, x_step, rows, count, mean, sums, c):
    """Add the moments of some rows to channel c's, chain by chain."""
    not_inlined()
    zero = zero_lanes(x, x)
    chain = exact_chain(zero)
    height = larger(1, chain // in_whole_lanes(count))
    for r in range(0, rows, height):
        for start in range(0, count, chain):
            block, n = shift(x, r * x_step + start), smaller(height, rows - r)
            width = smaller(chain, count - start)
            moments = exact_moments_of_block(zero, block, x_step, n, width, mean)
            fold_moments(zero, sums, c, moments)


@helper
def exact_moments_of_eight(x, job, channels, first):
    """Add the moments of channels whose rows are one chain together, eight channels at a time."""
    not_inlined()
    zero, kept = zero_lanes(x, x), (double_buffer(LOTS), double_buffer(LOTS))
    step, apart = get(job, B.J_ROW_STEPS + 1), get(job, B.J_CHANNEL_STEPS + 1)
    rows, run = get(job, B.J_ROWS), get(job, B.J_RUN)
    sums, means = sums_of(job), doubles_at(get(job, B.J_MEAN))
    for start in range(0, channels, EIGHT):
        n = smaller(EIGHT, channels - start)
        for i in range(n):
            here, mean = shift(x, (start + i) * apart), get(means, first + start + i)
            moments = exact_moments_of_block(zero, here, step, rows, run, mean)
            keep_moments(zero, kept, i, moments)
        add_kept_totals(zero, kept, n, sums, first + start)


@by_types
def moments_of_rows(operation, x, step, rows, run, about, sums, c):
    """Add the moments of some rows to channel c's, in the operation's way: exactly or not."""
    if operation.operation == "moments":
        return lambda operation, x, step, rows, run, about, sums, c: moments_about_means(
            operation, x, step, rows, run, about, sums, c
        )
    return lambda operation, x, step, rows, run, about, sums, c: exact_moments_of_rows(
        x, step, rows, run, about, sums, c
    )


@by_types
def is_one_chain(operation, zero, rows, run):
    """Whether a channel's moments in float64 need one chain and no errors: few, of float32."""
    if operation.operation != "moments" and zero.real == types.float32:
        return lambda operation, zero, rows, run: rows * in_whole_lanes(run) <= ONE_CHAIN
    return lambda operation, zero, rows, run: False


@helper
def moments_of_channels(operation, x, job, c, end):
    """Add the moments of the rows of channels c to end, which start at x, to their sums."""
    inlined()
    sums, means = sums_of(job), doubles_at(get(job, B.J_MEAN))
    step, apart = get(job, B.J_ROW_STEPS + 1), get(job, B.J_CHANNEL_STEPS + 1)
    rows, run, per_group = get(job, B.J_ROWS), get(job, B.J_RUN), get(job, B.J_PER_GROUP)
    if per_group == 1 and is_one_chain(operation, zero_lanes(x, x), rows, run):
        exact_moments_of_eight(x, job, end - c, c)
        return
    row = x
    while c < end:
        # A group's adjacent channels are one row; the sums go to the first of these channels.
        n = smaller(per_group - c % per_group, end - c) if rows == 1 and apart == run else 1
        moments_of_rows(operation, row, step, rows, n * run, get(means, c // per_group), sums, c)
        row = shift(row, n * apart)
        c += n


@helper
def moments(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel's rows to its sums."""
    c = get(job, B.J_CHANNEL)
    moments_of_channels(operation, x, job, c, c + get(job, B.J_CHANNELS))
