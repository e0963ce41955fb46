"""Schedules of the CPU backend: a problem's layout, steps, workspace and parameter block.

A schedule is made from specs and a policy. Nothing is compiled or computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ....declarations.problem import STATISTICS, Problem
from ....support.machine import Machine
from ....support.memory import LINE
from ....tensors import dtypes
from ....tensors.strides import ceil_div, round_up
from ....tensors.symbolic import bits
from . import block as B
from .cuts import Cut, calls_of_part, cost_of, cut_of, keeps_chains, levels_of
from .layout import (
    ALONG,
    LANES,
    PIECE_BYTES,
    SPAN,
    TILE_CHANNELS,
    TILE_POSITIONS,
    Layout,
    keeps_copy,
    layout_of,
    read_bytes,
)
from .policy import policy_of
from .steps import Step, steps_of

#: Every array in the workspace starts at a multiple of this, and so does the workspace in use,
#: wherever the caller's buffer starts.
ALIGNMENT = LINE

#: The longest time of a step of several threads, in milliseconds, if none of them waits for a core:
#: twice the clock's resolution, and several times what a slow core takes for its elements.
PATIENCE, COST_IN_A_MILLISECOND = 8, 1 << 17

#: More threads than any machine has.
EVERY_THREAD = 1 << 30

#: So many threads can share a step's tasks even where there are fewer cores.
LEAST_THREADS = 16

#: Values of the block's fields: one number, or several consecutive ones.
_Values = dict[int, int | Sequence[int]]


@dataclass(eq=False)
class Schedule:
    """The schedule that a plan runs on the CPU.

    Its steps are made when they are first needed, mostly by the first run.

    Attributes:
        layout: how the tensors are read, which decides what kernels are compiled for.
        cut: the cut of its passes over tensors; None if it has none.
        threads: the most threads that share a step's tasks, each of which has scratch memory.
    """

    layout: Layout
    cut: Cut | None
    threads: int

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """See ``steps_of``."""
        return steps_of(self.layout, self.cut)

    @cached_property
    def workspace_size(self) -> int:
        """The bytes of the workspace, with what aligning the caller's buffer may cost."""
        return _workspace(self)[1]

    @property
    def coefficients(self) -> str:
        """The unit that computes coefficients: "batch", "channel_groups" or "constant"."""
        problem = self.layout.problem
        if problem.forward or problem.constant:
            return "constant"
        return "channel_groups" if problem.grouped else "batch"

    def block(self) -> list[int]:
        """The parameter block without its addresses."""
        layout = self.layout
        fields = _axes(layout) | _vectors(layout) | _facts(self)
        fields |= _workspace(self)[0]
        words = [0] * B.BLOCK_FIELDS
        for field, value in fields.items():
            numbers = value if isinstance(value, Sequence) else [value]
            words[field : field + len(numbers)] = numbers
        return words

    @property
    def path(self) -> str:
        """The layout's pattern and what each step does, for people and tests."""
        tiles = ("tiles",) if any(self.layout.tiles) else ()
        return " ".join((self.layout.pattern, *tiles, *(step.name for step in self.steps)))


def _axes(layout: Layout) -> _Values:
    sets, channel, outer = layout.sets, layout.channel, layout.outer
    return {
        B.SETS: sets.size,
        B.SET_STRIDES: sets.strides,
        B.CHANNELS: channel.size,
        B.CHANNEL_STRIDES: channel.strides,
        B.ROWS: layout.rows.size,
        B.ROW_STRIDES: layout.rows.strides,
        B.RUN: layout.run,
        B.LAST_RUN: layout.last_run,
        B.RUN_STRIDES: layout.run_strides,
        B.OUTER_RANK: len(outer),
        B.OUTER_SIZES: [axis.size for axis in outer],
        **{
            B.OUTER_STRIDES + B.OUTER_MAX * tensor: [axis.strides[tensor] for axis in outer]
            for tensor in range(3)
        },
        B.POSITIONS: layout.positions,
    }


def _vectors(layout: Layout) -> _Values:
    problem = layout.problem
    fields: _Values = {B.VECTORS_OUTER: problem.by_row and len(layout.outer) > 0}
    for role, vector in problem.vectors.items():
        word = B.VECTORS + B.VECTOR_FIELDS * (role - B.MEAN)
        together = layout.together if role in STATISTICS else 1
        fields[word + B.SET_STRIDE] = together * vector.set_stride
        fields[word + B.STRIDE] = vector.stride
        fields[word + B.CODE] = vector.dtype.code
        fields[word + B.OUTER_SET] = layout.positions if role in STATISTICS else 1
        fields[word + B.OUTER_STEPS] = vector.outer_strides
    if problem.counts is not None:
        fields[B.COUNTS] = problem.counts.elements
        fields[B.COUNT_CODE] = problem.counts.dtype.code
        fields[B.COUNT_RANK] = problem.counts.rank
        fields[B.COUNT_SIZES] = problem.counts.shape
        fields[B.COUNT_STRIDES] = problem.counts.strides
    return fields


def _facts(schedule: Schedule) -> _Values:
    """The block's fields on the problem: its facts, scalars and axes."""
    layout = schedule.layout
    problem = layout.problem
    together = schedule.cut.at_once if schedule.cut else 1
    return {
        B.FORWARD: problem.forward,
        B.GIVEN_SUMS: problem.takes_sums,
        B.EPS: bits(problem.eps),
        B.MOMENTUM: bits(problem.momentum),
        B.DIVISOR: bits(problem.divisor),
        B.PER_GROUP: problem.per_group,
        B.INVSTD_IS_VARIANCE: problem.invstd_is_variance,
        B.SINGLE: problem.arithmetic is dtypes.float32,
        B.MISSING_MEAN: problem.missing_mean,
        B.MISSING_INVSTD: problem.missing_invstd,
        B.X_CODE: problem.input.code,
        B.CENTRED: problem.centred,
        B.ALONG: layout.along,
        B.OWN_PARAMETERS: 0 if problem.by_row or layout.columns else layout.run,
        B.SHARED: layout.shared,
        B.COLUMNS: layout.columns,
        B.TILES: sum(in_tiles << tensor for tensor, in_tiles in enumerate(layout.tiles)),
        B.DY_IN_DX: keeps_copy(layout),
        B.DATA_SIZES: [dtype.itemsize for dtype in layout.data],
        B.REPEAT: layout.repeat,
        B.STREAM: streams(layout, together),
        B.AHEAD: fetches_ahead(layout),
        B.NEXT: fetches_next(layout),
        B.BANK_SETS: 1,
        B.MOST_THREADS: schedule.threads,
        B.PATIENCE: PATIENCE + cost_of(layout) // COST_IN_A_MILLISECOND,
    }


def streams(layout: Layout, channels: int) -> int:
    """The largest number of threads with which dx is written with non-temporal stores.

    Such stores bypass the caches (see :func:`.policy.policy_of`). If what is read does not fit
    caches of these cores' own, all threads use them: they are as slow as memory is, however many
    threads there are. They are never used for rows of a dx that is read next and fits the caches;
    for columns, channels-last models gained nothing from such a rule.

    ``channels`` is how many channels a task writes together: if their rows are adjacent in memory,
    only the first and last of them end in partial cache lines.
    """
    problem, policy = layout.problem, layout.policy
    if problem.result is None:
        return 0
    fits = problem.elements * problem.result.itemsize <= policy.cache
    if problem.read_next and fits and not layout.columns:
        return 0
    row = layout.run * problem.result.itemsize
    adjacent = layout.has_adjacent_channels
    if layout.along:  # rows of whole lines, each of which is a channel
        adjacent = row % LINE == 0 and layout.channel.strides[2] == layout.run
    if adjacent:
        row *= channels
    if not layout.columns and row < policy.streamed_row * (2 if row % LINE else 1):
        return 0
    threads = problem.elements * read_bytes(problem) // policy.streamed
    return EVERY_THREAD if policy.near_l3 and threads > 1 else threads


def fetches_ahead(layout: Layout) -> int:
    """What loops prefetch: 0, nothing; 1, the next rows; 2, also the rows, some elements ahead.

    The processor's own prefetcher misses the next rows, and stops at the end of each page. For
    rows, the next row is the channel's row in the next image. For columns, several places in memory
    are read in turn. Rows of columns that hold short channels lie in different images, too far
    apart, and are not prefetched.
    """
    least = layout.policy.fetched
    if layout.columns:
        return int(layout.bytes > 4 * least and layout.run == 1)
    if layout.bytes <= least:
        return 0
    return 1 + (layout.elements * read_bytes(layout.problem) > 8 * least)


def fetches_next(layout: Layout) -> bool:
    """Whether a task prefetches what the next task sums, while it writes dx.

    Writing waits for memory, so such reads cost nothing; only batch norm's gradients gain. Group
    norm's tasks follow each other in memory, where the processor prefetches by itself, and moments
    take longer than memory. Beside a large server's L3, which is far away, writing took longer.
    """
    gradients = layout.problem.result_needs_sums and layout.sets.size == 1
    apart = not layout.columns or layout.run > 1
    return gradients and apart and layout.bytes > layout.policy.fetched and layout.policy.near_l3


def _scratch(schedule: Schedule) -> dict[int, int]:
    """The layout and the size of a thread's scratch memory."""
    layout, cut = schedule.layout, schedule.cut
    row, buffers, tile, copies = 0, 6, 0, 0
    if layout.columns:
        row = min(layout.chunk, layout.channel.size) * layout.run * layout.repeat
        buffers = 9 if layout.along else 6
    elif layout.along and layout.run < LANES:
        row = LANES * LANES
    elif any(step.along == "parameters" + ALONG for step in schedule.steps):
        row = min(layout.run, SPAN)
    if any(layout.tiles):
        tile = TILE_POSITIONS * TILE_CHANNELS * layout.dtype.itemsize
    if layout.along and cut is not None and cut.parts > 1:
        copies = 2 * PIECE_BYTES
    # The last lanes of a row may reach beyond its end.
    buffer = round_up((row + LANES) * dtypes.float64.itemsize, ALIGNMENT) if row else 0
    tiles = buffers * buffer
    pieces = tiles + 2 * tile
    return {
        B.SCRATCH: pieces + copies,
        B.BUFFER: buffer,
        B.TILE: tile,
        B.TILES_AT: tiles,
        B.PIECES_AT: pieces,
    }


def _workspace(schedule: Schedule) -> tuple[_Values, int]:
    """The layout of the workspace, and its size in bytes."""
    layout, cut, problem = schedule.layout, schedule.cut, schedule.layout.problem
    if cut is None:
        return {}, 0
    double, real = dtypes.float64.itemsize, problem.arithmetic.itemsize
    # If a later step reads what an earlier step wrote, each set needs a bank of its own; if not,
    # each task has arrays of its own.
    over_tensors = [step.cut for step in schedule.steps if step.cut.sets > 0]
    is_alone = len(over_tensors) == 1
    bank_sets = cut.sets_per_task if is_alone else min(cut.sets_per_task, 1)
    slots = banks = ceil_div(layout.sets.size, bank_sets)
    own = cut.at_once if is_alone and over_tensors[0].parts == 1 else 0
    if layout.along:
        summing = next((step.cut for step in schedule.steps if step.along), cut)
        slots = summing.blocks * (summing.turns if problem.by_row or layout.columns else 1)
    channels, parameters = layout.channel.size, layout.parameters
    count = cut.tasks * own or banks * channels
    groups = round_up(count // problem.per_group * double, ALIGNMENT)
    numbers = round_up(count * double, ALIGNMENT)
    levels = levels_of(problem, calls_of_part(layout, cut))
    sums = round_up(cut.parts * levels * count * double, ALIGNMENT)
    turns = bank_sets * layout.together
    if layout.along:
        turns = ceil_div(cut.channel_block, cut.at_once)
        turns *= cut.sets_per_task if problem.by_row else 1
    slot_levels = levels_of(problem, turns)
    # What a task has of all rows is written at once.
    has_gradients = problem.wants_parameters and not (problem.forward or layout.in_pieces)
    chains = round_up(slots * parameters * double, ALIGNMENT) if keeps_chains(layout) else 0
    slots *= slot_levels if has_gradients else 0
    gradients = round_up(slots * parameters * double, ALIGNMENT) if has_gradients else 0
    if own and any(step.after & B.DO_OUTPUTS for step in schedule.steps):
        gradients = numbers
    chains = chains if gradients else 0
    # Tasks of many long rows share copies of the weights; those of few copy what they read.
    copied = layout.along and cut.parts == 1
    along = round_up(parameters * real, ALIGNMENT) if copied else 0
    of_banks = (groups,) * (B.W_GAIN - B.W_MEAN) + (numbers,) * (B.W_SUM_DY - B.W_GAIN)
    *starts, of_count, weight, bias, end = accumulate(
        (
            *of_banks, sums, sums, gradients, gradients, chains, chains,
            round_up(3 * double, ALIGNMENT), along, along,
        ),
        initial=0,
    )  # fmt: skip
    scratch = _scratch(schedule)
    shared = [step.cut.tasks for step in schedule.steps if step.cut.parallel]
    threads = min(max(shared, default=1), schedule.threads)
    fields: _Values = {
        **scratch,
        B.W_SCRATCH: end,
        B.BANKS: banks,
        B.BANK_SETS: bank_sets,
        B.PARTS_OF_SUMS: cut.parts,
        B.TASK_CHANNELS: own,
        B.LEVELS: levels,
        B.SUMS_APART: count,
        B.CHAINS: chains > 0,
        B.SLOTS: slots,
        B.SLOT_LEVELS: slot_levels,
        B.PARAMETERS: parameters,
        B.W_MEAN: starts,
        B.W_COUNT: of_count,
        B.COPIES: copied,
        B.W_WEIGHT: weight,
        B.W_BIAS: bias,
    }
    return fields, end + threads * scratch[B.SCRATCH] + ALIGNMENT - 1


def build(problem: Problem, machine: Machine) -> Schedule:
    """The schedule for a problem on a machine."""
    layout = layout_of(problem, policy_of(machine))
    return Schedule(layout, cut_of(layout), max(LEAST_THREADS, machine.cores))
