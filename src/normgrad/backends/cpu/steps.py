"""A program's steps: what is done, in which order, and how the work is cut into tasks.

Where the sums of a channel are cut into parts, the cut follows from the shape alone, never from the
number of threads: it decides in which order they are added, and so the last bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ... import dtypes
from ...problem import Problem
from . import block as B
from .access import DX_ROWS, FEW_PARTS, ROWS, Access

#: Below so many elements one thread does it all, in one step: more steps, and starting the other
#: threads, take 5 to 15 µs, in which one core treats about as many.
SMALL = 1 << 17
#: Elements of one channel or sample below which cutting it into parts does not pay.
PART = 1 << 13
#: Enough tasks to keep the cores of a large server busy where there are few channels, and few
#: enough that adding their sums costs nothing.
TASKS = 64
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


@dataclass(frozen=True)
class Step:
    """One pass over the tiles: what is done to each, and how they are cut."""

    flags: int
    channel_block: int
    parts: int
    part_size: int
    tasks: int
    parallel: bool

    @property
    def operations(self) -> tuple[str, ...]:
        """The kernels it needs."""
        return tuple(name for flag, name in OPERATIONS.items() if self.flags & flag)

    @property
    def name(self) -> str:
        """What it does, in words."""
        return "+".join(name for flag, name in _NAMES.items() if self.flags & flag)


OPERATIONS = {
    B.DO_MOMENTS: "moments",
    B.DO_SUMS: "sums",
    B.DO_APPLY: "apply",
    B.DO_SCALE: "scale",
    B.DO_NORMALISE: "normalise",
}


_NAMES = {
    B.DO_COUNT: "count",
    B.DO_PREPARE: "prepare",
    B.DO_MOMENTS: "moments",
    B.DO_SUMS: "sums",
    B.DO_COMBINE: "combine",
    B.DO_MEAN: "mean",
    B.DO_CENTRE: "centre",
    B.DO_STATISTICS: "statistics",
    B.DO_GATHER: "gather",
    B.DO_OUTPUTS: "outputs",
    B.DO_COEFFICIENTS: "coefficients",
    B.DO_APPLY: "apply",
    B.DO_SCALE: "scale",
    B.DO_NORMALISE: "normalise",
}


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: channels to a task, parts to a channel."""

    channel_block: int
    parts: int
    part_size: int


def tiling_of(problem: Problem, access: Access) -> Tiling:
    """How a problem's work is cut."""
    sets, channels, positions = problem.sets.size, problem.channel.size, problem.positions
    per_channel = positions * access.run
    if sets * channels * per_channel < SMALL:
        return Tiling(channels, 1, positions)
    if access.channel_block:
        return Tiling(access.channel_block, 1, positions)
    if access.pattern == "columns" and access.run == 1:
        # Slabs of positions over all channels; the channels stay together because they share
        # cache lines. Whole rows to a slab.
        channel_block = channels
        unit = access.repeat * ROWS
        rows = positions // access.repeat
        most = max(1, per_channel * channels // PART)
        parts = min(-(-TASKS // sets), max(FEW_PARTS, rows // ROWS_OF_PART), most)
    elif access.pattern != "tiles" and problem.sets.size == 1 and not problem.needs_sums:
        # Nothing is summed over a channel, so that memory can be gone through in its own order.
        # batch_norm_elemt took (1 core) float32 (32, 512, 28, 28) 0.50 of the time, bfloat16 0.51,
        # (32, 2048, 7, 7) 0.56 and 0.69, (32, 64, 56, 56) 0.91 and 0.64; its gradient as much less.
        unit = DX_ROWS if access.run > 1 and access.pattern == "columns" else problem.inner.size
        parts = min(TASKS, -(-positions // unit))
        blocks = min(TASKS // parts, -(-channels // access.chunk))
        channel_block = -(-channels // blocks // access.chunk) * access.chunk
    else:
        # As few channels (whole groups, whole rows) to a task as make it worth its while.
        step = problem.per_group * access.chunk // gcd(problem.per_group, access.chunk)
        channel_block = min(channels, max(1, PART // (per_channel * step)) * step)
        tasks = sets * -(-channels // channel_block)
        parts, unit = 1, 1
        if tasks < TASKS // 4:
            parts = min(-(-TASKS // tasks), max(1, per_channel * channel_block // PART))
    units = -(-positions // unit)
    part_size = -(-units // parts) * unit
    return Tiling(channel_block, -(-positions // part_size), part_size)


@dataclass(frozen=True)
class _Cutter:
    """Steps over a problem's tiles and over its channels."""

    problem: Problem
    access: Access
    tiling: Tiling

    @property
    def whole(self) -> bool:
        """Whether a tile has all positions of its channels, so that one step can do all of it."""
        return self.tiling.parts == 1

    def over_tiles(self, flags: int) -> Step:
        """A step with a task for each tile."""
        problem, tiling = self.problem, self.tiling
        sets, channels = problem.sets.size, problem.channel.size
        blocks = -(-channels // tiling.channel_block)
        parallel = sets * channels * problem.positions * self.access.run >= SMALL
        tasks = sets * blocks * tiling.parts
        return Step(flags, tiling.channel_block, tiling.parts, tiling.part_size, tasks, parallel)

    def over_channels(self, flags: int, sets: int | None = None) -> Step:
        """A step with a task for some channels of each set, whole groups of them."""
        problem = self.problem
        channels, per_group = problem.channel.size, problem.per_group
        size = min(channels, -(-CHANNELS_PER_TASK // per_group) * per_group)
        shared = problem.sets.size * channels * self.tiling.parts >= MANY_CHANNELS
        sets = problem.sets.size if sets is None else sets
        tasks = sets * -(-channels // size)
        return Step(flags, size, 1, problem.positions, tasks, shared)


def _for_nothing(problem: Problem) -> tuple[Step, ...]:
    """The steps where there are no elements: the sums over them are 0."""
    sets, channels = problem.sets.size, problem.channel.size
    if not problem.wants_parameters or channels == 0:
        return ()
    if problem.forward:
        return (Step(B.DO_STATISTICS, channels, 1, 1, sets, False),)
    return (Step(B.DO_OUTPUTS, channels, 1, 1, 1, False),)


def _forward(problem: Problem, cut: _Cutter) -> tuple[Step, ...]:
    """The steps of y, or of statistics alone."""
    writes = 0 if problem.result is None else B.DO_NORMALISE
    coefficients = B.DO_COEFFICIENTS if writes else 0
    if not problem.missing_mean:
        if cut.whole:
            return (cut.over_tiles(B.DO_PREPARE | coefficients | writes),)
        return cut.over_channels(B.DO_PREPARE | coefficients), cut.over_tiles(writes)
    last = B.DO_STATISTICS | coefficients
    # In float64 arithmetic the mean takes a round of its own: about anything else the squares
    # would lose what float32 data have to spare.
    means = (B.DO_MEAN,) if problem.arithmetic is dtypes.float64 else ()
    if cut.whole:
        rounds = [B.DO_MOMENTS | finish for finish in (*means, last | writes)]
        rounds[0] |= B.DO_PREPARE
        return tuple(map(cut.over_tiles, rounds))
    steps = [cut.over_channels(B.DO_PREPARE)]
    for finish in (*means, last):
        steps += cut.over_tiles(B.DO_MOMENTS), cut.over_channels(B.DO_COMBINE | finish)
    return (*steps, cut.over_tiles(writes)) if writes else tuple(steps)


def _backward(problem: Problem, cut: _Cutter) -> tuple[Step, ...]:
    """The steps of gradients."""
    writes = 0
    if problem.result is not None:
        writes = B.DO_SCALE if problem.constant else B.DO_APPLY
    sums = B.DO_SUMS if problem.needs_sums else 0
    if not writes and not sums:
        return ()

    steps: list[Step] = []
    if problem.count is not None:
        steps.append(Step(B.DO_COUNT, problem.channel.size, 1, problem.positions, 1, False))
    prepare = B.DO_PREPARE
    if problem.missing_mean or problem.missing_invstd:
        # A mean in float64 arithmetic takes a round of its own, as in the forward pass.
        twice = problem.missing_mean and problem.arithmetic is dtypes.float64
        steps.append(cut.over_channels(prepare))
        prepare = 0
        for finish in (*[B.DO_MEAN] * twice, B.DO_STATISTICS):
            steps.append(cut.over_tiles(B.DO_MOMENTS))
            steps.append(cut.over_channels(B.DO_COMBINE | finish))
    # Batch norm's outputs follow from one set; group norm's are sums over all, and come last.
    outputs = B.DO_OUTPUTS if problem.wants_parameters else 0
    last = 0
    if problem.grouped:
        outputs, last = 0, outputs
    coefficients = B.DO_COEFFICIENTS if writes else 0
    centre = B.DO_CENTRE if problem.missing_mean else 0
    # Where dx does not depend on the sums it does not wait for them.
    early, late = (0, coefficients) if problem.result_needs_sums else (coefficients, 0)
    if cut.whole:
        steps.append(cut.over_tiles(prepare | sums | centre | outputs | coefficients | writes))
    else:
        if prepare or early:
            steps.append(cut.over_channels(prepare | early))
        if not sums:
            steps.append(cut.over_tiles(writes))
        else:
            steps.append(cut.over_tiles(sums if late else sums | writes))
            steps.append(cut.over_channels(B.DO_COMBINE | centre | outputs | late))
            if late:
                steps.append(cut.over_tiles(writes))
    if last:
        steps.append(cut.over_channels(last, sets=1))
    return tuple(steps)


def _gather(problem: Problem) -> Step:
    """The step that puts the statistics of ranks together."""
    channels = problem.channel.size
    ranks = problem.count.elements if problem.count else 1
    size = min(channels, CHANNELS_PER_TASK)
    return Step(B.DO_GATHER, size, 1, 1, -(-channels // size), ranks * channels >= MANY_CHANNELS)


def steps_of(problem: Problem, access: Access) -> tuple[tuple[Step, ...], int]:
    """The steps, and how many parts each channel's sums come in."""
    if problem.is_empty:
        return _for_nothing(problem), 1
    if problem.gathers:
        return (_gather(problem),), 1
    cut = _Cutter(problem, access, tiling_of(problem, access))
    steps = (_forward if problem.forward else _backward)(problem, cut)
    return steps, cut.tiling.parts if steps else 1
