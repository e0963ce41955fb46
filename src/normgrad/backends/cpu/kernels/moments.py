"""Kernels that sum x − mean and (x − mean)² of each channel, in the two ways of statistics.

Half types' moments are taken in float32 about a *pilot*, a number near the mean; those of float32
and float64 in float64, about the mean that a job has: of rows of float64 as the sums of two tensors
are. The patterns are those of :mod:`.reduce`.
"""

from __future__ import annotations

from numba import types

from ..schedule import block as B
from ..schedule.layout import FETCHED, LONGEST_DOUBLE, SHORT
from ..schedule.steps import EXACT
from ..vector.conversions import HalfStorage
from ..vector.helpers import as_argument, by_types, helper
from ..vector.intrinsics import (
    as_int64,
    double,
    double_buffer,
    doubles_at,
    get,
    inlined,
    is_double,
    larger,
    not_inlined,
    put,
    reals_at,
    shift,
    smaller,
)
from ..vector.lanes import (
    EIGHT,
    LANES,
    double_lanes,
    fused,
    lanes_of,
    load_doubles,
    load_lanes,
    prefetch_lanes,
    put_lanes,
    real_lanes,
    splat_doubles,
    splat_like,
    sum_of_lanes,
    zero_lanes,
)
from ..vector.segments import load_segment, load_some, over_row
from .accumulators import (
    BATCH,
    add_batch,
    add_end,
    add_segment,
    fold,
    gather_sums,
    join_lanes,
    move_moments,
    nearest_element,
    put_in_batch,
    put_moments,
    split_lanes,
    start_moments,
    start_sums,
)
from .channel_vectors import next_group
from .reductions import (
    add_quarters,
    block_of,
    buffer,
    fill_row,
    put_short_row,
    shape_of,
    sums_of,
    totals_of_rows,
)
from .sums import add

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The most elements of layer norm's rows of half types whose moments take less time in float64.
SHORT_HALF = 1 << 7
#: The longest chain of moments in float64 of other data, in elements, and how many of them are
#: prefetched at a time. The chains' roundings are far below float32's.
SINGLE_CHAIN, BLOCK = 1 << 14, 1 << 9
#: Exact moments of columns take a row of each eighth of a piece at a time, as the sums of two
#: tensors take a row of each quarter (see :data:`.reduce.QUARTERS`).
EIGHTHS = 8
#: The first rows of columns, which are read twice: their means are the first pilots.
FIRST_ROWS = 16


@helper
def put_about_pilot(operation, x, job, per, pilot, batch, i):
    """Take the moments of the rows of ``per`` channels about a pilot, and put them into a batch."""
    not_inlined()
    step, rows, run = get(job, B.J_ROW_STEPS + 1), get(job, B.J_ROWS), per * get(job, B.J_RUN)
    terms, ahead = (splat_like(x, pilot), zero_lanes(x), x), get(job, B.J_AHEAD)
    steps = step, step, step
    totals = totals_of_rows(operation, (x, x, x), steps, rows, run, terms, ahead, False)
    put_in_batch(batch, i, totals)


@helper
def means_of_channels(job, c, count, per, means):
    """Read the job's means of some channels, or groups of ``per`` channels, from c on."""
    of_groups, per_group = doubles_at(get(job, B.J_MEAN)), get(block_of(job), B.PER_GROUP)
    group = c // per_group
    left = per_group - (c - group * per_group)
    for i in range(count):
        put(means, i, get(of_groups, group))
        group, left = next_group(group, left if per == 1 else as_int64(1), per_group)


@helper
def moments_about_pilots(operation, x, job, c, count, per):
    """Add the moments of up to eight channels, or groups of ``per`` channels, from c on.

    They are taken in float32 about a pilot, the mean of all elements before. Squares about it are
    in all at most twice those about the final mean, if there are as many elements before. If not,
    the pilot is the mean of a few elements, and if it is further from the mean than a standard
    deviation, moments are taken once more, about the mean.
    """
    not_inlined()
    batch = double_buffer(BATCH), double_buffer(BATCH)
    means, pilots = double_buffer(EIGHT), double_buffer(EIGHT)
    totals, squares = double_buffer(EIGHT), double_buffer(EIGHT)
    moments, sums = (totals, squares), sums_of(job)
    apart, run = per * get(job, B.J_CHANNEL_STEPS + 1), per * get(job, B.J_RUN)
    before, elements = per * get(job, B.J_BEFORE), get(job, B.J_ROWS) * run
    n = double(elements)
    one = 1.0 / n
    means_of_channels(job, c, count, per, means)
    for i in range(count):
        if before >= elements:
            total = get(sums[0], c + i * per)
            pilot = nearest_element(x, get(means, i) + total / before)
        else:
            # The first lanes' sum is in float64: two large elements' would be infinite in float32.
            first = double_lanes(load_some(x, i * apart, smaller(run, LANES)))
            pilot = nearest_element(x, sum_of_lanes(first) / smaller(run, LANES))
        put(pilots, i, pilot)
        put(totals, i, 0.0)
        put(squares, i, 0.0)
    for i in range(count):
        put_about_pilot(operation, shift(x, i * apart), job, per, get(pilots, i), batch, i)
    add_batch(batch, count, moments, 0, 1)
    for i in range(count):
        channel, pilot, total = c + i * per, get(pilots, i), get(totals, i)
        mean = nearest_element(x, pilot + total * one)
        away = pilot - mean
        is_far = n * away * away > move_moments(total, get(squares, i), n, away)[1]
        if is_far and before < elements:
            pilot = mean
            put(totals, i, 0.0)
            put(squares, i, 0.0)
            put_about_pilot(operation, shift(x, i * apart), job, per, pilot, batch, 0)
            add_batch(batch, 1, moments, i, 1)
        away = pilot - get(means, i)
        total, square = move_moments(get(totals, i), get(squares, i), n, away)
        add(sums[0], channel, total)
        add(sums[1], channel, square)


@helper
def add_chains_of_moments(x, step, rows, width, apart, count, means, ahead, sums, c, per):
    """Add the moments of some elements of some rows of some channels, a chain of each.

    This is a function of its own, since a chain's sums in float64 lanes fill the registers.
    """
    not_inlined()
    batch = double_buffer(BATCH), double_buffer(BATCH)
    whole = width // LANES * LANES
    for i in range(count):
        about, moments = split_lanes(splat_doubles(x, get(means, i))), start_moments(x)
        for r in range(rows):
            row = shift(x, r * step)
            for start in range(0, whole, BLOCK):
                end = smaller(whole, start + BLOCK)
                if ahead > 1:  # past the row's end too: what follows in memory is read soon
                    for k in range(start, end, LANES):
                        prefetch_lanes(row, k + FETCHED)
                for k in range(start, end, LANES):
                    moments = add_segment(row, k, about, moments, None)
            if whole < width:
                moments = add_end(row, whole, about, moments, width - whole)
        put_moments(batch, i, moments)
        x = shift(x, apart)
    add_batch(batch, count, sums, c, per)


@helper
def exact_moments(x, job, c, count, per):
    """Add the moments of up to eight channels, or groups of ``per`` channels, in float64 lanes."""
    means, sums, ahead = double_buffer(EIGHT), sums_of(job), get(job, B.J_AHEAD)
    step, apart = get(job, B.J_ROW_STEPS + 1), per * get(job, B.J_CHANNEL_STEPS + 1)
    rows, run = get(job, B.J_ROWS), per * get(job, B.J_RUN)
    # The end of a row takes an addition too.
    height = larger(1, SINGLE_CHAIN // (-(-run // LANES) * LANES))
    means_of_channels(job, c, count, per, means)
    # A channel of several chains is read from end to end before the next.
    at_once = count if rows <= height and run <= SINGLE_CHAIN else 1
    for i in range(0, count, at_once):
        mean, channel = shift(means, i), c + i * per
        for r in range(0, rows, height):
            n = smaller(height, rows - r)
            for start in range(0, run, SINGLE_CHAIN):
                width = smaller(SINGLE_CHAIN, run - start)
                here = shift(x, i * apart + r * step + start)
                add_chains_of_moments(
                    here, step, n, width, apart, at_once, mean, ahead, sums, channel, per
                )


@helper
def put_about(operation, x, apart, count, step, rows, run, means, ahead, batch):
    """Put the moments of up to eight channels of float64 about their means into a batch."""
    not_inlined()
    for i in range(count):
        row, mean = shift(x, i * apart), splat_like(x, get(means, i))
        tensors, terms, zero = (row, row, row), (mean, mean, x), zero_lanes(x)
        if rows == 1 and run <= SHORT:
            put_short_row(operation, tensors, run, terms, (zero, zero), batch, i)
        else:
            steps = step, step, step
            totals = totals_of_rows(operation, tensors, steps, rows, run, terms, ahead, False)
            put_in_batch(batch, i, totals)


@helper
def moments_of_doubles(operation, x, job, c, count, per):
    """Add the moments of up to eight channels of float64, or groups of ``per`` channels."""
    means, batch = double_buffer(EIGHT), (double_buffer(BATCH), double_buffer(BATCH))
    step, apart = get(job, B.J_ROW_STEPS + 1), per * get(job, B.J_CHANNEL_STEPS + 1)
    rows, run, ahead = get(job, B.J_ROWS), per * get(job, B.J_RUN), get(job, B.J_AHEAD)
    means_of_channels(job, c, count, per, means)
    put_about(operation, x, apart, count, step, rows, run, means, ahead, batch)
    add_batch(batch, count, sums_of(job), c, per)


@by_types
def moments_of_eight(operation, x, job, c, count, per):
    """Add the moments of up to eight channels, or groups of channels, in the operation's way."""

    def in_float64(operation, x, job, c, count, per):
        exact_moments(x, job, c, count, per)

    def in_float32(operation, x, job, c, count, per):
        moments_about_pilots(operation, x, job, c, count, per)

    def by_length(operation, x, job, c, count, per):
        if get(job, B.J_RUN) <= SHORT_HALF:
            exact_moments(x, job, c, count, per)
        else:
            moments_about_pilots(operation, x, job, c, count, per)

    if x.dtype == types.float64:
        return lambda operation, x, job, c, count, per: moments_of_doubles(
            operation, x, job, c, count, per
        )
    if operation.operation == EXACT or not isinstance(x.dtype, HalfStorage):
        return in_float64
    return by_length if operation.along else in_float32


@helper
def moments_of_channels(operation, x, job, c, end):
    """Add the moments of the rows of channels c to end, which start at x.

    If these are whole groups of adjacent channels, a group's channels make one row, whose sums go
    to the first of them.
    """
    inlined()
    apart, group = get(job, B.J_CHANNEL_STEPS + 1), get(block_of(job), B.PER_GROUP)
    adjacent = get(job, B.J_ROWS) == 1 and apart == get(job, B.J_RUN)
    whole = adjacent and c % group == 0 and end % group == 0
    per = group if whole and (group * apart <= LONGEST_DOUBLE or not is_double(x)) else 1
    for first in range(c, end, EIGHT * per):
        count = smaller(EIGHT, (end - first) // per)
        moments_of_eight(operation, shift(x, (first - c) * apart), job, first, count, per)


@helper
def moments_of_rows(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel's rows to its sums."""
    c = get(job, B.J_CHANNEL)
    moments_of_channels(operation, x, job, c, c + get(job, B.J_CHANNELS))


@as_argument
def find_pilots(arguments, c, segment):
    """Find the means of a segment of some rows, as elements could be.

    Elements are divided before they are added: two large ones' sum would be infinite in float32.
    """
    x, step, rows, pilots = arguments
    mean, one = zero_lanes(x), splat_like(x, 1.0 / rows)
    for r in range(rows):
        mean = fused(load_segment(x, r * step + c, segment), one, mean)
    put_lanes(pilots, c, real_lanes(x, nearest_element(x, double_lanes(mean))))


@helper
def move_columns(pilots, sums, c, n, away):
    """Move the moments of n rows about a pilot to one that is smaller by ``away``."""
    totals, squares = sums
    total, square = move_moments(
        load_doubles(pilots, totals, c), load_doubles(pilots, squares, c), n, away
    )
    put_lanes(totals, c, total)
    put_lanes(squares, c, square)


@helper
def renew_pilots(x, sums, pilots, rows, width):
    """Move the moments of some rows to these rows' means, as elements could be."""
    n, one = splat_doubles(x, double(rows)), splat_doubles(x, 1.0 / rows)
    for c in range(0, width, lanes_of(x)):
        old = double_lanes(load_lanes(pilots, c))
        new = nearest_element(x, old + load_doubles(x, sums[0], c) * one)
        put_lanes(pilots, c, real_lanes(x, new))
        move_columns(pilots, sums, c, n, old - new)


@helper
def add_about_pilots(operation, x, step, rows, means, sums, job, width, ahead):
    """Add some rows to the moments of their elements, in float32, about pilots.

    The first rows are about their own means. Whenever the number of rows has doubled, the next are
    about the means of all before, so that the squares' sum is at most twice that about the final
    mean.
    """
    pilots, chain = reals_at(buffer(job, 3), x), reals_at(buffer(job, 4), x)
    row = as_int64(0)
    first = smaller(FIRST_ROWS, rows)
    over_row(find_pilots, (x, step, first, pilots), x, width)
    while row < rows:
        if row > 0:
            renew_pilots(x, sums, pilots, row, width)
        count, here = smaller(larger(first, row), rows - row), shift(x, row * step)
        tensors, steps, terms = (here, here, here), (step, step, step), (pilots, pilots)
        add_quarters(operation, tensors, steps, count, terms, sums, chain, width, ahead, False)
        row += count
    n = splat_doubles(x, double(rows))
    for c in range(0, width, lanes_of(x)):
        away = double_lanes(load_lanes(pilots, c)) - double_lanes(load_lanes(means, c))
        move_columns(pilots, sums, c, n, away)


@as_argument
def add_exact_rows(arguments, c, segment):
    """Add some rows to the moments of a segment of their elements, in float64."""
    x, step, rows, means, sums = arguments
    moments, about = start_moments(x), split_lanes(double_lanes(load_lanes(means, c)))
    for r in range(rows):
        moments = add_segment(x, r * step + c, about, moments, segment)
    fold(sums[0], c, join_lanes(moments[0]))
    fold(sums[1], c, join_lanes(moments[1]))


@helper
def add_exactly(x, step, rows, means, sums, width):
    """Add some rows to the moments of their elements, in float64."""
    eighth = rows // EIGHTHS
    for r in range(eighth):
        here = shift(x, r * step)
        over_row(add_exact_rows, (here, eighth * step, EIGHTHS, means, sums), x, width)
    left = rows - EIGHTHS * eighth
    if left > 0:
        here = shift(x, EIGHTHS * eighth * step)
        over_row(add_exact_rows, (here, step, left, means, sums), x, width)


@by_types
def add_moments(operation, x, step, rows, means, sums, job, width, ahead):
    """Add some rows to the moments of their elements, in the operation's way."""
    if operation.operation in (EXACT, "forward"):
        return lambda operation, x, step, rows, means, sums, job, width, ahead: add_exactly(
            x, step, rows, means, sums, width
        )
    return lambda operation, x, step, rows, means, sums, job, width, ahead: add_about_pilots(
        operation, x, step, rows, means, sums, job, width, ahead
    )


@helper
def moments_of_columns(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel to its sums."""
    first, channels, run, repeat = shape_of(job)
    count, step = get(job, B.J_ROWS), get(job, B.J_ROW_STEPS + 1)
    means = reals_at(buffer(job, 0), x)
    columns = doubles_at(buffer(job, 1)), doubles_at(buffer(job, 2))
    fill_row(job, B.J_MEAN, get(block_of(job), B.PER_GROUP), x, means)
    width = channels * run * repeat
    start_sums(columns, width, x)
    rows, ahead = count // repeat, get(job, B.J_AHEAD) != 0
    add_moments(operation, x, repeat * step, rows, means, columns, job, width, ahead)
    if rows * repeat < count:  # the rest of a row
        here, m = shift(x, rows * repeat * step), count - rows * repeat
        add_exactly(here, step, as_int64(1), means, columns, channels * run * m)
    gather_sums(columns, first, channels, run, repeat, x, sums_of(job))
