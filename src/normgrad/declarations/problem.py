"""The form of arithmetic to which every operator is reduced before a backend computes it.

Every gradient is a case of

    sums    Σdy and Σdy·(x − μ), per channel (batch norm) or per sample and channel (group norm)
    apply   dx = scale · (gain·dy − (shift + slope·(x − μ)))

and every forward pass one of

    moments    Σ(x − p) and Σ(x − p)² about some p, where statistics are wanted
    normalise  y = scale·(x − μ) + shift

over tensors whose axes are arranged as (set, outer…, channel, inner). Each *set* has statistics of
its own: batch norm has one set, group norm one per sample.

In layer norm each row has its own statistics, and each position in a row its own parameters. Rows
take the place of channels, and vectors of parameters run over the positions (``Problem.by_row``).
"""

from __future__ import annotations

from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..tensors import dtypes
from ..tensors.dtypes import DType
from ..tensors.strides import Axis

if TYPE_CHECKING:
    from ..tensors.specs import TensorSpec


class Role(IntEnum):
    """The role of a tensor in a program, and the index of its address among a call's addresses."""

    # The data tensors. A forward pass has its input's address in both GRAD_OUT and INPUT.
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
    # The vector with each rank's number of elements.
    COUNT = 19


#: After the addresses with roles, a call's addresses continue with the workspace's (WORKSPACE), and
#: from OTHERS on with those of inputs that take no part in the arithmetic, which are there because
#: no output may share their memory. PLACES is the number of all addresses.
WORKSPACE = len(Role)
OTHERS, PLACES = WORKSPACE + 1, WORKSPACE + 4

#: The roles of data tensors.
DATA = (Role.GRAD_OUT, Role.INPUT, Role.RESULT)
#: The roles of per-channel vectors.
VECTORS = tuple(role for role in Role if Role.MEAN <= role <= Role.OUT_RUNNING_VAR)
#: The vectors with one element per statistics group; other vectors have one per parameter.
STATISTICS = (Role.MEAN, Role.INVSTD, Role.OUT_MEAN, Role.OUT_INVSTD)
#: The vectors that are outputs.
_OUTPUTS = tuple(role for role in VECTORS if role >= Role.OUT_SUM_DY)


class Vector(NamedTuple):
    """A per-channel vector: its dtype, and its strides over sets and over channels (or groups).

    In a problem with ``by_row``, a vector of statistics runs over the channel axis and a vector of
    parameters over the inner axis; ``outer_strides`` are its strides over the outer axes.
    """

    dtype: DType
    stride: int
    set_stride: int = 0
    outer_strides: tuple[int, ...] = ()


class Problem(NamedTuple):
    """The description of one call's arithmetic, which depends on specs and options but not on data.

    At most one of ``forward``, ``constant``, ``grouped`` and ``gathers`` is true. If none is, the
    problem is batch norm's gradient in training: dx from sums that are computed or inputs (see
    ``takes_sums``), or, where the result is None, the sums alone.

    Attributes:
        grad_out, input, result: the dtypes of the data tensors dy, x, and dx or y; the result's is
            None when only per-channel outputs are wanted. In a forward pass grad_out's is the
            input's.
        sets, channel, inner, outer: the axes, each with its stride in (grad_out, input, result).
            Positions run over outer and inner; sums run over all positions.
        vectors: the per-channel inputs and outputs that are present.
        forward: whether this is a forward pass: the result is y, made from x alone, without dy.
        constant: whether this is a gradient with constant statistics, as in evaluation, rather than
            statistics of x: dx is dy times a number for each channel, and depends on no sums.
        grouped: whether this is a gradient with statistics of groups of a sample's channels, or of
            rows: dx depends on sums of weighted terms. A forward pass sums x alone, so the flag is
            false there.
        by_row: whether the channels are rows, and each position in a row has its own parameters.
            Rows that need several axes also use the first outer axes, and each index of these is a
            set.
        outer_rows: the number of outer axes that belong to the rows.
        centred: whether 1/std is that of x − mean, rather than of x itself as in RMS norm.
        gathers: whether the problem combines the statistics of several ranks, without data tensors.
        counts: the spec of the number of elements per rank, where sums of all ranks are given or
            statistics are gathered.
        eps: the number added to a variance.
        momentum: the weight of new statistics in the running statistics.
        divisor: the number of elements in a statistics group.
        per_group: the number of channels that share a statistic (1 for batch norm).
        invstd_is_variance: whether ``Role.INVSTD`` holds variances rather than 1/std.
        read_next: whether the result is read soon after the call, as by the next layer of a model.
        missing_mean, missing_invstd: whether the mean (or 1/std) is computed from the input: in a
            training gradient without the saved one, and in a training forward pass.
        sharing, rows, parameter_sizes: for a backend that reads lines; see triton/lines.py.
    """

    grad_out: DType
    input: DType
    result: DType | None
    sets: Axis
    outer: tuple[Axis, ...]
    channel: Axis
    inner: Axis
    vectors: dict[Role, Vector]
    forward: bool = False
    constant: bool = False
    grouped: bool = False
    by_row: bool = False
    outer_rows: int = 0
    centred: bool = True
    gathers: bool = False
    counts: TensorSpec | None = None
    eps: float = 0.0
    momentum: float = 0.0
    divisor: int = 1
    per_group: int = 1
    invstd_is_variance: bool = False
    read_next: bool = False
    missing_mean: bool = False
    missing_invstd: bool = False
    sharing: int = 1
    rows: tuple[Axis, ...] = ()
    parameter_sizes: tuple[int, ...] = ()

    @property
    def arithmetic(self) -> DType:
        """The dtype of the arithmetic: float32 or float64."""
        return dtypes.arithmetic(self.grad_out, self.input)

    @property
    def set_axes(self) -> tuple[Axis, ...]:
        """The axes whose indices number the sets."""
        return self.rows or (self.sets,)

    @property
    def positions(self) -> int:
        """The number of elements of one channel of a set."""
        return self.inner.size * prod(axis.size for axis in self.outer)

    @property
    def wants_parameters(self) -> bool:
        """Whether any per-channel output is wanted."""
        return not self.vectors.keys().isdisjoint(_OUTPUTS)

    @property
    def elements(self) -> int:
        """The elements of each data tensor; outer rows, which are also sets, count twice."""
        return self.sets.size * self.channel.size * self.positions

    @property
    def is_empty(self) -> bool:
        """Whether the data tensors have no elements."""
        return self.elements == 0

    @property
    def splits_mean(self) -> bool:
        """Whether a mean is given in more precision than the arithmetic's type has."""
        given = self.vectors.get(Role.MEAN)
        return given is not None and given.dtype.itemsize > self.arithmetic.itemsize

    @property
    def parameters(self) -> int:
        """The number of channels, or of positions of rows, that have parameters."""
        if not self.by_row:
            return self.channel.size
        return self.inner.size * prod(axis.size for axis in self.outer[self.outer_rows :])

    @property
    def takes_sums(self) -> bool:
        """Whether Σdy and Σdy·(x − μ), over all ranks, are inputs rather than computed."""
        return Role.SUM_DY in self.vectors

    @property
    def result_needs_sums(self) -> bool:
        """Whether dx or y depends on sums that are computed from dy and x."""
        if self.result is None:
            return False
        return self.missing_invstd if self.forward else not (self.constant or self.takes_sums)

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
        """Whether kernels may read dy where they would read x, since no output depends on x.

        They may not if only x's dtype makes the arithmetic float64.
        """
        return not self.needs_input and dtypes.arithmetic(self.grad_out) is self.arithmetic

    def reading_one(self) -> Problem:
        """The same problem with x replaced by dy, if :attr:`input_is_grad_out` allows that."""
        if not self.input_is_grad_out:
            return self

        def twice(axis: Axis) -> Axis:
            dy, _, dx = axis.strides
            return Axis(axis.size, (dy, dy, dx))

        return self._replace(
            input=self.grad_out,
            sets=twice(self.sets),
            outer=tuple(twice(axis) for axis in self.outer),
            channel=twice(self.channel),
            inner=twice(self.inner),
            missing_mean=False,
            missing_invstd=False,
        )
