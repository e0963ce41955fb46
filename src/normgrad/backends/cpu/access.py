"""How tensors are read: which axis is contiguous, how a row is made of it, what is moved first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from ...dtypes import DType
from ...layout import Axis
from ...machine import Machine
from ...memory import LINE
from ...problem import Problem, Role

#: The longest row of columns, and how many rows are summed before they are folded; columns.py says
#: why.
SPAN, ROWS = 1024, 16
#: Rows of columns whose dx is written together.
DX_ROWS = 4
#: Channels of a tile (see walk.py); a task has whole tiles, since its channels share cache lines.
TILE_CHANNELS = 64
#: Rows of columns that are left where several positions make a row, if it has enough for the lanes:
#: fewer would not make up for what each element of a row costs.
LEAST_ROWS = 128
#: The lanes that a kernel's vectors have (see lanes.py); a row's length should be a multiple of it.
LANES = 32
#: Channels shorter than this are read as columns, several to a row, if they follow each other;
#: where moments are float64, those shorter than the second; and from FAR_APART bytes on, where a
#: channel's rows in the images of a batch are so far apart that processors do not foresee them,
#: those shorter than the third. It is the same on every machine, since sums follow from it.
COLUMN_RUN, EXACT_RUN, FAR_RUN = 32, 128, 512
FAR_APART = 32 << 20
#: Longer rows are cut into shorter ones, for tasks to take some of them.
LONGEST_ROW = 1 << 13
#: Rows of fewer bytes are not written past the caches: their ends are parts of lines.
STREAMED_ROW = 768


#: What the names of operations end in whose weight and bias are those of a row's elements.
ALONG = " along"


@dataclass(frozen=True)
class Access:
    """How tensors are read.

    Attributes:
        problem: the problem, in the axes that this way wants.
        dtype: of what kernels see.
        columns: the channels of a position are contiguous, rather than a channel's elements.
        along: rows are groups of their own, and their elements parameters'.
        rows: the axis of rows.
        run, last_run: elements of a channel in a row, and in the last of the rows.
        run_strides: how far they are apart in (grad_out, input, result).
        repeat: positions to a row of columns.
        chunk: channels to a row of columns.
        moved: which of the tensors are moved to tiles first.
    """

    problem: Problem
    dtype: DType
    columns: bool
    rows: Axis
    run: int
    run_strides: tuple[int, ...] = (1, 1, 1)
    last_run: int = 0
    along: bool = False
    repeat: int = 1
    chunk: int = 1
    moved: tuple[bool, ...] = (False, False, False)

    @property
    def positions(self) -> int:
        """How many rows there are, of all outer indices."""
        count = self.rows.size
        for axis in self.problem.outer:
            count *= axis.size
        return count

    @property
    def per_channel(self) -> int:
        """Elements of a channel in a set, a cut axis taken as rows of one length."""
        return self.positions * self.run

    @property
    def pattern(self) -> str:
        """Which kernels it takes."""
        return "columns" if self.columns else "rows"


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


def _used(problem: Problem) -> tuple[int, ...]:
    """Which of (grad_out, input, result) there are."""
    return (0, 1, 2) if problem.result is not None else (0, 1)


def _rows_as_groups(problem: Problem) -> Problem:
    """Rows that are groups of their own, as channels; groups of one row become sets.

    For group norm where a channel has one position, so that there are as many sums of channels as
    elements: rather than those of each channel, sums are taken along a row.
    """

    def turned(axis: Axis, factor: int, size: int) -> Axis:
        return Axis(size, tuple(factor * stride for stride in axis.strides))

    vectors = dict(problem.vectors)
    for role in (Role.MEAN, Role.INVSTD, Role.OUT_MEAN, Role.OUT_INVSTD):
        if role in vectors:
            vector = vectors[role]
            vectors[role] = replace(vector, stride=vector.set_stride, set_stride=vector.stride)
    per_group = problem.per_group
    return replace(
        problem,
        sets=turned(problem.channel, per_group, problem.channel.size // per_group),
        channel=problem.sets,
        inner=turned(problem.channel, 1, per_group),
        vectors=vectors,
        per_group=1,
    )


def _cut(problem: Problem, strides: tuple[int, ...]) -> tuple[Axis, int, int, Problem]:
    """The axis of rows, a row's length and the last one's, and what is left of the problem."""
    size = problem.inner.size
    if size <= LONGEST_ROW:
        if not problem.outer:
            return Axis(1, (0, 0, 0)), size, size, problem
        return problem.outer[-1], size, size, replace(problem, outer=problem.outer[:-1])
    unit = 2 * LANES
    pieces = -(-size // LONGEST_ROW)
    run = -(-size // (pieces * unit)) * unit
    count = -(-size // run)
    rows = Axis(count, tuple(run * stride for stride in strides))
    return rows, run, size - (count - 1) * run, problem


def _longest_column(problem: Problem) -> int:
    """The shortest channels that are read as rows even if they follow each other."""
    if bytes_of(problem) >= FAR_APART:
        return FAR_RUN
    return EXACT_RUN if problem.missing_mean and problem.input.itemsize > 2 else COLUMN_RUN


def access_of(problem: Problem) -> Access:
    """How a problem's tensors are read: as most of them can be without being moved."""
    if problem.is_empty or problem.gathers:
        return Access(problem, problem.arithmetic, False, Axis(1, (0, 0, 0)), 1)
    used = _used(problem)
    data = (problem.grad_out, problem.input, problem.result or problem.input)
    dtypes = {data[tensor] for tensor in used}
    dtype = dtypes.pop() if len(dtypes) == 1 else problem.arithmetic
    along = problem.per_group > 1 and problem.positions == 1
    if along:
        problem = _rows_as_groups(problem)
    channel, inner = problem.channel, problem.inner

    def direct(axis: Axis) -> tuple[bool, ...]:
        return tuple(
            tensor not in used or (data[tensor] == dtype and axis.strides[tensor] == 1)
            for tensor in range(3)
        )

    def all_strides(axis: Axis, stride: int) -> bool:
        return all(axis.strides[tensor] == stride for tensor in used)

    one = Axis(1, (1, 1, 1))
    in_rows = direct(inner if inner.size > 1 else one if channel.size == 1 else inner)
    in_columns = direct(channel if channel.size > 1 else one)
    if inner.size == 1 and channel.size > 1:
        in_rows = (False, False, False)
    short = (
        all(in_rows)
        and not along
        and inner.size < _longest_column(problem)
        and all_strides(channel, inner.size)
        and problem.outer
    )
    if short:
        *outer, rows = problem.outer
        chunk = _aligned(inner.size, channel.size)
        problem = replace(problem, outer=tuple(outer))
        return Access(problem, dtype, True, rows, inner.size, last_run=inner.size, chunk=chunk)
    columns = not along and (
        sum(in_columns) > sum(in_rows)
        or (sum(in_columns) == sum(in_rows) and channel.size >= LANES > inner.size)
    )
    if columns:
        repeat, chunk = 1, min(channel.size, SPAN)
        if channel.size * 2 <= SPAN and all(in_columns) and all_strides(inner, channel.size):
            most = max(-(-LANES // channel.size), problem.positions // LEAST_ROWS)
            repeat = _aligned(channel.size, min(inner.size, most))
        return Access(
            problem, dtype, True, inner, 1, last_run=1, repeat=repeat, chunk=chunk,
            moved=tuple(not found for found in in_columns),
        )  # fmt: skip
    if along:
        rows, run, last_run = one, inner.size, inner.size
    else:
        rows, run, last_run, problem = _cut(problem, inner.strides)
    return Access(
        problem, dtype, False, rows, run, inner.strides, last_run, along,
        moved=tuple(not found for found in in_rows),
    )  # fmt: skip


def streams(access: Access, size: int, machine: Machine) -> bool:
    """Whether dx is written past the caches: where it would not stay in them anyway.

    A store through the caches reads the line first, which costs most where the L3 is a large
    server's. There, past the caches, training batch norm took (1 core, everything in a loop):
    float32 (4, 64, 32, 32) 0.73 of the time, (16, 80, 700) 0.73, (16, 64, 20, 20) 0.91, (32, 64,
    14, 14) 0.82 to 0.96; channels-last (16, 384, 10, 10) 0.66; bfloat16 (16, 80, 700) 0.96; but
    (2, 64, 32, 32), which is in L2, 1.2, and bfloat16 (16, 384, 14, 14) 1.10.

    Where the L3 is that of a few cores (32 MiB), float32 (32, 64, 14, 14) took 1.44 times as long,
    (16, 80, 700) 1.15; rows of whole lines and columns gained from what is in the L3.
    """
    result = access.problem.result
    if result is None:
        return False
    row = access.run * result.itemsize
    if machine.shares_l3:
        return (access.columns or row >= STREAMED_ROW) and size > machine.l2
    if access.columns:
        return size > machine.cache // 4
    return row >= STREAMED_ROW // 2 and size > machine.cache * (2 if row % LINE else 0.5)


#: How much of a channel's next row is asked for: more would not stay in the nearest cache.
FETCHED = 1024


def fetches_ahead(access: Access, size: int, machine: Machine) -> bool:
    """Whether sums ask for the next rows ahead of time.

    Of rows it is a channel's next one, in another image. With it, batch_norm_stats took (1 core,
    another machine) float32 (32, 512, 28, 28) 0.56 of the time, (32, 256, 24, 24) 0.63, bfloat16
    0.81 and 1.05; training's gradients float32 0.87 and 0.78, bfloat16 0.96 and 0.81; longer rows
    1.0.

    Of columns it is several rows: sixteen of two tensors at once are more streams than a processor
    foresees by itself. With it, training batch norm took (2 cores, channels-last) bfloat16 (32, 64,
    112, 112) 0.47 of the time, float32 (32, 512, 28, 28) 0.79, bfloat16 (32, 64, 56, 56), 38 MB in
    all, 1.0; what is in L2 takes longer, float32 (2, 320, 16, 16) 1.15 of the time. Rows of
    channels that go along the batch are far apart, and asking for them took longer: float32 (32,
    1024, 14, 14) 1.3 of the time.
    """
    if access.columns:
        return access.run == 1 and size > machine.l2
    return size > machine.cache // 2
