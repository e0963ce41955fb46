"""The moments of columns: Σ(x − mean) and Σ(x − mean)² of each channel (see row_moments.py)."""

from __future__ import annotations

from . import block as B
from .columns import BUFFER, add_quarters, along_row, gather_sums, shape_of, start_sums
from .helpers import by_types, helper, passed
from .intrinsics import double, get, larger, pairs_buffer, plain, real_buffer, shift, smaller
from .lanes import (
    LANES,
    double_lanes,
    fused,
    load_lanes,
    put_lanes,
    single_lanes,
    splat,
    splat_like,
    zero_lanes,
)
from .moments import add_part, lanes_of, moved, nearest, points_of, start_moments
from .parts import load_part, over_row
from .rows import sums_of
from .sums import add_errors, fold_lanes

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Exact moments take a row of each eighth of a piece at a time, as the sums of two tensors take a
#: row of each quarter (see :data:`.columns.QUARTERS`).
EIGHTHS = 8
#: The first rows, which are read twice: their means are what moments are about.
FIRST_ROWS = 16


@passed
def find_means(arguments, c, part):
    """Find the means of a part of some rows, as elements could be.

    Elements are divided before they are added: two large ones' sum would be infinite in float32.
    """
    x, step, rows, means = arguments
    mean, one = zero_lanes(x, x), splat_like(x, x, 1.0 / rows)
    for r in range(rows):
        mean = fused(load_part(x, r * step + c, part), one, mean)
    put_lanes(means, c, single_lanes(nearest(x, double_lanes(mean))))


@helper
def move_moments(sums, c, n, away):
    """Move the moments of n rows about a point to one that is smaller by ``away``."""
    totals, squares = sums[0][0], sums[1][0]
    total, square = moved(load_lanes(totals, c), load_lanes(squares, c), n, away)
    put_lanes(totals, c, total)
    put_lanes(squares, c, square)


@helper
def renew_means(x, sums, means, rows, width):
    """Move the moments of some rows to these rows' means, as elements could be."""
    n, one = splat(double(rows)), splat(1.0 / rows)
    for c in range(0, width, LANES):
        old = double_lanes(load_lanes(means, c))
        new = nearest(x, old + load_lanes(sums[0][0], c) * one)
        put_lanes(means, c, single_lanes(new))
        move_moments(sums, c, n, old - new)


@helper
def add_about_means(operation, x, step, rows, points, sums, width, ahead):
    """Add some rows to the moments of their elements, in float32, about means.

    The first rows are about their own means. Whenever the number of rows has doubled, the next are
    about the means of all before, so that the squares' sum is at most twice that about the final
    mean.
    """
    means, done = real_buffer(BUFFER, x, x), plain(0)
    first = smaller(FIRST_ROWS, rows)
    over_row(find_means, (x, step, first, means), width)
    while done < rows:
        if done > 0:
            renew_means(x, sums, means, done, width)
        some, here = smaller(larger(first, done), rows - done), shift(x, done * step)
        tensors, steps, terms = (here, here, here), (step, step, step), (means, means)
        add_quarters(operation, tensors, steps, some, terms, sums, width, ahead, False)
        done += some
    n = splat(double(rows))
    for c in range(0, width, LANES):
        away = double_lanes(load_lanes(means, c)) - double_lanes(load_lanes(points, c))
        move_moments(sums, c, n, away)


@passed
def add_exact_moments(arguments, c, part):
    """Add some rows to the moments of a part of their elements, in float64."""
    x, step, rows, points, sums = arguments
    zero = zero_lanes(x, x)
    mean, found = double_lanes(load_lanes(points, c)), start_moments(zero)
    about = points_of(zero, mean)
    for r in range(rows):
        found = add_part(x, r * step + c, about, found, part)
    s, e, q = lanes_of(zero, found)
    fold_lanes(zero, sums[0], c, s)
    add_errors(zero, sums[0], c, e)
    fold_lanes(zero, sums[1], c, q)


@helper
def add_exactly(x, step, rows, points, sums, width):
    """Add some rows to the moments of their elements, in float64."""
    eighth = rows // EIGHTHS
    for r in range(eighth):
        here = shift(x, r * step)
        over_row(add_exact_moments, (here, eighth * step, EIGHTHS, points, sums), width)
    left = rows - EIGHTHS * eighth
    if left > 0:
        here = shift(x, EIGHTHS * eighth * step)
        over_row(add_exact_moments, (here, step, left, points, sums), width)


@by_types
def add_moments(operation, x, step, rows, points, sums, width, ahead):
    """Add some rows to the moments of their elements, in the operation's way."""
    if operation.operation == "moments":
        return lambda operation, x, step, rows, points, sums, width, ahead: add_about_means(
            operation, x, step, rows, points, sums, width, ahead
        )
    return lambda operation, x, step, rows, points, sums, width, ahead: add_exactly(
        x, step, rows, points, sums, width
    )


@helper
def moments(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel to its sums."""
    first, channels, run, repeat = shape_of(job)
    count, step = get(job, B.J_ROWS), get(job, B.J_ROW_STEPS + 1)
    means = real_buffer(BUFFER, dy, x)
    columns = pairs_buffer(BUFFER), pairs_buffer(BUFFER)
    zero = zero_lanes(x, x)
    along_row(job, B.J_MEAN, get(job, B.J_PER_GROUP), x, means)
    width = channels * run * repeat
    start_sums(columns, width, zero)
    rows, ahead = count // repeat, get(job, B.J_AHEAD) != 0
    add_moments(operation, x, repeat * step, rows, means, columns, width, ahead)
    if rows * repeat < count:  # the rest of a row
        here, m = shift(x, rows * repeat * step), count - rows * repeat
        add_exactly(here, step, plain(1), means, columns, channels * run * m)
    gather_sums(columns, first, channels, run, repeat, x, zero, sums_of(job))
