"""Programs of the CPU backend: a problem's access pattern, steps, workspace and parameter block.

A program is made from specs and a description of the machine. Nothing is compiled or computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ... import dtypes
from ...layout import ceil_div, rounded_up
from ...machine import Machine
from ...memory import LINE
from ...problem import STATISTICS, Problem
from . import block as B
from .access import Access, access_of, fetches_ahead, fetches_next, keeps_copy, streams
from .steps import Step, steps_of
from .tiling import Tiling, cost_of, keeps_chains, tiling_of

#: Every array in the workspace starts at a multiple of this, and so does the workspace in use,
#: wherever the caller's buffer starts.
ALIGNMENT = LINE

#: The longest time of a step of several threads, in milliseconds, if none of them waits for a core:
#: twice the clock's resolution, and several times what a slow core takes for its elements.
PATIENCE, COST_IN_A_MILLISECOND = 8, 1 << 17

#: Values of the block's fields: one number, or several consecutive ones.
_Fields = dict[int, int | Sequence[int]]


@dataclass(eq=False)
class Program:
    """The program that a plan runs on the CPU.

    Its steps are made when they are first needed, mostly by the first run.

    Attributes:
        access: how the tensors are read, which decides what kernels are compiled for.
        machine: the machine that the program will run on.
        tiling: the tiling of its passes over tensors; None if it has none.
    """

    access: Access
    machine: Machine
    tiling: Tiling | None

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """See ``steps_of``."""
        return steps_of(self.access, self.tiling)

    @cached_property
    def workspace_size(self) -> int:
        """The bytes of the workspace, with what aligning the caller's buffer may cost."""
        return _workspace(self)[1]

    @property
    def coefficients(self) -> str:
        """The unit that computes coefficients: "batch", "groups" or "constant"."""
        problem = self.access.problem
        if problem.forward or problem.constant:
            return "constant"
        return "groups" if problem.grouped else "batch"

    def template(self) -> npt.NDArray[np.int64]:
        """The parameter block without its addresses."""
        access = self.access
        fields = _axes(access) | _vectors(access) | _facts(self)
        fields |= _workspace(self)[0]
        words = [0] * B.BLOCK_FIELDS
        for field, value in fields.items():
            numbers = [value] if isinstance(value, int) else value
            words[field : field + len(numbers)] = numbers
        return np.array(words, np.int64)

    @property
    def path(self) -> str:
        """The access pattern and what each step does, for people and tests."""
        moved = ("moved",) if any(self.access.moved) else ()
        return " ".join((self.access.pattern, *moved, *(step.name for step in self.steps)))


def _axes(access: Access) -> _Fields:
    sets, channel, outer = access.sets, access.channel, access.outer
    return {
        B.SETS: sets.size,
        B.SET_STRIDES: sets.strides,
        B.CHANNELS: channel.size,
        B.CHANNEL_STRIDES: channel.strides,
        B.ROWS: access.rows.size,
        B.ROW_STRIDES: access.rows.strides,
        B.RUN: access.run,
        B.LAST_RUN: access.last_run,
        B.RUN_STRIDES: access.run_strides,
        B.OUTER_RANK: len(outer),
        B.OUTER_SIZES: [axis.size for axis in outer],
        **{
            B.OUTER_STRIDES + B.OUTER_MAX * tensor: [axis.strides[tensor] for axis in outer]
            for tensor in range(3)
        },
        B.POSITIONS: access.positions,
    }


def _vectors(access: Access) -> _Fields:
    problem = access.problem
    fields: _Fields = {B.VECTORS_OUTER: problem.by_row and len(access.outer) > 0}
    for role, vector in problem.vectors.items():
        word = B.VECTORS + B.VECTOR_FIELDS * (role - B.MEAN)
        together = access.together if role in STATISTICS else 1
        fields[word + B.SET_STRIDE] = together * vector.set_stride
        fields[word + B.STRIDE] = vector.stride
        fields[word + B.CODE] = vector.dtype.code
        fields[word + B.OUTER_SET] = access.positions if role in STATISTICS else 1
        fields[word + B.OUTER_STEPS] = vector.outer_strides
    if problem.counts is not None:
        fields[B.COUNT_CODE] = problem.counts.dtype.code
        fields[B.COUNT_RANK] = problem.counts.rank
        fields[B.COUNT_SIZES] = problem.counts.shape
        fields[B.COUNT_STRIDES] = problem.counts.strides
    return fields


def _facts(program: Program) -> _Fields:
    """The block's fields on the problem: its facts, scalars and axes."""
    access, machine = program.access, program.machine
    problem = access.problem
    together = program.tiling.at_once if program.tiling else 1
    return {
        B.FORWARD: problem.forward,
        B.GIVEN_SUMS: problem.given_sums,
        B.EPS: dtypes.bits(problem.eps),
        B.MOMENTUM: dtypes.bits(problem.momentum),
        B.DIVISOR: dtypes.bits(problem.divisor),
        B.PER_GROUP: problem.per_group,
        B.INVSTD_IS_VARIANCE: problem.invstd_is_variance,
        B.SINGLE: problem.arithmetic is dtypes.float32,
        B.MISSING_MEAN: problem.missing_mean,
        B.MISSING_INVSTD: problem.missing_invstd,
        B.X_CODE: problem.input.code,
        B.CENTRED: problem.centred,
        B.ALONG: access.along,
        B.OWN_PARAMETERS: 0 if problem.by_row else access.run,
        B.COLUMNS: access.columns,
        B.MOVED: sum(moved << tensor for tensor, moved in enumerate(access.moved)),
        B.DY_IN_DX: keeps_copy(access),
        B.DATA_SIZES: [dtype.itemsize for dtype in access.data],
        B.REPEAT: access.repeat,
        B.STREAM: streams(access, together, machine),
        B.AHEAD: fetches_ahead(access, machine),
        B.NEXT: fetches_next(access, machine),
        B.BANK_SETS: 1,
        B.PATIENCE: PATIENCE + cost_of(access) // COST_IN_A_MILLISECOND,
    }


def has_own_arrays(program: Program) -> bool:
    """Whether each task has arrays of its own: no other step reads what a step has written."""
    over_tensors = [step for step in program.steps if step.tiling.sets > 0]
    return len(over_tensors) == 1 and over_tensors[0].tiling.parts == 1


def _workspace(program: Program) -> tuple[_Fields, int]:
    """The layout of the workspace, and its size in bytes."""
    access, tiling, problem = program.access, program.tiling, program.access.problem
    if tiling is None:
        return {}, 0
    double, real = dtypes.float64.itemsize, problem.arithmetic.itemsize
    # Each set needs a bank of its own if a later step reads what an earlier step wrote to it.
    bank_sets = tiling.sets_per_task
    if bank_sets > 1 and sum(step.tiling.sets > 0 for step in program.steps) > 1:
        bank_sets = 1
    slots = banks = ceil_div(access.sets.size, bank_sets)
    own = tiling.at_once if has_own_arrays(program) else 0
    if access.along:
        summing = next((step.tiling for step in program.steps if step.along), tiling)
        slots = summing.blocks * (summing.turns if problem.by_row else 1)
    channels, parameters = access.channel.size, access.parameters
    count = tiling.tasks * own or banks * channels
    groups = rounded_up(count // problem.per_group * double, ALIGNMENT)
    numbers = rounded_up(count * double, ALIGNMENT)
    sums = rounded_up(tiling.parts * count * double, ALIGNMENT)
    wanted = problem.wants_parameters and not problem.forward
    gradients = rounded_up(slots * parameters * double, ALIGNMENT) if wanted else 0
    if own and any(step.after & B.DO_OUTPUTS for step in program.steps):
        gradients = numbers
    # In float32 arithmetic they have no errors; the chains that add to them may be in their place.
    errors = gradients if problem.arithmetic is dtypes.float64 or keeps_chains(access) else 0
    along = rounded_up(parameters * real, ALIGNMENT) if access.along else 0
    of_banks = (groups,) * (B.W_GAIN - B.W_MEAN) + (numbers,) * (B.W_SUM_DY - B.W_GAIN)
    of_parts = (sums,) * (B.W_BIASES - B.W_SUM_DY) + (gradients, errors) * 2
    *starts, of_count, weight, bias, end = accumulate(
        (*of_banks, *of_parts, rounded_up(3 * double, ALIGNMENT), along, along), initial=0
    )
    fields: _Fields = {
        B.BANKS: banks,
        B.BANK_SETS: bank_sets,
        B.PARTS_OF_SUMS: tiling.parts,
        B.TASK_CHANNELS: own,
        B.SLOTS: slots,
        B.PARAMETERS: parameters,
        B.W_MEAN: starts,
        B.W_COUNT: of_count,
        B.W_WEIGHT: weight,
        B.W_BIAS: bias,
    }
    return fields, end + ALIGNMENT - 1


def build(problem: Problem, machine: Machine) -> Program:
    """The program for a problem on a machine."""
    access = access_of(problem)
    return Program(access, machine, tiling_of(access))
