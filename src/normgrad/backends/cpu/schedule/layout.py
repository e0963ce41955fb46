"""The layout of a problem: which axis kernels read along, and which tensors are copied to tiles."""

from __future__ import annotations

from typing import NamedTuple

from ....declarations.problem import STATISTICS, Problem
from ....tensors import dtypes
from ....tensors.dtypes import DType
from ....tensors.strides import Axis, ceil_div, round_up
from ....tensors.symbolic import gcd
from .policy import Policy

#: The most elements in a row of columns: their sums and coefficients still almost fit the L1 cache.
SPAN = 2048
#: The least rows of columns in a part, and the rows whose coefficients layer norm's walk keeps.
ROWS = 16
#: The sides of a tile that tensors are copied to; each fills some cache lines. A tile has 64 KiB in
#: float64. A task has whole tiles, so that none shares cache lines.
TILE_POSITIONS, TILE_CHANNELS = 128, 64
#: The terms of a level of float64's sums in the workspace (see sums.py).
RADIX = 4
#: The most elements of float32 in a piece of a long row, and half as many of float64.
LONGEST_PIECE = 1 << 13
PIECE_BYTES = 4 * LONGEST_PIECE
#: The lines that the L1 cache holds of one offset in their pages, and the bytes of a page. If more
#: rows lie whole pages apart, they evict one another.
WAYS, PAGE = 8, 1 << 12
#: The most positions of group norm's channels whose groups are walked down as rows, adjacent or in
#: columns, and the least samples: what a channel costs beside its elements outweighs these.
FEW_IN_ROWS, FEW_IN_COLUMNS, LEAST_SAMPLES = 31, 63, 4
#: The most elements in a row of columns that one walk sums and writes: its coefficients and sums
#: stay in the L1 cache.
WALKED = 512
#: The SIMD lanes in a kernel's vectors, and in those of float64 (see lanes.py): a row's length
#: should be a multiple. Rows of layer norm that have fewer than LANES elements are transposed.
LANES, DOUBLE_LANES = 32, 8
#: The most elements of a channel of float64 that a kernel adds up in one sum.
LONGEST_DOUBLE = 1 << 12
#: The most elements in a row that is summed in the arithmetic's type alone.
SHORT = 256
#: The most elements of a channel's next row that are prefetched, which still stay in the L1 cache.
FETCHED = 1024

#: The suffix of operations whose weight and bias lie along rows, as in layer norm.
ALONG = " along"

#: The placeholder for an absent axis.
_NO_AXIS = Axis(1, (0, 0, 0))


class Layout(NamedTuple):
    """How the tensors of a problem are read.

    Attributes:
        problem, policy: the problem, and the policy for the machine.
        sets, outer, channel: the problem's axes as this pattern arranges them: the sets and the
            channels of samples that are processed as one, and the outer axes but that of rows.
        dtype: the dtype of the tensors or tiles that kernels read.
        columns: whether a position's channels are contiguous, rather than a channel's elements.
        rows: the axis of rows.
        run, last_run: the elements of a channel in a row, and in the last row.
        run_strides: the strides of these elements in (grad_out, input, result).
        along: whether each row is a statistics group, and each of its elements has its own
            parameters, as in layer norm; in columns, whether a channel takes the place of a group,
            and each element of its rows has its own parameters.
        shared: how many adjacent elements of such a row have the same parameters: a channel's.
        together: the number of samples that are processed as one with the channels of all.
        repeat: the positions in a row of columns.
        chunk: the channels in a row of columns.
        tiles: which tensors are copied to tiles before kernels read them.
    """

    problem: Problem
    policy: Policy
    sets: Axis
    outer: tuple[Axis, ...]
    channel: Axis
    dtype: DType
    columns: bool = False
    rows: Axis = _NO_AXIS
    run: int = 1
    last_run: int = 1
    run_strides: tuple[int, ...] = (1, 1, 1)
    along: bool = False
    shared: int = 1
    together: int = 1
    repeat: int = 1
    chunk: int = 1
    tiles: tuple[bool, ...] = (False, False, False)

    @property
    def in_pieces(self) -> bool:
        """Whether long rows that are statistics groups are cut into pieces."""
        return self.along and not self.columns and self.rows.size > 1

    @property
    def lanes(self) -> int:
        """The lanes of a kernel's vectors."""
        return DOUBLE_LANES if self.dtype is dtypes.float64 else LANES

    @property
    def has_adjacent_channels(self) -> bool:
        """Whether a position's channels follow each other, and may be written as one row."""
        follow = all(step == self.run for step in self.channel.strides)
        return not self.columns and self.run >= self.lanes and follow

    @property
    def positions(self) -> int:
        """The number of rows, over all outer indices."""
        count = self.rows.size
        for axis in self.outer:
            count *= axis.size
        # In a problem by_row, the outer axes of rows are sets too.
        return count // self.sets.size if self.problem.by_row else count

    @property
    def per_channel(self) -> int:
        """The elements of a channel in a set, as if every row of a cut axis had the full length."""
        return self.positions * self.run

    @property
    def elements(self) -> int:
        """The elements of a data tensor."""
        return self.sets.size * self.channel.size * self.per_channel

    @property
    def bytes(self) -> int:
        """The bytes that are read and written."""
        return bytes_of(self.problem, self.per_channel)

    @property
    def parameters(self) -> int:
        """The number of elements of each parameter gradient, of each element where they share."""
        if self.along and not self.problem.by_row:
            return (self.channel if self.columns else self.sets).size * self.run
        return self.problem.parameters

    @property
    def data(self) -> tuple[DType, DType, DType]:
        """The dtypes of dy, x and dx."""
        problem = self.problem
        return problem.grad_out, problem.input, problem.result or problem.input

    @property
    def pattern(self) -> str:
        """The name of the pattern, which selects the kernels."""
        return "columns" if self.columns else "rows"


def read_bytes(problem: Problem) -> int:
    """The bytes of dy and x that are read for each element."""
    if problem.forward:
        return problem.input.itemsize
    if problem.constant and not problem.needs_sums:
        return problem.grad_out.itemsize
    return problem.grad_out.itemsize + problem.input.itemsize


def bytes_of(problem: Problem, per_channel: int) -> int:
    """The bytes that are read and written for ``per_channel`` elements of each channel in a set.

    Statistics alone count as if y were written too, so that they are added up in the same order.
    """
    itemsize, result = read_bytes(problem), problem.result
    if problem.forward:
        result = result or problem.input
    if result is not None:
        itemsize += result.itemsize
    return problem.sets.size * problem.channel.size * per_channel * itemsize


def _aligned(unit: int, most: int, span: int = SPAN) -> int:
    """The most units of ``unit`` elements that fit a row, if possible filling whole lanes."""
    fit = min(span // unit, most)
    for lanes in (LANES, LANES // 4):
        step = lanes // gcd(unit, lanes)
        if step <= fit:
            return fit // step * step
    return fit


def rows_in_l1(step: int) -> int:
    """How many rows, ``step`` bytes apart, can each have a cache line in the L1 cache at once."""
    return WAYS * (PAGE // gcd(step, PAGE))


def _repeated(policy: Policy, channels: int, most: int, itemsize: int) -> int:
    """The positions in a row of columns: the most that fit, or fewer if more rows then fit the L1.

    ``most`` is the largest number that is allowed.
    """
    fit = _aligned(channels, most, max(channels, policy.repeated // itemsize))
    step = LANES // gcd(channels, LANES)
    fewer = range(fit, max(0, fit - 4 * step), -step)
    # About so many lines of dy, x and dx, and those that are prefetched, are in use at once.
    rows = 3 * ROWS
    return max(fewer, key=lambda n: (min(rows, rows_in_l1(n * channels * itemsize)), n))


def _turned(axis: Axis, factor: int, size: int) -> Axis:
    """An axis of ``size`` steps, each of which is some of another axis's."""
    return Axis(size, tuple(factor * stride for stride in axis.strides))


def _rows_as_groups(problem: Problem) -> Problem:
    """Make each group of a sample a row: samples take the place of channels, groups that of sets.

    This is for group norm of channels that have few positions each. Sums per channel would then be
    nearly as many as the elements, so sums are taken along a row instead.
    """
    vectors = dict(problem.vectors)
    for role in STATISTICS:
        if role in vectors:
            vector = vectors[role]
            vectors[role] = vector._replace(stride=vector.set_stride, set_stride=vector.stride)
    per_group, inner = problem.per_group, problem.inner
    of_elements = inner if inner.size > 1 else problem.channel
    return problem._replace(
        sets=_turned(problem.channel, per_group, problem.channel.size // per_group),
        channel=problem.sets,
        inner=_turned(of_elements, 1, per_group * inner.size),
        vectors=vectors,
        per_group=1,
    )


def _has_few_positions(problem: Problem, most: int) -> bool:
    """Whether a channel of group norm has few positions, all tensors have one half or single dtype,
    and statistics are all given, or computed with y."""
    data = {problem.grad_out, problem.input, problem.result or problem.input}
    lacks = problem.missing_mean, problem.missing_invstd
    walks = lacks == (True, True) and problem.result if problem.forward else lacks == (False, False)
    few = problem.positions <= most and problem.sets.size >= LEAST_SAMPLES
    single = len(data) == 1 and problem.arithmetic is dtypes.float32
    return few and bool(walks) and not problem.outer and single


def _has_rows_as_groups(problem: Problem) -> bool:
    """Whether each group of a sample becomes a row: channels of one position, or few adjacent ones.

    Of several positions, each element of a row has sums of its own for the parameters' gradients,
    which are added up at the end; so there have to be some samples.
    """
    if problem.per_group == 1 or problem.positions == 1:
        return problem.per_group > 1
    size = problem.inner.size
    adjacent = problem.inner.strides == (1, 1, 1) and problem.channel.strides == (size, size, size)
    return adjacent and _has_few_positions(problem, FEW_IN_ROWS)


def _has_groups_as_channels(problem: Problem) -> bool:
    """Whether each group becomes a channel with elements that have the parameters, in columns."""
    fits = 1 < problem.per_group <= WALKED and problem.channel.strides == (1, 1, 1)
    return fits and _has_few_positions(problem, FEW_IN_COLUMNS)


def _samples_together(problem: Problem, policy: Policy) -> int:
    """How many samples of group norm are processed as one, if their channels are adjacent.

    The per-channel work on one sample has a fixed cost, which samples processed as one share.
    """
    sets, channel, size = problem.sets, problem.channel, problem.channel.size
    if problem.per_group == 1 or problem.outer or 1 in (problem.positions, sets.size):
        return 1
    groups = size // problem.per_group
    apart = [
        role
        for role in STATISTICS
        if (vector := problem.vectors.get(role)) is not None
        and vector.set_stride != groups * vector.stride
    ]
    if apart or sets.strides != tuple([size * step for step in channel.strides]):
        return 1
    most = min(sets.size, policy.small // (size * problem.positions), 2 * policy.rows // size)
    count = max(1, most)
    while sets.size % count:
        count -= 1
    return count


def waits(problem: Problem) -> bool:
    """Whether a channel's sums are needed before its dx or y can be computed."""
    return problem.result_needs_sums or problem.missing_mean


def _least_row(problem: Problem, policy: Policy) -> int:
    """The length from which adjacent channels are read as rows rather than columns."""
    if waits(problem) and bytes_of(problem, problem.positions) >= policy.far_apart:
        return policy.far_run
    if not problem.missing_mean:
        return policy.column_run
    rows = problem.outer[-1]
    fits = rows_in_l1(problem.input.itemsize * rows.strides[1]) >= rows.size
    halves = fits and problem.input.is_half and problem.forward
    return policy.moments_run // (2 if halves else 1)


def _of_inner(layout: Layout, run: int) -> Layout:
    """The layout of rows that are the inner axis, or pieces of it with so many elements."""
    inner = layout.problem.inner
    count = ceil_div(inner.size, run)
    pieces = Axis(count, tuple([run * stride for stride in inner.strides]))
    return layout._replace(
        rows=pieces if count > 1 else _NO_AXIS,
        run=run, last_run=inner.size - (count - 1) * run, run_strides=inner.strides,
    )  # fmt: skip


def _are_long(layout: Layout) -> bool:
    """Whether rows that are statistics groups are so long that they are cut into pieces.

    A forward pass of as many rows as there are tasks has none to share, and keeps a row in cache.
    """
    problem, policy = layout.problem, layout.policy
    double = problem.arithmetic.itemsize > 4
    whole = problem.forward and not double and layout.channel.size >= policy.enough_tasks
    size = problem.inner.size * (2 if double else 1)
    in_place = problem.by_row and not (problem.outer or any(layout.tiles))
    return in_place and size >= policy.long_row and not whole


def _in_pieces(layout: Layout) -> Layout:
    """Cut long rows into pieces, as many as there are tasks if these are long enough."""
    problem, policy = layout.problem, layout.policy
    longest = 4 * LONGEST_PIECE // problem.arithmetic.itemsize
    piece = min(longest, max(SPAN, ceil_div(problem.inner.size, policy.tasks)))
    return _of_inner(layout, round_up(piece, 2 * LANES))


def _in_rows(layout: Layout) -> Layout:
    """Split the inner axis into rows: one for each outer index, or several if it is long."""
    problem, policy, sets, outer, channel, *_ = layout
    together, inner = 1 if any(layout.tiles) else _samples_together(problem, policy), problem.inner
    if together > 1:
        sets = Axis(sets.size // together, tuple([together * step for step in sets.strides]))
        channel = Axis(together * channel.size, channel.strides)
    run, last_run, rows = inner.size, inner.size, _NO_AXIS
    longest = max(4 * policy.part // problem.arithmetic.itemsize, 2 * LANES)
    if inner.size > longest:
        run = round_up(ceil_div(inner.size, ceil_div(inner.size, longest)), 2 * LANES)
        count = ceil_div(inner.size, run)
        last_run = inner.size - (count - 1) * run
        rows = Axis(count, tuple(run * stride for stride in inner.strides))
    elif outer:
        rows, outer = outer[-1], outer[:-1]
    return layout._replace(
        sets=sets, outer=outer, channel=channel, rows=rows, run=run, last_run=last_run,
        run_strides=inner.strides, together=together,
    )  # fmt: skip


def _in_groups(problem: Problem, policy: Policy) -> Layout:
    """The layout of group norm whose groups take the place of channels, in columns."""
    size, channel = problem.per_group, problem.channel
    problem = problem._replace(channel=_turned(channel, size, channel.size // size), per_group=1)
    return Layout(
        problem, policy, problem.sets, (), problem.channel, problem.input, columns=True,
        rows=problem.inner, run=size, last_run=size, run_strides=channel.strides, along=True,
        chunk=WALKED // size,
    )  # fmt: skip


def layout_of(problem: Problem, policy: Policy) -> Layout:
    """Choose the layout that copies the fewest tensors to tiles."""
    along, is_read, shared = problem.by_row, not (problem.is_empty or problem.gathers), 1
    if is_read and _has_rows_as_groups(problem):
        problem, along, shared = _rows_as_groups(problem), True, problem.positions
    elif is_read and _has_groups_as_channels(problem):
        return _in_groups(problem, policy)
    sets, outer, channel, inner = problem.sets, problem.outer, problem.channel, problem.inner
    data = (problem.grad_out, problem.input, problem.result)
    present = {each for each in data if each is not None}
    dtype = problem.grad_out if is_read and len(present) == 1 else problem.arithmetic
    layout = Layout(problem, policy, sets, outer, channel, dtype)
    if not is_read:
        return layout._replace(run=inner.size if along else 1, last_run=0)

    def tiles_for(axis: Axis) -> tuple[bool, ...]:
        """Which tensors must be copied to tiles: strided along an axis, or of another dtype."""
        return tuple(
            [
                each is not None and (each is not dtype or (axis.size > 1 and stride != 1))
                for each, stride in zip(data, axis.strides, strict=True)
            ]
        )

    def all_strides(axis: Axis, step: int) -> bool:
        strides = zip(data, axis.strides, strict=True)
        return all(each is None or stride == step for each, stride in strides)

    # Where a channel has one position, its rows would have one element each. They count as if all
    # tensors had to be copied.
    in_place = along or inner.size > 1 or channel.size == 1
    by_rows = tiles_for(inner) if in_place else (True, True, True)
    by_columns = tiles_for(channel)

    if along:
        layout = layout._replace(along=True, shared=shared, tiles=by_rows)
        return _in_pieces(layout) if _are_long(layout) else _of_inner(layout, inner.size)

    # Short adjacent channels together form one row of columns for each outer index.
    short = len(outer) > 0 and inner.size < _least_row(problem, policy)
    if short and not any(by_rows) and all_strides(channel, inner.size):
        return layout._replace(
            outer=outer[:-1], columns=True, rows=outer[-1], run=inner.size, last_run=inner.size,
            chunk=_aligned(inner.size, channel.size),
        )  # fmt: skip

    # Columns are chosen if they need fewer copies to tiles than rows do, or if they need as many
    # and rows would not fill the lanes.
    fewer = sum(by_rows) - sum(by_columns)
    if fewer > 0 or (fewer == 0 and channel.size >= layout.lanes > inner.size):
        repeat, chunk = 1, min(channel.size, SPAN)
        # Adjacent positions together form one row, as long as enough rows are left.
        if 2 * channel.size <= SPAN and not any(by_columns) and all_strides(inner, channel.size):
            most = max(ceil_div(LANES, channel.size), problem.positions // policy.rows)
            repeat = _repeated(policy, channel.size, min(inner.size, most), dtype.itemsize)
        return layout._replace(
            columns=True, rows=inner, repeat=repeat, chunk=chunk, tiles=by_columns
        )

    return _in_rows(layout._replace(tiles=by_rows))


def keeps_copy(layout: Layout) -> bool:
    """Whether dy's copy, for the sums, is in the memory of dx, where dx's own step finds it.

    So dy is copied once rather than twice. A call whose dx is x's memory has no such place.
    """
    needs_sums = layout.problem.result_needs_sums and not layout.along
    return needs_sums and layout.tiles == (True, False, False)
