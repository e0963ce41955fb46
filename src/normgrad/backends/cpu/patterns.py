"""The loops over whole tensors: sums, moments and dx, for each way the data lie in memory.

A *segment* is a run of positions with a constant step, over some channels. Each access pattern
treats a segment in its own way:

- ``rows``: positions are contiguous in every tensor (NCHW and the like), and all have one dtype.
- ``columns``: one position's channels are contiguous in every tensor, and all have one dtype. A
  row of them is made long enough to be worth a loop: where there are few channels several positions
  follow each other in it (channels-last images), and where a channel is short its positions do
  (NCHW with small images). Its elements are summed down the rows, each in a lane of its own, and
  then within each channel.
- ``tiles``: anything else, any strides and any mixture of dtypes. A small tile is gathered into
  dense rows on the stack in the arithmetic's type, treated as rows, and scattered back; no tensor
  is copied whole. Two such kernels serve all 64 mixtures: copying a tile is compiled by itself, for
  each dtype.

Sums are formed in blocks whose float32 chains are at most 16 additions a lane long on four lanes
or more, then folded into float64: the error bound allows 32.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.core.extending import models, overload, register_model

from ...memory import LINE
from . import program
from .block import CHANNEL_STRIDES, CHUNK, DATA_SIZES, INNER_STRIDES, MOVERS, REPEAT, RUN, STREAM
from .channels import add_error, clear, fold
from .intrinsics import (
    POINTERS,
    SQUARE,
    address_of,
    call_mover,
    double,
    double_buffer,
    doubles_at,
    fma,
    gather_square,
    get,
    item_size,
    load,
    not_inlined,
    put,
    real_buffer,
    scatter_square,
    shift,
    store,
    stream,
    two_sum,
    zero,
)  # fmt: skip

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Elements whose sum is one loop; 64 lanes at a time on AVX-512, 16 on NEON.
BLOCK = 256
#: The same for what is left of a row; what is then left is summed exactly, one by one.
SMALL_BLOCK = 16
#: Rows of columns summed before they are folded.
ROWS = program.ROWS
#: Rows of columns whose dx is written together.
DX_ROWS = 4
#: The longest row of columns: the mean, the coefficients and the sums of its elements, 36 KiB in
#: float32, stay in the first-level cache.
SPAN = program.SPAN
#: A gathered tile, on the stack: so many channels (a cache line of the halves) of BLOCK positions,
#: 32 KiB a tensor, or 64 in float64.
TILE_CHANNELS = program.TILE_CHANNELS
TILE = TILE_CHANNELS * BLOCK

# Sums may be reordered and contracted into fused multiply-adds; NaN and Inf must stay what they
# are, so neither 'nnan' nor 'ninf'. What is not a sum keeps its order.
SUMS = {"reassoc", "contract", "nsz", "arcp"}
ELEMENTS = {"contract", "nsz"}


class Pattern(types.Type):  # type: ignore[misc]
    """An access pattern, as a type: the kernel is compiled once for each."""


@register_model(Pattern)
class _PatternModel(models.OpaqueModel):  # type: ignore[misc]
    pass


rows = Pattern("rows")
columns = Pattern("columns")
tiles = Pattern("tiles")
PATTERNS = {pattern.name: pattern for pattern in (rows, columns, tiles)}


# Contiguous rows of one channel


@njit(fastmath=SUMS, error_model="numpy")
def block_sums(dy, x, mean, count):
    """Σdy and Σdy·(x − mean) over a short block, in the arithmetic's type."""
    total = zero(dy, x)
    projection = zero(dy, x)
    for i in range(count):
        d = load(dy, i)
        total += d
        projection += d * (load(x, i) - mean)
    return total, projection


def add_term(sums: Any, c: Any, dy: Any, x: Any, mean: Any) -> None:
    """Add one element's terms to channel c's sums, without a rounding in the arithmetic's type.

    Where a statistic is over few elements, the rounding of each term shows in the result.
    """
    raise NotImplementedError


@overload(add_term, jit_options={"error_model": "numpy"})
def _add_term(sums, c, dy, x, mean):
    if sums[1].dtype == types.float64:

        def compensated(sums, c, dy, x, mean):
            total, total_error, projection, projection_error = sums
            xmu, xmu_error = two_sum(x, -mean)
            product = dy * xmu
            rounding = fma(dy, xmu, -product) + dy * xmu_error
            fold(total, total_error, c, dy)
            fold(projection, projection_error, c, product)
            put(projection_error, c, get(projection_error, c) + rounding)

        return compensated

    def plain(sums, c, dy, x, mean):
        total, total_error, projection, projection_error = sums
        d = double(dy)
        fold(total, total_error, c, d)
        fold(projection, projection_error, c, d * (double(x) - double(mean)))

    return plain


@njit(fastmath=SUMS, error_model="numpy")
def block_moments(x, mean, count):
    """Σ(x − mean) and Σ(x − mean)² over a short block, in float64."""
    first = 0.0
    second = 0.0
    for i in range(count):
        d = double(load(x, i)) - mean
        first += d
        second += d * d
    return first, second


@njit(error_model="numpy")
def row_sums(dy, x, mean, count, sums, c):
    """Add a row's sums to channel c's."""
    not_inlined()
    total, total_error, projection, projection_error = sums
    i = 0
    while i < count:
        if count - i >= BLOCK:
            # A constant trip count: no remainder loop, and a known length of chain.
            n = BLOCK
            s, q = block_sums(shift(dy, i), shift(x, i), mean, BLOCK)
        elif count - i >= SMALL_BLOCK:
            n = SMALL_BLOCK
            s, q = block_sums(shift(dy, i), shift(x, i), mean, SMALL_BLOCK)
        else:
            for j in range(i, count):
                add_term(sums, c, load(dy, j), load(x, j), mean)
            return
        fold(total, total_error, c, s)
        fold(projection, projection_error, c, q)
        i += n


@njit(error_model="numpy")
def row_moments(x, mean, count, sums, c):
    """Add a row's moments to channel c's."""
    not_inlined()
    first, first_error, second, second_error = sums
    i = 0
    while i < count:
        n = min(BLOCK, count - i)
        s, q = block_moments(shift(x, i), mean, n)
        fold(first, first_error, c, s)
        fold(second, second_error, c, q)
        i += n


@njit(fastmath=ELEMENTS, error_model="numpy")
def row_apply(dy, x, dx, mean, gain, offset, slope, scale, count):
    """dx = scale · (gain·dy − (offset + slope·(x − mean)))."""
    not_inlined()
    for i in range(count):
        store(dx, i, scale * (gain * load(dy, i) - (offset + slope * (load(x, i) - mean))))


@njit(fastmath=ELEMENTS, error_model="numpy")
def row_apply_streaming(dy, x, dx, mean, gain, offset, slope, scale, count):
    """The same past the caches; dx is 64-byte aligned."""
    not_inlined()
    for i in range(count):
        stream(dx, i, scale * (gain * load(dy, i) - (offset + slope * (load(x, i) - mean))))


@njit(error_model="numpy")
def to_alignment(pointer, count):
    """How many elements until the pointer is at a cache line; all if it never is."""
    size = item_size(pointer)
    address = address_of(pointer)
    if address % size != 0:
        return count
    return min(count, -(address // size) % (LINE // size))


@njit(error_model="numpy")
def whole_lines(pointer, count):
    """Whether so many elements are whole cache lines."""
    return (address_of(pointer) | count * item_size(pointer)) % LINE == 0


@njit(fastmath=ELEMENTS, error_model="numpy")
def row_scale(dy, dx, scale, count):
    """dx = scale · dy."""
    not_inlined()
    for i in range(count):
        store(dx, i, scale * load(dy, i))


# Several positions of contiguous channels


@njit(fastmath=SUMS, error_model="numpy")
def column_sums(dy, x, dy_step, x_step, mean, width, sums):
    """Add ROWS rows to the sums of their elements."""
    not_inlined()
    total, total_error, projection, projection_error = sums
    for c in range(width):
        mu = load(mean, c)
        s = zero(dy, x)
        q = zero(dy, x)
        for r in range(ROWS):
            d = load(dy, r * dy_step + c)
            s += d
            q += d * (load(x, r * x_step + c) - mu)
        fold(total, total_error, c, s)
        fold(projection, projection_error, c, q)


@njit(error_model="numpy")
def column_sums_of_one(dy, x, mean, width, sums):
    """Add one row, or what is left of one, to the sums of its elements."""
    not_inlined()
    for c in range(width):
        add_term(sums, c, load(dy, c), load(x, c), load(mean, c))


@njit(error_model="numpy")
def column_moments(x, mean, channels, sums):
    """Add one position's moments to every channel's."""
    not_inlined()
    first, first_error, second, second_error = sums
    for c in range(channels):
        d = double(load(x, c)) - double(load(mean, c))
        fold(first, first_error, c, d)
        fold(second, second_error, c, d * d)


# fmt: off
@njit(fastmath=ELEMENTS, error_model="numpy")
def rows_of_dx(
    dy, x, dx, dy_step, x_step, dx_step, mean, gain, offset, slope, scale, width, count
):
    """dx of a few rows, element by element; count is a constant."""
    for c in range(width):
        mu, g, b = load(mean, c), load(gain, c), load(offset, c)
        k, a = load(slope, c), load(scale, c)
        for r in range(count):
            inner = b + k * (load(x, r * x_step + c) - mu)
            store(dx, r * dx_step + c, a * (g * load(dy, r * dy_step + c) - inner))


@njit(fastmath=ELEMENTS, error_model="numpy")
def column_apply(dy, x, dx, dy_step, x_step, dx_step, mean, gain, offset, slope, scale, width):
    """dx of DX_ROWS rows."""
    not_inlined()
    rows_of_dx(
        dy, x, dx, dy_step, x_step, dx_step, mean, gain, offset, slope, scale, width, DX_ROWS
    )


@njit(fastmath=ELEMENTS, error_model="numpy")
def column_apply_of_one(dy, x, dx, mean, gain, offset, slope, scale, width):
    """dx of one row, or of what is left of one."""
    not_inlined()
    rows_of_dx(dy, x, dx, 0, 0, 0, mean, gain, offset, slope, scale, width, 1)


@njit(fastmath=ELEMENTS, error_model="numpy")
def column_apply_streaming(
    dy, x, dx, dy_step, x_step, dx_step, mean, gain, offset, slope, scale, width
):
    """dx of DX_ROWS rows, past the caches; the rows of dx are 64-byte aligned."""
    not_inlined()
    for c in range(width):
        mu, g, b = load(mean, c), load(gain, c), load(offset, c)
        k, a = load(slope, c), load(scale, c)
        for r in range(DX_ROWS):
            inner = b + k * (load(x, r * x_step + c) - mu)
            stream(dx, r * dx_step + c, a * (g * load(dy, r * dy_step + c) - inner))
# fmt: on


@njit(fastmath=ELEMENTS, error_model="numpy")
def column_scale(dy, dx, scale, width):
    """dx = scale · dy of one row."""
    not_inlined()
    for c in range(width):
        store(dx, c, load(scale, c) * load(dy, c))


@njit(error_model="numpy")
def spread(values, c0, channels, run, repeat, row):
    """Give each element of a row its channel's value."""
    not_inlined()
    i = 0
    for _ in range(repeat):
        for c in range(channels):
            value = get(values, c0 + c)
            for _ in range(run):
                put(row, i, value)
                i += 1


@njit(error_model="numpy")
def gather_sums(row_sums, c0, channels, run, repeat, sums):
    """Add the sums of a row's elements to their channels'."""
    not_inlined()
    total, total_error, projection, projection_error = sums
    row_total, row_total_error, row_projection, row_projection_error = row_sums
    i = 0
    for _ in range(repeat):
        for c in range(c0, c0 + channels):
            for _ in range(run):
                fold(total, total_error, c, get(row_total, i))
                add_error(total_error, c, row_total_error, i)
                fold(projection, projection_error, c, get(row_projection, i))
                add_error(projection_error, c, row_projection_error, i)
                i += 1


# Tiles


@njit(error_model="numpy")
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


@njit(error_model="numpy")
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


@njit(error_model="numpy")
def move(block, tensor, at, offset, tile, channels, count):
    """Gather a tile of tensor 0 (dy) or 1 (x), or scatter it to tensor 2 (dx)."""
    call_mover(
        get(block, MOVERS + tensor), at + offset * get(block, DATA_SIZES + tensor), tile,
        tensor // 2, get(block, CHANNEL_STRIDES + tensor), get(block, INNER_STRIDES + tensor),
        channels, count,
    )  # fmt: skip


@njit(error_model="numpy")
def tile_offset(block, tensor, c, i):
    """How far channel c and position i of a segment are from its start."""
    return c * get(block, CHANNEL_STRIDES + tensor) + i * get(block, INNER_STRIDES + tensor)


TILE_SUMS, TILE_MOMENTS, TILE_APPLY, TILE_SCALE = 0, 1, 2, 3


# fmt: off
@njit(error_model="numpy")
def go_through_tiles(
    mode, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, sums, coefficients
):
    """All that is done with tiles."""
    not_inlined()
    gain, offset, slope, scale = coefficients
    dy_tile = real_buffer(TILE, dy, x)
    x_tile = real_buffer(TILE, dy, x)
    for c0 in range(0, channels, TILE_CHANNELS):
        n = min(TILE_CHANNELS, channels - c0)
        for i in range(0, count, BLOCK):
            m = min(BLOCK, count - i)
            for tensor in range(mode == TILE_MOMENTS, 1 if mode == TILE_SCALE else 2):
                base, at, tile = address_of(dy), dy_at, dy_tile
                if tensor == 1:
                    base, at, tile = address_of(x), x_at, x_tile
                move(block, tensor, base, at + tile_offset(block, tensor, c0, i), tile, n, m)
            for c in range(n):
                j = c0 + c
                dys, xs = shift(dy_tile, c * BLOCK), shift(x_tile, c * BLOCK)
                if mode == TILE_SUMS:
                    row_sums(dys, xs, get(mean, j), m, sums, j)
                elif mode == TILE_MOMENTS:
                    row_moments(xs, double(get(mean, j)), m, sums, j)
                elif mode == TILE_APPLY:
                    row_apply(
                        dys, xs, dys, get(mean, j), get(gain, j), get(offset, j), get(slope, j),
                        get(scale, j), m,
                    )
                else:
                    row_scale(dys, dys, get(scale, j), m)
            if mode in (TILE_APPLY, TILE_SCALE):
                at = dx_at + tile_offset(block, 2, c0, i)
                move(block, 2, address_of(dx), at, dy_tile, n, m)
# fmt: on


# A segment, by pattern. Offsets are where it starts in each tensor.


def segment_sums(
    pattern: Any, dy: Any, x: Any, dy_at: Any, x_at: Any, block: Any, channels: Any, count: Any,
    mean: Any, sums: Any,
) -> None:  # fmt: skip
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums."""
    raise NotImplementedError


@overload(segment_sums, jit_options={"error_model": "numpy"})
def _segment_sums(pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums):
    if pattern == rows:

        def by_rows(pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums):
            dy_channel = get(block, CHANNEL_STRIDES)
            x_channel = get(block, CHANNEL_STRIDES + 1)
            for c in range(channels):
                row_sums(
                    shift(dy, dy_at + c * dy_channel), shift(x, x_at + c * x_channel),
                    get(mean, c), count, sums, c,
                )  # fmt: skip

        return by_rows

    if pattern == columns:

        def by_columns(pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums):
            run, repeat, chunk = get(block, RUN), get(block, REPEAT), get(block, CHUNK)
            dy_step = get(block, INNER_STRIDES)
            x_step = get(block, INNER_STRIDES + 1)
            means = real_buffer(SPAN, dy, x)
            totals, projections = double_buffer(SPAN), double_buffer(SPAN)
            total_errors, projection_errors = real_buffer(SPAN, dy, x), real_buffer(SPAN, dy, x)
            columns = (totals, total_errors, projections, projection_errors)
            for c0 in range(0, channels, chunk):
                n = min(chunk, channels - c0)
                width = n * run * repeat
                spread(mean, c0, n, run, repeat, means)
                for i in range(width):
                    clear(totals, total_errors, i)
                    clear(projections, projection_errors, i)
                i = 0
                while i < count:
                    dys = shift(dy, dy_at + c0 * run + i * dy_step)
                    xs = shift(x, x_at + c0 * run + i * x_step)
                    if count - i >= ROWS * repeat:
                        column_sums(
                            dys, xs, repeat * dy_step, repeat * x_step, means, width, columns
                        )
                        i += ROWS * repeat
                    else:
                        # One row, or what is left of one.
                        m = min(repeat, count - i)
                        column_sums_of_one(dys, xs, means, n * run * m, columns)
                        i += m
                gather_sums(columns, c0, n, run, repeat, sums)

        return by_columns

    def by_tiles(pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums):
        none = (mean, mean, mean, mean)
        go_through_tiles(
            TILE_SUMS, dy, x, dy, dy_at, x_at, 0, block, channels, count, mean, sums, none
        )

    return by_tiles


def segment_moments(
    pattern: Any, dy: Any, x: Any, x_at: Any, block: Any, channels: Any, count: Any, mean: Any,
    sums: Any,
) -> None:  # fmt: skip
    """Add a segment's Σ(x − mean) and Σ(x − mean)² to each channel's sums."""
    raise NotImplementedError


@overload(segment_moments, jit_options={"error_model": "numpy"})
def _segment_moments(pattern, dy, x, x_at, block, channels, count, mean, sums):
    if pattern == rows:

        def by_rows(pattern, dy, x, x_at, block, channels, count, mean, sums):
            x_channel = get(block, CHANNEL_STRIDES + 1)
            for c in range(channels):
                row_moments(shift(x, x_at + c * x_channel), double(get(mean, c)), count, sums, c)

        return by_rows

    if pattern == columns:

        def by_columns(pattern, dy, x, x_at, block, channels, count, mean, sums):
            run, repeat, chunk = get(block, RUN), get(block, REPEAT), get(block, CHUNK)
            x_step = get(block, INNER_STRIDES + 1)
            means = real_buffer(SPAN, dy, x)
            firsts, seconds = double_buffer(SPAN), double_buffer(SPAN)
            first_errors, second_errors = real_buffer(SPAN, dy, x), real_buffer(SPAN, dy, x)
            columns = (firsts, first_errors, seconds, second_errors)
            for c0 in range(0, channels, chunk):
                n = min(chunk, channels - c0)
                spread(mean, c0, n, run, repeat, means)
                for i in range(n * run * repeat):
                    clear(firsts, first_errors, i)
                    clear(seconds, second_errors, i)
                for i in range(0, count, repeat):
                    m = min(repeat, count - i)
                    xs = shift(x, x_at + c0 * run + i * x_step)
                    column_moments(xs, means, n * run * m, columns)
                gather_sums(columns, c0, n, run, repeat, sums)

        return by_columns

    def by_tiles(pattern, dy, x, x_at, block, channels, count, mean, sums):
        none = (mean, mean, mean, mean)
        go_through_tiles(
            TILE_MOMENTS, dy, x, dy, 0, x_at, 0, block, channels, count, mean, sums, none
        )

    return by_tiles


def segment_apply(
    pattern: Any, dy: Any, x: Any, dx: Any, dy_at: Any, x_at: Any, dx_at: Any, block: Any,
    channels: Any, count: Any, mean: Any, coefficients: Any,
) -> None:  # fmt: skip
    """Write a segment of dx = scale · (gain·dy − (shift + slope·(x − mean)))."""
    raise NotImplementedError


@overload(segment_apply, jit_options={"error_model": "numpy"})
def _segment_apply(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients
):
    if pattern == rows:

        def by_rows(
            pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients
        ):
            gain, offset, slope, scale = coefficients
            dy_channel = get(block, CHANNEL_STRIDES)
            x_channel = get(block, CHANNEL_STRIDES + 1)
            dx_channel = get(block, CHANNEL_STRIDES + 2)
            streaming = get(block, STREAM) != 0
            for c in range(channels):
                dys = shift(dy, dy_at + c * dy_channel)
                xs = shift(x, x_at + c * x_channel)
                dxs = shift(dx, dx_at + c * dx_channel)
                mu, g, b = get(mean, c), get(gain, c), get(offset, c)
                k, a = get(slope, c), get(scale, c)
                if streaming:
                    head = to_alignment(dxs, count)
                    row_apply(dys, xs, dxs, mu, g, b, k, a, head)
                    row_apply_streaming(
                        shift(dys, head), shift(xs, head), shift(dxs, head), mu, g, b, k, a,
                        count - head,
                    )  # fmt: skip
                else:
                    row_apply(dys, xs, dxs, mu, g, b, k, a, count)

        return by_rows

    if pattern == columns:

        def by_columns(
            pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients
        ):
            gain, offset, slope, scale = coefficients
            run, repeat, chunk = get(block, RUN), get(block, REPEAT), get(block, CHUNK)
            dy_step = get(block, INNER_STRIDES)
            x_step = get(block, INNER_STRIDES + 1)
            dx_step = get(block, INNER_STRIDES + 2)
            means, gains = real_buffer(SPAN, dy, x), real_buffer(SPAN, dy, x)
            offsets, slopes = real_buffer(SPAN, dy, x), real_buffer(SPAN, dy, x)
            scales = real_buffer(SPAN, dy, x)
            streaming = get(block, STREAM) != 0
            for c0 in range(0, channels, chunk):
                n = min(chunk, channels - c0)
                spread(mean, c0, n, run, repeat, means)
                spread(gain, c0, n, run, repeat, gains)
                spread(offset, c0, n, run, repeat, offsets)
                spread(slope, c0, n, run, repeat, slopes)
                spread(scale, c0, n, run, repeat, scales)
                at = c0 * run
                width = n * run * repeat
                # Whole cache lines only: a line written in two halves past the caches is slower
                # than through them.
                aligned = whole_lines(shift(dx, dx_at + at), width) and whole_lines(
                    dx, repeat * dx_step
                )
                end = count
                while end > 0:
                    left = end % (repeat * DX_ROWS)
                    # Several rows at once, whose coefficients are loaded once; at the end the rows
                    # that are left, and before them what is left of a row.
                    m = repeat * DX_ROWS if left == 0 else (end % repeat or repeat)
                    i = end - m
                    dys = shift(dy, dy_at + at + i * dy_step)
                    xs = shift(x, x_at + at + i * x_step)
                    dxs = shift(dx, dx_at + at + i * dx_step)
                    if left != 0:
                        column_apply_of_one(
                            dys, xs, dxs, means, gains, offsets, slopes, scales, n * run * m
                        )
                    elif streaming and aligned:
                        column_apply_streaming(
                            dys, xs, dxs, repeat * dy_step, repeat * x_step, repeat * dx_step,
                            means, gains, offsets, slopes, scales, width,
                        )  # fmt: skip
                    else:
                        column_apply(
                            dys, xs, dxs, repeat * dy_step, repeat * x_step, repeat * dx_step,
                            means, gains, offsets, slopes, scales, width,
                        )  # fmt: skip
                    end = i

        return by_columns

    def by_tiles(
        pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients
    ):
        none = (doubles_at(0), mean, doubles_at(0), mean)
        go_through_tiles(
            TILE_APPLY, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, none,
            coefficients,
        )  # fmt: skip

    return by_tiles


def segment_scale(
    pattern: Any, dy: Any, x: Any, dx: Any, dy_at: Any, dx_at: Any, block: Any, channels: Any,
    count: Any, scale: Any,
) -> None:  # fmt: skip
    """Write a segment of dx = scale · dy."""
    raise NotImplementedError


@overload(segment_scale, jit_options={"error_model": "numpy"})
def _segment_scale(pattern, dy, x, dx, dy_at, dx_at, block, channels, count, scale):
    if pattern == rows:

        def by_rows(pattern, dy, x, dx, dy_at, dx_at, block, channels, count, scale):
            dy_channel = get(block, CHANNEL_STRIDES)
            dx_channel = get(block, CHANNEL_STRIDES + 2)
            for c in range(channels):
                row_scale(
                    shift(dy, dy_at + c * dy_channel), shift(dx, dx_at + c * dx_channel),
                    get(scale, c), count,
                )  # fmt: skip

        return by_rows

    if pattern == columns:

        def by_columns(pattern, dy, x, dx, dy_at, dx_at, block, channels, count, scale):
            run, repeat, chunk = get(block, RUN), get(block, REPEAT), get(block, CHUNK)
            dy_step = get(block, INNER_STRIDES)
            dx_step = get(block, INNER_STRIDES + 2)
            scales = real_buffer(SPAN, dy, x)
            for c0 in range(0, channels, chunk):
                n = min(chunk, channels - c0)
                spread(scale, c0, n, run, repeat, scales)
                at = c0 * run
                for i in range((count - 1) // repeat * repeat, -1, -repeat):
                    m = min(repeat, count - i)
                    column_scale(
                        shift(dy, dy_at + at + i * dy_step), shift(dx, dx_at + at + i * dx_step),
                        scales, n * run * m,
                    )  # fmt: skip

        return by_columns

    def by_tiles(pattern, dy, x, dx, dy_at, dx_at, block, channels, count, scale):
        none = (doubles_at(0), scale, doubles_at(0), scale)
        coefficients = (scale, scale, scale, scale)
        go_through_tiles(
            TILE_SCALE, dy, x, dx, dy_at, 0, dx_at, block, channels, count, scale, none,
            coefficients,
        )  # fmt: skip

    return by_tiles
