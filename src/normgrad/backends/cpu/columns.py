"""Columns: one position's channels are contiguous in every tensor, which all have one dtype.

A row of them is made long enough to be worth a loop: where there are few channels several
positions follow each other in it (channels-last images), and where a channel is short its
positions do (NCHW with small images). Its elements are summed down the rows, each in a lane of its
own, and then within each channel.
"""

from __future__ import annotations

from . import access
from . import block as B
from .elements import reads_dy, reads_x, write_early, writes_early, written
from .helpers import by_types, helper
from .intrinsics import (
    double,
    double_buffer,
    doubles_at,
    get,
    load,
    not_inlined,
    put,
    real_buffer,
    shift,
    store,
)
from .lanes import (
    LANES,
    as_loaded,
    double_lanes,
    finite,
    get_lanes,
    in_sequence,
    load_part,
    merge_part,
    prefetch_lanes,
    put_lanes,
    single_lanes,
    splat,
    splat_like,
    store_part,
    zero_lanes,
)
from .rows import has_whole_lines, steps_of, sums_of
from .sums import add_columns, add_deviation, add_errors, add_terms, clear_lanes, fold_lanes

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Rows of columns summed before they are folded into float64, by turns in two chains of eight
#: additions: a rounding fewer than rows have (see :data:`.rows.CHAIN`).
ROWS = access.ROWS
#: Fewer rows than these are summed in float64 at once: where there are few, the rounding of each
#: term shows.
FEW_ROWS = 4
DX_ROWS = access.DX_ROWS
#: Rows of columns whose moments are taken about one point; 16 KiB of their lines are in the nearest
#: cache when they are read again.
ABOUT_ONE = 4 * ROWS
#: The longest row of columns: the mean, the coefficients and the sums of its elements, 36 KiB in
#: float32, stay in the first-level cache.
SPAN = access.SPAN
#: Room for lanes that end beyond it.
BUFFER = SPAN + LANES


@helper
def add_row(operation, dy, x, dx, i, j, o, mean, gain, s, q, part, streaming):
    """Two sums of lanes, with a part of a row added; nobody reads those beyond the row's end."""
    d, xs = load_part(dy, i, part), load_part(x, j, part)
    write_early(operation, dx, o, d, gain, part, streaming)
    return s + d, q + d * (xs - mean)


@helper
def add_rows(operation, dy, x, dx, steps, rows, terms, c, sums, ahead, part, streaming):
    """Add some rows to the sums of a part of their elements, from c on."""
    mu, gain = get_lanes(terms[0], c), get_lanes(terms[1], c)
    zero = zero_lanes(dy, x)
    s, q, s2, q2 = zero, zero, zero, zero
    i, j, o = c, c, c
    for _ in range(0, rows - 1, 2):
        if ahead:
            prefetch_lanes(dy, i + rows * steps[0])
            prefetch_lanes(x, j + rows * steps[1])
            prefetch_lanes(dy, i + (rows + 1) * steps[0])
            prefetch_lanes(x, j + (rows + 1) * steps[1])
        s, q = add_row(operation, dy, x, dx, i, j, o, mu, gain, s, q, part, streaming)
        i, j, o = i + steps[0], j + steps[1], o + steps[2]
        s2, q2 = add_row(operation, dy, x, dx, i, j, o, mu, gain, s2, q2, part, streaming)
        i, j, o = i + steps[0], j + steps[1], o + steps[2]
    if rows % 2 > 0:
        s, q = add_row(operation, dy, x, dx, i, j, o, mu, gain, s, q, part, streaming)
    fold_lanes(zero, sums[0], sums[1], c, s + s2)
    fold_lanes(zero, sums[2], sums[3], c, q + q2)


@helper
def add_block(operation, dy, x, dx, steps, rows, terms, width, sums, ahead, streaming):
    """Add some rows to the sums of their elements."""
    not_inlined()
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        add_rows(operation, dy, x, dx, steps, rows, terms, c, sums, ahead, None, streaming)
    if whole < width:
        part = width - whole
        add_rows(operation, dy, x, dx, steps, rows, terms, whole, sums, ahead, part, False)


@helper
def add_one_row(operation, dy, x, dx, terms, c, sums, part):
    """Add one row's terms, in float64, to the sums of a part of its elements."""
    values, xs = load_part(dy, c, part), load_part(x, c, part)
    write_early(operation, dx, c, values, get_lanes(terms[1], c), part, False)
    mean = get_lanes(terms[0], c)
    add_terms(zero_lanes(dy, x), sums, c, dy, values, xs, mean, part)


@helper
def add_single(operation, dy, x, dx, terms, width, sums):
    """Add one row, or what is left of one, to the sums of its elements."""
    not_inlined()
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        add_one_row(operation, dy, x, dx, terms, c, sums, None)
    if whole < width:
        add_one_row(operation, dy, x, dx, terms, whole, sums, width - whole)


@helper
def add_moments_about_means(operation, x, x_step, rows, points, c, sums, part):
    """Add some rows' moments to those of a part of their elements, about the rows' own means."""
    zero = zero_lanes(x, x)
    total, squares = splat(0.0), splat(0.0)
    for first in range(0, rows, ROWS):
        s = zero
        for r in range(first, min(first + ROWS, rows)):
            s = s + load_part(x, r * x_step + c, part)
        total = total + double_lanes(s)
    mean = finite(single_lanes(total * splat(1.0 / rows)))
    for first in range(0, rows, ROWS):
        q, q2 = zero, zero
        i, last = first * x_step + c, min(first + ROWS, rows)
        for _ in range(first, last - 1, 2):
            d, d2 = load_part(x, i, part) - mean, load_part(x, i + x_step, part) - mean
            q, q2 = q + d * d, q2 + d2 * d2
            i += 2 * x_step
        if (last - first) % 2 > 0:
            d = load_part(x, i, part) - mean
            q = q + d * d
        squares = squares + double_lanes(merge_part(x, q + q2, zero, part))
    n = merge_part(x, splat(double(rows)), splat(0.0), part)
    about, mean = double_lanes(get_lanes(points, c)), double_lanes(mean)
    away, deviations = mean - about, total - n * mean
    put_lanes(sums[0], c, get_lanes(sums[0], c) + (total - n * about))
    squares = squares + away * (deviations + deviations + n * away)
    put_lanes(sums[2], c, get_lanes(sums[2], c) + squares)


@helper
def add_exact_moments(x, x_step, rows, mean, c, sums, part):
    """Add some rows' moments, in float64, to those of a part of their elements."""
    zero = zero_lanes(x, x)
    mu = double_lanes(get_lanes(mean, c))
    s, q, e = splat(0.0), splat(0.0), splat(0.0)
    for r in range(rows):
        value = double_lanes(load_part(x, r * x_step + c, part))
        d, s, e = add_deviation(zero, x, value, mu, s, e, part)
        q = q + d * d
    fold_lanes(zero, sums[0], sums[1], c, s)
    add_errors(zero, sums[1], c, e)
    fold_lanes(zero, sums[2], sums[3], c, q)


@by_types
def add_moments(operation, x, x_step, rows, points, c, sums, part):
    """Add some rows' moments to those of a part of their elements, as the operation says."""
    if operation.operation == "exact moments":
        return lambda operation, x, x_step, rows, points, c, sums, part: add_exact_moments(
            x, x_step, rows, points, c, sums, part
        )
    return lambda operation, x, x_step, rows, points, c, sums, part: add_moments_about_means(
        operation, x, x_step, rows, points, c, sums, part
    )


@by_types
def rows_about_one(operation):
    """How many rows' moments are taken together."""
    found = ROWS if operation.operation == "exact moments" else ABOUT_ONE
    return lambda operation: found


@helper
def moments_of_block(operation, x, x_step, rows, points, width, sums):
    """Add some rows' moments to those of their elements."""
    not_inlined()
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        add_moments(operation, x, x_step, rows, points, c, sums, None)
    if whole < width:
        add_moments(operation, x, x_step, rows, points, whole, sums, width - whole)


@helper
def along_row(values, first, channels, per, run, repeat, dy, row):
    """Give each element of a row its channel's value, in the order in which dy is loaded.

    ``per``: how many channels share a value.
    """
    not_inlined()
    width = channels * run
    if run == 1 and per == 1:  # a loop that can be vectorised
        for c in range(channels):
            store(row, c, load(values, first + c))
    else:
        group, left = first // per, per - first % per
        for c in range(channels):
            # Lanes beyond a channel's elements are in the next one's place, which comes later.
            value = splat_like(row, row, get(values, group))
            for i in range(0, run, LANES):
                put_lanes(row, c * run + i, value)
            left -= 1
            if left == 0:
                group, left = group + 1, per
    for i in range(width, width * repeat):
        put(row, i, get(row, i - width))
    for i in range(0, width * repeat, LANES):
        put_lanes(row, i, as_loaded(dy, get_lanes(row, i)))


@helper
def start_sums(columns, width, dy, x):
    """Sums of a row's elements, from zero, in whole lanes."""
    zero = zero_lanes(dy, x)
    for i in range(0, width, LANES):
        clear_lanes(zero, columns[0], columns[1], i)
        clear_lanes(zero, columns[2], columns[3], i)


@helper
def gather_sums(columns, first, channels, run, repeat, dy, x, sums):
    """Add the sums of a row's elements to their channels'."""
    not_inlined()
    zero = zero_lanes(dy, x)
    for i in range(0, channels * run * repeat, LANES):
        put_lanes(columns[0], i, in_sequence(dy, get_lanes(columns[0], i)))
        put_lanes(columns[2], i, in_sequence(dy, get_lanes(columns[2], i)))
    add_columns(zero, columns[0], columns[1], channels, run, repeat, sums[0], sums[1], first)
    add_columns(zero, columns[2], columns[3], channels, run, repeat, sums[2], sums[3], first)


@helper
def sums(operation, dy, x, dx, job):
    """Add Σdy and Σdy·(x − mean) of each channel to its sums."""
    first, channels, per = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_PER_GROUP)
    run, repeat, count = get(job, B.J_RUN), get(job, B.J_REPEAT), get(job, B.J_ROWS)
    steps = steps_of(job)
    apart = (repeat * steps[0], repeat * steps[1], repeat * steps[2])
    means, gains = real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x)
    columns = (
        double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER)
    )  # fmt: skip
    along_row(doubles_at(get(job, B.J_MEAN)), first, channels, per, run, repeat, dy, means)
    if writes_early(operation):
        along_row(doubles_at(get(job, B.J_GAIN)), first, channels, 1, run, repeat, dy, gains)
    width = channels * run * repeat
    streaming = get(job, B.J_STREAM) != 0 and has_whole_lines(dx, width, apart[2])
    start_sums(columns, width, dy, x)
    i = 0
    while i < count:
        dys, xs = shift(dy, i * steps[0]), shift(x, i * steps[1])
        dxs = shift(dx, i * steps[2])
        rows = min(ROWS, (count - i) // repeat)
        if rows >= FEW_ROWS:
            add_block(
                operation, dys, xs, dxs, apart, rows, (means, gains), width, columns,
                get(job, B.J_AHEAD) != 0, streaming,
            )  # fmt: skip
            i += rows * repeat
        else:
            # One row, or what is left of one.
            m = min(repeat, count - i)
            add_single(operation, dys, xs, dxs, (means, gains), channels * run * m, columns)
            i += m
    gather_sums(columns, first, channels, run, repeat, dy, x, sums_of(job))


@helper
def moments(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel to its sums, in the two ways of rows.py."""
    first, channels, per = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_PER_GROUP)
    run, repeat, count = get(job, B.J_RUN), get(job, B.J_REPEAT), get(job, B.J_ROWS)
    x_step = get(job, B.J_ROW_STEPS + 1)
    means = real_buffer(BUFFER, dy, x)
    columns = (
        double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER), double_buffer(BUFFER)
    )  # fmt: skip
    along_row(doubles_at(get(job, B.J_MEAN)), first, channels, per, run, repeat, x, means)
    start_sums(columns, channels * run * repeat, x, x)
    i = 0
    while i < count:
        # Some rows, or what is left of one.
        rows = max(1, min(rows_about_one(operation), (count - i) // repeat))
        m = min(repeat, count - i)
        width = channels * run * m
        moments_of_block(
            operation, shift(x, i * x_step), repeat * x_step, rows, means, width, columns
        )
        i += rows * m
    gather_sums(columns, first, channels, run, repeat, x, x, sums_of(job))


@helper
def write_part(operation, dy, x, dx, steps, rows, terms, c, ahead, part, streaming):
    """Write a part of some rows, from c on."""
    lanes = (
        get_lanes(terms[0], c), get_lanes(terms[1], c), get_lanes(terms[2], c),
        get_lanes(terms[3], c), get_lanes(terms[4], c),
    )  # fmt: skip
    for r in range(rows):
        i, j = r * steps[0] + c, r * steps[1] + c
        if ahead and reads_dy(operation) and reads_x(operation):
            prefetch_lanes(dy, i - 2 * rows * steps[0])
            prefetch_lanes(x, j - 2 * rows * steps[1])
        value = written(operation, dy, x, i, j, lanes, part)
        store_part(dx, r * steps[2] + c, value, part, streaming)


@helper
def write_block(operation, dy, x, dx, steps, rows, terms, width, streaming, ahead):
    """Write some rows; past the caches if all of dx's rows are whole cache lines."""
    not_inlined()
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        write_part(operation, dy, x, dx, steps, rows, terms, c, ahead, None, streaming)
    if whole < width:
        write_part(operation, dy, x, dx, steps, rows, terms, whole, ahead, width - whole, False)


@helper
def rows_before(end, repeat):
    """How many rows to write before position ``end``, and how many positions those are.

    Several rows at once, whose coefficients are loaded once; at the end of a piece the rows that
    are left over, and before them what is left of a row.
    """
    left = end % (repeat * DX_ROWS)
    if left == 0:
        return DX_ROWS, repeat * DX_ROWS
    return 1, end % repeat or repeat


@helper
def write(operation, dy, x, dx, job):
    """Write dx or y, the last rows first: they are what was summed last."""
    first, channels, per = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_PER_GROUP)
    run, repeat = get(job, B.J_RUN), get(job, B.J_REPEAT)
    steps = steps_of(job)
    apart = (repeat * steps[0], repeat * steps[1], repeat * steps[2])
    terms = (
        real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x),
        real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x),
    )  # fmt: skip
    along_row(doubles_at(get(job, B.J_GAIN)), first, channels, 1, run, repeat, dy, terms[1])
    if reads_x(operation):
        along_row(doubles_at(get(job, B.J_MEAN)), first, channels, per, run, repeat, dy, terms[0])
        along_row(doubles_at(get(job, B.J_SHIFT)), first, channels, 1, run, repeat, dy, terms[2])
    if reads_x(operation) and reads_dy(operation):
        along_row(doubles_at(get(job, B.J_SLOPE)), first, channels, per, run, repeat, dy, terms[3])
        along_row(doubles_at(get(job, B.J_SCALE)), first, channels, per, run, repeat, dy, terms[4])
    streaming = get(job, B.J_STREAM) != 0 and has_whole_lines(dx, channels * run * repeat, apart[2])
    end = get(job, B.J_ROWS)
    while end > 0:
        rows, m = rows_before(end, repeat)
        i = end - m
        write_block(
            operation, shift(dy, i * steps[0]), shift(x, i * steps[1]), shift(dx, i * steps[2]),
            apart, rows, terms, channels * run * (m // rows), streaming, get(job, B.J_AHEAD) != 0,
        )  # fmt: skip
        end = i
