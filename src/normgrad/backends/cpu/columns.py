"""Kernels for columns: a position's channels are contiguous in all tensors, which have one dtype.

A row is long enough to be worth a loop: where there are few channels it has several adjacent
positions (channels-last images), and where channels are short it has all their positions (NCHW with
small images). Each element of the row is summed down the rows, in a lane of its own; then the
elements of each channel are added up.
"""

from __future__ import annotations

from . import block as B
from .elements import added, coefficients_used, fetched, further, prefetch_inputs, written
from .helpers import helper, passed
from .intrinsics import (
    doubles_at,
    get,
    item_size,
    load,
    not_inlined,
    pairs_buffer,
    plain,
    put,
    real_buffer,
    shift,
    smaller,
    store,
)
from .lanes import LANES, as_loaded, in_sequence, load_lanes, put_lanes, splat_like, zero_lanes
from .layout import PAGE, SPAN
from .parts import load_part, over_row, store_part
from .rows import CHAIN, streams_lines, sums_of, three, to_next_task
from .sums import add_columns, add_terms, clear_lanes, fold_lanes

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: A piece's rows are summed, or written, a row of each quarter at a time. A processor foresees four
#: ways through memory, though not four rows in turn. Coefficients are loaded once for four rows,
#: and if these are added in registers, so are the sums of their elements. CHAIN such additions come
#: before a fold into float64, so that a term takes part in at most 10 additions in float32: in rows
#: it is 9, and there may be a weight (see :data:`.rows.CHAIN`).
QUARTERS = 4
#: Fewer rows than these are summed in float64 from the start, since the rounding of each term shows
#: in a sum of few terms.
FEW_ROWS = 4
#: The size of buffers for a row, beyond whose end the last lanes may reach, and for two sums.
BUFFER = SPAN + LANES
BUFFER_OF_TWO = 2 * BUFFER


@helper
def prefetch_ahead(tensors, distance, c):
    """Prefetch what is so many bytes after a part of dy and x."""
    at = c + distance // item_size(tensors[0])
    prefetch_inputs(tensors, at, at)


@passed
def add_rows(arguments, c, part):
    """Add some rows to a chain of the sums of a part of their elements, and fold it if it is full.

    A chain is in the L1 cache, with a part's two sums side by side: apart, they would compete with
    each other, and with what is read, for the same places.
    """
    operation, tensors, steps, rows, terms, chain, sums, ahead, is_full, streaming = arguments
    mean_and_gain = load_lanes(terms[0], c), load_lanes(terms[1], c), terms[0]
    zero = zero_lanes(tensors[0], tensors[1])
    if ahead:
        prefetch_ahead(tensors, PAGE, c)
    found = added(operation, tensors, c, mean_and_gain, None, part, streaming)
    for _ in range(1, rows):
        tensors = further(tensors, steps, 1)
        if ahead:
            prefetch_ahead(tensors, PAGE, c)
        found = added(operation, tensors, c, mean_and_gain, found, part, streaming)
    first, second = shift(chain, 2 * c), shift(chain, 2 * c + LANES)
    dy, products = load_lanes(first, 0) + found[0], load_lanes(second, 0) + found[1]
    if is_full:
        fold_lanes(zero, sums[0], c, dy)
        fold_lanes(zero, sums[1], c, products)
        dy, products = zero, zero
    put_lanes(first, 0, dy)
    put_lanes(second, 0, products)


@passed
def add_single(arguments, c, part):
    """Add a row's terms, in float64, to the sums of a part of its elements."""
    operation, tensors, terms, sums = arguments
    dy, x, dx = tensors
    values, xs = load_part(dy, c, part), load_part(x, c, part)
    if coefficients_used(operation) > 0:
        store_part(dx, c, load_lanes(terms[1], c) * values, part, False)
    add_terms(zero_lanes(dy, x), sums, c, dy, values, xs, load_lanes(terms[0], c), part)


@helper
def shape_of(job):
    """A job's first channel, number of channels, elements per channel and positions in a row."""
    return (
        get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_RUN), get(job, B.J_REPEAT)
    )  # fmt: skip


@helper
def along_row(job, field, per, dy, row):
    """Give each element of a row its channel's coefficient, in the order in which dy is loaded.

    ``field`` is the job's field of the coefficients; ``per`` channels share one.
    """
    not_inlined()
    first, channels, run, repeat = shape_of(job)
    values = doubles_at(get(job, field))
    width = channels * run
    if run == 1 and per == 1:  # a loop that can be vectorised
        for c in range(channels):
            store(row, c, load(values, first + c))
    else:
        c, group, left = plain(0), first // per, per - first % per
        while c < channels:
            # Lanes beyond a group's elements are overwritten by the next group's.
            n = smaller(left, channels - c)
            value = splat_like(row, row, get(values, group))
            for i in range(0, n * run, LANES):
                put_lanes(row, c * run + i, value)
            c, group, left = c + n, group + 1, per
    for i in range(width, width * repeat):
        put(row, i, get(row, i - width))
    for i in range(0, width * repeat, LANES):
        put_lanes(row, i, as_loaded(dy, load_lanes(row, i)))


@helper
def start_sums(columns, width, zero):
    """Set the sums of a row's elements to zero, in whole lanes."""
    for i in range(0, width, LANES):
        clear_lanes(zero, columns[0], i)
        clear_lanes(zero, columns[1], i)


@helper
def gather_sums(columns, first, channels, run, repeat, tensor, zero, sums):
    """Add the sums of a row's elements to the sums of their channels."""
    not_inlined()
    for i in range(0, channels * run * repeat, LANES):
        put_lanes(columns[0][0], i, in_sequence(tensor, load_lanes(columns[0][0], i)))
        put_lanes(columns[1][0], i, in_sequence(tensor, load_lanes(columns[1][0], i)))
    add_columns(zero, columns[0], channels, run, repeat, sums[0], first)
    add_columns(zero, columns[1], channels, run, repeat, sums[1], first)


@helper
def quarters(rows, steps):
    """The number of rows in each quarter of some rows, and the tensors' steps between quarters."""
    quarter = rows // QUARTERS
    return quarter, (quarter * steps[0], quarter * steps[1], quarter * steps[2])


@helper
def add_quarters(operation, tensors, steps, rows, terms, columns, width, ahead, streaming):
    """Add rows to the sums of their elements, a row of each quarter at a time."""
    dy, x, _ = tensors
    chain, zero = real_buffer(BUFFER_OF_TWO, dy, x), zero_lanes(dy, x)
    for c in range(0, width, LANES):
        put_lanes(chain, 2 * c, zero)
        put_lanes(chain, 2 * c + LANES, zero)
    quarter, far = quarters(rows, steps)
    for r in range(quarter):
        is_full, here = (r + 1) % CHAIN == 0 or r + 1 == quarter, further(tensors, steps, r)
        arguments = (
            operation, here, far, QUARTERS, terms, chain, columns, ahead, is_full, streaming
        )  # fmt: skip
        over_row(add_rows, arguments, width)
    left = rows - QUARTERS * quarter
    if left > 0:
        here = further(tensors, steps, QUARTERS * quarter)
        arguments = operation, here, steps, left, terms, chain, columns, ahead, True, streaming
        over_row(add_rows, arguments, width)


@helper
def sums(operation, dy, x, dx, job):
    """Add Σdy and Σdy·(x − mean) of each channel to its sums."""
    first, channels, run, repeat = shape_of(job)
    count, steps = get(job, B.J_ROWS), three(job, B.J_ROW_STEPS)
    apart = (repeat * steps[0], repeat * steps[1], repeat * steps[2])
    terms = real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x)
    columns = pairs_buffer(BUFFER), pairs_buffer(BUFFER)
    zero = zero_lanes(dy, x)
    along_row(job, B.J_MEAN, get(job, B.J_PER_GROUP), dy, terms[0])
    if coefficients_used(operation) > 0:
        along_row(job, B.J_GAIN, plain(1), dy, terms[1])
    width = channels * run * repeat
    ahead = get(job, B.J_AHEAD) != 0
    streaming = streams_lines(job, dx, width, apart[2])
    start_sums(columns, width, zero)
    rows = count // repeat if count >= FEW_ROWS * repeat else 0
    if rows > 0:
        add_quarters(operation, (dy, x, dx), apart, rows, terms, columns, width, ahead, streaming)
    i = rows * repeat
    while i < count:
        # One row, or the rest of one.
        m = smaller(repeat, count - i)
        here = further((dy, x, dx), steps, i)
        over_row(add_single, (operation, here, terms, columns), channels * run * m)
        i += m
    gather_sums(columns, first, channels, run, repeat, dy, zero, sums_of(job))


@passed
def write_part(arguments, c, part):
    """Write a part of some rows."""
    operation, tensors, steps, rows, terms, ahead, streaming = arguments
    lanes = (
        load_lanes(terms[0], c), load_lanes(terms[1], c), load_lanes(terms[2], c),
        load_lanes(terms[3], c), load_lanes(terms[4], c),
    )  # fmt: skip
    for _ in range(rows):
        fetched(operation, tensors, c, ahead)
        found = written(operation, tensors, c, lanes, part)
        store_part(tensors[2], c, found, part, streaming)
        tensors = further(tensors, steps, 1)


@helper
def write(operation, dy, x, dx, job):
    """Write dx or y, a row of each quarter at a time, whose coefficients are loaded once.

    In a piece they come in memory's order, so that the processor prefetches what is written too.
    """
    _, channels, run, repeat = shape_of(job)
    per, steps = get(job, B.J_PER_GROUP), three(job, B.J_ROW_STEPS)
    apart = (repeat * steps[0], repeat * steps[1], repeat * steps[2])
    terms = (
        real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x),
        real_buffer(BUFFER, dy, x), real_buffer(BUFFER, dy, x),
    )  # fmt: skip
    for i in range(coefficients_used(operation)):
        # Each channel has its own gain and shift.
        along_row(job, B.J_GAIN + i, 1 if i < 2 else per, dy, terms[i])
    count, width = get(job, B.J_ROWS), channels * run * repeat
    ahead = PAGE // item_size(dx) if get(job, B.J_AHEAD) != 0 else to_next_task(job)
    streaming = streams_lines(job, dx, width, apart[2])
    rows = count // repeat
    quarter, far = quarters(rows, apart)
    for r in range(quarter):
        here = further((dy, x, dx), apart, r)
        arguments = operation, here, far, QUARTERS, terms, ahead, streaming
        over_row(write_part, arguments, width)
    # The rows that are left over, and the rest of a row.
    for r in range(QUARTERS * quarter, rows + 1):
        m = smaller(repeat, count - r * repeat)
        here = further((dy, x, dx), apart, r)
        arguments = operation, here, apart, 1, terms, ahead, streaming
        over_row(write_part, arguments, channels * run * m)
