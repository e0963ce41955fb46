"""The cuts of a schedule's steps: how their work is divided into tasks and pieces.

How a channel's sums are cut into parts depends on the shape alone, never on the number of threads:
the cut decides the order of additions, and so the last bit of the result.
"""

from __future__ import annotations

from typing import NamedTuple

from ....declarations.problem import Problem
from ....support.memory import LINE
from ....tensors import dtypes
from ....tensors.strides import ceil_div, round_up
from ....tensors.symbolic import gcd
from .layout import (
    DOUBLE_LANES,
    LANES,
    LONGEST_DOUBLE,
    PAGE,
    RADIX,
    ROWS,
    SHORT,
    TILE_CHANNELS,
    TILE_POSITIONS,
    Layout,
    read_bytes,
    rows_in_l1,
    waits,
)

#: How many times as long an element takes in float64, and one that is copied to tiles first.
COST_OF_DOUBLE, COST_OF_TILES = 2, 4
#: The most rows of columns that a kernel adds up in one sum of float64: 16 chains of 32 rows.
MOST_ROWS_OF_DOUBLE = 1 << 9


class Cut(NamedTuple):
    """How work is cut into tasks, and a task into the pieces that a kernel takes.

    Attributes:
        sets: the number of sets.
        sets_per_task, all_channels, channel_block, at_once, parts, part_size, piece_channels,
            piece_rows: see the fields of a step in block.py.
        parallel: whether several threads save time.
    """

    sets: int
    sets_per_task: int
    all_channels: int
    channel_block: int
    at_once: int
    parts: int = 1
    part_size: int = 1
    piece_channels: int = 1
    piece_rows: int = 1
    parallel: bool = True

    @property
    def turns(self) -> int:
        """The number of tasks along the sets."""
        return ceil_div(self.sets, self.sets_per_task) if self.sets_per_task else 1

    @property
    def blocks(self) -> int:
        """The number of tasks along the channels."""
        return ceil_div(self.all_channels, self.channel_block)

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return self.turns * self.blocks * self.parts

    @property
    def copies(self) -> int:
        """The number of sums of each channel: one for each part or set."""
        return max(self.parts, self.sets, self.blocks)


def cut_of(layout: Layout) -> Cut | None:
    """Choose how a problem's tensors are cut into tasks; None if they are not read."""
    problem = layout.problem
    has_outputs = problem.result is not None or problem.wants_parameters
    if problem.is_empty or problem.gathers or not has_outputs:
        return None
    sets, channels, positions = layout.sets.size, layout.channel.size, layout.positions
    whole = Cut(
        sets=sets,
        sets_per_task=sets,
        all_channels=channels,
        channel_block=channels,
        at_once=channels,
        part_size=positions,
        piece_channels=min(layout.chunk, channels) if layout.columns else channels,
        piece_rows=min(_rows_of_piece(layout), _rows_of_sum(layout)),
        parallel=cost_of(layout) >= layout.policy.shared,
    )
    if layout.in_pieces:
        return _of_pieces(layout, whole)
    if layout.along and not layout.columns:
        return _of_groups(layout, whole)
    if is_small(layout):
        return whole
    if layout.along:  # a task has sums of the parameters, so that short samples share one
        tasks = min(layout.policy.tasks, layout.elements // layout.policy.small)
        return whole._replace(sets_per_task=ceil_div(sets, tasks))
    # Columns of many channels and few positions are cut by channels.
    few_rows = positions < layout.policy.rows_of_part and _are_many(layout, channels)
    if layout.columns and layout.run == 1 and not few_rows:
        return _of_samples(layout, whole) or _of_positions(layout, whole)
    return _of_channels(layout, whole)


def calls_of_part(layout: Layout, cut: Cut) -> int:
    """The most calls of a kernel that add to a part's sums of a channel, one after the other."""
    rows, most = layout.rows.size, min(cut.part_size, layout.positions)
    # A piece has rows of one outer index, of which the first and the last may have a few.
    outer = 1 if rows >= layout.positions else ceil_div(most, rows) + 1
    pieces = outer * (ceil_div(min(rows, most), cut.piece_rows) + 1)
    if not any(layout.tiles):
        return pieces
    if layout.columns:
        return pieces * ceil_div(cut.piece_rows, TILE_POSITIONS)
    return pieces * cut.piece_rows * ceil_div(layout.run, TILE_POSITIONS)


def levels_of(problem: Problem, terms: int) -> int:
    """The levels of a sum in the workspace (see sums.py)."""
    levels = 1
    while problem.arithmetic is dtypes.float64 and terms >= RADIX**levels:
        levels += 1
    return levels


def is_small(layout: Layout) -> bool:
    """Whether the tensors are too small to be cut into tasks."""
    return layout.elements < layout.policy.small


def cost_of(layout: Layout) -> int:
    """About how long all elements take, in elements of float32 that are read in place."""
    cost = COST_OF_DOUBLE if layout.problem.arithmetic is dtypes.float64 else 1
    return layout.elements * cost * (COST_OF_TILES if any(layout.tiles) else 1)


def _rows_of_piece(layout: Layout) -> int:
    """How many rows of a channel are read before the next channel's rows in the same images.

    A channel's rows within an image are nearer in memory than the next channel's, so they are read
    together. If no sums are needed, rows of whole cache lines are written one by one, in the order
    of memory.
    """
    rows, problem, size = layout.rows, layout.problem, layout.run * layout.dtype.itemsize
    policy = layout.policy
    if not (layout.columns or problem.needs_sums) and layout.run >= SHORT and size % LINE == 0:
        return 1
    waiting, near = waits(problem), layout.bytes < 4 * policy.in_cache
    if layout.columns or (waiting and near):
        return layout.positions
    if _lie_in_images(layout):
        return layout.positions
    steps = [
        dtype.itemsize * step
        for dtype, step in zip(layout.data, rows.strides, strict=True)
        if step > 0
    ]
    most = [layout.positions, *(rows_in_l1(step) // len(steps) for step in steps)]
    # A forward pass reads rows that compete for the same places in the L1 cache a few at a time.
    large = problem.forward and layout.bytes >= 16 * policy.in_cache
    competing = large and min(most) < layout.positions
    if waiting and layout.run >= SHORT and not competing:
        return layout.positions
    if waiting:
        most.append(2 * policy.rows_in_order)
    elif not near:
        most += [policy.rows_in_order, policy.part // (2 * layout.run)]
    return max(1, min(most))


def _rows_of_sum(layout: Layout) -> int:
    """The most rows of a channel that a kernel adds up in one sum."""
    if layout.problem.arithmetic is dtypes.float64 and layout.problem.needs_sums:
        if layout.columns:
            return MOST_ROWS_OF_DOUBLE * layout.repeat
        # A row takes whole pairs of vectors.
        return max(1, LONGEST_DOUBLE // round_up(layout.run, 2 * DOUBLE_LANES))
    return layout.positions


def _lie_in_images(layout: Layout) -> bool:
    """Whether a channel's rows are nearer to each other in memory than to the next channel's."""
    steps = zip(layout.rows.strides, layout.channel.strides, strict=True)
    return all(abs(row) <= abs(step) for row, step in steps)


def _unit(layout: Layout) -> int:
    """The least number of channels that form whole groups and whole rows of columns or tiles."""
    problem, unit = layout.problem, 1
    if layout.columns:
        unit = layout.chunk if layout.run > 1 else layout.lanes
    elif any(layout.tiles):
        unit = min(TILE_CHANNELS, layout.channel.size)
    return problem.per_group * unit // gcd(unit, problem.per_group)


def _of_groups(layout: Layout, whole: Cut) -> Cut:
    """The cut of rows that are statistics groups: a task has many rows and one slot of sums."""
    sets, rows = whole.sets, whole.all_channels
    size = layout.run * read_bytes(layout.problem)
    problem, policy = layout.problem, layout.policy
    most = policy.in_cache // (2 * size)
    sums_parameters = problem.wants_parameters and not problem.forward
    # Parameters' sums, in float64, are read and written once for so many rows.
    least = ROWS // 2 if sums_parameters else 1
    at_once = min(2 * ROWS, rows, max(least, most))
    if walks_once(layout):
        # A walk down rows that are transposed clears and adds up tiles, however long it is.
        times = 8 if layout.run < LANES else 1
        at_once = min(times * policy.rows if layout.run <= SHORT else 2 * ROWS, rows)
    elif walks_forward(layout):
        at_once = min(policy.rows, rows, max(1, most))
    if is_small(layout):
        return whole._replace(at_once=at_once, piece_rows=1)
    # If sets share their parameters, all sets of a task add to the task's slot.
    tasks = policy.most_tasks(layout.elements)
    turn = ceil_div(sets, tasks) if problem.by_row else 1
    most_blocks = max(ceil_div(rows, policy.rows), min(policy.enough_tasks, ceil_div(rows, ROWS)))
    blocks = min(ceil_div(tasks, ceil_div(sets, turn)), most_blocks)
    block = round_up(ceil_div(rows, blocks), at_once)
    cut = whole._replace(sets_per_task=turn, channel_block=block, at_once=at_once)
    return cut._replace(piece_channels=at_once, piece_rows=1)


def _in_parts(layout: Layout, cut: Cut) -> Cut:
    """Cut the pieces of long rows into parts, as many as make enough tasks."""
    tasks = layout.policy.most_tasks(layout.elements)
    size = ceil_div(layout.positions, ceil_div(tasks, cut.blocks))
    parts = ceil_div(layout.positions, size)
    return cut._replace(parts=parts, part_size=size, piece_channels=cut.at_once, piece_rows=1)


def _of_pieces(layout: Layout, whole: Cut) -> Cut:
    """The cut of rows in pieces: by rows, which stay in cache, if these are enough for tasks."""
    rows, policy = whole.all_channels, layout.policy
    if rows < policy.enough_tasks:
        at_once = min(ROWS // 2, rows)
        return _in_parts(layout, whole._replace(channel_block=at_once, at_once=at_once))
    block = ceil_div(rows, policy.most_tasks(layout.elements))
    return whole._replace(channel_block=block, at_once=1, piece_channels=1, piece_rows=1)


def _are_many(layout: Layout, channels: int) -> bool:
    """Whether several threads save time in arithmetic of channels, which takes them longer."""
    return channels >= layout.policy.small


def _of_samples(layout: Layout, whole: Cut) -> Cut | None:
    """The cut of columns by whole samples, each of which stays in cache.

    None if there is one sample, if a sample does not stay in cache, or if there are too few tasks.
    A large sample is not cut by channels: a part of them would stay in cache, but would not be read
    in the order of memory.
    """
    size = layout.positions * whole.all_channels * read_bytes(layout.problem)
    policy = layout.policy
    if whole.sets == 1 or size > 8 * policy.in_cache:
        return None
    cut = whole._replace(sets_per_task=ceil_div(whole.sets, policy.most_tasks(layout.elements)))
    return cut if cut.tasks >= policy.enough_tasks // 4 else None


def _of_positions(layout: Layout, whole: Cut) -> Cut:
    """The cut of columns by positions: a task has all channels, since they share cache lines."""
    rows, unit = layout.positions // layout.repeat, layout.repeat * ROWS
    elements = layout.per_channel * whole.all_channels
    policy = layout.policy
    few = min(policy.enough_tasks // 4, elements // (8 * policy.part))
    most = max(1, elements // policy.part)
    tasks = policy.most_tasks(elements * whole.sets)
    parts = min(ceil_div(tasks, whole.sets), max(1, few, rows // policy.rows_of_part), most)
    size = ceil_div(ceil_div(layout.positions, unit), parts) * unit
    return whole._replace(sets_per_task=1, parts=ceil_div(layout.positions, size), part_size=size)


def _rows_of_part(layout: Layout, whole: Cut) -> int:
    """The least rows in a part of channels: whole images, or some rows of different images."""
    if layout.columns:  # with fewer rows, a part's cost for each channel outweighs its sums
        return ROWS
    if waits(layout.problem):
        return 1
    if _lie_in_images(layout):
        return layout.rows.size
    return min(whole.piece_rows, layout.policy.rows_in_order)


def _of_channels(layout: Layout, whole: Cut) -> Cut:
    """The cut by channels, for rows or columns of short channels; in parts if they are few."""
    problem, per_channel, unit = layout.problem, layout.per_channel, _unit(layout)
    sets, channels, positions = whole.sets, whole.all_channels, layout.positions
    policy = layout.policy
    tasks, enough = policy.most_tasks(layout.elements), policy.enough_tasks
    turn = min(sets, max(ceil_div(sets, tasks), ceil_div(policy.small, channels * per_channel)))
    if layout.together > 1:
        return whole._replace(sets_per_task=turn)
    least = _rows_of_part(layout, whole)
    cuts = max(1, positions // least)
    if sets == 1 and not waits(problem):
        # A task reads long runs of memory, image after image: of some images rather than channels.
        size, blocks = layout.run * read_bytes(problem), ceil_div(enough, cuts)
        runs = min(2 * policy.in_cache // size, ceil_div(channels, blocks))
        least_channels = max(1, runs, policy.part // per_channel)
        # Blocks of one size, since two threads may have one each.
        even = ceil_div(channels, ceil_div(channels, least_channels))
        block = min(channels, round_up(even, unit))
    else:
        # A task has as few channels as are worth a task, and no more than stay in cache.
        elements_each = channels * sets // enough * per_channel
        cache = policy.in_cache * (1 if whole.piece_rows == positions else 2)
        most = max(policy.small, min(cache // read_bytes(problem), elements_each))
        block = min(channels, max(1, most // (per_channel * unit)) * unit)
        if layout.has_adjacent_channels:  # what a task writes is whole cache lines, if it can be
            lines = unit * (LINE // gcd(unit * layout.run * layout.dtype.itemsize, LINE))
            block -= block % lines if block > lines else 0
    # So many channels' arrays stay in the cache: of each, some 112 bytes and elements.
    at_once = min(block, max(unit, (policy.in_cache >> 9) // unit * unit))
    cut = whole._replace(sets_per_task=turn, channel_block=block, at_once=at_once)
    parts = 1
    if cut.tasks < enough:
        most = min(cuts, per_channel * block // policy.part)
        parts = min(ceil_div(tasks, cut.tasks), max(1, most))
    if parts == 1 and sets > 1:
        # A task has several blocks, one after the other, as long as there are enough tasks.
        channels_each = round_up(ceil_div(channels, ceil_div(tasks, cut.turns)), unit)
        return cut._replace(channel_block=max(block, channels_each))
    size = ceil_div(positions, parts)
    if _lie_in_images(layout) and not layout.columns:
        size = round_up(size, least)
    return cut._replace(parts=ceil_div(positions, size), part_size=size)


def _are_whole(layout: Layout) -> bool:
    """Whether rows, or groups in columns, are whole and are read where they are."""
    return (layout.positions == 1 or layout.columns) and not any(layout.tiles)


def walks_once(layout: Layout) -> bool:
    """Whether one walk down rows computes everything: a row's sums, its dx, the parameters' sums.

    Rows, and the parameters' sums, are in the L1 or L2 cache when they are read again.
    """
    problem = layout.problem
    # The walk finds float64's means, which layers do not keep.
    finds_mean = problem.missing_mean and layout.dtype is dtypes.float64
    lacks_statistics = problem.missing_invstd or (problem.missing_mean and not finds_mean)
    is_backward = layout.along and not (problem.forward or lacks_statistics)
    return is_backward and _are_whole(layout)


def keeps_chains(layout: Layout) -> bool:
    """Whether the walk of ``walks_once`` may keep chains of the parameters' sums in the workspace.

    A chain is an accumulator in the arithmetic's type, which is added to the sums after some rows.
    """
    # Rows a quarter of a page apart evict one another (see ``gradients``).
    is_long = layout.run >= min(SHORT, PAGE // 4 // layout.dtype.itemsize)
    return walks_once(layout) and is_long and not layout.columns


def walks_forward(layout: Layout) -> bool:
    """Whether one walk down rows does a forward pass: a row's moments and its y."""
    problem = layout.problem
    computes_statistics = problem.missing_invstd and problem.missing_mean == problem.centred
    writes_rows = layout.along and problem.result is not None
    return writes_rows and computes_statistics and _are_whole(layout)


def of_columns(layout: Layout, cut: Cut) -> Cut:
    """The cut for the parameters' sums of long rows: a task has some pieces of every row."""
    return _in_parts(layout, cut._replace(channel_block=cut.all_channels, at_once=cut.all_channels))


def in_one_task(channels: int = 1, sets: int = 0) -> Cut:
    """The cut of per-channel work in a single task, over ``sets`` if it is done for each set."""
    return Cut(sets, sets, channels, channels, channels)


def over_channels(
    layout: Layout, channels: int, copies: int, sets: int = 0, per_group: int = 1
) -> Cut:
    """The cut of work on ``copies`` numbers of each channel into tasks of whole groups."""
    size = min(channels, round_up(layout.policy.rows, per_group))
    return Cut(sets, sets, channels, size, size, parallel=_are_many(layout, channels * copies))
