"""Rows: a channel's positions are contiguous in every tensor, which all have one dtype.

Sums are formed in lanes, in the arithmetic's type, over blocks; a chain of additions is at most 22
long before it is folded into float64: the error bound allows 32.
"""

from __future__ import annotations

from ...memory import LINE
from .block import CHANNEL_STRIDES, STREAM
from .intrinsics import address_of, double, get, helper, item_size, not_inlined, shift
from .lanes import (
    LANES,
    PAST_CACHES,
    double_lanes,
    keep_part,
    load_part,
    splat,
    store_part,
    sum_of_lanes,
    zero_lanes,
)
from .sums import add_row_of_terms, fold

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Elements whose sum is one loop: 16 additions in each of twice LANES lanes, and 6 more to add
#: those. Two of each, since one addition waits for the last.
BLOCK = 16 * 2 * LANES


@helper
def add_part(dy, x, i, mean, s, q, part):
    """Two sums of lanes, with a part of a row added."""
    d = load_part(dy, i, part)
    return s + d, q + keep_part(dy, d * (load_part(x, i, part) - mean), part)


@helper
def row_sums(dy, x, mean, count, sums, c):
    """Add a row's sums to channel c's."""
    not_inlined()
    if count < LANES:
        add_row_of_terms(sums, c, dy, x, mean, count)
        return
    total, total_error, projection, projection_error = sums
    mu = splat(mean)
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        s, q = zero_lanes(dy, x), zero_lanes(dy, x)
        s2, q2 = zero_lanes(dy, x), zero_lanes(dy, x)
        i = start
        while i + 2 * LANES <= end:
            s, q = add_part(dy, x, i, mu, s, q, None)
            s2, q2 = add_part(dy, x, i + LANES, mu, s2, q2, None)
            i += 2 * LANES
        if i + LANES <= end:
            s, q = add_part(dy, x, i, mu, s, q, None)
            i += LANES
        if i < end:
            s2, q2 = add_part(dy, x, i, mu, s2, q2, end - i)
        fold(total, total_error, c, sum_of_lanes(s + s2))
        fold(projection, projection_error, c, sum_of_lanes(q + q2))


@helper
def add_moments_of_part(x, i, mean, s, q, part):
    """Two sums of lanes in float64, with the moments of a part of a row added."""
    d = keep_part(x, double_lanes(load_part(x, i, part)) - mean, part)
    return s + d, q + d * d


@helper
def row_moments(x, mean, count, sums, c):
    """Add a row's moments to channel c's."""
    not_inlined()
    first, first_error, second, second_error = sums
    mu = splat(mean)
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        s, q = splat(0.0), splat(0.0)
        i = start
        while i + LANES <= end:
            s, q = add_moments_of_part(x, i, mu, s, q, None)
            i += LANES
        if i < end:
            s, q = add_moments_of_part(x, i, mu, s, q, end - i)
        fold(first, first_error, c, sum_of_lanes(s))
        fold(second, second_error, c, sum_of_lanes(q))


@helper
def lines_to_stream(pointer, count):
    """Where in a row the whole cache lines begin, and where lanes of them end."""
    size = item_size(pointer)
    address = address_of(pointer)
    head = -(address // size) % (LINE // size)
    if address % size != 0 or head >= count:
        return 0, 0
    return head, head + (count - head) // LANES * LANES


@helper
def part_of_dx(dy, x, dx, i, mean, gain, offset, slope, scale, part):
    """dx of a part of a row."""
    inner = offset + slope * (load_part(x, i, part) - mean)
    store_part(dx, i, scale * (gain * load_part(dy, i, part) - inner), part)


@helper
def row_apply(dy, x, dx, mean, gain, offset, slope, scale, count, streaming):
    """dx = scale · (gain·dy − (offset + slope·(x − mean))), past the caches where that is asked."""
    not_inlined()
    mu, g, b, k, a = splat(mean), splat(gain), splat(offset), splat(slope), splat(scale)
    i = 0
    if streaming:
        i, end = lines_to_stream(dx, count)
        if i > 0:
            part_of_dx(dy, x, dx, 0, mu, g, b, k, a, i)
        while i < end:
            part_of_dx(dy, x, dx, i, mu, g, b, k, a, PAST_CACHES)
            i += LANES
    while i + LANES <= count:
        part_of_dx(dy, x, dx, i, mu, g, b, k, a, None)
        i += LANES
    if i < count:
        part_of_dx(dy, x, dx, i, mu, g, b, k, a, count - i)


@helper
def part_of_scaled(dy, dx, i, scale, part):
    """scale · dy of a part of a row."""
    store_part(dx, i, scale * load_part(dy, i, part), part)


@helper
def row_scale(dy, dx, scale, count, streaming):
    """dx = scale · dy, past the caches where that is asked."""
    not_inlined()
    a = splat(scale)
    i = 0
    if streaming:
        i, end = lines_to_stream(dx, count)
        if i > 0:
            part_of_scaled(dy, dx, 0, a, i)
        while i < end:
            part_of_scaled(dy, dx, i, a, PAST_CACHES)
            i += LANES
    while i + LANES <= count:
        part_of_scaled(dy, dx, i, a, None)
        i += LANES
    if i < count:
        part_of_scaled(dy, dx, i, a, count - i)


# fmt: off
def segment_sums(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
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
def segment_moments(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σ(x − mean) and Σ(x − mean)² to each channel's sums."""
    x_channel = get(block, CHANNEL_STRIDES + 1)
    for c in range(channels):
        row_moments(shift(x, x_at + c * x_channel), double(get(mean, c)), count, sums, c)
# fmt: on


# fmt: off
def segment_apply(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients,
):
    """Write a segment of dx = scale · (gain·dy − (shift + slope·(x − mean)))."""
    gain, offset, slope, scale = coefficients
    dy_channel = get(block, CHANNEL_STRIDES)
    x_channel = get(block, CHANNEL_STRIDES + 1)
    dx_channel = get(block, CHANNEL_STRIDES + 2)
    streaming = get(block, STREAM) != 0
    for c in range(channels):
        row_apply(
            shift(dy, dy_at + c * dy_channel), shift(x, x_at + c * x_channel),
            shift(dx, dx_at + c * dx_channel), get(mean, c), get(gain, c), get(offset, c),
            get(slope, c), get(scale, c), count, streaming,
        )  # fmt: skip
# fmt: on


# fmt: off
def segment_scale(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients,
):
    """Write a segment of dx = scale · dy."""
    scale = coefficients[3]
    dy_channel = get(block, CHANNEL_STRIDES)
    dx_channel = get(block, CHANNEL_STRIDES + 2)
    streaming = get(block, STREAM) != 0
    for c in range(channels):
        row_scale(
            shift(dy, dy_at + c * dy_channel), shift(dx, dx_at + c * dx_channel),
            get(scale, c), count, streaming,
        )  # fmt: skip
# fmt: on
