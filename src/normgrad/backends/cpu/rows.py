"""Rows: a channel's positions are contiguous in every tensor, which all have one dtype.

A segment is one row; or where rows are short (an image cut out of a larger one), several, some
steps apart. Sums are formed in lanes, in the arithmetic's type, over blocks that are folded into
float64.
"""

from __future__ import annotations

from ...memory import LINE
from .block import CHANNEL_STRIDES, INNER_STRIDES, RUN, STREAM
from .elements import written
from .intrinsics import address_of, double, get, helper, item_size, not_inlined, shift
from .lanes import (
    LANES,
    PAST_CACHES,
    double_lanes,
    keep_part,
    load_part,
    splat,
    store_part,
    zero_lanes,
)
from .sums import add_deviation, add_row_of_terms, fold_deviations, fold_sum

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Additions in each lane, of two lots of lanes (one addition waits for the last), over half of a
#: block. On any data the bound allows 16 roundings of one term. They are: one of x − μ, one of the
#: product and 7 of the chain's other additions, one each where the two lots, the halves and the
#: lanes' own halves are added (the rest is float64, and in float64 arithmetic carries its errors),
#: and in dx 4, of the slope, x − μ, the addition and the subtraction, with which multiplications
#: are fused. With chains of 16, and all lanes added in float32, 1 followed by terms just below half
#: a unit of its last place came to 1.04 of the bound in rows and 1.09 in columns.
CHAIN = 8
HALF = CHAIN * 2 * LANES
BLOCK = 2 * HALF


@helper
def add_part(dy, x, i, j, mean, s, q, part):
    """Two sums of lanes, with a part of a row added, from i on in dy and from j in x."""
    d = load_part(dy, i, part)
    return s + d, q + keep_part(dy, d * (load_part(x, j, part) - mean), part)


@helper
def row_sums(dy, x, dy_step, x_step, rows, mean, count, sums, c):
    """Add the sums of some rows to channel c's."""
    not_inlined()
    if rows * count < LANES:
        for r in range(rows):
            row, x_row = shift(dy, r * dy_step), shift(x, r * x_step)
            add_row_of_terms(sums, c, row, x_row, mean, count)
        return
    total, total_error, projection, projection_error = sums
    mu = splat(mean)
    zero = zero_lanes(dy, x)
    s, q, s2, q2 = zero, zero, zero, zero
    half_s, half_q = zero, zero
    # How many additions half a block, or a short row, makes a chain longer by; and how long it is.
    longer = -(-min(count, HALF) // (2 * LANES))
    chain = 0
    second = False
    for r in range(rows):
        for start in range(0, count, HALF):
            if chain + longer > CHAIN:
                half_s, half_q = half_s + (s + s2), half_q + (q + q2)
                if second:
                    fold_sum(total, total_error, c, half_s)
                    fold_sum(projection, projection_error, c, half_q)
                    half_s, half_q = zero, zero
                second = not second
                s, q, s2, q2 = zero, zero, zero, zero
                chain = 0
            i, j = start + r * dy_step, start + r * x_step
            left = min(count - start, HALF)
            while left >= 2 * LANES:
                s, q = add_part(dy, x, i, j, mu, s, q, None)
                s2, q2 = add_part(dy, x, i + LANES, j + LANES, mu, s2, q2, None)
                i, j, left = i + 2 * LANES, j + 2 * LANES, left - 2 * LANES
            if left >= LANES:
                s, q = add_part(dy, x, i, j, mu, s, q, None)
                i, j, left = i + LANES, j + LANES, left - LANES
            if left > 0:
                s2, q2 = add_part(dy, x, i, j, mu, s2, q2, left)
            chain += longer
    fold_sum(total, total_error, c, half_s + (s + s2))
    fold_sum(projection, projection_error, c, half_q + (q + q2))


@helper
def add_moments_of_part(error, x, i, mean, s, q, e, part):
    """Two sums of lanes in float64, the first with its error, and a part of a row's moments."""
    value = double_lanes(load_part(x, i, part))
    d, s, e = add_deviation(error, x, value, mean, s, e, part)
    return s, q + d * d, e


@helper
def row_moments(x, x_step, rows, mean, count, sums, c):
    """Add the moments of some rows to channel c's, in chains of 16.

    Longer ones are too long for float64 arithmetic: with 32, squares just below half a unit of the
    last place of their sum came to 1.06 of the bound.
    """
    not_inlined()
    first, first_error, second, second_error = sums
    mu = splat(mean)
    for r in range(rows):
        row = shift(x, r * x_step)
        for start in range(0, count, BLOCK):
            end = min(start + BLOCK, count)
            s, q, s2, q2 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            e = splat(0.0)
            i = start
            while i + 2 * LANES <= end:
                s, q, e = add_moments_of_part(first_error, row, i, mu, s, q, e, None)
                s2, q2, e = add_moments_of_part(first_error, row, i + LANES, mu, s2, q2, e, None)
                i += 2 * LANES
            if i + LANES <= end:
                s, q, e = add_moments_of_part(first_error, row, i, mu, s, q, e, None)
                i += LANES
            if i < end:
                s2, q2, e = add_moments_of_part(first_error, row, i, mu, s2, q2, e, end - i)
            fold_deviations(first, first_error, c, s, s2, e)
            fold_sum(second, second_error, c, q + q2)


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
def write_part(pattern, dy, x, dx, i, terms, part):
    """Write a part of a row."""
    store_part(dx, i, written(pattern, dy, x, i, i, terms, part), part)


@helper
def write_row(pattern, dy, x, dx, terms, count, streaming):
    """Write a row, past the caches where that is asked; the terms are lanes."""
    i = 0
    if streaming:
        i, end = lines_to_stream(dx, count)
        if i > 0:
            write_part(pattern, dy, x, dx, 0, terms, i)
        while i < end:
            write_part(pattern, dy, x, dx, i, terms, PAST_CACHES)
            i += LANES
    while i + LANES <= count:
        write_part(pattern, dy, x, dx, i, terms, None)
        i += LANES
    if i < count:
        write_part(pattern, dy, x, dx, i, terms, count - i)


@helper
def terms_of(mean, coefficients, c):
    """A channel's mean and coefficients, as lanes."""
    gain, offset, slope, scale = coefficients
    return (
        splat(get(mean, c)), splat(get(gain, c)), splat(get(offset, c)), splat(get(slope, c)),
        splat(get(scale, c)),
    )  # fmt: skip


@helper
def write_rows(pattern, dy, x, dx, steps, rows, mean, coefficients, c, count, streaming):
    """Write some rows of one channel."""
    not_inlined()
    terms = terms_of(mean, coefficients, c)
    for r in range(rows):
        write_row(
            pattern, shift(dy, r * steps[0]), shift(x, r * steps[1]), shift(dx, r * steps[2]),
            terms, count, streaming,
        )  # fmt: skip


@helper
def rows_of(block, count):
    """How many rows a segment is, and how long each; and their steps in each tensor."""
    run = get(block, RUN)
    steps = (
        get(block, INNER_STRIDES), get(block, INNER_STRIDES + 1), get(block, INNER_STRIDES + 2)
    )  # fmt: skip
    if run > 1:
        return count, run, steps
    return 1, count, steps


# fmt: off
def segment_sums(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums."""
    dy_channel = get(block, CHANNEL_STRIDES)
    x_channel = get(block, CHANNEL_STRIDES + 1)
    rows, length, steps = rows_of(block, count)
    for c in range(channels):
        row_sums(
            shift(dy, dy_at + c * dy_channel), shift(x, x_at + c * x_channel),
            steps[0], steps[1], rows, get(mean, c), length, sums, c,
        )  # fmt: skip
# fmt: on


# fmt: off
def segment_moments(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σ(x − mean) and Σ(x − mean)² to each channel's sums."""
    x_channel = get(block, CHANNEL_STRIDES + 1)
    rows, length, steps = rows_of(block, count)
    for c in range(channels):
        row_moments(
            shift(x, x_at + c * x_channel), steps[1], rows, double(get(mean, c)), length, sums, c
        )
# fmt: on


# fmt: off
def segment_write(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients,
):
    """Write a segment of dx or y."""
    dy_channel = get(block, CHANNEL_STRIDES)
    x_channel = get(block, CHANNEL_STRIDES + 1)
    dx_channel = get(block, CHANNEL_STRIDES + 2)
    streaming = get(block, STREAM) != 0
    rows, length, steps = rows_of(block, count)
    for c in range(channels):
        write_rows(
            pattern, shift(dy, dy_at + c * dy_channel), shift(x, x_at + c * x_channel),
            shift(dx, dx_at + c * dx_channel), steps, rows, mean, coefficients, c, length,
            streaming,
        )  # fmt: skip
# fmt: on
