"""Kernels for rows that are statistics groups and have fewer elements than a vector has lanes.

Some rows at a time are transposed into tiles, in which each row is a lane. So no row's sum waits
for its own elements, and coefficients are loaded once for all of these rows.
"""

from __future__ import annotations

from . import block as B
from .accumulate import add_columns, fold, start_sums
from .elements import advance, linear_form, prefetch_bytes_ahead
from .helpers import helper
from .intrinsics import (
    double,
    double_buffer,
    doubles_at,
    get,
    not_inlined,
    put,
    real_buffer,
    reals_at,
    shift,
    smaller,
)
from .lanes import LANES, double_lanes, load_lanes, put_lanes, single_lanes, splat, zero_lanes
from .moments import nearest_element
from .moves import transpose
from .reduce import block_of, sums_of, three
from .row_groups import (
    COEFFICIENTS,
    DISTANCE,
    GAIN,
    INVSTD,
    MEAN,
    ROW_CHAIN,
    SCALE,
    SHIFT,
    SLOPE,
    add_and_write,
    compute_coefficients,
    compute_statistics,
    round_statistics,
)
from .write import parameters_along

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The elements of a tile, which has LANES rows of fewer elements than lanes.
TILE = LANES * LANES


@helper
def load_tile(tensor, step, run, rows, tile):
    """Transpose some rows into a tile; lanes without a row are zero."""
    if rows < LANES:
        for j in range(run):
            put_lanes(tile, j * LANES, zero_lanes(tile, tile))
    transpose(tensor, step, tile, LANES, run, rows)


@helper
def sum_tile(tiles, run, mean, weights, sums):
    """Find the two sums of a tile's rows in float64, since the rounding of each term would show."""
    total, projection = splat(0.0), splat(0.0)
    for j in range(run):
        d = double_lanes(load_lanes(tiles[0], j * LANES)) * splat(double(get(weights, j)))
        total = total + d
        projection = projection + d * (double_lanes(load_lanes(tiles[1], j * LANES)) - mean)
    put_lanes(sums[0], 0, total)
    put_lanes(sums[1], 0, projection)


@helper
def tile_coefficients(coefficients):
    """The coefficients of a tile's rows in lanes: gain, shift, mean, slope, scale and 1/std."""
    return (
        load_lanes(coefficients, GAIN), load_lanes(coefficients, SHIFT),
        load_lanes(coefficients, MEAN), load_lanes(coefficients, SLOPE),
        load_lanes(coefficients, SCALE), load_lanes(coefficients, INVSTD),
    )  # fmt: skip


@helper
def gradients_in_tiles(operation, dy, x, dx, job):
    """The gradients of rows that are shorter than the lanes."""
    not_inlined()
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    weights, first = reals_at(get(job, B.J_WEIGHT), dy, x), get(job, B.J_CHANNEL)
    writes = get(job, B.J_WRITES) != 0
    prefetches = get(job, B.J_AHEAD) != 0 and steps[0] == run and steps[1] == run
    means = shift(doubles_at(get(job, B.J_MEAN)), first)
    invstds = shift(doubles_at(get(job, B.J_INVSTD)), first)
    tiles = real_buffer(TILE, dy, x), real_buffer(TILE, dy, x)
    chain, zero = (real_buffer(TILE, dy, x), real_buffer(TILE, dy, x)), zero_lanes(dy, x)
    columns = (double_buffer(TILE), double_buffer(1)), (double_buffer(TILE), double_buffer(1))
    coefficients = real_buffer(COEFFICIENTS, dy, x)
    sums = double_buffer(LANES), double_buffer(LANES)
    for at in range(0, run * LANES, LANES):
        put_lanes(chain[0], at, zero)
        put_lanes(chain[1], at, zero)
    start_sums(columns, run * LANES, zero)
    for start in range(0, count, LANES):
        rows, here = smaller(LANES, count - start), advance((dy, x, dx), steps, start)
        if prefetches:
            for k in range(0, LANES * run, LANES):
                prefetch_bytes_ahead(here, DISTANCE, k)
        load_tile(here[0], steps[0], run, rows, tiles[0])
        load_tile(here[1], steps[1], run, rows, tiles[1])
        mean, invstd = shift(means, start), shift(invstds, start)
        if rows < LANES:
            for field in range(0, COEFFICIENTS, LANES):
                put_lanes(coefficients, field, zero)
        round_statistics(rows, mean, invstd, coefficients)
        if writes:
            sum_tile(tiles, run, double_lanes(load_lanes(coefficients, MEAN)), weights, sums)
            compute_coefficients(job, rows, mean, invstd, sums, coefficients)
        of_rows, tensors = tile_coefficients(coefficients), (tiles[0], tiles[1], tiles[0])
        is_full = (start // LANES + 1) % ROW_CHAIN == 0 or start + LANES >= count
        for j in range(run):
            at, weight = j * LANES, splat(get(weights, j))
            lanes = load_lanes(chain[0], at), load_lanes(chain[1], at)
            a, b = add_and_write(
                operation, tensors, at, weight, of_rows, lanes, None, writes, False
            )
            if is_full:
                fold(zero, columns[0], at, a, zero)
                fold(zero, columns[1], at, b, zero)
                a, b = zero, zero
            put_lanes(chain[0], at, a)
            put_lanes(chain[1], at, b)
        if writes:
            transpose(tiles[0], LANES, here[2], steps[2], rows, run)
    if get(job, B.J_ADDS) != 0:
        totals, at = sums_of(job), get(job, B.J_FIRST)
        add_columns(zero, columns[0], run, LANES, 1, totals[0], at)
        add_columns(zero, columns[1], run, LANES, 1, totals[1], at)


@helper
def forward_in_tiles(operation, dy, x, dx, job):
    """Normalise rows that are shorter than the lanes; their moments stay in the workspace."""
    not_inlined()
    first, count, run = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_RUN)
    steps, along = three(job, B.J_CHANNEL_STEPS), parameters_along(x, x, job)
    pilots, sums = doubles_at(get(job, B.J_MEAN)), sums_of(job)
    tile, centred = real_buffer(TILE, x, x), get(block_of(job), B.CENTRED) != 0
    means, invstds = double_buffer(LANES), double_buffer(LANES)
    about, totals, squares = double_buffer(LANES), double_buffer(LANES), double_buffer(LANES)
    none = splat(0.0)
    put_lanes(means, 0, none)
    put_lanes(invstds, 0, none)
    for start in range(0, count, LANES):
        c, rows = first + start, smaller(LANES, count - start)
        tensors = advance((dy, x, dx), steps, start)
        load_tile(tensors[1], steps[1], run, rows, tile)
        pilot = nearest_element(tile, double_lanes(load_lanes(tile, 0))) if centred else none
        total, square = none, none
        for j in range(run):
            d = double_lanes(load_lanes(tile, j * LANES)) - pilot
            total, square = total + d, square + d * d
        put_lanes(about, 0, pilot)
        put_lanes(totals, 0, total)
        put_lanes(squares, 0, square)
        for r in range(rows):
            put(pilots, c + r, get(about, r))
            put(sums[0][0], c + r, get(totals, r))
            put(sums[1][0], c + r, get(squares, r))
        compute_statistics(job, c, rows, means, invstds)
        gain, mean = single_lanes(load_lanes(invstds, 0)), single_lanes(load_lanes(means, 0))
        for j in range(run):
            at, weight, bias = j * LANES, splat(get(along[0], j)), splat(get(along[1], j))
            coefficients = gain * weight, bias, mean, gain, gain
            y = linear_form(operation, (tile, tile, tile), at, coefficients, None)
            put_lanes(tile, at, y)
        transpose(tile, LANES, tensors[2], steps[2], rows, run)
