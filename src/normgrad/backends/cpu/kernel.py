"""The kernels: what is done with one tile; and the driver that runs a program's steps.

A kernel is compiled for each access pattern, operation and dtype, as a C function without threads
in it. The driver calls it through its address, from as many threads as there are.
So the machine code, and with it every bit of the results, is the same however a program is run.
"""

from __future__ import annotations

from typing import Any

from numba import prange, types

from ... import pages
from .access import FETCHED, LANES
from .block import (
    ADDRESSES,
    AFTER,
    AHEAD,
    BEFORE,
    BLOCK_FIELDS,
    CHANNEL_BLOCK,
    CHANNEL_KERNEL,
    CHANNEL_STRIDES,
    CHANNELS,
    DO_MOMENTS,
    DO_SUMS,
    DX_KERNEL,
    FLAGS,
    GUARD_FLAGS,
    GUARD_HIGH,
    GUARD_LOW,
    GUARD_MADVISE,
    GUARD_MSYNC,
    GUARD_PAGE,
    GUARD_SLOT,
    HAS_BYTES,
    INNER,
    INNER_STRIDES,
    MAY_BE,
    OUTER_MAX,
    OUTER_RANK,
    OUTER_SIZES,
    OUTER_STRIDES,
    PARALLEL,
    PART_SIZE,
    PARTS,
    PLACES,
    POSITIONS,
    SET_STRIDES,
    SETS,
    STEP_FIELDS,
    SUMS_KERNEL,
    TASKS,
    TEAM,
    TEAM_BLOCK,
    TEAM_FIELDS,
    TEAM_STEP,
    THREAD_COUNT,
    THREAD_NUMBER,
    THREADS,
    W_GAIN,
    W_MEAN,
    W_SCALE,
    W_SHIFT,
    W_SLOPE,
    W_SUM_DY,
    W_SUM_DY_ERROR,
    W_SUM_DY_XMU,
    W_SUM_DY_XMU_ERROR,
    WORKSPACE,
    WRITES,
)  # fmt: skip
from .calls import call_channels, call_kernel, call_memory, call_number, call_parallel
from .intrinsics import (
    INT_POINTER,
    POINTERS,
    address_of,
    doubles_at,
    get,
    helper,
    int_buffer,
    integers_at,
    like,
    not_inlined,
    plain,
    put,
    real_of,
    shift,
)  # fmt: skip
from .lanes import prefetch_lanes
from .patterns import PATTERNS, SUMMING, add_segment, write_segment
from .sums import clear

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def offset_of(block, tensor, s, c, outer, inner):
    """The element offset of a segment's start in tensor 0 (dy), 1 (x) or 2 (dx)."""
    offset = (
        s * get(block, SET_STRIDES + tensor)
        + c * get(block, CHANNEL_STRIDES + tensor)
        + inner * get(block, INNER_STRIDES + tensor)
    )
    for axis in range(get(block, OUTER_RANK) - 1, -1, -1):
        size = get(block, OUTER_SIZES + axis)
        quotient = outer // size
        step = get(block, OUTER_STRIDES + OUTER_MAX * tensor + axis)
        offset += (outer - quotient * size) * step
        outer = quotient
    return offset


@helper
def fetch_ahead(dy, x, block, s, c, outer, count):
    """Ask for the beginning of a segment, a row in another image that no processor foresees."""
    dy_at = offset_of(block, plain(0), s, c, outer, plain(0))
    x_at = offset_of(block, plain(1), s, c, outer, plain(0))
    for i in range(0, min(count, FETCHED), LANES):
        prefetch_lanes(dy, dy_at + i)
        prefetch_lanes(x, x_at + i)


def add_sums(pattern, dy, x, dx, block, s, c0, channels, first, last, part):
    """The sums (or the moments of x) of one tile, from zero, front to back."""
    workspace = get(block, WORKSPACE)
    base = s * get(block, CHANNELS) + c0
    slot = part * get(block, SETS) * get(block, CHANNELS) + base
    real = real_of(dy, x)
    mean = shift(like(workspace + get(block, W_MEAN), real), base)
    sums = (
        shift(doubles_at(workspace + get(block, W_SUM_DY)), slot),
        shift(like(workspace + get(block, W_SUM_DY_ERROR), real), slot),
        shift(doubles_at(workspace + get(block, W_SUM_DY_XMU)), slot),
        shift(like(workspace + get(block, W_SUM_DY_XMU_ERROR), real), slot),
    )
    for c in range(channels):
        clear(sums[0], sums[1], c)
        clear(sums[2], sums[3], c)
    inner = get(block, INNER)
    ahead = get(block, AHEAD) != 0
    position = first
    while position < last:
        a = position // inner
        b = position - a * inner
        count = min(inner - b, last - position)
        dy_at = offset_of(block, plain(0), s, c0, a, b)
        x_at = offset_of(block, plain(1), s, c0, a, b)
        position += count
        if ahead and position < last:
            fetch_ahead(dy, x, block, s, c0, a + 1, min(inner, last - position))
        add_segment(pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums)


def write_dx(pattern, dy, x, dx, block, s, c0, channels, first, last, part):
    """dx of one tile, back to front: what was summed last is still in cache."""
    workspace = get(block, WORKSPACE)
    base = s * get(block, CHANNELS) + c0
    real = real_of(dy, x)
    mean = shift(like(workspace + get(block, W_MEAN), real), base)
    terms = (
        shift(like(workspace + get(block, W_GAIN), real), base),
        shift(like(workspace + get(block, W_SHIFT), real), base),
        shift(like(workspace + get(block, W_SLOPE), real), base),
        shift(like(workspace + get(block, W_SCALE), real), base),
    )
    inner = get(block, INNER)
    end = last
    while end > first:
        a = (end - 1) // inner
        start = max(a * inner, first)
        b = start - a * inner
        dy_at = offset_of(block, plain(0), s, c0, a, b)
        x_at = offset_of(block, plain(1), s, c0, a, b)
        dx_at = offset_of(block, plain(2), s, c0, a, b)
        write_segment(
            pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, end - start, mean, terms
        )
        end = start


def kernel_of(operation: str) -> Any:
    """What is compiled for an operation."""
    return add_sums if operation in SUMMING else write_dx


#: The type of a call's addresses.
ADDRESSES_TYPE = types.UniTuple(types.int64, PLACES)


def signature(pattern: str, operation: str, code: int) -> Any:
    """A kernel's type for an access pattern, an operation and the data's dtype code.

    For "tiles" that is the arithmetic's: only the type of the tiles.
    """
    data = [POINTERS[code]] * 3
    return types.void(PATTERNS[pattern, operation], *data, INT_POINTER, *[types.int64] * 6)


@helper
def run_task(block, step, task):
    """One task: the parts of the work that the step's flags name, on the task's tile."""
    not_inlined()
    flags = get(step, FLAGS)
    channels = get(block, CHANNELS)
    size = get(step, CHANNEL_BLOCK)
    parts = get(step, PARTS)
    tile = task // parts
    part = task - tile * parts
    blocks = (channels + size - 1) // size
    s = tile // blocks
    c0 = (tile - s * blocks) * size
    c1 = min(c0 + size, channels)
    first = part * get(step, PART_SIZE)
    last = min(first + get(step, PART_SIZE), get(block, POSITIONS))

    channel_kernel = get(step, CHANNEL_KERNEL)
    if flags & BEFORE:
        call_channels(channel_kernel, block, flags & BEFORE, s, c0, c1)
    if flags & (DO_SUMS | DO_MOMENTS):
        call_kernel(get(step, SUMS_KERNEL), block, s, c0, c1 - c0, first, last, part)
    if flags & AFTER:
        call_channels(channel_kernel, block, flags & AFTER, s, c0, c1)
    if flags & WRITES:
        call_kernel(get(step, DX_KERNEL), block, s, c0, c1 - c0, first, last, part)


def team(words):
    """What each of OpenMP's threads does: its share of a step's tasks, one after the other."""
    told = integers_at(words)
    me = call_number(get(told, THREAD_NUMBER))
    threads = call_number(get(told, THREAD_COUNT))
    step = integers_at(get(told, TEAM_STEP))
    tasks = get(step, TASKS)
    for task in range(me * tasks // threads, (me + 1) * tasks // threads):
        run_task(integers_at(get(told, TEAM_BLOCK)), step, task)


@helper
def row_of(guards, slot):
    """A tensor's row of the guard's table."""
    return shift(guards, GUARD_SLOT * slot)


@helper
def can_be_written(guards, first, last):
    """Whether the pages from one to another can be, as far as the probes of pages.py tell."""
    madvise, page = get(guards, GUARD_MADVISE), get(guards, GUARD_PAGE)
    size = last + page - first
    if madvise == 0:
        return True
    if size <= pages.FEW * page:
        return call_memory(madvise, first, size, pages.POPULATE_WRITE) == 0
    return (
        call_memory(madvise, first, page, pages.POPULATE_WRITE) == 0
        and call_memory(madvise, last, page, pages.POPULATE_WRITE) == 0
        and call_memory(get(guards, GUARD_MSYNC), first, size, pages.MS_ASYNC) == 0
    )


@helper
def is_apart(guards, addresses, slot):
    """Whether an output shares no byte with any other tensor."""
    address = get(addresses, slot)
    low = address + get(row_of(guards, slot), GUARD_LOW)
    high = address + get(row_of(guards, slot), GUARD_HIGH)
    for other in range(PLACES):
        flags = get(row_of(guards, other), GUARD_FLAGS)
        elsewhere = get(addresses, other)
        if (
            other != slot
            and flags & HAS_BYTES
            and low < elsewhere + get(row_of(guards, other), GUARD_HIGH)
            and elsewhere + get(row_of(guards, other), GUARD_LOW) < high
            and not (flags >> (MAY_BE + slot) & 1 and address == elsewhere)
        ):
            return False
    return True


@helper
def passes(guards, given, addresses):
    """Whether nothing is wrong with a call's memory; ``given`` has a bit for each output."""
    page = get(guards, GUARD_PAGE)
    seen = -1
    for slot in range(PLACES):
        if get(row_of(guards, slot), GUARD_FLAGS) & HAS_BYTES == 0:
            continue
        address = get(addresses, slot)
        if address == 0:
            return False
        if given >> slot & 1:
            if not is_apart(guards, addresses, slot):
                return False
            # Short outputs, one after the other, often share a page.
            first = (address + get(row_of(guards, slot), GUARD_LOW)) // page * page
            last = (address + get(row_of(guards, slot), GUARD_HIGH) - 1) // page * page
            if (first != seen or last != seen) and not can_be_written(guards, first, last):
                return False
            seen = last
    return True


def drive(template, steps, step_count, openmp, threads, guards, given, places):
    """Run a program: copy its block, fill in the addresses, and call its steps one by one.

    ``openmp`` is the address of a team's functions, whose threads then share the tasks, or 0.
    0 if that was done; 1 if the alias check found something wrong first.
    """
    addresses = int_buffer(PLACES)
    for slot in range(PLACES):
        put(addresses, slot, places[slot])
    if given >= 0 and not passes(integers_at(guards), given, addresses):
        return 1
    block = int_buffer(BLOCK_FIELDS)
    source = integers_at(template)
    for slot in range(ADDRESSES):
        put(block, slot, get(addresses, slot))
    for word in range(ADDRESSES, BLOCK_FIELDS):
        put(block, word, get(source, word))
    here = address_of(block)
    for index in range(step_count):
        step = steps + 8 * STEP_FIELDS * index
        tasks = get(integers_at(step), TASKS)
        if get(integers_at(step), THREADS) != 0 and openmp != 0:
            told = int_buffer(TEAM_FIELDS)
            for word in range(TEAM_BLOCK):
                put(told, word, get(integers_at(openmp), word))
            put(told, TEAM_BLOCK, here)
            put(told, TEAM_STEP, step)
            call_parallel(get(told, PARALLEL), get(told, TEAM), address_of(told), threads)
        elif get(integers_at(step), THREADS) == 0:
            for task in range(tasks):
                run_task(integers_at(here), integers_at(step), task)
        else:
            for task in prange(tasks):
                run_task(integers_at(here), integers_at(step), task)
    return 0
