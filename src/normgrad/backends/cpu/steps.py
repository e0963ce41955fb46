"""A program's steps: what is done, in which order, and how the work is cut into tasks.

Where the sums of a channel are cut into parts, the cut follows from the shape alone, never from the
number of threads: it decides in which order they are added, and so the last bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from ... import dtypes
from ...problem import Problem
from . import block as B
from .access import ALONG, LANES, ROWS, TILE_CHANNELS, Access, read_bytes

#: Below so many elements one thread does it all: starting the others takes 2 to 5 µs, in which one
#: core treats about as many.
SMALL = 1 << 14
#: Elements of one channel or sample below which cutting it into parts does not pay.
PART = 1 << 13
#: Elements that a task sums and then writes while they are in a core's cache, where that leaves
#: enough tasks: with a fourth, training batch norm of float32 (32, 64, 14, 14) took 1.06 times as
#: long, of (16, 384, 7, 7) 1.07.
IN_CACHE = 1 << 15
#: Enough tasks to keep the cores of a large server busy where there are few channels, and few
#: enough that adding their sums costs nothing.
TASKS = 64
#: A few tasks, for a few cores.
FEW_PARTS = 4
FEW_TASKS = 8
#: Channels, times parts, below which one thread does what is per channel alone: in the 5 µs that
#: starting the others takes it does about as many.
MANY_CHANNELS = 1 << 13
#: Channels a task looks after where the work is per channel alone.
CHANNELS_PER_TASK = 128
#: Rows of columns to a part. What a part costs for each channel, whatever its length, is what some
#: ten rows cost: with 64 parts rather than 16, training batch norm took (2 cores, channels-last)
#: float32 (32, 2048, 7, 7) 1.3 times as long, float32 (256, 1024) 1.4 times. FEW_PARTS there are
#: even so.
ROWS_OF_PART = 256
#: Bytes of dy and x that follow each other, where sums do not have to wait for each other: images
#: are gone through one after the other, some channels of each.
CONTIGUOUS = 1 << 16
#: The bytes of dy and x that a task of group norm's columns takes at once: in a core's cache they
#: are read from memory once rather than twice. Channels-last, float32 (32, 64, 56, 56) in 8 groups
#: took 0.69 of the time, bfloat16 (16, 256, 32, 32) 0.76; with 1 or 4 MiB fewer cases gained. Batch
#: norm's channels, cut out of rows that all the batch has, gained nothing. And enough tasks.
SAMPLE, SAMPLE_TASKS = 2 << 20, 16
#: Elements of a channel that are summed together even so: several images' rows, where they are
#: short.
ROWS_IN_ORDER = 512
#: Moments in float64: for gradients, which use them unrounded, and for float32 and float64 data. So
#: the mean that is found is the nearest float32, next to which every element's deviation is exact.
EXACT = "exact moments"
#: The size of a half type.
HALF = dtypes.float16.itemsize
#: The bytes of rows that are groups of their own that are taken at once, and how many at most.
ROWS_AT_ONCE, ROWS_OF_SLOT = 1 << 18, 32


@dataclass(frozen=True)
class Step:
    """One pass over the tiles: what is done to each, and how they are cut.

    Attributes:
        before, after, last: the arithmetic before and after the sums, and after all sets, as flags.
        sums, write: the operations of the kernels that sum and write, if any do.
        columns: whether the sums of parameters are taken along the rows.
        parallel: whether several threads share its tasks.
        tasks, sets_per_task, channels, channel_block, at_once, parts, part_size, piece_channels,
            piece_rows: see block.py.
    """

    tasks: int
    parallel: bool
    channels: int
    channel_block: int
    at_once: int
    sets_per_task: int = 1
    before: int = 0
    sums: str | None = None
    after: int = 0
    write: str | None = None
    columns: bool = False
    last: int = 0
    parts: int = 1
    part_size: int = 1
    piece_channels: int = 1
    piece_rows: int = 1

    @property
    def name(self) -> str:
        """What it does, in words."""

        def named(flags: int) -> list[str]:
            return [name for flag, name in _NAMES.items() if flags & flag]

        words = [*named(self.before), self.sums, *named(self.after), self.write]
        words += ["columns" * self.columns, *named(self.last)]
        return "+".join(word for word in words if word)


_NAMES = {
    B.DO_COUNT: "count",
    B.DO_WEIGHTS: "weights",
    B.DO_PREPARE: "prepare",
    B.DO_COMBINE: "combine",
    B.DO_MEAN: "mean",
    B.DO_STATISTICS: "statistics",
    B.DO_CENTRE: "centre",
    B.DO_COEFFICIENTS: "coefficients",
    B.DO_PARAMETERS: "parameters",
    B.DO_OUTPUTS: "outputs",
    B.DO_GATHER: "gather",
}


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: sets and channels to a task, channels at once, parts to a channel.

    And how a kernel goes through a piece: some channels of some rows.
    """

    sets: int
    channels: int
    at_once: int
    parts: int
    part_size: int
    piece_channels: int
    piece_rows: int


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _whole_groups(problem: Problem, access: Access) -> int:
    """The least number of channels that are whole groups, and whole rows of columns or tiles."""
    step = 1
    if access.columns:
        step = access.chunk if access.run > 1 else LANES
    elif any(access.moved):
        step = min(TILE_CHANNELS, problem.channel.size)
    return problem.per_group * step // gcd(problem.per_group, step)


def tiling_of(access: Access) -> Tiling:
    """How a problem's work is cut."""
    problem = access.problem
    sets, channels, positions = problem.sets.size, problem.channel.size, access.positions
    per_channel = access.per_channel
    small = sets * channels * per_channel < SMALL
    # Rows are gone through channel by channel where a channel's sums are needed before the rest,
    # and image by image where they are not.
    in_order = not access.columns and not problem.result_needs_sums and not problem.missing_mean
    piece = (
        min(access.chunk, channels) if access.columns else channels,
        max(1, ROWS_IN_ORDER // access.run) if in_order else positions,
    )
    if access.along:
        return _along(access)
    if small:
        return Tiling(sets, channels, channels, 1, positions, *piece)
    step = _whole_groups(problem, access)
    if access.columns and access.run == 1:
        return _of_columns(access, step, piece)
    if sets == 1 and (in_order or (not problem.result_needs_sums and not problem.missing_mean)):
        # Long runs of memory, each image's after the other's.
        size = access.run * read_bytes(problem)
        enough = -(-channels // FEW_TASKS)
        block = min(channels, _rounded_up(max(1, min(CONTIGUOUS // size, enough)), step))
    else:
        # As few channels (whole groups, whole rows) as make it worth a task's while.
        enough = channels * sets // (TASKS // 4)
        most = max(PART, min(IN_CACHE, enough * per_channel))
        block = min(channels, max(1, most // (per_channel * step)) * step)
    turns = min(sets, TASKS)
    turn = -(-sets // turns)
    turns = -(-sets // turn)
    tasks = turns * -(-channels // block)
    parts = 1
    if tasks < TASKS // 4:
        most = max(1, per_channel // (ROWS_IN_ORDER if in_order else 1))
        parts = min(-(-TASKS // tasks), max(1, per_channel * block // PART), positions, most)
    if parts > 1:
        turn = 1
    elif sets > 1:
        # Tasks of several blocks, of which there are enough all the same.
        wanted = -(-TASKS // turns)
        channels_of_task = _rounded_up(-(-channels // wanted), step)
        part = -(-positions // parts)
        return Tiling(turn, max(block, channels_of_task), block, 1, part, *piece)
    part = -(-positions // parts)
    return Tiling(turn, block, block, -(-positions // part), part, *piece)


def _of_columns(access: Access, step: int, piece: tuple[int, int]) -> Tiling:
    """Slabs of positions over all channels, which share cache lines; or whole sets of channels."""
    problem = access.problem
    sets, channels, positions = problem.sets.size, problem.channel.size, access.positions
    if sets > 1:
        # Whole groups of one set, and whole cache lines.
        size = read_bytes(problem)
        most = SAMPLE // max(1, positions * size) // step * step
        turns = min(sets, TASKS)
        turn = -(-sets // turns)
        turns = -(-sets // turn)
        wanted = -(-SAMPLE_TASKS // turns)
        block = min(most, _rounded_up(max(-(-channels // wanted), 2 * LANES), step), channels)
        if block > 0 and turns * -(-channels // block) >= FEW_PARTS:
            return Tiling(turn, block, block, 1, positions, min(piece[0], block), piece[1])
    rows = positions // access.repeat
    unit = access.repeat * ROWS
    most = max(1, access.per_channel * channels // PART)
    parts = min(-(-TASKS // sets), max(FEW_PARTS, rows // ROWS_OF_PART), most)
    units = -(-positions // unit)
    part = -(-units // parts) * unit
    return Tiling(1, channels, channels, -(-positions // part), part, *piece)


def _along(access: Access) -> Tiling:
    """Rows that are groups of their own, some at once, many of those to a task: it has one slot."""
    problem = access.problem
    rows, sets = problem.channel.size, problem.sets.size
    size = access.run * read_bytes(problem)
    at_once = max(1, min(ROWS_OF_SLOT, rows, ROWS_AT_ONCE // size))
    if rows * sets * access.run < SMALL:
        return Tiling(sets, rows, at_once, 1, 1, rows, 1)
    blocks = min(-(-TASKS // sets), -(-rows // ROWS))
    task = _rounded_up(-(-rows // blocks), at_once)
    return Tiling(1, task, at_once, 1, 1, at_once, 1)


@dataclass(frozen=True)
class _Cutter:
    """Steps over a problem's tiles and over its channels."""

    access: Access
    tiling: Tiling

    @property
    def problem(self) -> Problem:
        """The problem, in the access's axes."""
        return self.access.problem

    @property
    def whole(self) -> bool:
        """Whether a tile has all positions of its channels, so that one step can do all of it."""
        return self.tiling.parts == 1

    @property
    def blocks(self) -> int:
        """Tiles along the channels."""
        return -(-self.problem.channel.size // self.tiling.channels)

    def over_tiles(
        self, before: int = 0, sums: str | None = None, after: int = 0, write: str | None = None
    ) -> Step:
        """A step with a task for each tile."""
        problem, tiling = self.problem, self.tiling
        sets, channels = problem.sets.size, problem.channel.size
        along = ALONG if self.access.along else ""
        return Step(
            tasks=-(-sets // tiling.sets) * self.blocks * tiling.parts,
            parallel=sets * channels * self.access.per_channel >= SMALL,
            channels=channels,
            channel_block=tiling.channels,
            at_once=tiling.at_once,
            sets_per_task=tiling.sets,
            before=before,
            sums=sums + along if sums == "sums" else sums,
            after=after,
            write=write + along if write else None,
            parts=tiling.parts,
            part_size=tiling.part_size,
            piece_channels=tiling.piece_channels,
            piece_rows=tiling.piece_rows,
        )

    def over_channels(self, flags: int = 0, last: int = 0) -> Step:
        """A step with a task for some channels of every set, whole groups of them."""
        problem = self.problem
        channels, per_group = problem.channel.size, problem.per_group
        if last and self.access.along:
            channels = problem.sets.size * problem.inner.size
        size = min(channels, _rounded_up(CHANNELS_PER_TASK, per_group))
        copies = max(self.tiling.parts, problem.sets.size, self.blocks)
        return Step(
            tasks=-(-channels // size),
            parallel=channels * copies >= MANY_CHANNELS,
            channels=channels,
            channel_block=size,
            at_once=size,
            sets_per_task=problem.sets.size if flags else 0,
            before=flags,
            last=last,
        )

    def once(self, flags: int) -> Step:
        """A step of one task, for what is the same for all channels."""
        return Step(1, False, 1, 1, 1, sets_per_task=0, last=flags)


def _for_nothing(problem: Problem) -> tuple[Step, ...]:
    """The steps where there are no elements: the sums over them are 0."""
    sets, channels = problem.sets.size, problem.channel.size
    if not problem.wants_parameters or channels == 0:
        return ()
    if problem.forward:
        return (Step(1, False, channels, channels, channels, sets, before=B.DO_STATISTICS),)
    return (Step(1, False, channels, channels, channels, 0, last=B.DO_OUTPUTS),)


def _forward(problem: Problem, cut: _Cutter) -> list[Step]:
    """The steps of y, or of statistics alone."""
    write = None if problem.result is None else "normalise"
    coefficients = B.DO_COEFFICIENTS if write else 0
    steps = [cut.once(B.DO_WEIGHTS)] if cut.access.along and write else []
    if not problem.missing_mean:
        if cut.whole:
            return [*steps, cut.over_tiles(B.DO_PREPARE | coefficients, write=write)]
        steps.append(cut.over_channels(B.DO_PREPARE | coefficients))
        return [*steps, cut.over_tiles(write=write)]
    last = B.DO_STATISTICS | coefficients
    # In float64 arithmetic the mean takes a round of its own: about anything else the squares
    # would lose what float32 data have to spare.
    double = problem.arithmetic is dtypes.float64
    means = (B.DO_MEAN,) if double else ()
    moments = "moments" if cut.access.dtype.itemsize == HALF else EXACT
    if cut.whole:
        before = B.DO_PREPARE
        for mean in means:
            steps.append(cut.over_tiles(before, moments, mean))
            before = 0
        return [*steps, cut.over_tiles(before, moments, last, write)]
    steps.append(cut.over_channels(B.DO_PREPARE))
    for finish in (*means, last):
        steps.append(cut.over_tiles(sums=moments))
        steps.append(cut.over_channels(B.DO_COMBINE | finish))
    return [*steps, cut.over_tiles(write=write)] if write else steps


def _backward(problem: Problem, cut: _Cutter) -> list[Step]:
    """The steps of gradients."""
    write = None
    if problem.result is not None:
        write = "scale" if problem.constant else "apply"
    sums = "sums" if problem.needs_sums else None
    if not write and not sums:
        return []

    steps: list[Step] = []
    if problem.count is not None:
        steps.append(cut.once(B.DO_COUNT))
    along = cut.access.along
    if along:
        steps.append(cut.once(B.DO_WEIGHTS))
    prepare = B.DO_PREPARE
    if problem.missing_mean or problem.missing_invstd:
        # A mean in float64 arithmetic takes a round of its own, as in the forward pass.
        twice = problem.missing_mean and problem.arithmetic is dtypes.float64
        steps.append(cut.over_channels(prepare))
        prepare = 0
        for finish in (*[B.DO_MEAN] * twice, B.DO_STATISTICS):
            steps.append(cut.over_tiles(sums=EXACT))
            steps.append(cut.over_channels(B.DO_COMBINE | finish))
    wanted = problem.wants_parameters
    after = B.DO_CENTRE if problem.missing_mean else 0
    after |= B.DO_PARAMETERS if wanted and not along else 0
    outputs = B.DO_OUTPUTS if wanted else 0
    # Where dx does not depend on the sums it is written with them.
    coefficients = B.DO_COEFFICIENTS if write else 0
    if problem.result_needs_sums:
        after |= coefficients
    else:
        prepare |= coefficients
        if sums and write:
            sums, write = "evaluate", None
    if not sums:
        after = outputs = 0
    if cut.whole:
        step = replace(cut.over_tiles(prepare, sums, after, write), columns=bool(along and outputs))
        # Batch norm's outputs follow from one set; group norm's are sums over all, and come last.
        if not along and 1 in (step.tasks, problem.sets.size):
            return [*steps, replace(step, last=outputs)]
        return [*steps, step, *[cut.over_channels(last=outputs)] * bool(outputs)]
    if prepare:
        steps.append(cut.over_channels(prepare))
    if sums:
        steps.append(cut.over_tiles(sums=sums))
        steps.append(replace(cut.over_channels(B.DO_COMBINE | after), last=outputs))
    if write:
        steps.append(cut.over_tiles(write=write))
    return steps


def _gather(problem: Problem) -> Step:
    """The step that puts the statistics of ranks together."""
    channels = problem.channel.size
    ranks = problem.count.elements if problem.count else 1
    size = min(channels, CHANNELS_PER_TASK)
    parallel = ranks * channels >= MANY_CHANNELS
    return Step(-(-channels // size), parallel, channels, size, size, 0, last=B.DO_GATHER)


def steps_of(access: Access) -> tuple[tuple[Step, ...], Tiling | None]:
    """The steps, and how the work is cut where it is over tensors."""
    problem = access.problem
    if problem.is_empty:
        return _for_nothing(problem), None
    if problem.gathers:
        return (_gather(problem),), None
    cut = _Cutter(access, tiling_of(access))
    return tuple((_forward if problem.forward else _backward)(problem, cut)), cut.tiling
