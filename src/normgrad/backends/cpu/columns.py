"""Columns: one position's channels are contiguous in every tensor, which all have one dtype.

A row of them is made long enough to be worth a loop: where there are few channels several
positions follow each other in it (channels-last images), and where a channel is short its
positions do (NCHW with small images). Its elements are summed down the rows, each in a lane of its
own, and then within each channel.
"""

from __future__ import annotations

from numba import njit

from ...memory import LINE
from . import program
from .block import CHUNK, INNER_STRIDES, REPEAT, RUN, STREAM
from .intrinsics import (
    address_of,
    double,
    double_buffer,
    get,
    item_size,
    load,
    not_inlined,
    put,
    real_buffer,
    shift,
    store,
    stream,
    zero,
)
from .sums import ELEMENTS, SUMS, add_error, add_term, clear, fold

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Rows of columns summed before they are folded.
ROWS = program.ROWS
#: Rows of columns whose dx is written together.
DX_ROWS = 4
#: The longest row of columns: the mean, the coefficients and the sums of its elements, 36 KiB in
#: float32, stay in the first-level cache.
SPAN = program.SPAN


@njit(error_model="numpy")
def whole_lines(pointer, count):
    """Whether so many elements are whole cache lines."""
    return (address_of(pointer) | count * item_size(pointer)) % LINE == 0


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
    at = 0
    for _ in range(repeat):
        if run == 1:  # a loop that can be vectorised
            for c in range(channels):
                put(row, at + c, load(values, c0 + c))
        else:
            for c in range(channels):
                value = load(values, c0 + c)
                for i in range(run):
                    put(row, at + c * run + i, value)
        at += channels * run


@njit(error_model="numpy")
def gather_sums(row_sums, c0, channels, run, repeat, sums):
    """Add the sums of a row's elements to their channels'."""
    not_inlined()
    total, total_error, projection, projection_error = sums
    row_total, row_total_error, row_projection, row_projection_error = row_sums
    at = 0
    for _ in range(repeat):
        # Element by element within the channels, so that one addition does not wait for the last.
        for i in range(run):
            for c in range(channels):
                j = at + c * run + i
                fold(total, total_error, c0 + c, get(row_total, j))
                add_error(total_error, c0 + c, row_total_error, j)
                fold(projection, projection_error, c0 + c, get(row_projection, j))
                add_error(projection_error, c0 + c, row_projection_error, j)
        at += channels * run


# fmt: off
@njit(error_model="numpy")
def segment_sums(
    dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums."""
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
# fmt: on


# fmt: off
@njit(error_model="numpy")
def segment_moments(
    dy, x, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σ(x − mean) and Σ(x − mean)² to each channel's sums."""
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
# fmt: on


# fmt: off
@njit(error_model="numpy")
def segment_apply(
    dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients,
):
    """Write a segment of dx = scale · (gain·dy − (shift + slope·(x − mean)))."""
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
# fmt: on


# fmt: off
@njit(error_model="numpy")
def segment_scale(
    dy, x, dx, dy_at, dx_at, block, channels, count, scale,
):
    """Write a segment of dx = scale · dy."""
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
# fmt: on
