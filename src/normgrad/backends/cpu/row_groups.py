"""What kernels of rows that are statistics groups share: coefficients, and a part of a row.

Coefficients are float64, rounded to float32 at the end, for which float64 is exact enough.
"""

from __future__ import annotations

from math import isfinite, sqrt

from numba import types

from . import block as B
from .coefficients import NORMAL_SINGLES, holds, keep_precision
from .elements import linear_form
from .helpers import by_types, helper
from .intrinsics import bits_to_double, doubles_at, get, load, not_inlined, put, shift
from .lanes import LANES, splat
from .parts import load_part, store_part
from .reduce import block_of, sums_of
from .vectors import canonical

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Offsets of the rows' coefficients in a buffer, in the order of a job's fields: of so many rows as
#: there are lanes, or fewer.
GAIN, SHIFT, MEAN, SLOPE, SCALE, INVSTD = range(0, 6 * LANES, LANES)
COEFFICIENTS = 6 * LANES
#: How many bytes ahead rows are prefetched while rows are summed: of short ones the next sixteen.
DISTANCE = 1 << 13
#: The rows in a chain of long rows' sums for the parameters. A term has one rounding of x − μ, one
#: of its factor 1/std and one of the product, so 10 further additions are within the bound of 16.
ROW_CHAIN = 11


@helper
def read_coefficients(job, row, rows, coefficients):
    """Read the coefficients of some rows, rounded to the arithmetic's type."""
    for field in range(COEFFICIENTS // LANES):
        values = shift(doubles_at(get(job, B.J_GAIN + field)), row)
        for r in range(rows):
            put(coefficients, field * LANES + r, get(values, r))


@helper
def compute_coefficients(job, rows, means, invstds, sums, coefficients):
    """Compute some rows' coefficients (see ``row_coefficients`` and coefficients.py) from sums."""
    not_inlined()
    block = block_of(job)
    m, centred = bits_to_double(get(block, B.DIVISOR)), get(block, B.CENTRED) != 0
    weights = doubles_at(get(block, B.WORKSPACE) + get(block, B.W_COUNT))
    normal = NORMAL_SINGLES
    least, most, one = get(weights, 1), get(weights, 2), 1.0 / m
    for r in range(rows):
        invstd, total, projection = get(invstds, r), get(sums[0], r), get(sums[1], r)
        several = invstd - invstd if m > 1.0 else 0.0
        t, p = total * one if centred else 0.0, (projection + several) * one * (invstd * invstd)
        gained, sloped = invstd * t, invstd * p
        fits = keep_precision(least, most, invstd, normal) & holds(invstd, invstd, 1.0, normal)
        fits &= holds(gained, invstd, t, normal) & holds(sloped, invstd, p, normal)
        put(coefficients, GAIN + r, invstd if fits else 1.0)
        put(coefficients, SHIFT + r, canonical(gained if fits else t))
        put(coefficients, MEAN + r, get(means, r))
        put(coefficients, SLOPE + r, canonical(sloped if fits else p))
        put(coefficients, SCALE + r, 1.0 if fits else canonical(invstd))
        put(coefficients, INVSTD + r, invstd)


@helper
def round_statistics(rows, means, invstds, coefficients):
    """Round what the parameters' sums need of some rows' coefficients."""
    for r in range(rows):
        put(coefficients, MEAN + r, get(means, r))
        put(coefficients, INVSTD + r, get(invstds, r))


@helper
def row_coefficients(coefficients, r):
    """A row's coefficients in lanes: gain, shift, mean, slope, scale and 1/std."""
    return (
        splat(get(coefficients, GAIN + r)), splat(get(coefficients, SHIFT + r)),
        splat(get(coefficients, MEAN + r)), splat(get(coefficients, SLOPE + r)),
        splat(get(coefficients, SCALE + r)), splat(get(coefficients, INVSTD + r)),
    )  # fmt: skip


@helper
def write_part_of_group(operation, tensors, c, weight, of_row, part, streaming):
    """Write dx of a part of a row."""
    gain, offset, mean, slope, scale, _ = of_row
    weighted = gain * weight, offset, mean, slope, scale
    store_part(tensors[2], c, linear_form(operation, tensors, c, weighted, part), part, streaming)


@by_types
def is_written(writes):
    """Whether dx is written: always for an integer, never for None, or as a boolean says.

    A kernel for long rows is compiled for the first two, since a test for each part took 4 % of it.
    """
    if isinstance(writes, types.Boolean):
        return lambda writes: writes
    always = isinstance(writes, types.Integer)
    return lambda writes: always


@helper
def add_and_write(operation, tensors, c, weight, of_row, sums, part, writes, streaming):
    """Add dy and dy·(x − mean)/std of a part of a row to two sums; write dx if asked."""
    dy, centred = load_part(tensors[0], c, part), load_part(tensors[1], c, part) - of_row[2]
    if is_written(writes):
        write_part_of_group(operation, tensors, c, weight, of_row, part, streaming)
    return sums[0] + dy, sums[1] + dy * (centred * of_row[5])


@helper
def choose_pilots(job, x, step, first, rows):
    """Choose what some rows' moments are about: their first elements (see prepare)."""
    pilots, centred = doubles_at(get(job, B.J_MEAN)), get(block_of(job), B.CENTRED) != 0
    for r in range(rows):
        value = load(x, r * step) if centred else 0.0
        put(pilots, first + r, value if isfinite(value) else 0.0)


@helper
def compute_statistics(job, first, rows, means, invstds):
    """Compute some rows' mean and 1/std from their moments, for the loop that writes y."""
    block = block_of(job)
    one, eps = 1.0 / bits_to_double(get(block, B.DIVISOR)), bits_to_double(get(block, B.EPS))
    pilots, sums = shift(doubles_at(get(job, B.J_MEAN)), first), sums_of(job)
    totals, squares = shift(sums[0][0], first), shift(sums[1][0], first)
    centred = get(block, B.CENTRED) != 0
    for r in range(rows):
        change = get(totals, r) * one if centred else 0.0
        variance = get(squares, r) * one - change * change
        put(means, r, canonical(get(pilots, r) + change))
        put(invstds, r, canonical(1.0 / sqrt((0.0 if variance < 0.0 else variance) + eps)))
