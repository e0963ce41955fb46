"""From a problem to a program: which access pattern, which steps, how much workspace.

Made from specs and a description of the machine alone; nothing is compiled or computed here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ... import dtypes
from ...machine import Machine
from ...memory import LINE
from ...problem import Problem
from . import block as B
from .access import access_of, bytes_of, fetches_ahead, streams
from .steps import OPERATIONS, Step, steps_of

#: Every array in the workspace starts at a multiple of this, and so does the workspace in use,
#: wherever the caller's buffer starts.
ALIGNMENT = LINE


@dataclass(frozen=True, eq=False)
class Program:
    """What a plan runs.

    Attributes:
        pattern: the access pattern, "rows", "columns" or "tiles".
        code: the dtype code that, with the pattern, names the kernels: the data's, or for "tiles"
            the arithmetic's.
        data: the dtype codes of dy, x and dx.
        channels: which per-channel arithmetic its steps need, "channels" or "forward".
        arithmetic: the dtype code of what is computed in.
        steps: run one after the other, the tasks of each in any order.
        template: the parameter block but for its addresses.
        workspace_size: bytes, including what aligning the caller's buffer may cost.
        input_is_grad_out: x is not needed, and dy is read in its place.
    """

    pattern: str
    code: int
    data: tuple[int, int, int]
    channels: str
    arithmetic: int
    steps: tuple[Step, ...]
    template: npt.NDArray[np.int64]
    workspace_size: int
    input_is_grad_out: bool

    @property
    def operations(self) -> tuple[str, ...]:
        """The kernels that its steps need, each once."""
        needed = {operation for step in self.steps for operation in step.operations}
        return tuple(name for name in OPERATIONS.values() if name in needed)

    @property
    def path(self) -> str:
        """The way chosen, for people and tests: the pattern and what each step does."""
        return " ".join((self.pattern, *(step.name for step in self.steps)))


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


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
        (B.W_MEAN_REST, values * double if problem.missing_mean else 0),
        (B.W_INVSTD, values * double),
        (B.W_INVSTD_ERROR, values * error),
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
    input_is_grad_out = problem.input_is_grad_out
    problem = problem.reading_one()
    # Whether so much is read and written that little of it will be in cache the next time.
    large = bytes_of(problem) > machine.cache // 2
    access, problem = access_of(problem)
    steps, parts = steps_of(problem, access)
    template = np.zeros(B.BLOCK_FIELDS, np.int64)
    _fill_axes(template, problem)
    _fill_vectors(template, problem)
    facts = {B.EVAL: problem.constant, B.ELEMT: problem.given_sums, B.GROUP: problem.grouped}
    template[B.RULE] = next((code for code, holds in facts.items() if holds), B.TRAIN)
    template[B.EPS] = _bits(problem.eps)
    template[B.MOMENTUM] = _bits(problem.momentum)
    template[B.MISSING_MEAN] = problem.missing_mean
    template[B.MISSING_INVSTD] = problem.missing_invstd
    template[B.X_CODE] = problem.input.code
    template[B.DIVISOR] = _bits(problem.divisor)
    template[B.PER_GROUP] = problem.per_group
    template[B.INVSTD_IS_VARIANCE] = problem.invstd_is_variance
    template[B.SLOTS] = parts
    if problem.is_empty:
        template[B.SETS] = 0  # no sums; what is to be summed over them is 0
    template[B.STREAM] = streams(problem, access, large)
    template[B.AHEAD] = fetches_ahead(access, large)
    template[B.RUN : B.CHUNK + 1] = access.run, access.repeat, access.chunk
    data = (problem.grad_out, problem.input, problem.result or problem.input)
    template[B.DATA_SIZES : B.DATA_SIZES + 3] = [dtype.itemsize for dtype in data]
    workspace_size = (
        0 if problem.is_empty or not steps else _fill_workspace(template, problem, parts)
    )
    return Program(
        pattern=access.pattern,
        data=(data[0].code, data[1].code, data[2].code),
        code=(problem.arithmetic if access.pattern == "tiles" else problem.input).code,
        channels="forward" if problem.forward or problem.gathers else "channels",
        arithmetic=problem.arithmetic.code,
        steps=steps,
        template=template,
        workspace_size=workspace_size,
        input_is_grad_out=input_is_grad_out,
    )
