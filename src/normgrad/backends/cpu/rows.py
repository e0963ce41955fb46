"""Rows: a channel's positions are contiguous in every tensor, which all have one dtype.

Sums are formed in blocks whose chains of additions in the arithmetic's type are at most 16 long, on
four lanes or more, then folded into float64: the error bound allows 32.
"""

from __future__ import annotations

from numba import njit

from ...memory import LINE
from .block import CHANNEL_STRIDES, STREAM
from .intrinsics import (
    address_of,
    double,
    get,
    item_size,
    load,
    not_inlined,
    shift,
    store,
    stream,
    zero,
)
from .sums import ELEMENTS, SUMS, add_term, fold

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Elements whose sum is one loop; 64 lanes at a time on AVX-512, 16 on NEON.
BLOCK = 256
#: The same for what is left of a row; what is then left is summed exactly, one by one.
SMALL_BLOCK = 16


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


@njit(fastmath=ELEMENTS, error_model="numpy")
def row_scale(dy, dx, scale, count):
    """dx = scale · dy."""
    not_inlined()
    for i in range(count):
        store(dx, i, scale * load(dy, i))


# fmt: off
@njit(error_model="numpy")
def segment_sums(
    dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums."""
    dy_channel = get(block, CHANNEL_STRIDES)
    x_channel = get(block, CHANNEL_STRIDES + 1)
    for c in range(channels):
        row_sums(
            shift(dy, dy_at + c * dy_channel), shift(x, x_at + c * x_channel),
            get(mean, c), count, sums, c,
        )  # fmt: skip
# fmt: on


# fmt: off
@njit(error_model="numpy")
def segment_moments(
    dy, x, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σ(x − mean) and Σ(x − mean)² to each channel's sums."""
    x_channel = get(block, CHANNEL_STRIDES + 1)
    for c in range(channels):
        row_moments(shift(x, x_at + c * x_channel), double(get(mean, c)), count, sums, c)
# fmt: on


# fmt: off
@njit(error_model="numpy")
def segment_apply(
    dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients,
):
    """Write a segment of dx = scale · (gain·dy − (shift + slope·(x − mean)))."""
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
# fmt: on


# fmt: off
@njit(error_model="numpy")
def segment_scale(
    dy, x, dx, dy_at, dx_at, block, channels, count, scale,
):
    """Write a segment of dx = scale · dy."""
    dy_channel = get(block, CHANNEL_STRIDES)
    dx_channel = get(block, CHANNEL_STRIDES + 2)
    for c in range(channels):
        row_scale(
            shift(dy, dy_at + c * dy_channel), shift(dx, dx_at + c * dx_channel),
            get(scale, c), count,
        )  # fmt: skip
# fmt: on
