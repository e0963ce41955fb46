"""From a problem to a program: which access pattern, which steps, how much workspace.

Made from specs and a description of the machine alone; nothing is compiled or computed here. Where
the sums of a channel are cut into parts, the cut follows from the shape alone, never from the
number of threads: it decides in which order they are added, and so the last bit of the result.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
import numpy.typing as npt

from ... import dtypes
from ...layout import Axis
from ...machine import Machine
from ...memory import LINE
from ...problem import Problem, Role, Rule
from . import block as B

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
#: float32 (32, 2048, 7, 7) 1.3 times as long, float32 (256, 1024) 1.4 times. A few parts there are
#: even so, for a few cores.
ROWS_OF_PART, FEW_PARTS = 256, 4

#: The bytes of dy and x that a task of group norm's columns takes at once: in a core's cache they
#: are read from memory once rather than twice. Channels-last, float32 (32, 64, 56, 56) in 8 groups
#: took 0.69 of the time, bfloat16 (16, 256, 32, 32) 0.76; with 1 or 4 MiB fewer cases gained. Batch
#: norm's channels, cut out of rows that all the batch has, gained nothing. And enough tasks.
SAMPLE, SAMPLE_TASKS = 2 << 20, 16

#: Every array in the workspace starts at a multiple of this, and so does the workspace in use,
#: wherever the caller's buffer starts.
ALIGNMENT = LINE


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
        return tuple(name for flag, name in _OPERATIONS.items() if self.flags & flag)


_OPERATIONS = {
    B.DO_MOMENTS: "moments",
    B.DO_SUMS: "sums",
    B.DO_APPLY: "apply",
    B.DO_SCALE: "scale",
}


@dataclass(frozen=True, eq=False)
class Program:
    """What a plan runs.

    Attributes:
        pattern: the access pattern, "rows", "columns" or "tiles".
        code: the dtype code that, with the pattern, names the kernels: the data's, or for "tiles"
            the arithmetic's.
        data: the dtype codes of dy, x and dx.
        arithmetic: the dtype code of what is computed in.
        steps: run one after the other, the tasks of each in any order.
        template: the parameter block but for its addresses.
        workspace_size: bytes, including what aligning the caller's buffer may cost.
        input_is_grad_out: x is not needed, and dy is read in its place.
    """

    pattern: str
    code: int
    data: tuple[int, int, int]
    arithmetic: int
    steps: tuple[Step, ...]
    template: npt.NDArray[np.int64]
    workspace_size: int
    input_is_grad_out: bool

    @property
    def operations(self) -> tuple[str, ...]:
        """The kernels that its steps need, each once."""
        needed = {operation for step in self.steps for operation in step.operations}
        return tuple(name for name in _OPERATIONS.values() if name in needed)

    @property
    def path(self) -> str:
        """The way chosen, for people and tests: the pattern and what each step does."""
        return " ".join((self.pattern, *(_name(step) for step in self.steps)))


_NAMES = {
    B.DO_COUNT: "count",
    B.DO_PREPARE: "prepare",
    B.DO_MOMENTS: "moments",
    B.DO_SUMS: "sums",
    B.DO_COMBINE: "combine",
    B.DO_MEAN: "mean",
    B.DO_INVSTD: "invstd",
    B.DO_STATISTICS: "statistics",
    B.DO_OUTPUTS: "outputs",
    B.DO_COEFFICIENTS: "coefficients",
    B.DO_APPLY: "apply",
    B.DO_SCALE: "scale",
}


def _name(step: Step) -> str:
    return "+".join(name for flag, name in _NAMES.items() if step.flags & flag)


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


@dataclass(frozen=True)
class _Access:
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


def _bytes(problem: Problem) -> int:
    """What is read and written."""
    itemsize = problem.grad_out.itemsize + problem.input.itemsize
    if problem.grad_input is not None:
        itemsize += problem.grad_input.itemsize
    return problem.sets.size * problem.channel.size * problem.positions * itemsize


def _channels_at_once(problem: Problem) -> int:
    """How many channels of columns a task takes with all their positions; 0 where it takes parts.

    Whole groups of one sample, and whole cache lines.
    """
    sets, channels = problem.sets.size, problem.channel.size
    itemsize = problem.grad_out.itemsize + problem.input.itemsize
    step = problem.per_group * LANES // gcd(problem.per_group, LANES)
    most = SAMPLE // max(1, problem.positions * itemsize) // step * step
    shared_out = -(-channels * sets // SAMPLE_TASKS)
    block = min(most, -(-max(shared_out, 2 * LANES) // step) * step, channels)
    tasks = sets * -(-channels // max(1, block))
    return block if sets > 1 and block > 0 and tasks >= FEW_PARTS else 0


def _access(problem: Problem) -> tuple[_Access, Problem]:
    """Which axis is contiguous in every tensor that is used, and how to go along it.

    Also the problem in the axes that this way wants: columns of short channels go along the next
    axis out, and take the one within the channel into the row.
    """
    used = (0, 1, 2) if problem.grad_input is not None else (0, 1)
    data = {problem.grad_out, problem.input, problem.grad_input or problem.input}
    channel, inner = problem.channel, problem.inner

    def all_strides(axis: Axis, stride: int) -> bool:
        return all(axis.strides[i] == stride for i in used)

    tiles = _Access("tiles", chunk=min(channel.size, TILE_CHANNELS))
    if len(data) > 1:
        return tiles, problem
    if all_strides(inner, 1) and inner.size > 1:
        longest = COLUMN_RUN if _bytes(problem) < FAR_APART else SHORT
        if inner.size < longest and all_strides(channel, inner.size) and problem.outer:
            chunk = _aligned(inner.size, problem.channel.size)
            *outer, rows = problem.outer
            access = _Access("columns", run=inner.size, chunk=chunk)
            return access, replace(problem, outer=tuple(outer), inner=rows)
        if inner.size < SHORT and problem.outer:
            *outer, rows = problem.outer
            return _Access("rows", run=inner.size), replace(problem, outer=tuple(outer), inner=rows)
        return _Access("rows"), problem
    if all_strides(channel, 1) or channel.size == 1:
        block = _channels_at_once(problem)
        repeat, chunk = 1, min(block or channel.size, SPAN)
        if (
            channel.size * 2 <= SPAN
            and all_strides(inner, channel.size)
            and block in (0, channel.size)
        ):
            repeat = max(1, _aligned(channel.size, inner.size))
        return _Access("columns", repeat=repeat, chunk=chunk, channel_block=block), problem
    return tiles, problem


@dataclass(frozen=True)
class _Tiling:
    """How the work is cut: channels to a task, parts to a channel."""

    channel_block: int
    parts: int
    part_size: int


def _tiling(problem: Problem, access: _Access) -> _Tiling:
    sets, channels, positions = problem.sets.size, problem.channel.size, problem.positions
    per_channel = positions * access.run
    if sets * channels * per_channel < SMALL:
        return _Tiling(channels, 1, positions)
    if access.channel_block:
        return _Tiling(access.channel_block, 1, positions)
    if access.pattern == "columns" and access.run == 1:
        # Slabs of positions over all channels; the channels stay together because they share
        # cache lines. Whole rows to a slab.
        channel_block = channels
        unit = access.repeat * ROWS
        rows = positions // access.repeat
        most = max(1, per_channel * channels // PART)
        parts = min(-(-TASKS // sets), max(FEW_PARTS, rows // ROWS_OF_PART), most)
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
    return _Tiling(channel_block, -(-positions // part_size), part_size)


def _is_empty(problem: Problem) -> bool:
    return problem.sets.size * problem.channel.size * problem.positions == 0


def _steps(problem: Problem, access: _Access) -> tuple[tuple[Step, ...], int]:
    """The steps, and how many parts each channel's sums come in."""
    sets, channels, positions = problem.sets.size, problem.channel.size, problem.positions
    if _is_empty(problem):
        if not problem.wants_parameters or channels == 0:
            return (), 1
        return (Step(B.DO_OUTPUTS, channels, 1, 1, 1, False),), 1
    rule = problem.rule
    writes = 0
    if problem.grad_input is not None:
        writes = B.DO_SCALE if rule is Rule.EVAL else B.DO_APPLY
    sums = 0
    if problem.wants_parameters or (writes and rule in (Rule.TRAIN, Rule.GROUP)):
        sums = B.DO_SUMS
    if not writes and not sums:
        return (), 1

    tiling = _tiling(problem, access)
    blocks = -(-channels // tiling.channel_block)
    parallel = sets * channels * positions * access.run >= SMALL

    def over_tiles(flags: int) -> Step:
        return Step(
            flags,
            tiling.channel_block,
            tiling.parts,
            tiling.part_size,
            sets * blocks * tiling.parts,
            parallel,
        )

    # Whole groups, so that a task can finish its groups.
    per_task = -(-CHANNELS_PER_TASK // problem.per_group) * problem.per_group

    def over_channels(flags: int, of: int = sets) -> Step:
        size = min(channels, per_task)
        shared = sets * channels * tiling.parts >= MANY_CHANNELS
        return Step(flags, size, 1, positions, of * -(-channels // size), shared)

    steps: list[Step] = []
    if problem.count is not None:
        steps.append(Step(B.DO_COUNT, channels, 1, positions, 1, False))
    prepare = B.DO_PREPARE
    if problem.missing_mean or problem.missing_spread:
        # A mean in float64 arithmetic takes a second round about the first one's result, which
        # leaves only the last rounding; float64 sums of float32 data are exact enough at once.
        # Statistics that are asked for have it from their last moments.
        rounds = 2 if problem.arithmetic is dtypes.float64 and rule is not Rule.STATS else 1
        last_moments = B.DO_STATISTICS if rule is Rule.STATS else B.DO_INVSTD
        finishes = [B.DO_MEAN] * (rounds * problem.missing_mean)
        finishes += [last_moments] * problem.missing_spread
        steps.append(over_channels(prepare))
        prepare = 0
        for finish in finishes:
            steps.append(over_tiles(B.DO_MOMENTS))
            steps.append(over_channels(B.DO_COMBINE | finish))
        if rule is Rule.STATS:
            return tuple(steps), tiling.parts
    # Batch norm's outputs follow from one set; group norm's are sums over all, and come last.
    outputs = B.DO_OUTPUTS if problem.wants_parameters else 0
    last = 0
    if rule is Rule.GROUP:
        outputs, last = 0, outputs
    coefficients = B.DO_COEFFICIENTS if writes else 0
    # Where dx does not depend on the sums it does not wait for them.
    early, late = (coefficients, 0) if rule in (Rule.EVAL, Rule.ELEMT) else (0, coefficients)
    if tiling.parts == 1:
        steps.append(over_tiles(prepare | sums | outputs | coefficients | writes))
    else:
        if prepare or early:
            steps.append(over_channels(prepare | early))
        if not sums:
            steps.append(over_tiles(writes))
        else:
            steps.append(over_tiles(sums if late else sums | writes))
            steps.append(over_channels(B.DO_COMBINE | outputs | late))
            if late:
                steps.append(over_tiles(writes))
    if last:
        steps.append(over_channels(last, of=1))
    return tuple(steps), tiling.parts


def _streams(problem: Problem, access: _Access, large: bool) -> bool:
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
    return problem.grad_input is not None and large


def _fetches_ahead(access: _Access, large: bool) -> bool:
    """Whether columns ask for their next rows ahead of time.

    Sixteen rows of two tensors at once are more streams than a processor foresees by itself. With
    it, training batch norm took (2 cores, channels-last) bfloat16 (32, 64, 112, 112) 0.47 of the
    time, float32 (32, 512, 28, 28) 0.79, bfloat16 (32, 64, 56, 56), 38 MB in all, 1.0. Rows of
    channels that go along the batch are far apart, and asking for them took longer: float32 (32,
    1024, 14, 14) 1.3 of the time.
    """
    return large and access.pattern == "columns" and access.run == 1


def _needs_input(problem: Problem) -> bool:
    """Whether anything asked for depends on x."""
    if problem.rule in (Rule.TRAIN, Rule.GROUP, Rule.ELEMT) and problem.grad_input is not None:
        return True
    return Role.OUT_SUM_DY_XMU in problem.vectors or Role.OUT_WEIGHT in problem.vectors


def _fill_axes(block: npt.NDArray[np.int64], problem: Problem) -> None:
    for word, strides_word, axis in (
        (B.SETS, B.SET_STRIDES, problem.sets),
        (B.CHANNELS, B.CHANNEL_STRIDES, problem.channel),
        (B.INNER, B.INNER_STRIDES, problem.inner),
    ):
        block[word] = axis.size
        block[strides_word : strides_word + 3] = axis.strides
    block[B.OUTER_RANK] = len(problem.outer)
    for index, axis in enumerate(problem.outer):
        block[B.OUTER_SIZES + index] = axis.size
        for tensor, stride in enumerate(axis.strides):
            block[B.OUTER_STRIDES + B.OUTER_MAX * tensor + index] = stride
    block[B.POSITIONS] = problem.positions


def _fill_vectors(block: npt.NDArray[np.int64], problem: Problem) -> None:
    for role, vector in problem.vectors.items():
        word = B.VECTORS + B.VECTOR_WORDS * (int(role) - B.MEAN)
        block[word + B.SET_STRIDE] = vector.set_stride
        block[word + B.STRIDE] = vector.stride
        block[word + B.CODE] = vector.dtype.code
    if problem.count is not None:
        spec = problem.count
        block[B.COUNT_CODE] = spec.dtype.code
        block[B.COUNT_RANK] = spec.rank
        block[B.COUNT_SIZES : B.COUNT_SIZES + spec.rank] = spec.shape
        block[B.COUNT_STRIDES : B.COUNT_STRIDES + spec.rank] = spec.strides


def _fill_workspace(block: npt.NDArray[np.int64], problem: Problem, parts: int) -> int:
    """Lay out the workspace; its size in bytes."""
    values = problem.sets.size * problem.channel.size
    real = problem.arithmetic.itemsize
    double = dtypes.float64.itemsize
    # Errors of sums are kept in float64 arithmetic alone.
    error = double if problem.arithmetic is dtypes.float64 else 0
    layout: Sequence[tuple[int, int]] = (
        (B.W_MEAN, values * real),
        (B.W_GAIN, values * real),
        (B.W_SHIFT, values * real),
        (B.W_SLOPE, values * real),
        (B.W_SCALE, values * real),
        (B.W_INVSTD, values * double),
        (B.W_WEIGHT, values * double),
        (B.W_SUM_DY, parts * values * double),
        (B.W_SUM_DY_ERROR, parts * values * error),
        (B.W_SUM_DY_XMU, parts * values * double),
        (B.W_SUM_DY_XMU_ERROR, parts * values * error),
        (B.W_COUNT, double),
    )
    end = 0
    for word, size in layout:
        block[word] = end
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return end + ALIGNMENT - 1


def build(problem: Problem, machine: Machine) -> Program:
    """The program for a problem on a machine."""
    # Not where x alone makes the arithmetic float64.
    input_is_grad_out = not _needs_input(problem) and (
        dtypes.arithmetic(problem.grad_out) is problem.arithmetic
    )
    if input_is_grad_out:
        problem = _without_input(problem)
    # Whether so much is read and written that little of it will be in cache the next time.
    large = _bytes(problem) > machine.cache // 2
    access, problem = _access(problem)
    steps, parts = _steps(problem, access)
    template = np.zeros(B.BLOCK_WORDS, np.int64)
    _fill_axes(template, problem)
    _fill_vectors(template, problem)
    template[B.RULE] = problem.rule
    template[B.EPS] = _bits(problem.eps)
    template[B.DIVISOR] = _bits(problem.divisor)
    template[B.PER_GROUP] = problem.per_group
    template[B.SPREAD_IS_VARIANCE] = problem.spread_is_variance
    template[B.SLOTS] = parts
    if _is_empty(problem):
        template[B.SETS] = 0  # no sums; what is to be summed over them is 0
    template[B.STREAM] = _streams(problem, access, large)
    template[B.AHEAD] = _fetches_ahead(access, large)
    template[B.RUN : B.CHUNK + 1] = access.run, access.repeat, access.chunk
    data = (problem.grad_out, problem.input, problem.grad_input or problem.input)
    template[B.DATA_SIZES : B.DATA_SIZES + 3] = [dtype.itemsize for dtype in data]
    workspace_size = (
        0 if _is_empty(problem) or not steps else _fill_workspace(template, problem, parts)
    )
    return Program(
        pattern=access.pattern,
        data=(data[0].code, data[1].code, data[2].code),
        code=(problem.arithmetic if access.pattern == "tiles" else problem.input).code,
        arithmetic=problem.arithmetic.code,
        steps=steps,
        template=template,
        workspace_size=workspace_size,
        input_is_grad_out=input_is_grad_out,
    )


def _without_input(problem: Problem) -> Problem:
    """The same problem, with dy read in the place of an x that nothing depends on."""

    def twice(axis: Axis) -> Axis:
        dy, _, dx = axis.strides
        return Axis(axis.size, (dy, dy, dx))

    return replace(
        problem,
        input=problem.grad_out,
        sets=twice(problem.sets),
        outer=tuple(twice(axis) for axis in problem.outer),
        channel=twice(problem.channel),
        inner=twice(problem.inner),
        missing_mean=False,
        missing_spread=False,
    )
