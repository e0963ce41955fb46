"""Rows that are statistics groups: their coefficients, segments, and kernels for short rows.

Coefficients are float64, rounded to the arithmetic's type at the end.

Of very short rows some at a time are transposed into tiles, in which each row is a lane. So no
row's sum waits for its own elements, and coefficients are loaded once for all of these rows.
"""

from __future__ import annotations

from math import isfinite, sqrt

from numba import types

from ..schedule import block as B
from ..vector.helpers import by_types, helper
from ..vector.intrinsics import (
    bits_to_double,
    double_buffer,
    doubles_at,
    get,
    is_double,
    load,
    not_inlined,
    put,
    real_buffer,
    reals_at,
    shift,
    smaller,
)
from ..vector.lanes import (
    EIGHT,
    LANES,
    double_lanes,
    lanes_of,
    load_lanes,
    muladd,
    put_lanes,
    splat,
    splat_doubles,
    sums_of_eight,
    zero_lanes,
)
from ..vector.segments import load_segment, store_segment
from ..vector.tiles import transpose
from .accumulators import BATCH, add_columns, fold, nearest_element, start_sums
from .channel_vectors import as_arithmetic, canonical
from .coefficients import holds, keep_precision, normal_numbers, shifted
from .elements import advance, deviations_alone, linear_form, prefetch_bytes_ahead
from .moments import put_about
from .reductions import block_of, buffer, sums_of, three
from .writes import parameters_along

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Offsets of the rows' coefficients in a buffer, in the order of a job's fields: of so many rows as
#: there are lanes, or fewer.
GAIN, SHIFT, MEAN, SLOPE, SCALE, INVSTD, REST = range(0, 7 * LANES, LANES)
COEFFICIENTS = 7 * LANES
#: How many bytes ahead rows are prefetched while rows are summed: of short ones the next sixteen.
DISTANCE = 1 << 13
#: The rows in a chain of long rows' sums for the parameters. A term has a rounding of x − h, one of
#: its factor 1/std, one of what corrects for h, and one of their fused product and sum; the chain's
#: 11 additions and the result's rounding are within the bound of 16.
ROW_CHAIN = 11
#: What stands for whether dx is written where a kernel is compiled for one of the two, by its type.
ALWAYS, NEVER = 1, None


@helper
def statistics_from(job, row):
    """The means, their rounding errors and 1/std, from a row on."""
    return (
        shift(doubles_at(get(job, B.J_MEAN)), row), shift(doubles_at(get(job, B.J_REST)), row),
        shift(doubles_at(get(job, B.J_INVSTD)), row),
    )  # fmt: skip


@helper
def read_coefficients(job, row, rows, coefficients):
    """Read the coefficients of some rows, rounded to the arithmetic's type."""
    for field in range(INVSTD // LANES):
        values = shift(doubles_at(get(job, B.J_GAIN + field)), row)
        for r in range(rows):
            put(coefficients, field * LANES + r, get(values, r))
    round_statistics(job, row, rows, coefficients)


@helper
def compute_coefficients(job, row, rows, sums, coefficients):
    """Compute some rows' coefficients (see ``row_coefficients`` and coefficients.py) from sums."""
    not_inlined()
    _, rests, invstds = statistics_from(job, row)
    block = block_of(job)
    m, centred = bits_to_double(get(block, B.DIVISOR)), get(block, B.CENTRED) != 0
    weights = doubles_at(get(block, B.WORKSPACE) + get(block, B.W_COUNT))
    normal = normal_numbers(block)
    least, most, one = get(weights, 1), get(weights, 2), 1.0 / m
    for r in range(rows):
        invstd, total, rest = get(invstds, r), get(sums[0], r), get(rests, r)
        projection = shifted(get(sums[1], r), total, rest)
        several = invstd - invstd if m > 1.0 else 0.0
        t, p = total * one if centred else 0.0, (projection + several) * one * (invstd * invstd)
        gained, sloped = invstd * t, invstd * p
        fits = keep_precision(least, most, invstd, normal) & holds(invstd, invstd, 1.0, normal)
        fits &= holds(gained, invstd, t, normal) & holds(sloped, invstd, p, normal)
        put(coefficients, GAIN + r, invstd if fits else 1.0)
        slope = sloped if fits else p
        put(coefficients, SHIFT + r, canonical(shifted(gained if fits else t, slope, rest)))
        put(coefficients, SLOPE + r, canonical(slope))
        put(coefficients, SCALE + r, 1.0 if fits else canonical(invstd))
    round_statistics(job, row, rows, coefficients)


@helper
def round_statistics(job, row, rows, coefficients):
    """Round what the parameters' sums need of some rows' coefficients."""
    means, rests, invstds = statistics_from(job, row)
    for r in range(rows):
        put(coefficients, MEAN + r, get(means, r))
        put(coefficients, INVSTD + r, get(invstds, r))
        put(coefficients, REST + r, shifted(0.0, get(invstds, r), get(rests, r)))


@helper
def row_coefficients(coefficients, r):
    """A row's coefficients in lanes: gain, shift, mean, slope, scale, 1/std and rest.

    The rest is what to add to (x − mean)/std, since the mean is rounded.
    """
    return (
        splat(get(coefficients, GAIN + r)), splat(get(coefficients, SHIFT + r)),
        splat(get(coefficients, MEAN + r)), splat(get(coefficients, SLOPE + r)),
        splat(get(coefficients, SCALE + r)), splat(get(coefficients, INVSTD + r)),
        splat(get(coefficients, REST + r)),
    )  # fmt: skip


@helper
def write_segment_of_group(operation, tensors, c, weight, of_row, segment, streaming):
    """Write dx of a segment of a row."""
    gain, offset, mean, slope, scale, _, _ = of_row
    weighted = gain * weight, offset, mean, slope, scale
    store_segment(
        tensors[2], c, linear_form(operation, tensors, c, weighted, segment), segment, streaming
    )


@by_types
def is_written(writes):
    """Whether dx is written: ``ALWAYS``, ``NEVER``, or as a boolean says when the kernel runs.

    Long rows have a function for each of the first two, since a test for each segment took 4 % of
    their time.
    """
    if isinstance(writes, types.Boolean):
        return lambda writes: writes
    always = isinstance(writes, types.Integer)
    return lambda writes: always


@helper
def add_and_write(operation, tensors, c, weight, of_row, sums, segment, writes, streaming):
    """Add dy and dy·(x − mean)/std of a segment of a row to two sums; write dx if asked."""
    dy, centred = (
        load_segment(tensors[0], c, segment),
        load_segment(tensors[1], c, segment) - of_row[2],
    )
    if is_written(writes):
        write_segment_of_group(operation, tensors, c, weight, of_row, segment, streaming)
    return sums[0] + dy, muladd(dy, muladd(centred, of_row[5], of_row[6]), sums[1])


@helper
def choose_pilots(job, x, step, run, first, rows):
    """Choose what the moments of some rows are about: their first elements (see prepare).

    Moments of float64 data are about the mean, since others have not the precision to spare.
    """
    pilots = shift(doubles_at(get(job, B.J_MEAN)), first)
    if get(block_of(job), B.CENTRED) == 0:
        for r in range(rows):
            put(pilots, r, 0.0)
        return
    for r in range(rows):
        value = load(x, r * step)
        put(pilots, r, value if isfinite(value) else 0.0)
    if is_double(x):
        changes, one = double_buffer(LANES), 1.0 / run
        sum_deviations(x, step, run, pilots, rows, changes)
        for r in range(rows):
            value = get(pilots, r) + get(changes, r) * one
            put(pilots, r, value if isfinite(value) else 0.0)


@by_types
def sum_deviations(x, step, run, pilots, rows, totals):
    """Add up what some rows of float64 exceed their pilots by, in eights; of others, nothing."""

    def of_doubles(x, step, run, pilots, rows, totals):
        batch = double_buffer(BATCH), double_buffer(BATCH)
        for i in range(0, rows, EIGHT):
            count, here, about = smaller(EIGHT, rows - i), shift(x, i * step), shift(pilots, i)
            put_about(deviations_alone(), here, step, count, 0, 1, run, about, 0, batch)
            put_lanes(shift(totals, i), 0, sums_of_eight(batch[0]))

    if x.dtype == types.float64:
        return of_doubles
    return lambda x, step, run, pilots, rows, totals: None


@helper
def keep_rests(job, first, rows, changes):
    """Keep what rows' means exceed those by that sums were about, if these were found here."""
    if get(block_of(job), B.MISSING_MEAN) != 0:
        _, rests, _ = statistics_from(job, first)
        one = 1.0 / bits_to_double(get(block_of(job), B.DIVISOR))
        for r in range(rows):
            value = get(changes, r) * one
            put(rests, r, value if isfinite(value) else 0.0)


@helper
def compute_statistics(job, first, rows, means, invstds, rests):
    """Compute some rows' coefficients of y (see ``linear_form``) from their moments.

    They are the mean and 1/std, and what to add to (x − mean)/std, since the mean is rounded.
    """
    block = block_of(job)
    one, eps = 1.0 / bits_to_double(get(block, B.DIVISOR)), bits_to_double(get(block, B.EPS))
    pilots, sums = shift(doubles_at(get(job, B.J_MEAN)), first), sums_of(job)
    totals, squares = shift(sums[0], first), shift(sums[1], first)
    centred = get(block, B.CENTRED) != 0
    for r in range(rows):
        change = get(totals, r) * one if centred else 0.0
        variance = get(squares, r) * one - change * change
        mean = canonical(get(pilots, r) + change)
        invstd = canonical(1.0 / sqrt((0.0 if variance < 0.0 else variance) + eps))
        rest = change - (as_arithmetic(block, mean) - get(pilots, r))
        put(means, r, mean)
        put(invstds, r, invstd)
        put(rests, r, shifted(0.0, invstd, rest if isfinite(rest) else 0.0))


@helper
def load_tile(tensor, step, run, rows, tile):
    """Transpose some rows into a tile; lanes without a row are zero."""
    if rows < LANES:
        for at in range(0, run * LANES, lanes_of(tile)):
            put_lanes(tile, at, zero_lanes(tile))
    transpose(tensor, step, tile, LANES, run, rows)


@helper
def sum_tile(tiles, run, means, weights, sums):
    """Find the two sums of a tile's rows in float64, since the rounding of each term would show."""
    for r in range(0, LANES, lanes_of(tiles[0])):
        total, mean = splat_doubles(tiles[0], 0.0), double_lanes(load_lanes(means, r))
        projection = total
        for at in range(0, run * LANES, LANES):
            weight = double_lanes(splat(get(weights, at // LANES)))
            d = double_lanes(load_lanes(tiles[0], at + r)) * weight
            total = total + d
            centred = double_lanes(load_lanes(tiles[1], at + r)) - mean
            projection = muladd(d, centred, projection)
        put_lanes(sums[0], r, total)
        put_lanes(sums[1], r, projection)


@helper
def sum_of_tile(tile, run, pilot):
    """The sum of what the elements of a vector of rows in a tile exceed the pilot by."""
    total = splat_doubles(tile, 0.0)
    for j in range(run):
        total = total + (double_lanes(load_lanes(tile, j * LANES)) - pilot)
    return total


@helper
def pilot_of_tile(tile, run):
    """The first elements of a vector of rows; or their means, of float64 (see choose_pilots)."""
    pilot, one = double_lanes(load_lanes(tile, 0)), splat_doubles(tile, 1.0 / run)
    pilot = nearest_element(tile, pilot)
    if is_double(tile):
        pilot = nearest_element(tile, pilot + sum_of_tile(tile, run, pilot) * one)
    return pilot


@helper
def find_means_of_tile(job, tile, run, first, rows):
    """Find the means of a tile's rows of float64 data, and their rounding errors."""
    pilots, changes = double_buffer(LANES), double_buffer(LANES)
    for r in range(0, LANES, lanes_of(tile)):
        here = shift(tile, r)
        pilot = pilot_of_tile(here, run)
        put_lanes(pilots, r, pilot)
        put_lanes(changes, r, sum_of_tile(here, run, pilot))
    means = statistics_from(job, first)[0]
    for r in range(rows):
        put(means, r, get(pilots, r))
    keep_rests(job, first, rows, changes)


@helper
def gradients_in_tiles(operation, dy, x, dx, job):
    """The gradients of very short rows."""
    not_inlined()
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    weights, first = reals_at(get(job, B.J_WEIGHT), x), get(job, B.J_CHANNEL)
    writes = get(job, B.J_WRITES) != 0
    finds_means = get(block_of(job), B.MISSING_MEAN) != 0
    prefetches = get(job, B.J_AHEAD) != 0 and steps[0] == run and steps[1] == run
    tiles = reals_at(buffer(job, 0), x), reals_at(buffer(job, 1), x)
    chain = reals_at(buffer(job, 2), x), reals_at(buffer(job, 3), x)
    columns = doubles_at(buffer(job, 4)), doubles_at(buffer(job, 5))
    zero, lanes = zero_lanes(x), lanes_of(x)
    coefficients = real_buffer(COEFFICIENTS, x)
    sums = double_buffer(LANES), double_buffer(LANES)
    for at in range(0, run * LANES, lanes):
        put_lanes(chain[0], at, zero)
        put_lanes(chain[1], at, zero)
    start_sums(columns, run * LANES, dy)
    for start in range(0, count, LANES):
        rows, here = smaller(LANES, count - start), advance((dy, x, dx), steps, start)
        if prefetches:
            for k in range(0, run * LANES, lanes):
                prefetch_bytes_ahead(here, DISTANCE, k)
        load_tile(here[0], steps[0], run, rows, tiles[0])
        load_tile(here[1], steps[1], run, rows, tiles[1])
        if rows < LANES:
            for field in range(0, COEFFICIENTS, lanes):
                put_lanes(coefficients, field, zero)
        if is_double(x) and finds_means:
            find_means_of_tile(job, tiles[1], run, first + start, rows)
        round_statistics(job, first + start, rows, coefficients)
        if writes:
            sum_tile(tiles, run, shift(coefficients, MEAN), weights, sums)
            compute_coefficients(job, first + start, rows, sums, coefficients)
        is_full = (start // LANES + 1) % ROW_CHAIN == 0 or start + LANES >= count
        for r in range(0, LANES, lanes):
            vector, tensors = shift(coefficients, r), (tiles[0], tiles[1], tiles[0])
            of_rows = (
                load_lanes(vector, GAIN), load_lanes(vector, SHIFT), load_lanes(vector, MEAN),
                load_lanes(vector, SLOPE), load_lanes(vector, SCALE), load_lanes(vector, INVSTD),
                load_lanes(vector, REST),
            )  # fmt: skip
            for j in range(run):
                at, weight = j * LANES + r, splat(get(weights, j))
                sums_here = load_lanes(chain[0], at), load_lanes(chain[1], at)
                a, b = add_and_write(
                    operation, tensors, at, weight, of_rows, sums_here, None, writes, False
                )
                if is_full:
                    fold(columns[0], at, a)
                    fold(columns[1], at, b)
                    a, b = zero, zero
                put_lanes(chain[0], at, a)
                put_lanes(chain[1], at, b)
        if writes:
            transpose(tiles[0], LANES, here[2], steps[2], rows, run)
    if get(job, B.J_ADDS) != 0:
        totals, at = sums_of(job), get(job, B.J_FIRST)
        add_columns(columns[0], run, LANES, 1, totals[0], at)
        add_columns(columns[1], run, LANES, 1, totals[1], at)


@helper
def forward_in_tiles(operation, dy, x, dx, job):
    """Normalise very short rows; their moments stay in the workspace."""
    not_inlined()
    first, count, run = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_RUN)
    steps, along = three(job, B.J_CHANNEL_STEPS), parameters_along(x, job)
    pilots, sums = doubles_at(get(job, B.J_MEAN)), sums_of(job)
    tile, centred = reals_at(buffer(job, 0), x), get(block_of(job), B.CENTRED) != 0
    means, invstds = real_buffer(LANES, x), real_buffer(LANES, x)
    rests, zero = real_buffer(LANES, x), zero_lanes(x)
    about, totals, squares = double_buffer(LANES), double_buffer(LANES), double_buffer(LANES)
    none, lanes = splat_doubles(x, 0.0), lanes_of(x)
    for r in range(0, LANES, lanes):
        put_lanes(means, r, zero)
        put_lanes(invstds, r, zero)
        put_lanes(rests, r, zero)
    for start in range(0, count, LANES):
        c, rows = first + start, smaller(LANES, count - start)
        tensors = advance((dy, x, dx), steps, start)
        load_tile(tensors[1], steps[1], run, rows, tile)
        for r in range(0, LANES, lanes):
            pilot = pilot_of_tile(shift(tile, r), run) if centred else none
            total, square = none, none
            for j in range(run):
                d = double_lanes(load_lanes(tile, j * LANES + r)) - pilot
                total, square = total + d, muladd(d, d, square)
            put_lanes(about, r, pilot)
            put_lanes(totals, r, total)
            put_lanes(squares, r, square)
        for r in range(rows):
            put(pilots, c + r, get(about, r))
            put(sums[0], c + r, get(totals, r))
            put(sums[1], c + r, get(squares, r))
        compute_statistics(job, c, rows, means, invstds, rests)
        for r in range(0, LANES, lanes):
            gain, mean, rest = load_lanes(invstds, r), load_lanes(means, r), load_lanes(rests, r)
            for j in range(run):
                at, weight, bias = j * LANES + r, splat(get(along[0], j)), splat(get(along[1], j))
                coefficients = gain, bias, mean, rest, weight
                y = linear_form(operation, (tile, tile, tile), at, coefficients, None)
                put_lanes(tile, at, y)
        transpose(tile, LANES, tensors[2], steps[2], rows, run)
