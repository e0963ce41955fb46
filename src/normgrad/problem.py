"""The problem that an operator poses to a backend: one form of arithmetic for all operators.

Every gradient is a case of

    sums    Σdy and Σdy·(x − μ), per channel (batch norm) or per sample and channel (group norm)
    apply   dx = scale · (gain·dy − (shift + slope·(x − μ)))

and every forward pass one of

    moments    Σ(x − p) and Σ(x − p)² about some p, where statistics are wanted
    normalise  y = scale·(x − μ) + shift

over tensors seen as (set, outer…, channel, inner). A *set* has statistics of its own: batch norm
has one, group norm one per sample.

In layer norm each row has its own statistics, and each position in a row its own parameters. Rows
take the place of channels, and vectors of parameters run over the positions (``Problem.by_row``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import prod
from typing import NamedTuple

from . import dtypes
from .dtypes import DType
from .layout import Axis
from .tensor import TensorSpec


class Role(IntEnum):
    """The role of an address in a program; the order is that of a call's addresses."""

    # The data tensors. A forward pass reads its input in both places.
    GRAD_OUT = 0
    INPUT = 1
    RESULT = 2
    # Per-channel inputs. INVSTD may hold variances: see Problem.invstd_is_variance.
    MEAN = 3
    INVSTD = 4
    WEIGHT = 5
    BIAS = 6
    SUM_DY = 7
    SUM_DY_XMU = 8
    RUNNING_MEAN = 9
    RUNNING_VAR = 10
    # Per-channel outputs.
    OUT_SUM_DY = 11
    OUT_SUM_DY_XMU = 12
    GRAD_WEIGHT = 13
    GRAD_BIAS = 14
    OUT_MEAN = 15
    OUT_INVSTD = 16
    OUT_RUNNING_MEAN = 17
    OUT_RUNNING_VAR = 18
    # The number of elements of each rank.
    COUNT = 19


#: The indices of a call's addresses after the roles': the workspace's, the first of the inputs that
#: take no part in the arithmetic (no output may share their memory), and the number of all.
WORKSPACE = len(Role)
OTHERS, PLACES = WORKSPACE + 1, WORKSPACE + 4

#: The roles of data tensors.
DATA = (Role.GRAD_OUT, Role.INPUT, Role.RESULT)
#: The roles of per-channel vectors.
VECTORS = tuple(role for role in Role if Role.MEAN <= role <= Role.OUT_RUNNING_VAR)
#: The vectors with an element for each statistics group; the others are of parameters.
STATISTICS = (Role.MEAN, Role.INVSTD, Role.OUT_MEAN, Role.OUT_INVSTD)
#: The vectors that are outputs.
_OUTPUTS = tuple(role for role in VECTORS if role >= Role.OUT_SUM_DY)


class Vector(NamedTuple):
    """A per-channel vector: its dtype, and its strides over sets and over channels (or groups).

    Where the problem is by row, a vector of statistics runs over the channel axis and a vector of
    parameters over the inner axis; ``outer_strides`` are its strides over the outer axes.
    """

    dtype: DType
    stride: int
    set_stride: int = 0
    outer_strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One call's arithmetic, from specs alone.

    At most one of ``forward``, ``constant``, ``grouped`` and ``gathers`` is true. If none is, the
    problem is batch norm's gradient in training: dx from sums that are computed or given (see
    ``given_sums``), or, where the result is None, the sums alone.

    Attributes:
        grad_out, input, result: dtypes of the data tensors dy, x, and dx or y; result None when
            only per-channel outputs are wanted. In the forward pass grad_out is the input too.
        sets, channel, inner, outer: the axes, each with its stride in (grad_out, input, result).
            Positions run over outer and inner; sums run over all positions.
        vectors: the per-channel inputs and outputs that are present.
        forward: it is a forward pass: the result is y, made from x alone, and there is no dy.
        constant: it is a gradient with constant statistics, as in evaluation, rather than x's own:
            dx is dy times a number for each channel, and does not depend on sums.
        grouped: it is a gradient with statistics of groups of a sample's channels, or of rows: dx
            depends on sums of weighted terms. A forward pass sums x alone, and is not grouped in
            this sense.
        by_row: the channels are rows, whose positions have the parameters. Rows of several axes
            have the first outer axes too, and there is a set for each index of these.
        outer_rows: the number of outer axes that belong to the rows.
        centred: 1/std is that of x − mean; else of x itself, without a mean, as in RMS norm.
        gathers: there are no data tensors: the statistics of several ranks are combined.
        count: the elements per rank, where sums of all ranks are given or statistics gathered.
        eps: the number added to a variance.
        momentum: the weight of new statistics in running ones.
        divisor: the number of elements in a statistics group.
        per_group: the number of channels that share a statistic (1 for batch norm).
        invstd_is_variance: whether ``Role.INVSTD`` holds variances rather than 1/std.
        read_next: whether the result is read at once, as by the next layer of a model.
        missing_mean, missing_invstd: whether it is computed from the input, as in training without
            save_*, and both in training's forward pass.
    """

    grad_out: DType
    input: DType
    result: DType | None
    sets: Axis
    outer: tuple[Axis, ...]
    channel: Axis
    inner: Axis
    vectors: dict[Role, Vector] = field(hash=False)
    forward: bool = False
    constant: bool = False
    grouped: bool = False
    by_row: bool = False
    outer_rows: int = 0
    centred: bool = True
    gathers: bool = False
    count: TensorSpec | None = None
    eps: float = 0.0
    momentum: float = 0.0
    divisor: float = 1.0
    per_group: int = 1
    invstd_is_variance: bool = False
    read_next: bool = False
    missing_mean: bool = False
    missing_invstd: bool = False

    @property
    def arithmetic(self) -> DType:
        """The dtype of the arithmetic: float32 or float64."""
        return dtypes.arithmetic(self.grad_out, self.input)

    @property
    def set_axes(self) -> tuple[Axis, ...]:
        """The axes whose indices number the sets."""
        return (self.sets,)

    @property
    def positions(self) -> int:
        """The number of elements of one channel of a set."""
        count = self.inner.size
        for axis in self.outer:
            count *= axis.size
        return count

    @property
    def wants_parameters(self) -> bool:
        """Whether any per-channel output is wanted."""
        return any(role in self.vectors for role in _OUTPUTS)

    @property
    def is_empty(self) -> bool:
        """Whether the data tensors have no elements."""
        return self.sets.size * self.channel.size * self.positions == 0

    @property
    def parameters(self) -> int:
        """The number of channels, or of positions of rows, that have parameters."""
        if not self.by_row:
            return self.channel.size
        return self.inner.size * prod(axis.size for axis in self.outer[self.outer_rows :])

    @property
    def given_sums(self) -> bool:
        """Whether Σdy and Σdy·(x − μ), over all ranks, are given rather than computed."""
        return Role.SUM_DY in self.vectors

    @property
    def result_needs_sums(self) -> bool:
        """Whether dx or y depends on sums that are computed from dy and x."""
        if self.result is None:
            return False
        return self.missing_invstd if self.forward else not (self.constant or self.given_sums)

    @property
    def needs_sums(self) -> bool:
        """Whether anything is summed over the elements of a channel."""
        if self.forward:
            return self.missing_invstd
        return self.result_needs_sums or self.wants_parameters

    @property
    def needs_input(self) -> bool:
        """Whether any wanted output depends on x."""
        if self.forward or (self.result is not None and not self.constant):
            return True
        return Role.OUT_SUM_DY_XMU in self.vectors or Role.GRAD_WEIGHT in self.vectors

    @property
    def input_is_grad_out(self) -> bool:
        """Whether dy can be read in the place of x, since no output depends on x.

        It cannot where x alone makes the arithmetic float64.
        """
        return not self.needs_input and dtypes.arithmetic(self.grad_out) is self.arithmetic

    def reading_one(self) -> Problem:
        """The same problem, with dy in the place of x where that is possible."""
        if not self.input_is_grad_out:
            return self

        def twice(axis: Axis) -> Axis:
            dy, _, dx = axis.strides
            return Axis(axis.size, (dy, dy, dx))

        return replace(
            self,
            input=self.grad_out,
            sets=twice(self.sets),
            outer=tuple(twice(axis) for axis in self.outer),
            channel=twice(self.channel),
            inner=twice(self.inner),
            missing_mean=False,
            missing_invstd=False,
        )
