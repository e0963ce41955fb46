"""How tensors are read: which axis is contiguous, how a row is made of it, what is moved first.

Its thresholds stand on measurements, which docs/performance.md has in one table.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import NamedTuple

from ... import dtypes
from ...dtypes import DType
from ...layout import Axis, ceil_div, rounded_up
from ...machine import Machine
from ...memory import LINE
from ...problem import Problem, Role

#: The longest row of columns: what is kept of each of its elements stays in the nearest cache.
SPAN = 1024
#: Rows of columns are folded into float64 after so many, as the bound wants it.
ROWS = 16
#: Rows of columns whose dx is written together, so that their coefficients are loaded once.
DX_ROWS = 4
#: Channels of a tile (see walk.py); a task has whole tiles, since its channels share cache lines.
TILE_CHANNELS = 64
#: Fewer rows of columns than these do not make up for what each element of a longer row costs.
LEAST_ROWS = 128
#: The lanes that a kernel's vectors have (see lanes.py); a row's length should be a multiple of it.
LANES = 32
#: Samples of groups are taken as one up to so many elements, and up to so many channels.
TOGETHER, CHANNELS_TOGETHER = 1 << 14, 1 << 8
#: Channels that are shorter, and follow each other, are read as columns: one would not fill lanes.
COLUMN_RUN = 32
#: So are channels shorter than this where moments are float64, which cost more in rows.
EXACT_RUN = 128
#: And those shorter than this in tensors of FAR_APART bytes or more: their rows in the images of a
#: batch are so far apart that processors do not foresee them.
FAR_RUN, FAR_APART = 512, 32 << 20
#: Longer rows are cut into shorter ones, for tasks to take some of them.
LONGEST_ROW = 1 << 13
#: Rows of fewer bytes are not written past the caches, since their ends are parts of lines: the
#: first where the L3 is a large server's (twice as many, but for whole lines), the second where it
#: is these cores' own.
STREAMED_ROW, STREAMED_ROW_OF_FEW = 768, 384
#: Beyond these shares of an L3 of these cores' own it pays to write past it: columns, rows of whole
#: cache lines, and rows that end in parts of lines.
STREAMED_COLUMNS, STREAMED_LINES, STREAMED_PARTS = 0.25, 0.5, 2.0
#: As many threads as there may be.
MOST_THREADS = 1 << 30
#: Tensors beyond this share of the cache are far enough for rows to be fetched ahead; columns those
#: beyond so many times a core's L2, or the cache if they are not of a half type.
FETCHED_ROWS, FETCHED_COLUMNS = 0.5, 2
#: How much of a channel's next row is fetched: more would not stay in the nearest cache.
FETCHED = 1024

#: What the names of operations end in whose weight and bias are those of a row's elements.
ALONG = " along"

#: The vectors that have a number for each group of each sample.
OF_GROUPS = (Role.MEAN, Role.INVSTD, Role.OUT_MEAN, Role.OUT_INVSTD)

#: In the place of an axis that there is not.
_NO_AXIS = Axis(1, (0, 0, 0))


class Access(NamedTuple):
    """How tensors are read.

    Attributes:
        problem: the problem, in the axes that this way wants.
        dtype: of what kernels see.
        columns: the channels of a position are contiguous, rather than a channel's elements.
        rows: the axis of rows.
        run, last_run: elements of a channel in a row, and in the last of the rows.
        run_strides: how far they are apart in (grad_out, input, result).
        along: rows are groups of their own, and their elements parameters'.
        together: samples that are taken as one, which has the channels of all.
        repeat: positions to a row of columns.
        chunk: channels to a row of columns.
        moved: which of the tensors are moved to tiles first.
    """

    problem: Problem
    dtype: DType
    columns: bool
    rows: Axis
    run: int
    last_run: int
    run_strides: tuple[int, ...] = (1, 1, 1)
    along: bool = False
    together: int = 1
    repeat: int = 1
    chunk: int = 1
    moved: tuple[bool, ...] = (False, False, False)

    @property
    def positions(self) -> int:
        """How many rows there are, of all outer indices."""
        count = self.rows.size
        for axis in self.problem.outer:
            count *= axis.size
        # The rows' outer axes are those of sets.
        return count // self.problem.sets.size if self.problem.by_row else count

    @property
    def per_channel(self) -> int:
        """Elements of a channel in a set, a cut axis taken as rows of one length."""
        return self.positions * self.run

    @property
    def bytes(self) -> int:
        """What is read and written."""
        return bytes_of(self.problem, self.per_channel)

    @property
    def parameters(self) -> int:
        """How many elements each gradient of parameters has."""
        problem = self.problem
        if problem.by_row:
            return problem.parameters
        if self.along:
            return problem.sets.size * self.run
        return problem.channel.size // self.together

    @property
    def data(self) -> tuple[DType, DType, DType]:
        """The dtypes of dy, x and dx."""
        problem = self.problem
        return problem.grad_out, problem.input, problem.result or problem.input

    @property
    def pattern(self) -> str:
        """Which kernels it takes."""
        return "columns" if self.columns else "rows"


def read_bytes(problem: Problem) -> int:
    """What is read of dy and x, for each element."""
    if problem.forward:
        return problem.input.itemsize
    return problem.grad_out.itemsize + problem.input.itemsize


def bytes_of(problem: Problem, per_channel: int) -> int:
    """What is read and written, of so many elements of each set's channels."""
    itemsize = read_bytes(problem)
    if problem.result is not None:
        itemsize += problem.result.itemsize
    return problem.sets.size * problem.channel.size * per_channel * itemsize


def _aligned(unit: int, most: int) -> int:
    """How many units to a row: as many as fit the span, of a length that suits the lanes."""
    fit = min(SPAN // unit, most)
    for lanes in (LANES, LANES // 4):
        step = lanes // gcd(unit, lanes)
        if step <= fit:
            return fit // step * step
    return fit


def _rows_as_groups(problem: Problem) -> Problem:
    """Rows that are groups of their own, as channels; groups of one row become sets.

    For group norm where a channel has one position, so that there are as many sums of channels as
    elements: rather than those of each channel, sums are taken along a row.
    """

    def turned(axis: Axis, factor: int, size: int) -> Axis:
        return Axis(size, tuple(factor * stride for stride in axis.strides))

    vectors = dict(problem.vectors)
    for role in OF_GROUPS:
        if role in vectors:
            vector = vectors[role]
            vectors[role] = vector._replace(stride=vector.set_stride, set_stride=vector.stride)
    per_group = problem.per_group
    return replace(
        problem,
        sets=turned(problem.channel, per_group, problem.channel.size // per_group),
        channel=problem.sets,
        inner=turned(problem.channel, 1, per_group),
        vectors=vectors,
        per_group=1,
    )


def _samples_together(problem: Problem) -> int:
    """How many samples of groups are taken as one, where their channels follow each other.

    What is done for each sample costs the same for few channels as for some more.
    """
    sets, channel, size = problem.sets, problem.channel, problem.channel.size
    if problem.per_group == 1 or problem.outer or 1 in (problem.positions, sets.size):
        return 1
    follow = all(
        set_step == size * step
        for set_step, step in zip(sets.strides, channel.strides, strict=True)
    ) and all(
        vector.set_stride == size // problem.per_group * vector.stride
        for role, vector in problem.vectors.items()
        if role in OF_GROUPS
    )
    if not follow:
        return 1
    most = min(sets.size, TOGETHER // (size * problem.positions), CHANNELS_TOGETHER // size)
    return next((count for count in range(most, 1, -1) if sets.size % count == 0), 1)


def _as_one(problem: Problem, count: int) -> Problem:
    """So many samples as one, with the channels of all."""
    sets, channel = problem.sets, problem.channel
    return replace(
        problem,
        sets=Axis(sets.size // count, tuple(count * step for step in sets.strides)),
        channel=Axis(count * channel.size, channel.strides),
        vectors={
            role: vector._replace(set_stride=count * vector.set_stride)
            for role, vector in problem.vectors.items()
        },
    )


def _sums_exactly(problem: Problem) -> bool:
    """Whether the moments of x are sums in float64, which take longer than memory does."""
    return problem.missing_mean and problem.input.itemsize > dtypes.float16.itemsize


def _least_row(problem: Problem) -> int:
    """The shortest channels that are read as rows even if they follow each other."""
    if bytes_of(problem, problem.positions) >= FAR_APART:
        return FAR_RUN
    return EXACT_RUN if _sums_exactly(problem) else COLUMN_RUN


def _in_rows(problem: Problem, dtype: DType, moved: tuple[bool, ...]) -> Access:
    """The inner axis as rows, one for each outer index; or cut into rows, if it is long."""
    together = 1 if any(moved) else _samples_together(problem)
    if together > 1:
        problem = _as_one(problem, together)
    inner, outer = problem.inner, problem.outer
    run, last_run, rows = inner.size, inner.size, _NO_AXIS
    if inner.size > LONGEST_ROW:
        run = rounded_up(ceil_div(inner.size, ceil_div(inner.size, LONGEST_ROW)), 2 * LANES)
        count = ceil_div(inner.size, run)
        last_run = inner.size - (count - 1) * run
        rows = Axis(count, tuple(run * stride for stride in inner.strides))
    elif outer:
        rows = outer[-1]
        problem = replace(problem, outer=outer[:-1])
    strides = inner.strides
    return Access(
        problem, dtype, False, rows, run, last_run, strides, together=together, moved=moved
    )


def access_of(problem: Problem) -> Access:
    """How a problem's tensors are read: as most of them can be without being moved."""
    if problem.is_empty or problem.gathers:
        run = problem.inner.size if problem.by_row else 1
        return Access(problem, problem.arithmetic, False, _NO_AXIS, run, 0)
    along = problem.by_row
    if problem.per_group > 1 and problem.positions == 1:
        problem, along = _rows_as_groups(problem), True
    channel, inner = problem.channel, problem.inner
    data = (problem.grad_out, problem.input, problem.result)
    present = {found for found in data if found is not None}
    dtype = problem.grad_out if len(present) == 1 else problem.arithmetic

    def moved_for(axis: Axis) -> tuple[bool, ...]:
        """Which tensors are not contiguous along an axis, or have another dtype."""
        return tuple(
            [
                found is not None and (found != dtype or (axis.size > 1 and stride != 1))
                for found, stride in zip(data, axis.strides, strict=True)
            ]
        )

    def all_strides(axis: Axis, wanted: int) -> bool:
        strides = zip(data, axis.strides, strict=True)
        return all(found is None or stride == wanted for found, stride in strides)

    # Where a channel has one element, rows would be no longer than that.
    by_rows = moved_for(inner) if inner.size > 1 or channel.size == 1 else (True, True, True)
    by_columns = moved_for(channel)

    # A row that is a group of its own is one row, however long.
    if along:
        run, steps = inner.size, inner.strides
        return Access(problem, dtype, False, _NO_AXIS, run, run, steps, True, moved=by_rows)

    # Short channels that follow each other make a row together, one to each outer index.
    follow = not any(by_rows) and all_strides(channel, inner.size)
    if follow and problem.outer and inner.size < _least_row(problem):
        rows, chunk = problem.outer[-1], _aligned(inner.size, channel.size)
        problem = replace(problem, outer=problem.outer[:-1])
        return Access(problem, dtype, True, rows, inner.size, inner.size, chunk=chunk)

    # Columns are taken where fewer tensors are moved for them than for rows, or where as many are
    # and rows are shorter.
    fewer = sum(by_rows) - sum(by_columns)
    if fewer > 0 or (fewer == 0 and channel.size >= LANES > inner.size):
        repeat, chunk = 1, min(channel.size, SPAN)
        # Positions that follow each other make a row together, if enough rows are left.
        if 2 * channel.size <= SPAN and not any(by_columns) and all_strides(inner, channel.size):
            most = max(ceil_div(LANES, channel.size), problem.positions // LEAST_ROWS)
            repeat = _aligned(channel.size, min(inner.size, most))
        return Access(
            problem, dtype, True, inner, 1, 1, repeat=repeat, chunk=chunk, moved=by_columns
        )

    return _in_rows(problem, dtype, by_rows)


def streams(access: Access, machine: Machine) -> int:
    """With how many threads at most dx is written past the caches, where it would not stay anyway.

    A store through the caches reads the line first, which costs most where the L3 is a large
    server's: there it is done beyond what the threads' L2 hold. What is in an L3 of these cores'
    own is found there, whoever wrote it.
    """
    problem = access.problem
    if problem.result is None:
        return 0
    row = access.run * problem.result.itemsize
    if machine.shares_l3:
        if not access.columns and row < STREAMED_ROW * (2 if row % LINE else 1):
            return 0
        most = (access.bytes - 1) // machine.l2
        if most >= machine.cores:
            return MOST_THREADS
        return 0 if _sums_exactly(problem) and not access.columns else most
    if access.columns:
        return MOST_THREADS if access.bytes > STREAMED_COLUMNS * machine.cache else 0
    share = STREAMED_PARTS if row % LINE else STREAMED_LINES
    beyond = access.bytes > share * machine.cache and row >= STREAMED_ROW_OF_FEW
    return MOST_THREADS if beyond else 0


def fetches_ahead(access: Access, machine: Machine) -> bool:
    """Whether sums ask for the next rows ahead of time, where no processor foresees them.

    Of rows it is a channel's next one, in another image. Of columns it is several, which are more
    streams than a processor foresees; those of short channels go along the batch, too far apart.
    """
    if not access.columns:
        return access.bytes > FETCHED_ROWS * machine.cache
    half = access.dtype.itemsize == dtypes.float16.itemsize
    near = machine.l2 if half else machine.cache
    return access.bytes > FETCHED_COLUMNS * near and access.run == 1
