"""Kernels for rows that are statistics groups whose elements have the parameters (layer norm).

One walk down some rows writes dx and sums what the parameters' gradients are made of: a row's own
sums come first (see rows.py), and leave it in a cache.
"""

from __future__ import annotations

from . import block as B
from .columns import BUFFER, ROWS, SPAN, gather_sums, over_row, start_sums
from .helpers import helper, passed
from .intrinsics import double_buffer, doubles_at, get, like, put, real_buffer, real_of, shift
from .lanes import (
    LANES,
    as_loaded,
    get_lanes,
    load_part,
    load_some,
    put_lanes,
    splat,
    store_part,
    zero_lanes,
)
from .rows import further, has_whole_lines, sums_of, three
from .sums import fold_sums

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Offsets of each row's numbers in the buffer, in the order of a job's fields.
GAIN, SHIFT, MEAN, SLOPE, SCALE, INVSTD = 0, ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS, 5 * ROWS
NUMBERS = 6 * ROWS


@helper
def read_numbers(job, row, rows, numbers):
    """Read the coefficients of some rows, rounded to the arithmetic's type."""
    for field in range(NUMBERS // ROWS):
        values = shift(doubles_at(get(job, B.J_GAIN + field)), row)
        for r in range(rows):
            put(numbers, field * ROWS + r, get(values, r))


@helper
def add_and_write(tensors, c, weight, numbers, r, sums, part, writes, streaming):
    """Add dy and dy·(x − mean)/std of a part of row r to two sums, and write dx where wanted."""
    dy, x, dx = tensors
    values, centred = load_part(dy, c, part), load_part(x, c, part) - splat(get(numbers, MEAN + r))
    if writes:
        inner = splat(get(numbers, SHIFT + r)) + splat(get(numbers, SLOPE + r)) * centred
        outer = splat(get(numbers, GAIN + r)) * weight * values - inner
        store_part(dx, c, splat(get(numbers, SCALE + r)) * outer, part, streaming)
    return sums[0] + values, sums[1] + values * (centred * splat(get(numbers, INVSTD + r)))


@passed
def add_rows(arguments, c, part):
    """Add some rows to the sums of a part of their elements, alternating between two chains."""
    tensors, steps, rows, weights, numbers, sums, writes, streaming = arguments
    weight, zero = get_lanes(weights, c), zero_lanes(tensors[0], tensors[1])
    a, b = (zero, zero), (zero, zero)
    here = tensors
    for r in range(0, rows - 1, 2):
        a = add_and_write(here, c, weight, numbers, r, a, part, writes, streaming)
        here = further(here, steps, 1)
        b = add_and_write(here, c, weight, numbers, r + 1, b, part, writes, streaming)
        here = further(here, steps, 1)
    if rows % 2 > 0:
        a = add_and_write(here, c, weight, numbers, rows - 1, a, part, writes, streaming)
    fold_sums(zero, sums, c, a, b)


@helper
def parameters(operation, dy, x, dx, job):
    """Add each row's contribution to the parameter gradients, and write dx where that is wanted."""
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
        for c in range(0, width, LANES):
            some = load_some(weight, k + c, min(LANES, width - c))
            put_lanes(weights, c, as_loaded(dy, some))
        tensors = further((dy, x, dx), (1, 1, 1), k)
        streaming = get(job, B.J_STREAM) != 0 and has_whole_lines(tensors[2], width, steps[2])
        start_sums(columns, width, zero)
        for i in range(0, count, ROWS):
            rows = min(ROWS, count - i)
            read_numbers(job, get(job, B.J_CHANNEL) + i, rows, numbers)
            here = further(tensors, steps, i)
            arguments = (here, steps, rows, weights, numbers, columns, writes, streaming)
            over_row(add_rows, arguments, width)
        gather_sums(columns, get(job, B.J_FIRST) + k, width, 1, 1, dy, zero, sums_of(job))
