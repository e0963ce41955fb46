"""Along: rows are groups of their own, each with a mean and coefficients, and columns parameters.

One walk down some rows writes dx and sums what the parameters' gradients are made of: a row's own
sums come first (see rows.py), and leave it in a cache.
"""

from __future__ import annotations

from . import block as B
from .columns import BUFFER, ROWS, gather_sums, start_sums
from .helpers import helper
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
from .rows import has_whole_lines, steps_of, sums_of
from .sums import fold_lanes

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Numbers of each row, in the order of a job's fields.
MEAN, INVSTD, SLOPE, SCALE, GAIN, SHIFT = 0, ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS, 5 * ROWS
NUMBERS = 6 * ROWS


@helper
def read_numbers(job, row, rows, numbers):
    """The numbers of some rows in the arithmetic's type."""
    for field in range(NUMBERS // ROWS):
        values = shift(doubles_at(get(job, B.J_MEAN + field)), row)
        for r in range(rows):
            put(numbers, field * ROWS + r, get(values, r))


@helper
def add_and_write(dy, x, dx, i, j, o, weight, numbers, r, s, q, part, writes, streaming):
    """Two sums with a part of row r added: dy, and dy·(x − mean)/std; dx of it, where wanted."""
    values, xs = load_part(dy, i, part), load_part(x, j, part)
    centred = xs - splat(get(numbers, MEAN + r))
    if writes:
        inner = splat(get(numbers, SHIFT + r)) + splat(get(numbers, SLOPE + r)) * centred
        outer = splat(get(numbers, GAIN + r)) * weight * values - inner
        store_part(dx, o, splat(get(numbers, SCALE + r)) * outer, part, streaming)
    return s + values, q + values * (centred * splat(get(numbers, INVSTD + r)))


@helper
def add_rows(dy, x, dx, steps, rows, weights, numbers, c, sums, part, writes, streaming):
    """Add some rows to the sums of a part of their elements, from c on, in two chains by turns."""
    weight, zero = get_lanes(weights, c), zero_lanes(dy, x)
    s, q, s2, q2 = zero, zero, zero, zero
    i, j, o = c, c, c
    for r in range(0, rows - 1, 2):
        s, q = add_and_write(dy, x, dx, i, j, o, weight, numbers, r, s, q, part, writes, streaming)
        i, j, o = i + steps[0], j + steps[1], o + steps[2]
        s2, q2 = add_and_write(
            dy, x, dx, i, j, o, weight, numbers, r + 1, s2, q2, part, writes, streaming
        )
        i, j, o = i + steps[0], j + steps[1], o + steps[2]
    if rows % 2 > 0:
        s, q = add_and_write(
            dy, x, dx, i, j, o, weight, numbers, rows - 1, s, q, part, writes, streaming
        )
    fold_lanes(zero, sums[0], sums[1], c, s + s2)
    fold_lanes(zero, sums[2], sums[3], c, q + q2)


@helper
def parameters(operation, dy, x, dx, job):
    """Add what each row gives to its parameters' gradients, and write dx where that is wanted."""
    width, count = get(job, B.J_CHANNELS), get(job, B.J_ROWS)
    steps = steps_of(job)
    numbers, weights = real_buffer(NUMBERS, dy, x), real_buffer(BUFFER, dy, x)
    columns = (
        double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER)
    )  # fmt: skip
    weight = like(get(job, B.J_WEIGHT), real_of(dy, x))
    for c in range(0, width, LANES):
        put_lanes(weights, c, as_loaded(dy, load_some(weight, c, min(LANES, width - c))))
    writes = get(job, B.J_WRITES) != 0
    streaming = get(job, B.J_STREAM) != 0 and has_whole_lines(dx, width, steps[2])
    whole = width // LANES * LANES
    start_sums(columns, width, dy, x)
    for i in range(0, count, ROWS):
        rows = min(ROWS, count - i)
        read_numbers(job, get(job, B.J_FIRST_ROW) + i, rows, numbers)
        dys, xs, dxs = shift(dy, i * steps[0]), shift(x, i * steps[1]), shift(dx, i * steps[2])
        for c in range(0, whole, LANES):
            add_rows(
                dys, xs, dxs, steps, rows, weights, numbers, c, columns, None, writes, streaming
            )
        if whole < width:
            part = width - whole
            add_rows(
                dys, xs, dxs, steps, rows, weights, numbers, whole, columns, part, writes, False
            )
    gather_sums(columns, get(job, B.J_CHANNEL), width, 1, 1, dy, x, sums_of(job))
