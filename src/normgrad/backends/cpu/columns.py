"""Columns: one position's channels are contiguous in every tensor, which all have one dtype.

A row of them is made long enough to be worth a loop: where there are few channels several
positions follow each other in it (channels-last images), and where a channel is short its
positions do (NCHW with small images). Its elements are summed down the rows, each in a lane of its
own, and then within each channel.
"""

from __future__ import annotations

from ...memory import LINE
from . import access
from .block import AHEAD, CHUNK, INNER_STRIDES, REPEAT, RUN, STREAM
from .elements import reads_dy, reads_x, written
from .intrinsics import (
    address_of,
    double_buffer,
    get,
    helper,
    item_size,
    load,
    not_inlined,
    put,
    real_buffer,
    shift,
)
from .lanes import (
    LANES,
    PAST_CACHES,
    as_loaded,
    double_lanes,
    get_lanes,
    in_sequence,
    load_part,
    prefetch_lanes,
    put_lanes,
    splat,
    store_part,
    zero_lanes,
)
from .rows import add_part
from .sums import add_deviation, add_error, add_errors, add_terms, clear, fold, fold_lanes

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Rows of columns summed before they are folded into float64, by turns in two chains of eight
#: additions: two roundings fewer than rows have (see :data:`.rows.CHAIN`).
ROWS = access.ROWS
#: Fewer rows than these are summed in float64 at once: where there are few, the rounding of each
#: term shows.
FEW_ROWS = 4
DX_ROWS = access.DX_ROWS
#: The longest row of columns: the mean, the coefficients and the sums of its elements, 36 KiB in
#: float32, stay in the first-level cache.
SPAN = access.SPAN


@helper
def whole_lines(pointer, count):
    """Whether so many elements are whole cache lines."""
    return (address_of(pointer) | count * item_size(pointer)) % LINE == 0


@helper
def add_rows(dy, x, dy_step, x_step, rows, mean, c, sums, ahead, part):
    """Add some rows to the sums of a part of their elements, from c on."""
    total, total_error, projection, projection_error = sums
    mu = get_lanes(mean, c)
    zero = zero_lanes(dy, x)
    s, q, s2, q2 = zero, zero, zero, zero
    i, j = c, c
    for _ in range(rows // 2):
        if ahead:
            prefetch_lanes(dy, i + rows * dy_step)
            prefetch_lanes(x, j + rows * x_step)
            prefetch_lanes(dy, i + (rows + 1) * dy_step)
            prefetch_lanes(x, j + (rows + 1) * x_step)
        s, q = add_part(dy, x, i, j, mu, s, q, part)
        s2, q2 = add_part(dy, x, i + dy_step, j + x_step, mu, s2, q2, part)
        i, j = i + 2 * dy_step, j + 2 * x_step
    if rows % 2 > 0:
        s, q = add_part(dy, x, i, j, mu, s, q, part)
    fold_lanes(total, total_error, c, s + s2)
    fold_lanes(projection, projection_error, c, q + q2)


@helper
def column_sums(dy, x, dy_step, x_step, rows, mean, width, sums, ahead):
    """Add some rows to the sums of their elements."""
    not_inlined()
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        add_rows(dy, x, dy_step, x_step, rows, mean, c, sums, ahead, None)
    if whole < width:
        add_rows(dy, x, dy_step, x_step, rows, mean, whole, sums, ahead, width - whole)


@helper
def add_one_row(dy, x, mean, c, sums, part):
    """Add one row's terms, in float64, to the sums of a part of its elements."""
    add_terms(sums, c, dy, load_part(dy, c, part), load_part(x, c, part), get_lanes(mean, c), part)


@helper
def column_sums_of_one(dy, x, mean, width, sums):
    """Add one row, or what is left of one, to the sums of its elements."""
    not_inlined()
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        add_one_row(dy, x, mean, c, sums, None)
    if whole < width:
        add_one_row(dy, x, mean, whole, sums, width - whole)


@helper
def add_moments(x, x_step, rows, mean, c, sums, part):
    """Add some rows' moments to those of a part of their elements."""
    first, first_error, second, second_error = sums
    mu = double_lanes(get_lanes(mean, c))
    s, q, e = splat(0.0), splat(0.0), splat(0.0)
    for r in range(rows):
        value = double_lanes(load_part(x, r * x_step + c, part))
        d, s, e = add_deviation(first_error, x, value, mu, s, e, part)
        q = q + d * d
    fold_lanes(first, first_error, c, s)
    add_errors(first_error, c, e)
    fold_lanes(second, second_error, c, q)


@helper
def column_moments(x, x_step, rows, mean, width, sums):
    """Add some rows' moments to those of their elements."""
    not_inlined()
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        add_moments(x, x_step, rows, mean, c, sums, None)
    if whole < width:
        add_moments(x, x_step, rows, mean, whole, sums, width - whole)


@helper
def write_part(pattern, dy, x, dx, steps, rows, terms, c, ahead, part):
    """Write a part of some rows, from c on."""
    mean, gain, offset, slope, scale = terms
    lanes = (
        get_lanes(mean, c), get_lanes(gain, c), get_lanes(offset, c), get_lanes(slope, c),
        get_lanes(scale, c),
    )  # fmt: skip
    for r in range(rows):
        i, j = r * steps[0] + c, r * steps[1] + c
        if ahead and reads_dy(pattern) and reads_x(pattern):
            prefetch_lanes(dy, i - 2 * rows * steps[0])
            prefetch_lanes(x, j - 2 * rows * steps[1])
        value = written(pattern, dy, x, i, j, lanes, part)
        store_part(dx, r * steps[2] + c, value, part)


@helper
def write_rows(pattern, dy, x, dx, steps, rows, terms, width, streaming, ahead):
    """Write some rows; past the caches if all of dx's rows are whole cache lines."""
    not_inlined()
    whole = width // LANES * LANES
    if streaming:
        for c in range(0, whole, LANES):
            write_part(pattern, dy, x, dx, steps, rows, terms, c, ahead, PAST_CACHES)
    else:
        for c in range(0, whole, LANES):
            write_part(pattern, dy, x, dx, steps, rows, terms, c, ahead, None)
    if whole < width:
        write_part(pattern, dy, x, dx, steps, rows, terms, whole, ahead, width - whole)


@helper
def spread(values, c0, channels, run, repeat, dy, row):
    """Give each element of a row its channel's value, in the order in which dy is loaded."""
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
    for i in range(0, at, LANES):
        put_lanes(row, i, as_loaded(dy, get_lanes(row, i)))


@helper
def start_sums(columns, width):
    """Sums of a row's elements, from zero, in whole lanes."""
    total, total_error, projection, projection_error = columns
    for i in range(-(-width // LANES) * LANES):
        clear(total, total_error, i)
        clear(projection, projection_error, i)


@helper
def gather_sums(row_sums, c0, channels, run, repeat, dy, sums):
    """Add the sums of a row's elements to their channels'."""
    not_inlined()
    total, total_error, projection, projection_error = sums
    row_total, row_total_error, row_projection, row_projection_error = row_sums
    for i in range(0, channels * run * repeat, LANES):
        put_lanes(row_total, i, in_sequence(dy, get_lanes(row_total, i)))
        put_lanes(row_projection, i, in_sequence(dy, get_lanes(row_projection, i)))
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
def segment_sums(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
):
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums."""
    run, repeat, chunk = get(block, RUN), get(block, REPEAT), get(block, CHUNK)
    dy_step = get(block, INNER_STRIDES)
    x_step = get(block, INNER_STRIDES + 1)
    means = real_buffer(SPAN, dy, x)
    totals, projections = double_buffer(SPAN), double_buffer(SPAN)
    total_errors, projection_errors = real_buffer(SPAN, dy, x), real_buffer(SPAN, dy, x)
    columns = (totals, total_errors, projections, projection_errors)
    ahead = get(block, AHEAD) != 0
    for c0 in range(0, channels, chunk):
        n = min(chunk, channels - c0)
        width = n * run * repeat
        spread(mean, c0, n, run, repeat, dy, means)
        start_sums(columns, width)
        i = 0
        while i < count:
            dys = shift(dy, dy_at + c0 * run + i * dy_step)
            xs = shift(x, x_at + c0 * run + i * x_step)
            rows = min(ROWS, (count - i) // repeat)
            if rows >= FEW_ROWS:
                column_sums(
                    dys, xs, repeat * dy_step, repeat * x_step, rows, means, width, columns,
                    ahead,
                )
                i += rows * repeat
            else:
                # One row, or what is left of one.
                m = min(repeat, count - i)
                column_sums_of_one(dys, xs, means, n * run * m, columns)
                i += m
        gather_sums(columns, c0, n, run, repeat, dy, sums)
# fmt: on


# fmt: off
def segment_moments(
    pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums,
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
        spread(mean, c0, n, run, repeat, x, means)
        start_sums(columns, n * run * repeat)
        i = 0
        while i < count:
            # Some rows, or what is left of one.
            rows = max(1, min(ROWS, (count - i) // repeat))
            m = min(repeat, count - i)
            xs = shift(x, x_at + c0 * run + i * x_step)
            column_moments(xs, repeat * x_step, rows, means, n * run * m, columns)
            i += rows * m
        gather_sums(columns, c0, n, run, repeat, x, sums)
# fmt: on


@helper
def rows_before(end, repeat):
    """How many rows to write before position ``end``, and how many positions those are.

    Several rows at once, whose coefficients are loaded once; at the end of a segment the rows that
    are left over, and before them what is left of a row.
    """
    left = end % (repeat * DX_ROWS)
    if left == 0:
        return DX_ROWS, repeat * DX_ROWS
    return 1, end % repeat or repeat


# fmt: off
def segment_write(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients,
):
    """Write a segment of dx or y."""
    gain, offset, slope, scale = coefficients
    run, repeat, chunk = get(block, RUN), get(block, REPEAT), get(block, CHUNK)
    dy_step = get(block, INNER_STRIDES)
    x_step = get(block, INNER_STRIDES + 1)
    dx_step = get(block, INNER_STRIDES + 2)
    steps = (repeat * dy_step, repeat * x_step, repeat * dx_step)
    means, gains = real_buffer(SPAN, dy, x), real_buffer(SPAN, dy, x)
    offsets, slopes = real_buffer(SPAN, dy, x), real_buffer(SPAN, dy, x)
    scales = real_buffer(SPAN, dy, x)
    terms = (means, gains, offsets, slopes, scales)
    ahead = get(block, AHEAD) != 0
    streaming = get(block, STREAM) != 0
    for c0 in range(0, channels, chunk):
        n = min(chunk, channels - c0)
        if reads_x(pattern):
            spread(mean, c0, n, run, repeat, dy, means)
            spread(offset, c0, n, run, repeat, dy, offsets)
        if reads_x(pattern) and reads_dy(pattern):
            spread(gain, c0, n, run, repeat, dy, gains)
            spread(slope, c0, n, run, repeat, dy, slopes)
        spread(scale, c0, n, run, repeat, dy, scales)
        at = c0 * run
        # Whole cache lines only: a line written in two halves past the caches is slower
        # than through them.
        aligned = whole_lines(shift(dx, dx_at + at), n * run * repeat) and whole_lines(
            dx, repeat * dx_step
        )
        end = count
        while end > 0:
            rows, m = rows_before(end, repeat)
            i = end - m
            write_rows(
                pattern, shift(dy, dy_at + at + i * dy_step), shift(x, x_at + at + i * x_step),
                shift(dx, dx_at + at + i * dx_step), steps, rows, terms,
                n * run * (m // rows), streaming and aligned, ahead,
            )  # fmt: skip
            end = i
# fmt: on
