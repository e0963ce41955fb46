"""Kernels that write rows of dx or y, of each channel or of adjacent channels as one run.

A run is written in whole cache lines, as stores that bypass the caches must be. While these wait
for the memory, elements that are read next are prefetched.
"""

from __future__ import annotations

from numba import types

from ...memory import LINE
from . import block as B
from .elements import coefficients_at, fetched, further, written
from .helpers import by_types, helper
from .intrinsics import (
    address_of,
    doubles_at,
    get,
    item_size,
    not_inlined,
    plain,
    reals_at,
    smaller,
)
from .lanes import LANES, splat_like
from .parts import merge_part, store_part
from .rows import three, to_next_task
from .vectors import next_group

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The least elements of rows that are written as one run though no stores bypass the caches.
SPLIT = 2 * LANES


@helper
def compute_part(operation, tensors, k, coefficients, along, part):
    """Compute a part of a row of dx or y."""
    here = coefficients_at(operation, tensors[0], coefficients, along[0], along[1], k, part)
    return written(operation, tensors, k, here, part)


@helper
def write_part(operation, tensors, k, coefficients, along, part, streaming):
    """Compute and write a part of a row of dx or y."""
    found = compute_part(operation, tensors, k, coefficients, along, part)
    store_part(tensors[2], k, found, part, streaming)


@helper
def write_head(operation, tensors, coefficients, along, count):
    """Write what comes before a row's first whole cache line; returns the number of elements."""
    size = item_size(tensors[2])
    head = smaller(-(address_of(tensors[2]) // size) % (LINE // size), count)
    if head > 0:
        write_part(operation, tensors, plain(0), coefficients, along, head, False)
    return head


@helper
def write_lanes(operation, tensors, k, end, coefficients, along, ahead, streaming):
    """Write whole lanes from element k on; returns where they end."""
    while k + LANES <= end:
        fetched(operation, tensors, k, ahead)
        write_part(operation, tensors, k, coefficients, along, None, streaming)
        k += LANES
    return k


@by_types
def write_row(operation, tensors, coefficients, along, count, ahead, past_caches):
    """Write a row; unless ``past_caches`` is None, its whole cache lines with streaming stores.

    The coefficients are lanes. The row's last lanes may overlap the lanes before: processors write
    whole vectors faster than parts. They are computed first, since dx may overwrite dy or x.
    ``ahead`` is how many elements later lies what may be prefetched.
    """

    def write(operation, tensors, coefficients, along, count, ahead, past_caches):
        if count < LANES:
            write_part(operation, tensors, plain(0), coefficients, along, count, False)
            return
        last = compute_part(operation, tensors, count - LANES, coefficients, along, None)
        for k in range(0, count - LANES, LANES):
            fetched(operation, tensors, k, ahead)
            write_part(operation, tensors, k, coefficients, along, None, False)
        store_part(tensors[2], count - LANES, last, None, False)

    def stream(operation, tensors, coefficients, along, count, ahead, past_caches):
        k = write_head(operation, tensors, coefficients, along, count)
        k = write_lanes(operation, tensors, k, count, coefficients, along, ahead, True)
        if k < count:
            write_part(operation, tensors, k, coefficients, along, count - k, False)

    return write if isinstance(past_caches, types.NoneType) else stream


@helper
def coefficients_of(dy, x, job, channel, group):
    """A channel's coefficients, in lanes."""
    return (
        splat_like(dy, x, get(doubles_at(get(job, B.J_GAIN)), channel)),
        splat_like(dy, x, get(doubles_at(get(job, B.J_SHIFT)), channel)),
        splat_like(dy, x, get(doubles_at(get(job, B.J_MEAN)), group)),
        splat_like(dy, x, get(doubles_at(get(job, B.J_SLOPE)), group)),
        splat_like(dy, x, get(doubles_at(get(job, B.J_SCALE)), group)),
    )


@helper
def parameters_along(dy, x, job):
    """The addresses of weight and bias along the rows."""
    return reals_at(get(job, B.J_WEIGHT), dy, x), reals_at(get(job, B.J_BIAS), dy, x)


@helper
def write_rows(operation, dy, x, dx, job):
    """Write dx or y of each channel's rows."""
    not_inlined()
    steps, apart = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS)
    rows, run, along = get(job, B.J_ROWS), get(job, B.J_RUN), parameters_along(dy, x, job)
    first, per_group, ahead = get(job, B.J_CHANNEL), get(job, B.J_PER_GROUP), to_next_task(job)
    group, left = first // per_group, per_group - first % per_group
    for c in range(get(job, B.J_CHANNELS)):
        coefficients = coefficients_of(dy, x, job, first + c, group)
        here = further((dy, x, dx), apart, c)
        for _ in range(rows):
            write_row(operation, here, coefficients, along, run, ahead, None)
            here = further(here, steps, 1)
        group, left = next_group(group, left, per_group)


@helper
def write_run(operation, tensors, job, channel, channels, streaming):
    """Write a row of each of some channels, which are adjacent, in whole cache lines.

    Lanes that two channels share are computed with the coefficients of each.
    """
    dy, x, dx = tensors
    run, along, ahead = get(job, B.J_RUN), parameters_along(dy, x, job), to_next_task(job)
    per_group = get(job, B.J_PER_GROUP)
    group, left = channel // per_group, per_group - channel % per_group
    coefficients = coefficients_of(dy, x, job, channel, group)
    k = write_head(operation, tensors, coefficients, along, run)
    for c in range(1, channels + 1):
        end = c * run
        k = write_lanes(operation, tensors, k, end, coefficients, along, ahead, streaming)
        if c < channels:
            before = coefficients
            group, left = next_group(group, left, per_group)
            coefficients = coefficients_of(dy, x, job, channel + c, group)
            if k < end:
                found = merge_part(
                    dy,
                    compute_part(operation, tensors, k, before, along, None),
                    compute_part(operation, tensors, k, coefficients, along, None),
                    end - k,
                )
                store_part(dx, k, found, None, streaming)
                k += LANES
        elif k < end:
            write_part(operation, tensors, k, coefficients, along, end - k, False)


@by_types
def are_adjacent(operation, job):
    """Whether a row's channels follow each other in memory, and need not be written one by one."""
    if operation.along:
        return lambda operation, job: False

    def adjacent(operation, job):
        run, apart = get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
        return run >= LANES and apart[0] == run and apart[1] == run and apart[2] == run

    return adjacent


@helper
def write_runs(operation, dy, x, dx, job, streaming):
    """Write dx or y of each channel's rows, those of adjacent channels as one run."""
    not_inlined()
    steps, apart = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS)
    first, channels = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS)
    together = channels if are_adjacent(operation, job) else 1
    for c in range(0, channels, together):
        here = further((dy, x, dx), apart, c)
        for _ in range(get(job, B.J_ROWS)):
            write_run(operation, here, job, first + c, together, streaming)
            here = further(here, steps, 1)


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
        size * LANES > LINE
        and run >= SPLIT
        and run * size % LINE != 0
        and are_adjacent(operation, job)
        and is_aligned(dx)
    )


@helper
def write(operation, dy, x, dx, job):
    """Write dx or y, with streaming stores if they are asked for."""
    streaming = is_streamed(dx, job)
    if streaming or are_split(operation, dx, job):
        write_runs(operation, dy, x, dx, job, streaming)
    else:
        write_rows(operation, dy, x, dx, job)
