"""The moments of rows: Σ(x − mean) and Σ(x − mean)² of each channel, in the two ways of statistics.

Half types' moments are taken in float32 about a point near the mean, others' in float64.
"""

from __future__ import annotations

from numba import types

from . import block as B
from .conversions import HalfStorage
from .helpers import by_types, helper
from .intrinsics import (
    double,
    double_buffer,
    doubles_at,
    get,
    inlined,
    larger,
    not_inlined,
    plain,
    put,
    shift,
    smaller,
)
from .lanes import (
    EIGHT,
    HALF,
    LANES,
    double_lanes,
    prefetch_lanes,
    put_lanes,
    splat,
    splat_like,
    sum_of_lanes,
    zero_lanes,
)
from .layout import FETCHED
from .moments import (
    add_end,
    add_part,
    fold_moments,
    keep_moments,
    moved,
    nearest,
    points_of,
    start_moments,
)
from .pairs import add_pair
from .parts import load_part, load_some
from .rows import BLOCK, sums_of, sums_of_rows
from .steps import EXACT
from .sums import LOTS, add_kept_totals
from .vectors import next_group

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The most elements of layer norm's rows of half types whose moments take less time in float64.
SHORT_HALF = 1 << 7
#: The longest chain, in elements, of float32 data's moments in float64, whose roundings are as far
#: below float32's.
ONE_CHAIN = 32 * BLOCK


@helper
def first_mean(x, run):
    """The mean of a row's first lanes, as an element could be.

    The sum is in float64: two large elements' sum would be infinite in float32.
    """
    if run < LANES:
        return nearest(x, sum_of_lanes(double_lanes(load_some(x, 0, run))) / run)
    return nearest(x, sum_of_lanes(double_lanes(load_part(x, 0, None))) * (1.0 / LANES))


@helper
def keep_moments_about(operation, x, job, per, point, kept, i):
    """Take the moments of a channel's rows about a point, and keep them as the i-th."""
    not_inlined()
    step, rows, run = get(job, B.J_ROW_STEPS + 1), get(job, B.J_ROWS), per * get(job, B.J_RUN)
    terms, ahead = (splat_like(x, x, point), zero_lanes(x, x), x), get(job, B.J_AHEAD)
    totals = sums_of_rows(operation, (x, x, x), (step, step, step), rows, run, terms, ahead, False)
    put_lanes(kept[0], i * HALF, totals[0])
    put_lanes(kept[1], i * HALF, totals[1])


@helper
def points_of_channels(job, c, count, per, points):
    """The points that the sums of some channels, or groups of ``per`` channels, are about."""
    means, per_group = doubles_at(get(job, B.J_MEAN)), get(job, B.J_PER_GROUP)
    group = c // per_group
    left = per_group - (c - group * per_group)
    for i in range(count):
        put(points, i, get(means, group))
        group, left = next_group(group, left if per == 1 else plain(1), per_group)


@helper
def moments_of_eight(operation, x, job, c, count, per):
    """Add the moments of up to eight channels, or groups of ``per`` channels, from c on.

    They are taken in float32 about a point, the mean of all elements before. Squares about it are
    in all at most twice those about the final mean, if there are as many elements before. If not,
    the point is the mean of a few elements, and if it is further from the mean than a standard
    deviation, moments are taken once more, about the mean.
    """
    not_inlined()
    zero, kept = zero_lanes(x, x), (double_buffer(LOTS), double_buffer(LOTS))
    about, points = double_buffer(EIGHT), double_buffer(EIGHT)
    totals, squares = double_buffer(EIGHT), double_buffer(EIGHT)
    found, sums = ((totals, totals), (squares, squares)), sums_of(job)
    apart, run = per * get(job, B.J_CHANNEL_STEPS + 1), per * get(job, B.J_RUN)
    before, elements = per * get(job, B.J_BEFORE), get(job, B.J_ROWS) * run
    n = double(elements)
    one = 1.0 / n
    points_of_channels(job, c, count, per, about)
    for i in range(count):
        if before >= elements:
            point = nearest(x, get(about, i) + get(sums[0][0], c + i * per) / before)
        else:
            point = first_mean(shift(x, i * apart), run)
        put(points, i, point)
        put(totals, i, 0.0)
        put(squares, i, 0.0)
    for i in range(count):
        keep_moments_about(operation, shift(x, i * apart), job, per, get(points, i), kept, i)
    add_kept_totals(zero, kept, count, found, 0, 1)
    for i in range(count):
        channel, point, total = c + i * per, get(points, i), get(totals, i)
        mean = nearest(x, point + total * one)
        away = point - mean
        far = n * away * away > moved(total, get(squares, i), n, away)[1]
        if far and before < elements:
            point = mean
            put(totals, i, 0.0)
            put(squares, i, 0.0)
            keep_moments_about(operation, shift(x, i * apart), job, per, point, kept, 0)
            add_kept_totals(zero, kept, 1, found, i, 1)
        total, square = moved(get(totals, i), get(squares, i), n, point - get(about, i))
        add_pair(sums[0], channel, (total, 0.0))
        add_pair(sums[1], channel, (square, 0.0))


@helper
def are_one_row(job):
    """Whether the channels of a group follow each other in memory, and are taken as one row.

    The sums of such a row go to the first of its channels.
    """
    return get(job, B.J_ROWS) == 1 and get(job, B.J_CHANNEL_STEPS + 1) == get(job, B.J_RUN)


@helper
def channels_of_row(job, c, end):
    """How many channels make one row: a group's, if c to end are whole groups of adjacent ones."""
    per = get(job, B.J_PER_GROUP)
    return per if are_one_row(job) and c % per == 0 and end % per == 0 else 1


@helper
def moments_about_points(operation, x, job, c, end):
    """Add the moments of the rows of channels c to end, which start at x, in float32."""
    inlined()
    apart, per = get(job, B.J_CHANNEL_STEPS + 1), channels_of_row(job, c, end)
    for first in range(c, end, EIGHT * per):
        count = smaller(EIGHT, (end - first) // per)
        moments_of_eight(operation, shift(x, (first - c) * apart), job, first, count, per)


@helper
def exact_moments_of_block(zero, x, step, rows, count, mean, ahead):
    """The moments of some elements of some rows, in a chain of float64 lanes."""
    inlined()
    whole = count // LANES * LANES
    points, moments = points_of(zero, splat(mean)), start_moments(zero)
    for r in range(rows):
        row = shift(x, r * step)
        for start in range(0, whole, BLOCK):
            end = smaller(whole, start + BLOCK)
            if ahead > 1:  # past the row's end too: what follows in memory is read soon
                for i in range(start, end, LANES):
                    prefetch_lanes(row, i + FETCHED)
            for i in range(start, end, LANES):
                moments = add_part(row, i, points, moments, None)
        if whole < count:
            moments = add_end(row, whole, points, moments, count - whole)
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
def exact_moments_of_rows(x, x_step, rows, count, mean, sums, c, ahead):
    """Add the moments of some rows to channel c's, chain by chain."""
    not_inlined()
    zero = zero_lanes(x, x)
    chain = exact_chain(zero)
    height = larger(1, chain // in_whole_lanes(count))
    for r in range(0, rows, height):
        for start in range(0, count, chain):
            block, n = shift(x, r * x_step + start), smaller(height, rows - r)
            width = smaller(chain, count - start)
            moments = exact_moments_of_block(zero, block, x_step, n, width, mean, ahead)
            fold_moments(zero, sums, c, moments)


@helper
def exact_moments_of_eight(x, job, c, end, per):
    """Add the moments of channels, or of groups of ``per``, of one chain each, eight at a time."""
    not_inlined()
    zero, kept = zero_lanes(x, x), (double_buffer(LOTS), double_buffer(LOTS))
    step, apart = get(job, B.J_ROW_STEPS + 1), per * get(job, B.J_CHANNEL_STEPS + 1)
    rows, run, sums = get(job, B.J_ROWS), per * get(job, B.J_RUN), sums_of(job)
    means, here = shift(doubles_at(get(job, B.J_MEAN)), c // per), x
    ahead = get(job, B.J_AHEAD)
    while c < end:
        n = smaller(EIGHT, (end - c) // per)
        for i in range(n):
            moments = exact_moments_of_block(zero, here, step, rows, run, get(means, i), ahead)
            keep_moments(zero, kept, i, moments)
            here = shift(here, apart)
        add_kept_totals(zero, kept, n, sums, c, per)
        means, c = shift(means, n), c + n * per


@by_types
def is_one_chain(zero, rows, run):
    """Whether a channel's moments in float64 need one chain and no errors: few, of float32."""
    if zero.real == types.float32:
        return lambda zero, rows, run: rows * in_whole_lanes(run) <= ONE_CHAIN
    return lambda zero, rows, run: False


@helper
def exact_moments(x, job, c, end):
    """Add the moments of the rows of channels c to end, which start at x, in float64."""
    inlined()
    sums, means = sums_of(job), doubles_at(get(job, B.J_MEAN))
    step, apart = get(job, B.J_ROW_STEPS + 1), get(job, B.J_CHANNEL_STEPS + 1)
    rows, run, per_group = get(job, B.J_ROWS), get(job, B.J_RUN), get(job, B.J_PER_GROUP)
    per = channels_of_row(job, c, end)
    if per == per_group and is_one_chain(zero_lanes(x, x), rows, per * run):
        exact_moments_of_eight(x, job, c, end, per)
        return
    row, ahead = x, get(job, B.J_AHEAD)
    while c < end:
        n = smaller(per_group - c % per_group, end - c) if are_one_row(job) else 1
        mean = get(means, c // per_group)
        exact_moments_of_rows(row, step, rows, n * run, mean, sums, c, ahead)
        row = shift(row, n * apart)
        c += n


@by_types
def moments_of_channels(operation, x, job, c, end):
    """Add the moments of the rows of channels c to end, in the operation's way."""

    def in_float64(operation, x, job, c, end):
        exact_moments(x, job, c, end)

    def in_float32(operation, x, job, c, end):
        moments_about_points(operation, x, job, c, end)

    def by_length(operation, x, job, c, end):
        if get(job, B.J_RUN) <= SHORT_HALF:
            exact_moments(x, job, c, end)
        else:
            moments_about_points(operation, x, job, c, end)

    if operation.operation == EXACT or not isinstance(x.dtype, HalfStorage):
        return in_float64
    return by_length if operation.along else in_float32


@helper
def moments(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel's rows to its sums."""
    c = get(job, B.J_CHANNEL)
    moments_of_channels(operation, x, job, c, c + get(job, B.J_CHANNELS))
