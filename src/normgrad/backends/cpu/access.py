"""Access patterns: how tensors are read, and which of them are copied to tiles first.

The measurements behind its thresholds stand in one table in docs/performance.md.
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
from ...problem import STATISTICS, Problem

#: The longest row of columns. A longer row is cut, and its parts are not in memory's order; the
#: sums and coefficients of this one's elements are still near the L1 cache.
SPAN = 2048
#: The bytes of a row of several positions: beside its sums and coefficients the L1 cache has room
#: for other rows.
REPEATED = 1 << 11
#: Rows of columns summed in float32 before a fold into float64, as the error bound demands.
ROWS = 16
#: Rows of columns whose dx is written together, so that their coefficients are loaded once.
DX_ROWS = 4
#: The channels of a tile (see walk.py). A task has whole tiles, since their channels share cache
#: lines.
TILE_CHANNELS = 64
#: The least number of rows of columns that outweighs the cost per element of a longer row.
LEAST_ROWS = 128
#: How many lines at one offset in their pages the L1 cache holds, and the bytes of a page. If more
#: rows lie whole pages apart, they evict one another, even before prefetched lines are read.
WAYS, PAGE = 8, 1 << 12
#: The lanes that a kernel's vectors have (see lanes.py); a row's length should be a multiple of it.
LANES = 32
#: The longest row whose sums are float32 throughout.
SHORT = 256
#: The most elements, and the most channels, of the group norm samples that are treated as one.
TOGETHER, CHANNELS_TOGETHER = 1 << 14, 1 << 8
#: Adjacent channels shorter than this are read as columns: one alone would not fill the lanes.
COLUMN_RUN = 32
#: The same limit where moments are computed, each row's of which costs more to combine.
MOMENTS_RUN = 128
#: The same limit for tensors of FAR_APART bytes or more, where a channel's sums come first: its
#: rows in the images of a batch are too far apart for the processor to prefetch them.
FAR_RUN, FAR_APART = 512, 32 << 20
#: Longer rows are cut, so that several tasks can share a row.
LONGEST_ROW = 1 << 13
#: The least bytes of a row that is written with non-temporal stores (past the caches), since the
#: ends of a row are partial cache lines. The first limit is for a large server's L3 (doubled for
#: rows with partial lines), the others for an L3 that belongs to these cores alone: for rows of
#: whole lines, and for rows with partial lines.
STREAMED_ROW, STREAMED_ROW_OF_FEW, STREAMED_PARTS_OF_FEW = 768, 384, 1 << 10
#: Where the L3 belongs to these cores alone, the share of it beyond which non-temporal stores pay:
#: for columns, for rows of whole cache lines, and for rows that end in partial lines.
STREAMED_COLUMNS, STREAMED_LINES, STREAMED_PARTS = 0.25, 0.5, 2.0
#: More threads than any machine has.
MOST_THREADS = 1 << 30
#: The next rows are prefetched in tensors beyond this share of the cache; columns, beyond this
#: multiple of a core's L2, or of the cache if the dtype is no half type.
FETCHED_ROWS, FETCHED_COLUMNS = 0.5, 2
#: Elements of a channel's next row that are prefetched: more would not stay in the L1 cache.
FETCHED = 1024

#: The suffix of operations whose weight and bias belong to a row's elements, as in layer norm.
ALONG = " along"

#: The placeholder for an absent axis.
_NO_AXIS = Axis(1, (0, 0, 0))


class Access(NamedTuple):
    """How tensors are read.

    Attributes:
        problem: the problem, with its axes arranged for this pattern.
        dtype: the dtype of the tensors or tiles that kernels read.
        columns: whether a position's channels are contiguous, rather than a channel's elements.
        rows: the axis of rows.
        run, last_run: the elements of a channel in a row, and in the last row.
        run_strides: the strides of these elements in (grad_out, input, result).
        along: whether each row is a statistics group whose elements have the parameters, as in
            layer norm.
        together: the number of samples that are treated as one with the channels of all.
        repeat: the positions in a row of columns.
        chunk: the channels in a row of columns.
        moved: which tensors are copied to tiles before kernels read them.
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
        """The number of rows, over all outer indices."""
        count = self.rows.size
        for axis in self.problem.outer:
            count *= axis.size
        # By row, the outer axes of rows count as sets.
        return count // self.problem.sets.size if self.problem.by_row else count

    @property
    def per_channel(self) -> int:
        """The elements of a channel in a set; all rows of a cut axis count with the full length."""
        return self.positions * self.run

    @property
    def bytes(self) -> int:
        """The bytes that are read and written."""
        return bytes_of(self.problem, self.per_channel)

    @property
    def parameters(self) -> int:
        """The number of elements of each parameter gradient."""
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
        """The name of the access pattern, which selects the kernels."""
        return "columns" if self.columns else "rows"


def read_bytes(problem: Problem) -> int:
    """The bytes of dy and x that are read for each element."""
    if problem.forward:
        return problem.input.itemsize
    return problem.grad_out.itemsize + problem.input.itemsize


def bytes_of(problem: Problem, per_channel: int) -> int:
    """The bytes that are read and written for so many elements of each channel in a set."""
    itemsize = read_bytes(problem)
    if problem.result is not None:
        itemsize += problem.result.itemsize
    return problem.sets.size * problem.channel.size * per_channel * itemsize


def _aligned(unit: int, most: int, span: int = SPAN) -> int:
    """The number of units in a row: as many as fit, if possible a multiple of the lanes."""
    fit = min(span // unit, most)
    for lanes in (LANES, LANES // 4):
        step = lanes // gcd(unit, lanes)
        if step <= fit:
            return fit // step * step
    return fit


def held_at_once(step: int) -> int:
    """How many rows, ``step`` bytes apart, can have a line each in the L1 cache."""
    return WAYS * (PAGE // gcd(PAGE, step))


def _repeated(channels: int, most: int, itemsize: int) -> int:
    """The positions in a row of columns: as many as fit, or fewer if more rows then fit the L1."""
    fit = _aligned(channels, most, max(channels, REPEATED // itemsize))
    step = LANES // gcd(channels, LANES)
    fewer = range(fit, max(0, fit - 4 * step), -step)
    # The rows of dy, x and dx that are read and written together.
    rows = 3 * ROWS
    return max(fewer, key=lambda n: (min(rows, held_at_once(n * channels * itemsize)), n))


def _rows_as_groups(problem: Problem) -> Problem:
    """Make each group of a sample a row: samples take the place of channels, groups that of sets.

    This is for group norm where a channel has one position, and would need as many sums as there
    are elements: sums are taken along a row rather than for each channel.
    """

    def turned(axis: Axis, factor: int, size: int) -> Axis:
        return Axis(size, tuple(factor * stride for stride in axis.strides))

    vectors = dict(problem.vectors)
    for role in STATISTICS:
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
    """How many samples of group norm are treated as one, where their channels are adjacent.

    The work per sample costs the same for few channels as for some more.
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
        if role in STATISTICS
    )
    if not follow:
        return 1
    most = min(sets.size, TOGETHER // (size * problem.positions), CHANNELS_TOGETHER // size)
    return next((count for count in range(most, 1, -1) if sets.size % count == 0), 1)


def _as_one(problem: Problem, count: int) -> Problem:
    """Treat several samples as one with the channels of all."""
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
    """Whether the moments of x are summed in float64, which takes longer than reading memory."""
    return problem.missing_mean and problem.input.itemsize > dtypes.float16.itemsize


def waits(problem: Problem) -> bool:
    """Whether a channel's sums are needed before anything else is done to the channel."""
    return problem.result_needs_sums or problem.missing_mean


def _least_row(problem: Problem) -> int:
    """The length from which adjacent channels are read as rows rather than columns."""
    if waits(problem) and bytes_of(problem, problem.positions) >= FAR_APART:
        return FAR_RUN
    return MOMENTS_RUN if problem.missing_mean else COLUMN_RUN


def _in_rows(problem: Problem, dtype: DType, moved: tuple[bool, ...]) -> Access:
    """Split the inner axis into rows: one for each outer index, or several if it is long."""
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
    """Choose the access pattern in which the fewest tensors have to be copied to tiles."""
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
        """Which tensors must be copied to tiles: strided along an axis, or of another dtype."""
        return tuple(
            [
                found is not None and (found != dtype or (axis.size > 1 and stride != 1))
                for found, stride in zip(data, axis.strides, strict=True)
            ]
        )

    def all_strides(axis: Axis, wanted: int) -> bool:
        strides = zip(data, axis.strides, strict=True)
        return all(found is None or stride == wanted for found, stride in strides)

    # A channel of one position gives rows of one element, which count as no rows.
    by_rows = moved_for(inner) if inner.size > 1 or channel.size == 1 else (True, True, True)
    by_columns = moved_for(channel)

    # A row that is a statistics group is not cut, however long.
    if along:
        run, steps = inner.size, inner.strides
        return Access(problem, dtype, False, _NO_AXIS, run, run, steps, True, moved=by_rows)

    # Short adjacent channels form one row together, one for each outer index.
    follow = not any(by_rows) and all_strides(channel, inner.size)
    if follow and problem.outer and inner.size < _least_row(problem):
        rows, chunk = problem.outer[-1], _aligned(inner.size, channel.size)
        problem = replace(problem, outer=problem.outer[:-1])
        return Access(problem, dtype, True, rows, inner.size, inner.size, chunk=chunk)

    # Columns are chosen where they need fewer copies to tiles than rows do, or as many copies
    # while rows are shorter.
    fewer = sum(by_rows) - sum(by_columns)
    if fewer > 0 or (fewer == 0 and channel.size >= LANES > inner.size):
        repeat, chunk = 1, min(channel.size, SPAN)
        # Adjacent positions form one row together, as long as enough rows are left.
        if 2 * channel.size <= SPAN and not any(by_columns) and all_strides(inner, channel.size):
            most = max(ceil_div(LANES, channel.size), problem.positions // LEAST_ROWS)
            repeat = _repeated(channel.size, min(inner.size, most), dtype.itemsize)
        return Access(
            problem, dtype, True, inner, 1, 1, repeat=repeat, chunk=chunk, moved=by_columns
        )

    return _in_rows(problem, dtype, by_rows)


def streams(access: Access, machine: Machine) -> int:
    """The largest number of threads with which dx is written with non-temporal stores.

    Such stores bypass the caches. Ordinary stores read the line first, which costs most where the
    L3 is a large server's: there dx is streamed as soon as it exceeds the threads' L2 caches. An L3
    that belongs to these cores keeps dx for the next reader, so there dx is streamed if it would
    not fit. Rows of a dx that is read next and fits the caches are never streamed; channels-last
    models gained nothing from such a rule.
    """
    problem = access.problem
    if problem.result is None:
        return 0
    elements = problem.sets.size * problem.channel.size * problem.positions
    held = elements * problem.result.itemsize <= machine.cache
    if problem.read_next and held and not access.columns:
        return 0
    row = access.run * problem.result.itemsize
    if access.along and row % LINE == 0 and problem.channel.strides[2] == access.run:
        row *= problem.channel.size  # the rows follow each other in whole lines
    if machine.shares_l3:
        if not access.columns and row < STREAMED_ROW * (2 if row % LINE else 1):
            return 0
        most = (access.bytes - 1) // machine.l2
        if most >= machine.cores:
            return MOST_THREADS
        return 0 if _sums_exactly(problem) and not access.columns else most
    if access.columns:
        return MOST_THREADS if access.bytes > STREAMED_COLUMNS * machine.cache else 0
    if row % LINE:
        least, share = STREAMED_PARTS_OF_FEW, STREAMED_PARTS
    else:
        least, share = STREAMED_ROW_OF_FEW, STREAMED_LINES
    beyond = access.bytes > share * machine.cache and row >= least
    return MOST_THREADS if beyond else 0


def fetches_ahead(access: Access, machine: Machine) -> bool:
    """Whether the sums prefetch the next rows, where the processor does not do so by itself.

    In rows that is the channel's row in the next image. In columns it is several rows, which are
    more streams than a processor foresees. Rows of short channels lie in different images, too far
    apart, and are not prefetched.
    """
    if not access.columns:
        return access.bytes > FETCHED_ROWS * machine.cache
    half = access.dtype.itemsize == dtypes.float16.itemsize
    near = machine.l2 if half else machine.cache
    return access.bytes > FETCHED_COLUMNS * near and access.run == 1
