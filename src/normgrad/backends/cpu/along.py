"""Kernels for rows that are statistics groups whose elements have the parameters (layer norm).

One walk down some rows writes dx and adds up the parameters' gradients. A row's own sums come
first (see rows.py), and leave the row in a cache. Another walk takes some rows' moments and writes
their y.
"""

from __future__ import annotations

from math import isfinite, sqrt

from . import block as B
from .access import SHORT
from .coefficients import NORMAL_SINGLES, holds, keep_precision, of_group
from .columns import BUFFER, ROWS, SPAN, gather_sums, over_row, start_sums
from .helpers import helper, passed
from .intrinsics import (
    bits_to_double,
    double_buffer,
    doubles_at,
    get,
    item_size,
    like,
    load,
    not_inlined,
    plain,
    put,
    real_buffer,
    real_of,
    shift,
)
from .lanes import (
    EIGHT,
    LANES,
    as_loaded,
    get_lanes,
    load_part,
    load_some,
    prefetch_lanes,
    put_lanes,
    splat,
    splat_like,
    store_part,
    sums_of_eight,
    zero_lanes,
)
from .rows import (
    KEPT,
    further,
    has_whole_lines,
    keep_short_row,
    moments_of_channels,
    sums_of,
    three,
    write_row,
)
from .sums import fold_sums
from .vectors import canonical

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Offsets of the rows' coefficients in a buffer, in the order of a job's fields.
GAIN, SHIFT, MEAN, SLOPE, SCALE, INVSTD = 0, ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS, 5 * ROWS
NUMBERS = 6 * ROWS
#: How many elements ahead rows are prefetched where several rows are read in turn.
ON = 8 * LANES
#: The size of buffers for a short row, beyond whose end the last lanes may reach.
ROW = SHORT + LANES
#: The bytes of x in rows that are written together after their moments: they stay in the L1 cache
#: beside what is written.
NEAR = 8 << 10
#: The size of buffers for the sums of some rows, which are stored in whole lanes.
TOTALS = ROWS + LANES


@helper
def read_numbers(job, row, rows, numbers):
    """Read the coefficients of some rows, rounded to the arithmetic's type."""
    for field in range(NUMBERS // ROWS):
        values = shift(doubles_at(get(job, B.J_GAIN + field)), row)
        for r in range(rows):
            put(numbers, field * ROWS + r, get(values, r))


@helper
def numbers_of(numbers, r):
    """A row's coefficients in lanes: gain, shift, mean, slope, scale and 1/std."""
    return (
        splat(get(numbers, GAIN + r)), splat(get(numbers, SHIFT + r)),
        splat(get(numbers, MEAN + r)), splat(get(numbers, SLOPE + r)),
        splat(get(numbers, SCALE + r)), splat(get(numbers, INVSTD + r)),
    )  # fmt: skip


@helper
def write_part(dx, c, weight, numbers, values, centred, part, streaming):
    """Write dx of a part of a row, from its dy and x − mean."""
    gain, offset, _, slope, scale, _ = numbers
    inner = offset + slope * centred
    store_part(dx, c, scale * (gain * weight * values - inner), part, streaming)


@helper
def add_and_write(tensors, c, weight, numbers, sums, part, writes, streaming):
    """Add dy and dy·(x − mean)/std of a part of a row to two sums; write dx if asked."""
    dy, x, dx = tensors
    values, centred = load_part(dy, c, part), load_part(x, c, part) - numbers[2]
    if writes:
        write_part(dx, c, weight, numbers, values, centred, part, streaming)
    return sums[0] + values, sums[1] + values * (centred * numbers[5])


@helper
def fetch_on(tensors, c, ahead):
    """Prefetch what is read later, since no processor foresees so many rows at once."""
    prefetch_lanes(tensors[0], c + ahead[0])
    prefetch_lanes(tensors[1], c + ahead[1])


@passed
def add_rows(arguments, c, part):
    """Add some rows to the sums of a part of their elements, alternating between two chains."""
    tensors, steps, rows, weights, numbers, sums, writes, streaming, ahead = arguments
    weight, zero = get_lanes(weights, c), zero_lanes(tensors[0], tensors[1])
    a, b = (zero, zero), (zero, zero)
    here = tensors
    for r in range(0, rows - 1, 2):
        fetch_on(here, c, ahead)
        of_row = numbers_of(numbers, r)
        a = add_and_write(here, c, weight, of_row, a, part, writes, streaming)
        here = further(here, steps, 1)
        fetch_on(here, c, ahead)
        of_row = numbers_of(numbers, r + 1)
        b = add_and_write(here, c, weight, of_row, b, part, writes, streaming)
        here = further(here, steps, 1)
    if rows % 2 > 0:
        of_row = numbers_of(numbers, rows - 1)
        a = add_and_write(here, c, weight, of_row, a, part, writes, streaming)
    fold_sums(zero, sums, c, a, b)


@passed
def write_rows(arguments, c, part):
    """Write dx of a part of some rows."""
    tensors, steps, rows, weights, numbers, streaming, ahead = arguments
    weight = get_lanes(weights, c)
    for r in range(rows):
        fetch_on(tensors, c, ahead)
        dy, x, dx = tensors
        of_row = numbers_of(numbers, r)
        values, centred = load_part(dy, c, part), load_part(x, c, part) - of_row[2]
        write_part(dx, c, weight, of_row, values, centred, part, streaming)
        tensors = further(tensors, steps, 1)


@helper
def read_weights(dy, weight, width, weights):
    """Copy the weights of a row's elements, in the order in which dy is loaded."""
    for c in range(0, width, LANES):
        put_lanes(weights, c, as_loaded(dy, load_some(weight, c, min(LANES, width - c))))


@helper
def parameters(operation, dy, x, dx, job):
    """Add each row's contribution to the parameter gradients, and write its dx if asked."""
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    numbers, weights = real_buffer(NUMBERS, dy, x), real_buffer(BUFFER, dy, x)
    columns = (
        double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER)
    )  # fmt: skip
    zero = zero_lanes(dy, x)
    weight = like(get(job, B.J_WEIGHT), real_of(dy, x))
    writes = get(job, B.J_WRITES) != 0
    for k in range(0, run, SPAN):
        width = min(SPAN, run - k)
        read_weights(dy, shift(weight, k), width, weights)
        tensors = further((dy, x, dx), (1, 1, 1), k)
        streaming = get(job, B.J_STREAM) != 0 and has_whole_lines(tensors[2], width, steps[2])
        start_sums(columns, width, zero)
        for i in range(0, count, ROWS):
            rows = min(ROWS, count - i)
            read_numbers(job, get(job, B.J_CHANNEL) + i, rows, numbers)
            here = further(tensors, steps, i)
            arguments = (here, steps, rows, weights, numbers, columns, writes, streaming, (ON, ON))
            over_row(add_rows, arguments, width)
        gather_sums(columns, get(job, B.J_FIRST) + k, width, 1, 1, dy, zero, sums_of(job))


@helper
def sum_short_rows(operation, tensors, steps, rows, run, means, weight, sums):
    """Sum some short rows in float32, eight at a time; ``sums`` has room for whole lanes."""
    dy, x = tensors[0], tensors[1]
    kept = real_buffer(KEPT, dy, x), real_buffer(KEPT, dy, x)
    here = tensors
    for first in range(0, rows, EIGHT):
        for i in range(min(EIGHT, rows - first)):
            terms = splat_like(dy, x, get(means, first + i)), zero_lanes(dy, x), weight
            keep_short_row(operation, here, run, terms, kept, i)
            here = further(here, steps, 1)
        put_lanes(shift(sums[0], first), 0, sums_of_eight(kept[0]))
        put_lanes(shift(sums[1], first), 0, sums_of_eight(kept[1]))


@helper
def find_numbers(job, rows, means, invstds, sums, numbers):
    """Compute some rows' coefficients (see ``numbers_of``) from their sums."""
    not_inlined()
    m, centred = bits_to_double(get(job, B.J_DIVISOR)), get(job, B.J_CENTRED) != 0
    normal, found = NORMAL_SINGLES, doubles_at(get(job, B.J_RANGE))
    least, most = get(found, 1), get(found, 2)
    for r in range(rows):
        invstd = get(invstds, r)
        fits = keep_precision(least, most, invstd, normal) & holds(invstd, invstd, 1.0, normal)
        slope, scale, offset, gain = of_group(
            (get(sums[0], r), 0.0), (get(sums[1], r), 0.0), (invstd, 0.0), m, centred, fits, normal
        )
        put(numbers, GAIN + r, gain)
        put(numbers, SHIFT + r, offset)
        put(numbers, MEAN + r, get(means, r))
        put(numbers, SLOPE + r, slope)
        put(numbers, SCALE + r, scale)
        put(numbers, INVSTD + r, invstd)


@helper
def gradients(operation, dy, x, dx, job):
    """Sum each row, write its dx, and add the row to the parameters' sums where they are wanted.

    Rows are short: the rows of a chain stay in a core's cache from their sums to their dx.
    """
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    weights, weight = real_buffer(ROW, dy, x), like(get(job, B.J_WEIGHT), real_of(dy, x))
    columns = double_buffer(ROW), double_buffer(1), double_buffer(ROW), double_buffer(1)
    first, zero, adds = get(job, B.J_CHANNEL), zero_lanes(dy, x), get(job, B.J_ADDS) != 0
    means = shift(doubles_at(get(job, B.J_MEAN)), first)
    invstds = shift(doubles_at(get(job, B.J_INVSTD)), first)
    read_weights(dy, weight, run, weights)
    start_sums(columns, run, zero)
    streaming = get(job, B.J_STREAM) != 0 and has_whole_lines(dx, run, steps[2])
    numbers, sums = real_buffer(NUMBERS, dy, x), (double_buffer(TOTALS), double_buffer(TOTALS))
    ahead = ROWS * steps[0], ROWS * steps[1]
    for i in range(0, count, ROWS):
        rows, here = min(ROWS, count - i), further((dy, x, dx), steps, i)
        sum_short_rows(operation, here, steps, rows, run, shift(means, i), weight, sums)
        find_numbers(job, rows, shift(means, i), shift(invstds, i), sums, numbers)
        if adds:
            arguments = (here, steps, rows, weights, numbers, columns, True, streaming, ahead)
            over_row(add_rows, arguments, run)
        else:
            over_row(write_rows, (here, steps, rows, weights, numbers, streaming, ahead), run)
    if adds:
        gather_sums(columns, get(job, B.J_FIRST), run, 1, 1, dy, zero, sums_of(job))


@helper
def choose_points(job, x, step, first, rows):
    """Choose the points that some rows' moments are about: their first elements (see prepare)."""
    points, centred = doubles_at(get(job, B.J_MEAN)), get(job, B.J_CENTRED) != 0
    for r in range(rows):
        value = load(x, r * step) if centred else 0.0
        put(points, first + r, value if isfinite(value) else 0.0)


@helper
def find_statistics(job, first, rows, means, invstds):
    """Compute some rows' mean and 1/std from their moments, for the loop that writes y.

    It rounds them to float32, for which float64 is exact enough.
    """
    one, eps = 1.0 / bits_to_double(get(job, B.J_DIVISOR)), bits_to_double(get(job, B.J_EPS))
    points, sums = shift(doubles_at(get(job, B.J_MEAN)), first), sums_of(job)
    totals, squares = shift(sums[0], first), shift(sums[2], first)
    centred = get(job, B.J_CENTRED) != 0
    for r in range(rows):
        change = get(totals, r) * one if centred else 0.0
        variance = get(squares, r) * one - change * change
        put(means, r, canonical(get(points, r) + change))
        put(invstds, r, canonical(1.0 / sqrt((0.0 if variance < 0.0 else variance) + eps)))


@helper
def normalise(operation, tensors, steps, rows, run, means, invstds, along, past_caches):
    """Write y of some rows."""
    x = tensors[1]
    for r in range(rows):
        gain, mean = splat_like(x, x, get(invstds, r)), splat_like(x, x, get(means, r))
        coefficients = gain, gain, mean, gain, gain
        write_row(operation, tensors, coefficients, along, run, past_caches)
        tensors = further(tensors, steps, 1)


@helper
def forward(operation, dy, x, dx, job):
    """Normalise rows, which stay in a core's nearest cache from their moments to their y.

    The moments stay in the workspace, from which ``statistics`` computes what is returned.
    """
    first, count, run = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_RUN)
    steps, at_once = three(job, B.J_CHANNEL_STEPS), max(1, min(EIGHT, NEAR // (run * item_size(x))))
    along = like(get(job, B.J_WEIGHT), real_of(x, x)), like(get(job, B.J_BIAS), real_of(x, x))
    means, invstds = double_buffer(EIGHT), double_buffer(EIGHT)
    for start in range(0, count, at_once):
        rows, here = min(at_once, count - start), further((dy, x, dx), steps, start)
        c = first + start
        choose_points(job, here[1], steps[1], c, rows)
        moments_of_channels(operation, here[1], job, c, c + rows)
        find_statistics(job, c, rows, means, invstds)
        if get(job, B.J_STREAM) != 0:
            normalise(operation, here, steps, rows, run, means, invstds, along, plain(1))
        else:
            normalise(operation, here, steps, rows, run, means, invstds, along, None)
