"""Tiles: any strides, and any mixture of dtypes.

A small tile is gathered into dense rows on the stack in the arithmetic's type, treated as rows, and
scattered back; no tensor is copied whole. Two such kernels serve all 64 mixtures: copying a tile is
compiled by itself, for each dtype.
"""

from __future__ import annotations

from typing import Any

from numba import types

from . import access
from .block import CHANNEL_STRIDES, DATA_SIZES, INNER_STRIDES, MOVERS
from .calls import call_mover
from .elements import reads_dy, reads_x
from .intrinsics import (
    POINTERS,
    SQUARE,
    address_of,
    double,
    gather_square,
    get,
    helper,
    load,
    put,
    real_buffer,
    scatter_square,
    shift,
    store,
)
from .rows import row_moments, row_sums, terms_of, write_row

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: A gathered tile, on the stack: so many channels of BLOCK positions, 32 KiB a tensor, or 64 in
#: float64. Both sides long enough to fill some cache lines: of 32 by 256, 64 by 128 and 128 by 64
#: the second was 1.05 to 1.3 times as fast as the first, the third slower again (x channels-last,
#: dy contiguous, training batch norm, 2 cores).
BLOCK = 128
TILE_CHANNELS = access.TILE_CHANNELS
TILE = TILE_CHANNELS * BLOCK


@helper
def gather_from(source, channel_step, step, tile, channels, count):
    """Copy a tile into dense rows of BLOCK, converted to the tile's type."""
    first = 0
    if step == 1:
        for c in range(channels):
            row = shift(source, c * channel_step)
            for i in range(count):
                put(tile, c * BLOCK + i, load(row, i))
        return
    if channel_step == 1 and channels >= SQUARE:
        # Squares; then the channels that are left, and below the positions.
        first = count // SQUARE * SQUARE
        whole = channels // SQUARE * SQUARE
        for i in range(0, first, SQUARE):
            at = shift(source, i * step)
            for c in range(0, whole, SQUARE):
                gather_square(shift(at, c), step, shift(tile, c * BLOCK + i), BLOCK)
            for j in range(i, i + SQUARE):
                for c in range(whole, channels):
                    put(tile, c * BLOCK + j, load(source, c + j * step))
    for i in range(first, count):
        for c in range(channels):
            put(tile, c * BLOCK + i, load(source, c * channel_step + i * step))


@helper
def scatter_to(tile, target, channel_step, step, channels, count):
    """Round a tile into the tensor it belongs to."""
    first = 0
    if step == 1:
        for c in range(channels):
            row = shift(target, c * channel_step)
            for i in range(count):
                store(row, i, get(tile, c * BLOCK + i))
        return
    if channel_step == 1 and channels >= SQUARE:
        first = count // SQUARE * SQUARE
        whole = channels // SQUARE * SQUARE
        for i in range(0, first, SQUARE):
            at = shift(target, i * step)
            for c in range(0, whole, SQUARE):
                scatter_square(shift(tile, c * BLOCK + i), BLOCK, shift(at, c), step)
            for j in range(i, i + SQUARE):
                for c in range(whole, channels):
                    store(target, c + j * step, get(tile, c * BLOCK + j))
    for i in range(first, count):
        for c in range(channels):
            store(target, c * channel_step + i * step, get(tile, c * BLOCK + i))


def mover(tensor, tile, scatters, channel_step, step, channels, count):
    """Copy a tile out of a tensor, or into it: compiled by itself, for each dtype.

    The kernel calls it through its address, so that two of that (one for each type of tile) serve
    every mixture of dtypes.
    """
    if scatters:
        scatter_to(tile, tensor, channel_step, step, channels, count)
    else:
        gather_from(tensor, channel_step, step, tile, channels, count)


def mover_signature(code: int, real: int) -> Any:
    """A mover's type for a tensor's and the tile's dtype codes."""
    return types.void(POINTERS[code], POINTERS[real], *[types.int64] * 5)


@helper
def move(block, tensor, at, offset, tile, channels, count):
    """Gather a tile of tensor 0 (dy) or 1 (x), or scatter it to tensor 2 (dx)."""
    call_mover(
        get(block, MOVERS + tensor), at + offset * get(block, DATA_SIZES + tensor), tile,
        tensor // 2, get(block, CHANNEL_STRIDES + tensor), get(block, INNER_STRIDES + tensor),
        channels, count,
    )  # fmt: skip


@helper
def tile_offset(block, tensor, c, i):
    """How far channel c and position i of a segment are from its start."""
    return c * get(block, CHANNEL_STRIDES + tensor) + i * get(block, INNER_STRIDES + tensor)


@helper
def gather(block, tensor, base, at, c, i, tile, channels, count):
    """Gather a tile of a segment, from channel c and position i on."""
    move(block, tensor, base, at + tile_offset(block, tensor, c, i), tile, channels, count)


# fmt: off
def segment_sums(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums."""
    dy_tile, x_tile = real_buffer(TILE, dy, x), real_buffer(TILE, dy, x)
    for c0 in range(0, channels, TILE_CHANNELS):
        n = min(TILE_CHANNELS, channels - c0)
        for i in range(0, count, BLOCK):
            m = min(BLOCK, count - i)
            gather(block, 0, address_of(dy), dy_at, c0, i, dy_tile, n, m)
            gather(block, 1, address_of(x), x_at, c0, i, x_tile, n, m)
            for c in range(n):
                row_sums(
                    shift(dy_tile, c * BLOCK), shift(x_tile, c * BLOCK), 0, 0, 1,
                    get(mean, c0 + c), m, sums, c0 + c,
                )
# fmt: on


# fmt: off
def segment_moments(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σ(x − mean) and Σ(x − mean)² to each channel's sums."""
    x_tile = real_buffer(TILE, dy, x)
    for c0 in range(0, channels, TILE_CHANNELS):
        n = min(TILE_CHANNELS, channels - c0)
        for i in range(0, count, BLOCK):
            m = min(BLOCK, count - i)
            gather(block, 1, address_of(x), x_at, c0, i, x_tile, n, m)
            for c in range(n):
                row_moments(
                    shift(x_tile, c * BLOCK), 0, 1, double(get(mean, c0 + c)), m, sums, c0 + c
                )
# fmt: on


# fmt: off
def segment_write(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients,
):
    """Write a segment of dx or y."""
    dy_tile, x_tile = real_buffer(TILE, dy, x), real_buffer(TILE, dy, x)
    for c0 in range(0, channels, TILE_CHANNELS):
        n = min(TILE_CHANNELS, channels - c0)
        for i in range(0, count, BLOCK):
            m = min(BLOCK, count - i)
            if reads_dy(pattern):
                gather(block, 0, address_of(dy), dy_at, c0, i, dy_tile, n, m)
            if reads_x(pattern):
                gather(block, 1, address_of(x), x_at, c0, i, x_tile, n, m)
            for c in range(n):
                row = shift(dy_tile, c * BLOCK)
                terms = terms_of(mean, coefficients, c0 + c)
                write_row(pattern, row, shift(x_tile, c * BLOCK), row, terms, m, False)
            at = dx_at + tile_offset(block, 2, c0, i)
            move(block, 2, address_of(dx), at, dy_tile, n, m)
# fmt: on
