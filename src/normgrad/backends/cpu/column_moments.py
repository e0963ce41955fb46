"""The moments of columns: Σ(x − mean) and Σ(x − mean)² of each channel (see row_moments.py)."""

from __future__ import annotations

from . import block as B
from .columns import BUFFER, ROWS, along_row, gather_sums, shape_of, start_sums
from .helpers import by_types, helper, passed
from .intrinsics import double, double_buffer, get, inlined, plain, real_buffer, shift, smaller
from .lanes import (
    LANES,
    double_lanes,
    finite,
    get_lanes,
    put_lanes,
    single_lanes,
    splat,
    zero_lanes,
)
from .moments import add_part, lanes_of, points_of, start_moments
from .parts import load_part, merge_part, over_row
from .rows import sums_of
from .sums import add_errors, fold_lanes
from .target import has_many_registers

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Exact moments take a row of each eighth of a piece at a time, as the sums of two tensors take a
#: row of each quarter (see :data:`.columns.QUARTERS`).
EIGHTHS = 8
#: Rows of columns whose moments are taken about one mean, and their numbers, which are kept for the
#: squares: lines of rows that lie pages apart evict each other, and are gone when read again.
ABOUT_ONE = 4 * ROWS
KEPT = ABOUT_ONE * LANES


@helper
def add_about(x, rows, points, c, sums, part, total, mean, squares):
    """Add a part of a row's moments about means of their own to moments about other points."""
    n = merge_part(x, splat(double(rows)), splat(0.0), part)
    about, mean = double_lanes(get_lanes(points, c)), double_lanes(mean)
    away, deviations = mean - about, total - n * mean
    put_lanes(sums[0], c, get_lanes(sums[0], c) + (total - n * about))
    squares = squares + away * (deviations + deviations + n * away)
    put_lanes(sums[2], c, get_lanes(sums[2], c) + squares)


@helper
def mean_of(total, rows):
    """The mean of some rows, in lanes, as float32."""
    return finite(single_lanes(total * splat(1.0 / rows)))


@passed
def add_moments_about_means(arguments, c, part):
    """Add some rows to the moments of a part of their elements, about these rows' own means."""
    x, step, rows, points, sums = arguments
    zero, kept = zero_lanes(x, x), real_buffer(KEPT, x, x)
    total, squares = splat(0.0), splat(0.0)
    for first in range(0, rows, ROWS):
        s = zero
        for r in range(first, smaller(first + ROWS, rows)):
            value = load_part(x, r * step + c, part)
            put_lanes(kept, r * LANES, value)
            s = s + value
        total = total + double_lanes(s)
    mean = mean_of(total, rows)
    for first in range(0, rows, ROWS):
        q, q2 = zero, zero
        i, last = first * LANES, smaller(first + ROWS, rows)
        for _ in range(first, last - 1, 2):
            d, d2 = get_lanes(kept, i) - mean, get_lanes(kept, i + LANES) - mean
            q, q2 = q + d * d, q2 + d2 * d2
            i += 2 * LANES
        if (last - first) % 2 > 0:
            d = get_lanes(kept, i) - mean
            q = q + d * d
        squares = squares + double_lanes(merge_part(x, q + q2, zero, part))
    add_about(x, rows, points, c, sums, part, total, mean, squares)


@passed
def add_to_chain(arguments, c, part):
    """Add a part of a row to a chain."""
    inlined()
    x, chain = arguments
    put_lanes(chain, c, get_lanes(chain, c) + load_part(x, c, part))


@passed
def add_squares_to_chain(arguments, c, part):
    """Add the squares of a part of a row's distances from the means to a chain."""
    inlined()
    x, means, chain = arguments
    d = load_part(x, c, part) - get_lanes(means, c)
    put_lanes(chain, c, get_lanes(chain, c) + d * d)


@helper
def fill(row, width, lanes):
    """Set all elements of a row, lanes by lanes."""
    for c in range(0, width, LANES):
        put_lanes(row, c, lanes)


@helper
def fold_rounded(sums, first, second, width):
    """Add two chains, rounded to their type, to sums in float64, and set the chains to zero."""
    zero = zero_lanes(first, second)
    for c in range(0, width, LANES):
        both = double_lanes(get_lanes(first, c) + get_lanes(second, c))
        put_lanes(sums, c, get_lanes(sums, c) + both)
        put_lanes(first, c, zero)
        put_lanes(second, c, zero)


@helper
def add_moments_in_order(x, step, rows, points, sums, width):
    """Add some rows to the moments of their elements, row by row, in memory's order.

    The additions are those of add_moments_about_means, whose sums would be in registers.
    """
    first, second = real_buffer(BUFFER, x, x), real_buffer(BUFFER, x, x)
    means = real_buffer(BUFFER, x, x)
    totals, squares = double_buffer(BUFFER), double_buffer(BUFFER)
    zero = zero_lanes(x, x)
    fill(first, width, zero)
    fill(second, width, zero)
    fill(totals, width, splat(0.0))
    fill(squares, width, splat(0.0))
    for r in range(rows):
        over_row(add_to_chain, (shift(x, r * step), first), width)
        if r % ROWS == ROWS - 1 or r == rows - 1:
            fold_rounded(totals, first, second, width)
    for c in range(0, width, LANES):
        put_lanes(means, c, mean_of(get_lanes(totals, c), rows))
    for r in range(rows):
        chain = first if r % 2 == 0 else second
        over_row(add_squares_to_chain, (shift(x, r * step), means, chain), width)
        if r % ROWS == ROWS - 1 or r == rows - 1:
            fold_rounded(squares, first, second, width)
    over_row(add_part_about, (x, rows, points, sums, totals, means, squares), width)


@passed
def add_part_about(arguments, c, part):
    """Add the moments of a part of some rows, with means of their own."""
    x, rows, points, sums, totals, means, squares = arguments
    total, squared = get_lanes(totals, c), merge_part(x, get_lanes(squares, c), splat(0.0), part)
    add_about(x, rows, points, c, sums, part, total, get_lanes(means, c), squared)


@passed
def add_exact_moments(arguments, c, part):
    """Add some rows to the moments of a part of their elements, in float64."""
    x, step, rows, points, sums = arguments
    zero = zero_lanes(x, x)
    mean, found = double_lanes(get_lanes(points, c)), start_moments(zero)
    about = points_of(zero, mean)
    for r in range(rows):
        found = add_part(x, r * step + c, about, found, part)
    s, e, q = lanes_of(zero, found)
    fold_lanes(zero, sums[0], sums[1], c, s)
    add_errors(zero, sums[1], c, e)
    fold_lanes(zero, sums[2], sums[3], c, q)


@by_types
def add_about_means(x, step, rows, points, sums, width):
    """Add some rows to the moments of their elements: where registers are few, row by row."""

    def in_registers(x, step, rows, points, sums, width):
        over_row(add_moments_about_means, (x, step, rows, points, sums), width)

    def in_order(x, step, rows, points, sums, width):
        add_moments_in_order(x, step, rows, points, sums, width)

    return in_registers if has_many_registers() else in_order


@by_types
def add_moments(operation, x, step, rows, points, sums, width):
    """Add rows to the moments of their elements, in the operation's way."""

    def exact(operation, x, step, rows, points, sums, width):
        eighth = rows // EIGHTHS
        for r in range(eighth):
            here = shift(x, r * step)
            over_row(add_exact_moments, (here, eighth * step, EIGHTHS, points, sums), width)
        left = rows - EIGHTHS * eighth
        if left > 0:
            here = shift(x, EIGHTHS * eighth * step)
            over_row(add_exact_moments, (here, step, left, points, sums), width)

    def about_means(operation, x, step, rows, points, sums, width):
        for r in range(0, rows, ABOUT_ONE):
            some = smaller(ABOUT_ONE, rows - r)
            add_about_means(shift(x, r * step), step, some, points, sums, width)

    return exact if operation.operation == "exact moments" else about_means


@helper
def moments(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel to its sums."""
    first, channels, run, repeat = shape_of(job)
    count, step = get(job, B.J_ROWS), get(job, B.J_ROW_STEPS + 1)
    means = real_buffer(BUFFER, dy, x)
    columns = (
        double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER)
    )  # fmt: skip
    zero = zero_lanes(x, x)
    along_row(job, B.J_MEAN, get(job, B.J_PER_GROUP), x, means)
    width = channels * run * repeat
    start_sums(columns, width, zero)
    rows = count // repeat
    add_moments(operation, x, repeat * step, rows, means, columns, width)
    if rows * repeat < count:  # the rest of a row
        here, m = shift(x, rows * repeat * step), count - rows * repeat
        add_moments(operation, here, step, plain(1), means, columns, channels * run * m)
    gather_sums(columns, first, channels, run, repeat, x, zero, sums_of(job))
