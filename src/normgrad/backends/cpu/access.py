"""How tensors are read: which axis is contiguous in all of them, and how a row is made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from ...layout import Axis
from ...problem import Problem

#: A few tasks, for a few cores.
FEW_PARTS = 4
#: The bytes of dy and x that a task of group norm's columns takes at once: in a core's cache they
#: are read from memory once rather than twice. Channels-last, float32 (32, 64, 56, 56) in 8 groups
#: took 0.69 of the time, bfloat16 (16, 256, 32, 32) 0.76; with 1 or 4 MiB fewer cases gained. Batch
#: norm's channels, cut out of rows that all the batch has, gained nothing. And enough tasks.
SAMPLE, SAMPLE_TASKS = 2 << 20, 16


@dataclass(frozen=True)
class Access:
    """How tensors are read: the pattern, and how a row is made (see block.py).

    ``channel_block``: how many channels a task takes with all their positions; 0 for parts of them.
    """

    pattern: str
    run: int = 1
    repeat: int = 1
    chunk: int = 1
    channel_block: int = 0


#: The longest row of columns, and how many rows are summed before they are folded; columns.py says
#: why.
SPAN, ROWS = 1024, 16
#: Rows of columns whose dx is written together.
DX_ROWS = 4
#: Channels of a tile; a task has whole tiles, since its channels share cache lines.
TILE_CHANNELS = 64
#: The lanes that a kernel's vectors have (see lanes.py); a row's length should be a multiple of it.
LANES = 32
#: Channels shorter than this are read as columns, several to a row, if they follow each other. As
#: rows, training batch norm took (2 cores) float32 (256, 512, 4, 4) 1.4 times as long, (32, 2048,
#: 7, 7) 1.3, (16, 64, 14, 14) 0.95, (8, 64, 16, 16) 0.6.
COLUMN_RUN = 128
#: From so many bytes on, channels shorter than SHORT are: a channel's rows in the images of a batch
#: are so far apart that processors do not foresee them. elemt on bfloat16 (32, 1024, 14, 14) took
#: 2.5 times as long as rows. It is the same on every machine, since sums follow from it.
FAR_APART = 8 << 20
#: Other rows shorter than this are taken several at a time, for the start of a loop to pay.
SHORT = 512
#: Rows shorter than this are not written past the caches: their ends are parts of lines.
STREAMED_ROW = 128


def _aligned(unit: int, most: int) -> int:
    """How many units to a row: as many as fit the span, of a length that suits the lanes."""
    fit = min(SPAN // unit, most)
    for lanes in (LANES, LANES // 4):
        step = lanes // gcd(unit, lanes)
        if step <= fit:
            return fit // step * step
    return fit


def read_bytes(problem: Problem) -> int:
    """What is read of dy and x, for each element."""
    if problem.forward:
        return problem.input.itemsize
    return problem.grad_out.itemsize + problem.input.itemsize


def bytes_of(problem: Problem) -> int:
    """What is read and written."""
    itemsize = read_bytes(problem)
    if problem.result is not None:
        itemsize += problem.result.itemsize
    return problem.sets.size * problem.channel.size * problem.positions * itemsize


def _channels_at_once(problem: Problem) -> int:
    """How many channels of columns a task takes with all their positions; 0 where it takes parts.

    Whole groups of one sample, and whole cache lines.
    """
    sets, channels = problem.sets.size, problem.channel.size
    itemsize = read_bytes(problem)
    step = problem.per_group * LANES // gcd(problem.per_group, LANES)
    most = SAMPLE // max(1, problem.positions * itemsize) // step * step
    shared_out = -(-channels * sets // SAMPLE_TASKS)
    block = min(most, -(-max(shared_out, 2 * LANES) // step) * step, channels)
    tasks = sets * -(-channels // max(1, block))
    return block if sets > 1 and block > 0 and tasks >= FEW_PARTS else 0


def access_of(problem: Problem) -> tuple[Access, Problem]:
    """Which axis is contiguous in every tensor that is used, and how to go along it.

    Also the problem in the axes that this way wants: columns of short channels go along the next
    axis out, and take the one within the channel into the row.
    """
    used = (0, 1, 2) if problem.result is not None else (0, 1)
    data = {problem.grad_out, problem.input, problem.result or problem.input}
    channel, inner = problem.channel, problem.inner

    def all_strides(axis: Axis, stride: int) -> bool:
        return all(axis.strides[i] == stride for i in used)

    tiles = Access("tiles", chunk=min(channel.size, TILE_CHANNELS))
    if len(data) > 1:
        return tiles, problem
    if all_strides(inner, 1) and inner.size > 1:
        longest = COLUMN_RUN if bytes_of(problem) < FAR_APART else SHORT
        if inner.size < longest and all_strides(channel, inner.size) and problem.outer:
            chunk = _aligned(inner.size, problem.channel.size)
            *outer, rows = problem.outer
            access = Access("columns", run=inner.size, chunk=chunk)
            return access, replace(problem, outer=tuple(outer), inner=rows)
        if inner.size < SHORT and problem.outer:
            *outer, rows = problem.outer
            return Access("rows", run=inner.size), replace(problem, outer=tuple(outer), inner=rows)
        return Access("rows"), problem
    if all_strides(channel, 1) or channel.size == 1:
        block = _channels_at_once(problem)
        repeat, chunk = 1, min(block or channel.size, SPAN)
        if (
            0 < channel.size * 2 <= SPAN
            and all_strides(inner, channel.size)
            and block in (0, channel.size)
        ):
            repeat = max(1, _aligned(channel.size, inner.size))
        return Access("columns", repeat=repeat, chunk=chunk, channel_block=block), problem
    return tiles, problem


def streams(problem: Problem, access: Access, large: bool) -> bool:
    """Whether dx is written past the caches: where it would not stay in them anyway.

    A store through the caches reads the line first. Past them, training batch norm took (2 cores,
    480 MiB of L3 shared with other machines): float32 (32, 64, 56, 56) 0.60 of the time, (32, 64,
    112, 112) 0.86; bfloat16 (32, 64, 56, 56) 0.91. Where everything is 25 to 7 MB, and other work
    is done between the calls: float32 (256, 512, 4, 4) 0.77, (8, 3, 224, 224) 0.73; bfloat16 0.82
    and 0.85, but 1.09 in a loop that does nothing else.
    """
    row = access.run if access.run > 1 else problem.inner.size
    if access.pattern == "rows" and row < STREAMED_ROW:
        return False
    return problem.result is not None and large


#: How much of a channel's next row is asked for: more would not stay in the nearest cache.
FETCHED = 1024


def fetches_ahead(access: Access, large: bool) -> bool:
    """Whether sums ask for the next rows ahead of time.

    Of rows it is a channel's next one, in another image. With it, batch_norm_stats took (1 core,
    another machine) float32 (32, 512, 28, 28) 0.56 of the time, (32, 256, 24, 24) 0.63, bfloat16
    0.81 and 1.05; training's gradients float32 0.87 and 0.78, bfloat16 0.96 and 0.81; longer rows
    1.0.

    Of columns it is several rows: sixteen of two tensors at once are more streams than a processor
    foresees by itself. With it, training batch norm took (2 cores, channels-last) bfloat16 (32, 64,
    112, 112) 0.47 of the time, float32 (32, 512, 28, 28) 0.79, bfloat16 (32, 64, 56, 56), 38 MB in
    all, 1.0. Rows of channels that go along the batch are far apart, and asking for them took
    longer: float32 (32, 1024, 14, 14) 1.3 of the time.
    """
    return large and access.run == 1 and access.pattern != "tiles"
