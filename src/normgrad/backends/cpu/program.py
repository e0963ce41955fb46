"""From a problem to a program: which access pattern, which steps, how much workspace.

Made from specs and a description of the machine alone; nothing is compiled or computed here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ... import dtypes
from ...machine import Machine
from ...memory import LINE
from ...problem import Problem
from . import block as B
from .access import Access, access_of, bytes_of, fetches_ahead, streams
from .steps import Step, Tiling, steps_of

#: Every array in the workspace starts at a multiple of this, and so does the workspace in use,
#: wherever the caller's buffer starts.
ALIGNMENT = LINE


@dataclass(frozen=True, eq=False)
class Program:
    """What a plan runs.

    Attributes:
        pattern: which kernels go through the tensors, "rows" or "columns".
        dtype: the dtype code of the tensors that kernels see.
        moved: the dtype codes of those of dy, x and dx that are moved to tiles first, else None.
        coefficients: what they are made by: "batch", "groups" or "constant".
        steps: run one after the other, the tasks of each in any order.
        template: the parameter block but for its addresses.
        workspace_size: bytes, including what aligning the caller's buffer may cost.
        input_is_grad_out: x is not needed, and dy is read in its place.
    """

    pattern: str
    dtype: int
    moved: tuple[int | None, ...]
    coefficients: str
    steps: tuple[Step, ...]
    template: npt.NDArray[np.int64]
    workspace_size: int
    input_is_grad_out: bool

    @property
    def path(self) -> str:
        """The way chosen, for people and tests: the pattern and what each step does."""
        moved = ("moved",) if any(code is not None for code in self.moved) else ()
        return " ".join((self.pattern, *moved, *(step.name for step in self.steps)))


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _fill_axes(block: npt.NDArray[np.int64], access: Access) -> None:
    problem = access.problem
    for word, strides_word, axis in (
        (B.SETS, B.SET_STRIDES, problem.sets),
        (B.CHANNELS, B.CHANNEL_STRIDES, problem.channel),
        (B.ROWS, B.ROW_STRIDES, access.rows),
    ):
        block[word] = axis.size
        block[strides_word : strides_word + 3] = axis.strides
    block[B.RUN], block[B.LAST_RUN] = access.run, access.last_run
    block[B.RUN_STRIDES : B.RUN_STRIDES + 3] = access.run_strides
    block[B.OUTER_RANK] = len(problem.outer)
    for index, axis in enumerate(problem.outer):
        block[B.OUTER_SIZES + index] = axis.size
        for tensor, stride in enumerate(axis.strides):
            block[B.OUTER_STRIDES + B.OUTER_MAX * tensor + index] = stride
    block[B.POSITIONS] = access.positions


def _fill_vectors(block: npt.NDArray[np.int64], problem: Problem) -> None:
    for role, vector in problem.vectors.items():
        word = B.VECTORS + B.VECTOR_FIELDS * (int(role) - B.MEAN)
        block[word + B.SET_STRIDE] = vector.set_stride
        block[word + B.STRIDE] = vector.stride
        block[word + B.CODE] = vector.dtype.code
    if problem.count is not None:
        spec = problem.count
        block[B.COUNT_CODE] = spec.dtype.code
        block[B.COUNT_RANK] = spec.rank
        block[B.COUNT_SIZES : B.COUNT_SIZES + spec.rank] = spec.shape
        block[B.COUNT_STRIDES : B.COUNT_STRIDES + spec.rank] = spec.strides


def _fill_workspace(block: npt.NDArray[np.int64], access: Access, tiling: Tiling) -> int:
    """Lay out the workspace; its size in bytes."""
    problem = access.problem
    double, real = dtypes.float64.itemsize, problem.arithmetic.itemsize
    channels = problem.channel.size
    banks = -(-problem.sets.size // tiling.sets)
    slots, parameters = banks, channels
    if access.along:
        slots, parameters = -(-channels // tiling.channels), problem.sets.size * access.run
    block[B.BANKS], block[B.BANK_SETS], block[B.PARTS_OF_SUMS] = banks, tiling.sets, tiling.parts
    block[B.SLOTS], block[B.PARAMETERS] = slots, parameters
    groups = banks * (channels // problem.per_group) * double
    sums = tiling.parts * banks * channels * double
    wanted = problem.wants_parameters and not problem.forward
    gradients = slots * parameters * double if wanted else 0
    along = parameters * real if access.along else 0
    layout = (
        *[(field, groups) for field in range(B.W_MEAN, B.W_GAIN)],
        *[(field, banks * channels * double) for field in (B.W_GAIN, B.W_SHIFT)],
        *[(field, sums) for field in range(B.W_SUM_DY, B.W_BIASES)],
        *[(field, gradients) for field in range(B.W_BIASES, B.SLOTS)],
        (B.W_COUNT, 3 * double),
        (B.W_WEIGHT, along),
        (B.W_BIAS, along),
    )
    end = 0
    for field, size in layout:
        block[field] = end
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return end + ALIGNMENT - 1


def build(problem: Problem, machine: Machine) -> Program:
    """The program for a problem on a machine."""
    input_is_grad_out = problem.input_is_grad_out
    problem = problem.reading_one()
    size = bytes_of(problem)
    access = access_of(problem)
    problem = access.problem
    steps, tiling = steps_of(access)
    template = np.zeros(B.BLOCK_FIELDS, np.int64)
    _fill_axes(template, access)
    _fill_vectors(template, problem)
    for field, value in (
        (B.FORWARD, problem.forward),
        (B.GIVEN_SUMS, problem.given_sums),
        (B.EPS, _bits(problem.eps)),
        (B.MOMENTUM, _bits(problem.momentum)),
        (B.DIVISOR, _bits(problem.divisor)),
        (B.PER_GROUP, problem.per_group),
        (B.INVSTD_IS_VARIANCE, problem.invstd_is_variance),
        (B.SINGLE, problem.arithmetic is dtypes.float32),
        (B.MISSING_MEAN, problem.missing_mean),
        (B.MISSING_INVSTD, problem.missing_invstd),
        (B.X_CODE, problem.input.code),
        (B.ALONG, access.along),
        (B.COLUMNS, access.columns),
        (B.MOVED, sum(1 << tensor for tensor in range(3) if access.moved[tensor])),
        (B.REPEAT, access.repeat),
        (B.STREAM, streams(access, size, machine)),
        (B.AHEAD, fetches_ahead(access, size, machine)),
        (B.BANK_SETS, 1),
    ):
        template[field] = value
    data = (problem.grad_out, problem.input, problem.result or problem.input)
    template[B.DATA_SIZES : B.DATA_SIZES + 3] = [dtype.itemsize for dtype in data]
    workspace_size = _fill_workspace(template, access, tiling) if tiling and steps else 0
    return Program(
        pattern=access.pattern,
        dtype=access.dtype.code,
        moved=tuple(
            dtype.code if moved else None for dtype, moved in zip(data, access.moved, strict=True)
        ),
        coefficients=(
            "constant"
            if problem.forward or problem.constant
            else "groups"
            if problem.grouped
            else "batch"
        ),
        steps=steps,
        template=template,
        workspace_size=workspace_size,
        input_is_grad_out=input_is_grad_out,
    )
