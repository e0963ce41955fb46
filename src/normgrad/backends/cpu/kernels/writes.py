"""Kernels that write dx or y: rows of each channel, rows of adjacent channels as one run, columns.

A run is written in whole cache lines, as stores that bypass the caches must be. While these wait
for the memory, elements that are read next are prefetched.
"""

from __future__ import annotations

from ....support.memory import LINE
from ..schedule import block as B
from ..schedule.layout import PAGE
from ..vector.helpers import as_argument, by_types, helper
from ..vector.intrinsics import (
    address_of,
    as_int64,
    doubles_at,
    get,
    item_size,
    not_inlined,
    reals_at,
    smaller,
)
from ..vector.lanes import lanes_of, load_lanes, splat_like
from ..vector.segments import merge_segment, over_row, store_segment
from .channel_vectors import next_group
from .elements import (
    advance,
    coefficient_count,
    coefficients_at,
    linear_form,
    prefetch_beside_write,
)
from .reductions import (
    QUARTERS,
    block_of,
    buffer,
    fill_row,
    quarters,
    shape_of,
    streams_lines,
    three,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The least elements of rows that are written as one run though no stores bypass the caches.
SPLIT = 64


@helper
def prefetch_distance(job):
    """How many elements later lies what the next task sums; 0 if it is not prefetched."""
    return get(job, B.J_NEXT) * get(job, B.J_CHANNEL_STEPS)


@helper
def compute_segment(operation, tensors, k, coefficients, along, segment):
    """Compute a segment of a row of dx or y."""
    here = coefficients_at(operation, tensors[0], coefficients, along[0], along[1], k, segment)
    return linear_form(operation, tensors, k, here, segment)


@helper
def write_segment(operation, tensors, k, coefficients, along, segment, streaming):
    """Compute and write a segment of a row of dx or y."""
    lanes = compute_segment(operation, tensors, k, coefficients, along, segment)
    store_segment(tensors[2], k, lanes, segment, streaming)


@helper
def write_head(operation, tensors, coefficients, along, count):
    """Write what comes before a row's first whole cache line; returns the number of elements."""
    size = item_size(tensors[2])
    head = smaller(-(address_of(tensors[2]) // size) % (LINE // size), count)
    if head > 0:
        write_segment(operation, tensors, as_int64(0), coefficients, along, head, False)
    return head


@helper
def write_lanes(operation, tensors, k, end, coefficients, along, ahead, streaming):
    """Write whole lanes from element k on; returns where they end."""
    while k + lanes_of(tensors[2]) <= end:
        prefetch_beside_write(operation, tensors, k, ahead)
        write_segment(operation, tensors, k, coefficients, along, None, streaming)
        k += lanes_of(tensors[2])
    return k


@helper
def write_row(operation, tensors, coefficients, along, count, ahead):
    """Write a row through the caches.

    The coefficients are lanes. The row's last lanes may overlap the lanes before: processors write
    whole vectors faster than parts. They are computed first, since dx may overwrite dy or x.
    ``ahead`` is how many elements later lies what may be prefetched.
    """
    lanes = lanes_of(tensors[2])
    if count < lanes:
        write_segment(operation, tensors, as_int64(0), coefficients, along, count, False)
        return
    last = compute_segment(operation, tensors, count - lanes, coefficients, along, None)
    for k in range(0, count - lanes, lanes):
        prefetch_beside_write(operation, tensors, k, ahead)
        write_segment(operation, tensors, k, coefficients, along, None, False)
    store_segment(tensors[2], count - lanes, last, None, False)


@helper
def stream_row(operation, tensors, coefficients, along, count, ahead):
    """Write a row, its whole cache lines with streaming stores."""
    k = write_head(operation, tensors, coefficients, along, count)
    k = write_lanes(operation, tensors, k, count, coefficients, along, ahead, True)
    if k < count:
        write_segment(operation, tensors, k, coefficients, along, count - k, False)


@helper
def coefficients_of(x, job, channel, group):
    """A channel's coefficients, in lanes."""
    return (
        splat_like(x, get(doubles_at(get(job, B.J_GAIN)), channel)),
        splat_like(x, get(doubles_at(get(job, B.J_SHIFT)), channel)),
        splat_like(x, get(doubles_at(get(job, B.J_MEAN)), group)),
        splat_like(x, get(doubles_at(get(job, B.J_SLOPE)), group)),
        splat_like(x, get(doubles_at(get(job, B.J_SCALE)), group)),
    )


@helper
def parameters_along(x, job):
    """The addresses of weight and bias along the rows."""
    return reals_at(get(job, B.J_WEIGHT), x), reals_at(get(job, B.J_BIAS), x)


@helper
def write_each_row(operation, dy, x, dx, job):
    """Write dx or y of each channel's rows."""
    not_inlined()
    steps, apart = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS)
    rows, run, along = get(job, B.J_ROWS), get(job, B.J_RUN), parameters_along(x, job)
    first, per_group = get(job, B.J_CHANNEL), get(block_of(job), B.PER_GROUP)
    ahead = prefetch_distance(job)
    group, left = first // per_group, per_group - first % per_group
    for c in range(get(job, B.J_CHANNELS)):
        coefficients = coefficients_of(x, job, first + c, group)
        here = advance((dy, x, dx), apart, c)
        for _ in range(rows):
            write_row(operation, here, coefficients, along, run, ahead)
            here = advance(here, steps, 1)
        group, left = next_group(group, left, per_group)


@helper
def write_run(operation, tensors, job, channel, channels, streaming):
    """Write a row of each of some channels, which are adjacent, in whole cache lines.

    Lanes that two channels share are computed with the coefficients of each.
    """
    dy, x, dx = tensors
    run, along, ahead = get(job, B.J_RUN), parameters_along(x, job), prefetch_distance(job)
    per_group = get(block_of(job), B.PER_GROUP)
    group, left = channel // per_group, per_group - channel % per_group
    coefficients = coefficients_of(x, job, channel, group)
    k = write_head(operation, tensors, coefficients, along, run)
    for c in range(1, channels + 1):
        end = c * run
        k = write_lanes(operation, tensors, k, end, coefficients, along, ahead, streaming)
        if c < channels:
            before = coefficients
            group, left = next_group(group, left, per_group)
            coefficients = coefficients_of(x, job, channel + c, group)
            if k < end:
                lanes = merge_segment(
                    dy,
                    compute_segment(operation, tensors, k, before, along, None),
                    compute_segment(operation, tensors, k, coefficients, along, None),
                    end - k,
                )
                store_segment(dx, k, lanes, None, streaming)
                k += lanes_of(dx)
        elif k < end:
            write_segment(operation, tensors, k, coefficients, along, end - k, False)


@by_types
def are_adjacent(operation, dx, job):
    """Whether a row's channels follow each other in memory, and need not be written one by one."""
    if operation.along:
        return lambda operation, dx, job: False

    def adjacent(operation, dx, job):
        run, apart = get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
        return run >= lanes_of(dx) and apart[0] == run and apart[1] == run and apart[2] == run

    return adjacent


@helper
def write_runs(operation, dy, x, dx, job, streaming):
    """Write dx or y of each channel's rows, those of adjacent channels as one run."""
    not_inlined()
    steps, apart = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS)
    first, channels = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS)
    together = channels if are_adjacent(operation, dx, job) else 1
    for c in range(0, channels, together):
        here = advance((dy, x, dx), apart, c)
        for _ in range(get(job, B.J_ROWS)):
            write_run(operation, here, job, first + c, together, streaming)
            here = advance(here, steps, 1)


@helper
def is_aligned(dx):
    """Whether elements are aligned, so that whole cache lines can be written."""
    return address_of(dx) % item_size(dx) == 0


@helper
def is_streamed(dx, job):
    """Whether a job asks for streaming stores, for which elements must be aligned."""
    return get(job, B.J_STREAM) != 0 and is_aligned(dx)


@helper
def are_split(operation, dx, job):
    """Whether each store of a row would span two cache lines, so that rows are written as one run.

    Lanes that two rows share are computed twice, so rows must be long. Half types' stores, of one
    line, gained nothing.
    """
    run, size = get(job, B.J_RUN), item_size(dx)
    return (
        size > 2
        and run >= SPLIT
        and run * size % LINE != 0
        and are_adjacent(operation, dx, job)
        and is_aligned(dx)
    )


@helper
def write_rows(operation, dy, x, dx, job):
    """Write dx or y, with streaming stores if they are asked for."""
    streaming = is_streamed(dx, job)
    if streaming or are_split(operation, dx, job):
        write_runs(operation, dy, x, dx, job, streaming)
    else:
        write_each_row(operation, dy, x, dx, job)


@as_argument
def write_segment_of_columns(arguments, c, segment):
    """Write a segment of some rows of columns."""
    operation, tensors, steps, rows, terms, ahead, streaming = arguments
    coefficients = (
        load_lanes(terms[0], c), load_lanes(terms[1], c), load_lanes(terms[2], c),
        load_lanes(terms[3], c), load_lanes(terms[4], c),
    )  # fmt: skip
    for _ in range(rows):
        prefetch_beside_write(operation, tensors, c, ahead)
        lanes = linear_form(operation, tensors, c, coefficients, segment)
        store_segment(tensors[2], c, lanes, segment, streaming)
        tensors = advance(tensors, steps, 1)


@helper
def write_columns(operation, dy, x, dx, job):
    """Write dx or y, a row of each quarter at a time, whose coefficients are loaded once.

    In a piece they come in memory's order, so that the processor prefetches what is written too.
    """
    _, channels, run, repeat = shape_of(job)
    per, steps = get(block_of(job), B.PER_GROUP), three(job, B.J_ROW_STEPS)
    apart = (repeat * steps[0], repeat * steps[1], repeat * steps[2])
    terms = (
        reals_at(buffer(job, 0), x), reals_at(buffer(job, 1), x), reals_at(buffer(job, 2), x),
        reals_at(buffer(job, 3), x), reals_at(buffer(job, 4), x),
    )  # fmt: skip
    for i in range(coefficient_count(operation)):
        # Each channel has its own gain and shift.
        fill_row(job, B.J_GAIN + i, 1 if i < 2 else per, dy, terms[i])
    count, width = get(job, B.J_ROWS), channels * run * repeat
    ahead = PAGE // item_size(dx) if get(job, B.J_AHEAD) != 0 else prefetch_distance(job)
    streaming = streams_lines(job, dx, width, apart[2])
    rows = count // repeat
    quarter, far = quarters(rows, apart)
    for r in range(quarter):
        here = advance((dy, x, dx), apart, r)
        arguments = operation, here, far, QUARTERS, terms, ahead, streaming
        over_row(write_segment_of_columns, arguments, dx, width)
    # The rows that are left over, and the rest of a row.
    for r in range(QUARTERS * quarter, rows + 1):
        m = smaller(repeat, count - r * repeat)
        here = advance((dy, x, dx), apart, r)
        arguments = operation, here, apart, 1, terms, ahead, streaming
        over_row(write_segment_of_columns, arguments, dx, channels * run * m)
