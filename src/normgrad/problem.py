"""What an operator asks of a backend: one shape of arithmetic for all of them.

Every gradient is a case of

    sums    Σdy and Σdy·(x − μ), per channel (batch norm) or per sample and channel (group norm)
    apply   dx = scale · (gain·dy − (shift + slope·(x − μ)))

and every forward pass one of

    moments    Σ(x − p) and Σ(x − p)² about some p, where statistics are wanted
    normalise  y = scale·(x − μ) + shift

over tensors seen as (set, outer…, channel, inner). A *set* has statistics of its own: batch norm
has one, group norm one per sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from . import dtypes
from .dtypes import DType
from .layout import Axis
from .tensor import TensorSpec


class Rule(IntEnum):
    """Which statistics and sums the coefficients come from."""

    TRAIN = 0
    EVAL = 1
    REDUCE = 2
    ELEMT = 3
    GROUP = 4
    #: The forward pass, its statistics given or to be computed; and those of ranks, combined.
    FORWARD = 5
    GATHER = 6


class Role(IntEnum):
    """What an address given to a program stands for."""

    GRAD_OUT = 0
    INPUT = 1
    GRAD_INPUT = 2
    MEAN = 3
    SPREAD = 4
    WEIGHT = 5
    SUM_DY = 6
    SUM_DY_XMU = 7
    OUT_SUM_DY = 8
    OUT_SUM_DY_XMU = 9
    OUT_WEIGHT = 10
    OUT_BIAS = 11
    COUNT = 12
    # The forward pass reads a bias where a gradient reads sums. The statistics that are asked for
    # stand where sums do elsewhere, and running statistics where gradients of parameters do.
    BIAS = SUM_DY
    OUTPUT = GRAD_INPUT
    OUT_MEAN = OUT_SUM_DY
    OUT_INVSTD = OUT_SUM_DY_XMU
    OUT_RUNNING_MEAN = OUT_WEIGHT
    OUT_RUNNING_VAR = OUT_BIAS
    # Running statistics, to be updated: where the statistics that are computed would be given, or
    # where those of ranks are.
    RUNNING_MEAN = MEAN
    RUNNING_VAR = SPREAD
    GATHERED_RUNNING_MEAN = SUM_DY
    GATHERED_RUNNING_VAR = SUM_DY_XMU


@dataclass(frozen=True)
class Vector:
    """A per-channel vector: its dtype, and its strides over sets and over channels (or groups)."""

    dtype: DType
    stride: int
    set_stride: int = 0


@dataclass(frozen=True)
class Problem:
    """One call's arithmetic, from specs alone.

    Attributes:
        rule: where the coefficients come from.
        grad_out, input, grad_input: dtypes of the data tensors; grad_input None when dx is not
            wanted. In the forward pass grad_out is the input too, and grad_input the output.
        sets, channel, inner, outer: the axes, each with its stride in (grad_out, input,
            grad_input). Positions run over outer and inner; all are summed over.
        vectors: the per-channel inputs and outputs that are there.
        count: the elements per rank, for ``Rule.ELEMT`` and ``Rule.GATHER``.
        eps: added to a variance.
        momentum: the weight of new statistics in running ones.
        divisor: how many elements each statistic is over.
        per_group: channels that share a statistic (1 for batch norm).
        spread_is_variance: whether ``Role.SPREAD`` holds variances rather than 1/std.
        missing_mean, missing_spread: computed from the input (training without save_*; both
            in training's forward pass).
    """

    rule: Rule
    grad_out: DType
    input: DType
    grad_input: DType | None
    sets: Axis
    outer: tuple[Axis, ...]
    channel: Axis
    inner: Axis
    vectors: dict[Role, Vector] = field(hash=False)
    count: TensorSpec | None = None
    eps: float = 0.0
    momentum: float = 0.0
    divisor: float = 1.0
    per_group: int = 1
    spread_is_variance: bool = False
    missing_mean: bool = False
    missing_spread: bool = False

    @property
    def arithmetic(self) -> DType:
        """float32 or float64."""
        return dtypes.arithmetic(self.grad_out, self.input)

    @property
    def positions(self) -> int:
        """Elements of one (set, channel)."""
        count = self.inner.size
        for axis in self.outer:
            count *= axis.size
        return count

    @property
    def wants_parameters(self) -> bool:
        """Whether any per-channel output is asked for."""
        return any(role in self.vectors for role in _PARAMETER_OUTPUTS)

    @property
    def is_empty(self) -> bool:
        """Whether the data tensors have no elements."""
        return self.sets.size * self.channel.size * self.positions == 0

    @property
    def needs_sums(self) -> bool:
        """Whether anything is summed over the elements of a channel."""
        if self.rule is Rule.FORWARD:
            return self.missing_mean
        if self.rule in (Rule.TRAIN, Rule.GROUP) and self.grad_input is not None:
            return True
        return self.wants_parameters

    @property
    def needs_input(self) -> bool:
        """Whether anything asked for depends on x."""
        if self.rule is Rule.FORWARD:
            return True
        if self.grad_input is not None and self.rule in (Rule.TRAIN, Rule.GROUP, Rule.ELEMT):
            return True
        return Role.OUT_SUM_DY_XMU in self.vectors or Role.OUT_WEIGHT in self.vectors

    @property
    def input_is_grad_out(self) -> bool:
        """Whether dy can be read in the place of x, on which nothing depends.

        Not where x alone makes the arithmetic float64.
        """
        return not self.needs_input and dtypes.arithmetic(self.grad_out) is self.arithmetic

    def reading_one(self) -> Problem:
        """The same problem, with dy in the place of x where that can be."""
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
            missing_spread=False,
        )


_PARAMETER_OUTPUTS = (Role.OUT_SUM_DY, Role.OUT_SUM_DY_XMU, Role.OUT_WEIGHT, Role.OUT_BIAS)
