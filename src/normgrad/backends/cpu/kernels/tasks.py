"""The walk of a task through its part of the tensors, with a call of a kernel for each piece.

A kernel is compiled for each access pattern, operation and dtype, as a C function without threads,
and called through its address. So the machine code, and every bit of the results, is the same
however a program is run. Nothing here depends on a dtype.
"""

from __future__ import annotations

from ....tensors.dtypes import float32, float64
from ..schedule import block as B
from ..schedule.layout import PIECE_BYTES, TILE_CHANNELS, TILE_POSITIONS
from ..vector.helpers import helper
from ..vector.intrinsics import (
    address_of,
    as_int64,
    call,
    doubles_at,
    get,
    int_buffer,
    larger,
    not_inlined,
    put,
    shift,
    singles_at,
    smaller,
)
from .channel_vectors import fill
from .coefficients import copy_along
from .sums import add_copies, carry, clear

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

DOUBLE, SINGLE_SIZE = float64.itemsize, float32.itemsize
#: The size of an array on the stack, which has to be the module's own.
JOB_FIELDS = B.JOB_FIELDS


@helper
def first_offset(block, tensor, s, c, row, k):
    """The offset of a row's element k from a tensor's first, where all outer indices are 0."""
    return (
        s * get(block, B.SET_STRIDES + tensor)
        + c * get(block, B.CHANNEL_STRIDES + tensor)
        + row * get(block, B.ROW_STRIDES + tensor)
        + k * get(block, B.RUN_STRIDES + tensor)
    )


@helper
def elements_at(block, s, c, position, k):
    """The addresses of element k of a row in dy, x and dx."""
    not_inlined()
    row, outer, rank = position, 0, get(block, B.OUTER_RANK)
    if rank > 0:
        outer = position // get(block, B.ROWS)
        row = position - outer * get(block, B.ROWS)
    dy, x, dx = (
        first_offset(block, as_int64(0), s, c, row, k),
        first_offset(block, as_int64(1), s, c, row, k),
        first_offset(block, as_int64(2), s, c, row, k),
    )
    for axis in range(rank - 1, -1, -1):
        size = get(block, B.OUTER_SIZES + axis)
        quotient = outer // size
        index = outer - quotient * size
        strides = shift(block, B.OUTER_STRIDES + axis)
        dy += index * get(strides, 0)
        x += index * get(strides, B.OUTER_MAX)
        dx += index * get(strides, 2 * B.OUTER_MAX)
        outer = quotient
    return (
        get(block, B.DY) + dy * get(block, B.DATA_SIZES + 0),
        get(block, B.X) + x * get(block, B.DATA_SIZES + 1),
        get(block, B.DX) + dx * get(block, B.DATA_SIZES + 2),
    )


@helper
def base_of(block, s, task, b0):
    """The index of a set's channel 0 in the workspace's arrays; ``b0`` is the first in use."""
    own = get(block, B.TASK_CHANNELS)
    return task * own - b0 if own > 0 else s // get(block, B.BANK_SETS) * get(block, B.CHANNELS)


@helper
def start_job(block, job, base, part):
    """Set the fields of a job that are the same for all pieces of a walk."""
    not_inlined()
    workspace = get(block, B.WORKSPACE)
    per_group = get(block, B.PER_GROUP)
    group, channel = base // per_group * DOUBLE, base * DOUBLE
    sums = channel + part * get(block, B.LEVELS) * get(block, B.SUMS_APART) * DOUBLE
    put(job, B.J_MEAN, workspace + get(block, B.W_MEAN) + group)
    put(job, B.J_REST, workspace + get(block, B.W_MEAN + 1) + group)
    put(job, B.J_INVSTD, workspace + get(block, B.W_INVSTD) + group)
    put(job, B.J_SLOPE, workspace + get(block, B.W_SLOPE) + group)
    put(job, B.J_SCALE, workspace + get(block, B.W_SCALE) + group)
    put(job, B.J_GAIN, workspace + get(block, B.W_GAIN) + channel)
    put(job, B.J_SHIFT, workspace + get(block, B.W_SHIFT) + channel)
    for i in range(2):
        put(job, B.J_SUMS + i, workspace + get(block, B.W_SUM_DY + i) + sums)
    put(job, B.J_LEVELS, 0)
    put(job, B.J_BLOCK, address_of(block))
    put(job, B.J_STREAM, get(block, B.STREAM))
    put(job, B.J_AHEAD, get(block, B.AHEAD))
    for tensor in range(3):
        put(job, B.J_ROW_STEPS + tensor, get(block, B.ROW_STRIDES + tensor))
        put(job, B.J_CHANNEL_STEPS + tensor, get(block, B.CHANNEL_STRIDES + tensor))


@helper
def start_piece(block, job, s, c, channels, position, rows, k, run):
    """Set the fields of a job for a piece: its channels, rows and elements."""
    put(job, B.J_CHANNEL, c)
    put(job, B.J_CHANNELS, channels)
    put(job, B.J_ROWS, rows)
    put(job, B.J_RUN, run)
    put(job, B.J_BEFORE, (position - get(job, B.J_BEGIN)) * get(block, B.RUN) + k)
    # A row has several positions only if the piece has all channels.
    put(job, B.J_REPEAT, get(block, B.REPEAT) if channels == get(block, B.CHANNELS) else 1)
    if get(block, B.ALONG) != 0:
        at = position % get(block, B.POSITIONS) * get(block, B.RUN) + k
        put(job, B.J_FIRST, at)
        at += s * get(block, B.OWN_PARAMETERS)
        copy = get(job, B.J_PIECES)
        put_along(block, job, B.J_WEIGHT, B.WEIGHT, get(block, B.ROW_WEIGHT), at, run, copy)
        copy += PIECE_BYTES
        put_along(block, job, B.J_BIAS, B.BIAS, get(block, B.ROW_BIAS), at, run, copy)


@helper
def put_along(block, job, field, slot, address, at, run, copy):
    """Put the address of a piece's weights or biases along the row into a job.

    Long rows' own, if they need conversion, are not copied whole, but to a copy of the thread's.
    """
    size = SINGLE_SIZE if get(block, B.SINGLE) != 0 else DOUBLE
    put(job, field, address + at * size)
    if address == 0 and get(job, B.J_PIECES) != 0:
        put(job, field, copy)
        if get(block, slot) != 0:
            copy_along(block, slot, at, run, 0.0, copy)


@helper
def fill_absent(block, slot, value, copy):
    """Fill a piece's copy with what stands for absent weights or biases."""
    if get(block, slot) == 0:
        if get(block, B.SINGLE) != 0:
            fill(singles_at(copy), get(block, B.RUN), value)
        else:
            fill(doubles_at(copy), get(block, B.RUN), value)


@helper
def start_pieces(block, step, scratch):
    """The address of the copies of what lies along long rows, or 0 if the step reads none."""
    not_inlined()
    copies = get(block, B.ALONG) != 0 and get(block, B.COPIES) == 0
    writes = get(step, B.WRITE_KERNEL) | get(step, B.PARAMETER_KERNEL)
    if not copies or writes | get(step, B.SUMS_USES) & B.USES_DY == 0:
        return 0
    copy = scratch + get(block, B.PIECES_AT)
    fill_absent(block, B.WEIGHT, 1.0, copy)
    if get(block, B.FORWARD) != 0:
        fill_absent(block, B.BIAS, 0.0, copy + PIECE_BYTES)
    return copy


@helper
def copy_tile(block, tensor, address, tile, tile_step, writes, channels, rows, run):
    """Copy a piece of tensor 0 (dy) or 1 (x) to a tile, or a tile to tensor 2 (dx).

    ``tile_step`` is the step of a tile's rows: positions in columns, channels in rows.
    """
    channel_step = get(block, B.CHANNEL_STRIDES + tensor)
    if get(block, B.COLUMNS) != 0:
        sizes = (rows, channels, get(block, B.ROW_STRIDES + tensor), channel_step, tile_step)
    else:
        sizes = (channels, run, channel_step, get(block, B.RUN_STRIDES + tensor), tile_step)
    mover = get(block, B.MOVERS + tensor)
    call(mover, (address, tile, writes, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]))


@helper
def call_on_tile(block, kernel, tiles, whole, s, c, channels, position, rows, k, run):
    """Call a kernel for a piece of the tensors that is no larger than a tile."""
    tile_of_dy = get(whole, B.J_SCRATCH) + get(block, B.TILES_AT)
    tile_of_x = tile_of_dy + get(block, B.TILE)
    # dx may share the tile of a tensor that was copied, since a kernel has read what it overwrites.
    tile_of_dx = tile_of_x if tiles & (B.USES_DY | B.USES_X) == B.USES_X else tile_of_dy
    tile_step = TILE_CHANNELS if get(block, B.COLUMNS) != 0 else TILE_POSITIONS
    addresses, job = int_buffer(3), int_buffer(JOB_FIELDS)
    place = elements_at(block, s, c, position, k)
    put(addresses, 0, place[0])
    put(addresses, 1, place[1])
    put(addresses, 2, place[2])
    for field in range(JOB_FIELDS):
        put(job, field, get(whole, field))
    start_piece(block, job, s, c, channels, position, rows, k, run)
    if tiles & B.USES_DX:
        put(job, B.J_STREAM, 0)
    put(job, B.J_AHEAD, 0)
    put(job, B.J_NEXT, 0)
    for tensor in range(3):
        if tiles >> tensor & 1:
            tile = tile_of_dx if tensor == 2 else tile_of_x if tensor == 1 else tile_of_dy
            if tensor < 2:
                copy_tile(
                    block, tensor, get(addresses, tensor), tile, tile_step, 0, channels, rows, run
                )
            put(addresses, tensor, tile)
            put(job, B.J_ROW_STEPS + tensor, tile_step)
            put(job, B.J_CHANNEL_STEPS + tensor, tile_step)
    call(kernel, (0, get(addresses, 0), get(addresses, 1), get(addresses, 2), job))
    if tiles & B.USES_DX:
        copy_tile(block, as_int64(2), place[2], tile_of_dx, tile_step, 1, channels, rows, run)


@helper
def carry_sums(block, job, c, channels):
    """Carry the sums of some channels after a call of a kernel that has added to them."""
    calls, levels, apart = get(job, B.J_CALLS) + 1, get(job, B.J_LEVELS), get(block, B.SUMS_APART)
    put(job, B.J_CALLS, calls)
    for i in range(2):
        carry(shift(doubles_at(get(job, B.J_SUMS + i)), c), apart, levels, calls, channels)


@helper
def call_in_place(block, kernel, job, s, c, channels, position, rows, k, run):
    """Call a kernel for a piece of the tensors where they are, dy's where its copy may be."""
    start_piece(block, job, s, c, channels, position, rows, k, run)
    dy, x, dx = elements_at(block, s, c, position, k)
    if get(block, B.DY_IN_DX) != 0:
        dy = dx
        put(job, B.J_ROW_STEPS, get(job, B.J_ROW_STEPS + 2))
        put(job, B.J_CHANNEL_STEPS, get(job, B.J_CHANNEL_STEPS + 2))
    call(kernel, (0, dy, x, dx, job))
    carry_sums(block, job, c, channels)


@helper
def copy_to_dx(block, s, c, channels, position, rows, k, run):
    """Copy a piece of dy to dx's memory, some channels at a time."""
    step = get(block, B.ROW_STRIDES + 2 if get(block, B.COLUMNS) != 0 else B.CHANNEL_STRIDES + 2)
    for at in range(0, channels, TILE_CHANNELS):
        dy, _, dx = elements_at(block, s, c + at, position, k)
        copy_tile(
            block, as_int64(0), dy, dx, step, 0, smaller(TILE_CHANNELS, channels - at), rows, run
        )


def in_tiles(block, kernel, uses, job, s, c, channels, position, rows, run):
    """Call a kernel for a piece of the tensors, some of which are copied to tiles first.

    In the pattern rows a tile has some elements of some channels; in columns, some rows of some
    channels. Where dy is copied to dx's memory instead, the kernel is called for all channels; the
    additions are the same.
    """
    tiles = get(block, B.TILES) & uses
    most = TILE_POSITIONS if get(block, B.COLUMNS) != 0 else 1
    for r in range(0, rows, most):
        n, row = smaller(most, rows - r), position + r
        for k in range(0, run, TILE_POSITIONS):
            width = smaller(TILE_POSITIONS, run - k)
            if get(block, B.DY_IN_DX) != 0:
                copy_to_dx(block, s, c, channels, row, n, k, width)
                call_in_place(block, kernel, job, s, c, channels, row, n, k, width)
                continue
            for at in range(0, channels, TILE_CHANNELS):
                n_channels = smaller(TILE_CHANNELS, channels - at)
                call_on_tile(block, kernel, tiles, job, s, c + at, n_channels, row, n, k, width)
            carry_sums(block, job, c, channels)


@helper
def piece(block, kernel, uses, job, s, c, channels, position, rows, k, run):
    """Call a kernel for some rows of some channels, from their element k on.

    Where tensors are copied to tiles, k is 0. Only the sums copy dy to the memory of dx.
    """
    not_inlined()
    is_copied = get(block, B.DY_IN_DX) != 0 and uses & B.USES_DX != 0
    if get(block, B.TILES) & uses and not is_copied:
        tiles = get(block, B.IN_TILES)
        call(tiles, (block, kernel, uses, job, s, c, channels, position, rows, run))
    else:
        call_in_place(block, kernel, job, s, c, channels, position, rows, k, run)


@helper
def walk(block, step, kernel, uses, job, s, c0, c1, first, last):
    """Call a kernel for the positions first to last of some channels, piece by piece."""
    not_inlined()
    of_set = s * get(block, B.POSITIONS) if get(block, B.VECTORS_OUTER) != 0 else 0
    rows_axis, run, last_run = get(block, B.ROWS), get(block, B.RUN), get(block, B.LAST_RUN)
    most, channels = get(step, B.PIECE_ROWS), get(step, B.PIECE_CHANNELS)
    put(job, B.J_BEGIN, of_set + first)
    calls = 0
    while first < last:
        # A piece has rows of one outer index and of one length.
        row = first % rows_axis if get(block, B.OUTER_RANK) > 0 else first
        rows = smaller(most, smaller(rows_axis - row, last - first))
        if last_run != run and row + rows == rows_axis:
            rows = larger(1, rows - 1)
        length = last_run if row + 1 == rows_axis else run
        for c in range(c0, c1, channels):
            n = smaller(channels, c1 - c)
            put(job, B.J_CALLS, calls)
            piece(block, kernel, uses, job, s, c, n, of_set + first, rows, as_int64(0), length)
        first, calls = first + rows, get(job, B.J_CALLS)


@helper
def sum_channels(block, step, job, s, c0, c1, first, last, later):
    """Sum the positions first to last of some channels; add up the levels now, or later."""
    levels, apart = get(block, B.LEVELS), get(block, B.SUMS_APART)
    sums = shift(doubles_at(get(job, B.J_SUMS)), c0), shift(doubles_at(get(job, B.J_SUMS + 1)), c0)
    for level in range(levels):
        clear(shift(sums[0], level * apart), c1 - c0)
        clear(shift(sums[1], level * apart), c1 - c0)
    put(job, B.J_LEVELS, levels)
    kernel, uses = get(step, B.SUMS_KERNEL), get(step, B.SUMS_USES)
    walk(block, step, kernel, uses, job, s, c0, c1, first, last)
    put(job, B.J_LEVELS, 0)
    if not later:
        add_copies(sums[0], apart, levels, c1 - c0)
        add_copies(sums[1], apart, levels, c1 - c0)


@helper
def slot_of(block, slot, s, array):
    """A set's parameter sums in a slot, in one of the arrays of such sums, or of their chains."""
    at = slot * get(block, B.PARAMETERS) + s * get(block, B.OWN_PARAMETERS)
    return doubles_at(get(block, B.WORKSPACE) + get(block, B.W_BIASES + array) + at * DOUBLE)


@helper
def sums_parameters(block):
    """Whether a gradient of the parameters is wanted."""
    return (get(block, B.GRAD_WEIGHT) != 0) | (get(block, B.GRAD_BIAS) != 0)


@helper
def sum_parameters(block, step, job, s, slot, b0, b1, first, last):
    """Add rows that are statistics groups to the parameters' sums; write dx if the step does."""
    kernel, positions = get(step, B.PARAMETER_KERNEL), get(block, B.POSITIONS)
    uses = get(step, B.PARAMETER_USES)
    put(job, B.J_WRITES, uses & B.USES_DX)
    put(job, B.J_ADDS, sums_parameters(block))
    for i in range(2):
        sums = slot_of(block, slot * get(block, B.SLOT_LEVELS), s, i)
        put(job, B.J_SUMS + i, address_of(sums))
        put(job, B.J_CHAINS + i, address_of(slot_of(block, slot, s, 2 + i)))
    if get(block, B.COLUMNS) != 0:
        walk(block, step, kernel, uses, job, s, b0, b1, as_int64(0), positions)
        return
    for position in range(first, last):
        run = get(block, B.LAST_RUN if position + 1 == get(block, B.ROWS) else B.RUN)
        at = s * positions + position
        piece(block, kernel, uses, job, s, b0, b1 - b0, at, as_int64(1), as_int64(0), run)


@helper
def clear_slot(block, slot, s):
    """Set a set's parameter sums in a task's slots, and their chains if there are any, to zero."""
    not_inlined()
    levels, has_chains = get(block, B.SLOT_LEVELS), get(block, B.CHAINS) != 0
    count = get(block, B.POSITIONS) * get(block, B.RUN)
    if get(block, B.COLUMNS) != 0:
        count = get(block, B.PARAMETERS)
    for i in range(2):
        for level in range(levels):
            clear(slot_of(block, slot * levels + level, s, i), count)
        if has_chains:
            clear(slot_of(block, slot, s, 2 + i), count)


@helper
def carry_slot(block, slot, s, terms):
    """Carry a set's parameter sums after so many additions to them."""
    not_inlined()
    levels, count = get(block, B.SLOT_LEVELS), get(block, B.POSITIONS) * get(block, B.RUN)
    for i in range(2):
        sums = slot_of(block, slot * levels, s, i)
        carry(sums, get(block, B.PARAMETERS), levels, terms, count)


@helper
def run_task(block, step, scratch, task):
    """Run one task, with a thread's scratch memory: the step's work on the task's share.

    The share is some sets, a block of channels and a part of the positions.
    """
    not_inlined()
    channels, size = get(step, B.ALL_CHANNELS), get(step, B.CHANNEL_BLOCK)
    parts = get(step, B.PARTS)
    # A part's channels come one after the other, so that threads share all parts alike even if the
    # last channels are fewer, and read in memory's order.
    tasks_of_part = get(step, B.TASKS) // parts
    part = task // tasks_of_part
    in_part = task - part * tasks_of_part
    blocks = (channels + size - 1) // size
    turn = in_part // blocks
    channel_block = in_part - turn * blocks
    c0 = channel_block * size
    c1 = smaller(c0 + size, channels)
    first = part * get(step, B.PART_SIZE)
    last = smaller(first + get(step, B.PART_SIZE), get(block, B.POSITIONS))
    arithmetic, coefficients = get(step, B.ARITHMETIC), get(step, B.COEFFICIENTS)
    before, after, finally_ = get(step, B.BEFORE), get(step, B.AFTER), get(step, B.LAST)
    sums, writes = get(step, B.SUMS_KERNEL), get(step, B.WRITE_KERNEL)
    sums_along, own = get(step, B.PARAMETER_KERNEL) != 0, get(block, B.OWN_PARAMETERS)
    # If all sets share the parameters, they add to the task's slot.
    slot = channel_block if own != 0 else in_part
    job = int_buffer(JOB_FIELDS)
    sets, terms = get(step, B.SETS_PER_TASK), 0
    adds = sums_along and sums_parameters(block) and get(block, B.SLOTS) != 0
    copies = start_pieces(block, step, scratch)
    for s in range(turn * sets, smaller((turn + 1) * sets, get(block, B.SETS))):
        if adds and (own != 0 or s == turn * sets):
            clear_slot(block, slot, s)
            terms = 0
        for b0 in range(c0, c1, get(step, B.AT_ONCE)):
            b1, base = smaller(b0 + get(step, B.AT_ONCE), c1), base_of(block, s, task, b0)
            if before != 0:
                call(arithmetic, (block, before, s, base, b0, b1))
                if before & B.DO_COEFFICIENTS:
                    call(coefficients, (block, s, base, b0, b1))
            start_job(block, job, base, part)
            put(job, B.J_PIECES, copies)
            put(job, B.J_SCRATCH, scratch)
            if sums != 0:
                sum_channels(block, step, job, s, b0, b1, first, last, after == 0)
            if after != 0:
                call(arithmetic, (block, after, s, base, b0, b1))
                if after & B.DO_COEFFICIENTS:
                    call(coefficients, (block, s, base, b0, b1))
            if sums_along:
                sum_parameters(block, step, job, s, slot, b0, b1, first, last)
                if adds:
                    terms += 1
                    carry_slot(block, slot, s, terms)
            if writes != 0:  # last, since dx may overwrite what is summed
                uses = get(step, B.WRITE_USES)
                put(job, B.J_NEXT, b1 - b0 if sums != 0 and get(block, B.NEXT) != 0 else 0)
                walk(block, step, writes, uses, job, s, b0, b1, first, last)
    if finally_ != 0:
        call(arithmetic, (block, finally_, 0, 0, c0, c1))


def run_tasks(block, step, number, first, last):
    """Run some of a step's tasks one after the other, with the scratch memory of this number."""
    scratch = get(block, B.WORKSPACE) + get(block, B.W_SCRATCH) + number * get(block, B.SCRATCH)
    for task in range(first, last):
        run_task(block, step, scratch, task)
