"""The tiling of a program's steps: how their work is cut into tasks and pieces.

How a channel's sums are cut into parts depends on the shape alone, never on the number of threads:
the cut decides the order of additions, and so the last bit of the result.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from ... import dtypes
from ...layout import ceil_div, rounded_up
from ...memory import LINE
from . import policy
from .access import LANES, ROWS, SHORT, SPAN, TILE_CHANNELS, Access, held_at_once, read_bytes, waits

#: How many times as long an element takes in float64, and one that is copied to tiles first.
COST_OF_DOUBLE, COST_OF_TILES = 2, 4


class Tiling(NamedTuple):
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


def tiling_of(access: Access) -> Tiling | None:
    """Choose how a problem's tensors are cut into tasks; None if they are not read."""
    problem = access.problem
    wanted = problem.result is not None or problem.wants_parameters
    if problem.is_empty or problem.gathers or not wanted:
        return None
    sets, channels, positions = access.sets.size, access.channel.size, access.positions
    whole = Tiling(
        sets=sets,
        sets_per_task=sets,
        all_channels=channels,
        channel_block=channels,
        at_once=channels,
        part_size=positions,
        piece_channels=min(access.chunk, channels) if access.columns else channels,
        piece_rows=_rows_of_piece(access),
        parallel=cost_of(access) >= policy.POLICY.shared,
    )
    if access.along:
        return _of_groups(access, whole)
    if is_small(access):
        return whole
    if access.columns and access.run == 1 and not _have_few_rows(access):
        return _of_samples(access, whole) or _of_positions(access, whole)
    return _of_channels(access, whole)


def is_small(access: Access) -> bool:
    """Whether the tensors are too small to be cut into tasks."""
    return access.elements < policy.POLICY.small


def cost_of(access: Access) -> int:
    """About how long all elements take, in elements of float32 that are read in place."""
    cost = COST_OF_DOUBLE if access.problem.arithmetic is dtypes.float64 else 1
    return access.elements * cost * (COST_OF_TILES if any(access.moved) else 1)


def _rows_of_piece(access: Access) -> int:
    """How many rows of a channel are read before the next channel's rows in the same images.

    A channel's rows within an image are nearer in memory than the next channel's, so they are read
    together. If no sums are needed, rows of whole cache lines are written one by one, in the order
    of memory.
    """
    rows, problem, size = access.rows, access.problem, access.run * access.dtype.itemsize
    chosen = policy.POLICY
    if not (access.columns or problem.needs_sums) and access.run >= SHORT and size % LINE == 0:
        return 1
    waiting, near = waits(problem), access.bytes < 4 * chosen.in_cache
    if access.columns or (waiting and near):
        return access.positions
    if _lie_in_images(access):
        return access.positions
    steps = [
        dtype.itemsize * step
        for dtype, step in zip(access.data, rows.strides, strict=True)
        if step > 0
    ]
    most = [access.positions, *(held_at_once(step) // len(steps) for step in steps)]
    # A forward pass reads rows that compete for the same places in the L1 cache a few at a time.
    large = problem.forward and access.bytes >= 16 * chosen.in_cache
    competing = large and min(most) < access.positions
    if waiting and access.run >= SHORT and not competing:
        return access.positions
    if waiting:
        most.append(2 * chosen.rows_in_order)
    elif not near:
        most += [chosen.rows_in_order, chosen.part // (2 * access.run)]
    return max(1, min(most))


def _lie_in_images(access: Access) -> bool:
    """Whether a channel's rows are nearer to each other in memory than to the next channel's."""
    steps = zip(access.rows.strides, access.channel.strides, strict=True)
    return all(abs(row) <= abs(step) for row, step in steps)


def _unit(access: Access) -> int:
    """The least number of channels that form whole groups and whole rows of columns or tiles."""
    problem, unit = access.problem, 1
    if access.columns:
        unit = access.chunk if access.run > 1 else LANES
    elif any(access.moved):
        unit = min(TILE_CHANNELS, access.channel.size)
    return problem.per_group * unit // gcd(problem.per_group, unit)


def _of_groups(access: Access, whole: Tiling) -> Tiling:
    """The tiling of rows that are statistics groups: a task has many rows and one slot of sums."""
    sets, rows = whole.sets, whole.all_channels
    size = access.run * read_bytes(access.problem)
    problem, chosen = access.problem, policy.POLICY
    most = chosen.in_cache // (2 * size)
    sums_parameters = problem.wants_parameters and not problem.forward and not sums_apart(access)
    # Parameters' sums, in float64, are read and written once for so many rows.
    least = ROWS // 2 if sums_parameters else 1
    at_once = min(2 * ROWS, rows, max(least, most))
    if walks_once(access):
        at_once = min(chosen.rows if access.run <= SHORT else 2 * ROWS, rows)
    elif walks_forward(access):
        at_once = min(chosen.rows, rows, max(1, most))
    if is_small(access):
        return whole._replace(at_once=at_once, piece_rows=1)
    # If sets share their parameters, all sets of a task add to the task's slot.
    turn = ceil_div(sets, chosen.tasks) if problem.by_row else 1
    wanted = max(ceil_div(rows, chosen.rows), min(chosen.enough_tasks, ceil_div(rows, ROWS)))
    blocks = min(ceil_div(chosen.tasks, ceil_div(sets, turn)), wanted)
    block = rounded_up(ceil_div(rows, blocks), at_once)
    found = whole._replace(sets_per_task=turn, channel_block=block, at_once=at_once)
    return found._replace(piece_channels=at_once, piece_rows=1)


def _have_few_rows(access: Access) -> bool:
    """Whether channels, rather than positions, are what columns can be cut by: they are many."""
    return _are_many(access.channel.size) and access.positions < policy.POLICY.rows_of_part


def _are_many(channels: int) -> bool:
    """Whether several threads save time in arithmetic of channels, which takes them longer."""
    return channels >= policy.POLICY.small


def _of_samples(access: Access, whole: Tiling) -> Tiling | None:
    """The tiling of columns by whole samples, each of which stays in cache.

    None if there is one sample, if a sample does not stay in cache, or if there are too few tasks.
    A large sample is not cut by channels: a part of them would stay in cache, but would not be read
    in the order of memory.
    """
    size = access.positions * whole.all_channels * read_bytes(access.problem)
    chosen = policy.POLICY
    if whole.sets == 1 or size > 8 * chosen.in_cache:
        return None
    found = whole._replace(sets_per_task=ceil_div(whole.sets, chosen.tasks))
    return found if found.tasks >= chosen.enough_tasks // 4 else None


def _of_positions(access: Access, whole: Tiling) -> Tiling:
    """The tiling of columns by positions: a task has all channels, since they share cache lines."""
    rows, unit = access.positions // access.repeat, access.repeat * ROWS
    elements = access.per_channel * whole.all_channels
    chosen = policy.POLICY
    few = min(chosen.enough_tasks // 4, elements // (8 * chosen.part))
    most = max(1, elements // chosen.part)
    parts = min(ceil_div(chosen.tasks, whole.sets), max(1, few, rows // chosen.rows_of_part), most)
    size = ceil_div(ceil_div(access.positions, unit), parts) * unit
    return whole._replace(sets_per_task=1, parts=ceil_div(access.positions, size), part_size=size)


def _rows_of_part(access: Access, whole: Tiling) -> int:
    """The least rows in a part of channels: whole images, or some rows of different images."""
    if access.columns:  # with fewer rows, a part's cost for each channel outweighs its sums
        return ROWS
    if waits(access.problem):
        return 1
    if _lie_in_images(access):
        return access.rows.size
    return min(whole.piece_rows, policy.POLICY.rows_in_order)


def _of_channels(access: Access, whole: Tiling) -> Tiling:
    """The tiling by channels, for rows or columns of short channels; in parts if they are few."""
    problem, per_channel, unit = access.problem, access.per_channel, _unit(access)
    sets, channels, positions = whole.sets, whole.all_channels, access.positions
    chosen = policy.POLICY
    tasks, enough = chosen.tasks, chosen.enough_tasks
    turn = min(sets, max(ceil_div(sets, tasks), ceil_div(chosen.small, channels * per_channel)))
    if access.together > 1:
        return whole._replace(sets_per_task=turn)
    least = _rows_of_part(access, whole)
    cuts = max(1, positions // least)
    if sets == 1 and not waits(problem):
        # A task reads long runs of memory, image after image: of some images rather than channels.
        size, blocks = access.run * read_bytes(problem), ceil_div(enough, cuts)
        runs = min(2 * chosen.in_cache // size, ceil_div(channels, blocks))
        wanted = max(1, runs, chosen.part // per_channel)
        # Blocks of one size, since two threads may have one each.
        even = ceil_div(channels, ceil_div(channels, wanted))
        block = min(channels, rounded_up(even, unit))
    else:
        # A task has as few channels as are worth a task, and no more than stay in cache.
        wanted = channels * sets // enough * per_channel
        cache = chosen.in_cache * (1 if whole.piece_rows == positions else 2)
        most = max(chosen.small, min(cache // read_bytes(problem), wanted))
        block = min(channels, max(1, most // (per_channel * unit)) * unit)
        if access.has_adjacent_channels:  # what a task writes is whole cache lines, if it can be
            lines = unit * (LINE // gcd(unit * access.run * access.dtype.itemsize, LINE))
            block -= block % lines if block > lines else 0
    # So many channels' arrays stay in the cache: of each, some 112 bytes and elements.
    at_once = min(block, max(unit, (chosen.in_cache >> 9) // unit * unit))
    found = whole._replace(sets_per_task=turn, channel_block=block, at_once=at_once)
    parts = 1
    if found.tasks < enough:
        most = min(cuts, per_channel * block // chosen.part)
        parts = min(ceil_div(tasks, found.tasks), max(1, most))
    if parts == 1 and sets > 1:
        # A task has several blocks, one after the other, as long as there are enough tasks.
        wanted = rounded_up(ceil_div(channels, ceil_div(tasks, found.turns)), unit)
        return found._replace(channel_block=max(block, wanted))
    size = ceil_div(positions, parts)
    if _lie_in_images(access) and not access.columns:
        size = rounded_up(size, least)
    return found._replace(parts=ceil_div(positions, size), part_size=size)


def _whole_in_float32(access: Access) -> bool:
    """Whether rows are whole, are read where they are, and are added in float32."""
    return access.positions == 1 and not any(access.moved) and access.dtype != dtypes.float64


def walks_once(access: Access) -> bool:
    """Whether one walk down rows computes everything: a row's sums, its dx, the parameters' sums.

    Rows, and the parameters' sums, are in the L1 or L2 cache when they are read again.
    """
    problem = access.problem
    found = problem.missing_mean or problem.missing_invstd
    wanted = access.along and not (problem.forward or found)
    return wanted and _whole_in_float32(access) and access.run < policy.POLICY.row_apart


def keeps_chains(access: Access) -> bool:
    """Whether the walk of ``walks_once`` may keep chains of the parameters' sums in the workspace.

    A chain is a float32 accumulator, which is added to the float64 sums after some rows.
    """
    return walks_once(access) and (access.dtype == dtypes.float32 or access.run > SHORT)


def walks_forward(access: Access) -> bool:
    """Whether one walk down rows does a forward pass: a row's moments and its y."""
    problem = access.problem
    found = problem.missing_invstd and problem.missing_mean == problem.centred
    wanted = access.along and problem.result is not None
    return wanted and found and _whole_in_float32(access)


def sums_apart(access: Access) -> bool:
    """Whether the parameters' sums over long rows are a step of their own.

    That step sums all rows, a part of their elements at a time. The step that writes dx then
    processes one row at a time, which stays in cache, however long it is.
    """
    return _whole_in_float32(access) and access.run >= policy.POLICY.row_apart


def of_columns(access: Access, tiles: Tiling) -> Tiling:
    """The tiling for the parameters' sums alone: a task has some of the elements of every row."""
    rows, parts = tiles.all_channels, ceil_div(access.run, SPAN)
    return tiles._replace(
        sets_per_task=tiles.sets, channel_block=rows, at_once=rows, piece_channels=rows,
        parts=parts, part_size=SPAN,
    )  # fmt: skip


def in_one_task(channels: int = 1, sets: int = 0) -> Tiling:
    """The tiling of per-channel work in a single task, over ``sets`` if it is done for each set."""
    return Tiling(sets, sets, channels, channels, channels)


def over_channels(channels: int, copies: int, sets: int = 0, per_group: int = 1) -> Tiling:
    """The tiling of per-channel work into tasks of whole statistics groups.

    ``copies``: the number of values for each channel, one for each part or set.
    """
    size = min(channels, rounded_up(policy.POLICY.rows, per_group))
    return Tiling(sets, sets, channels, size, size, parallel=_are_many(channels * copies))
