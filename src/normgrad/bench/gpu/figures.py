"""What follows from a run's rows: for each case the figures that tables and targets speak of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ... import dtypes
from ..suite import Operator, Part
from .contenders import COPY, MINE, OURS, OUT, PLAN
from .results import Results, Row
from .rotation import TIMES_L2
from .timing import EVENTS, GRAPH

#: torch's own operators are called so; of these a small call is to be no slower.
OPERATORS = "aten::"

#: What is smaller spends its time on launching: a profile of it says nothing of memory.
PROFILED_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Figures:
    """A case's figures; NaN where something was not measured.

    The times are those of graphs if everybody's could be captured, else those of events for all.

    Attributes:
        case: its id.
        operator, shape, dtype, layout: the case's.
        elements: of one tensor.
        bytes: what has to go through memory, each tensor once.
        timing: which of the times these are.
        t_ours_us: the public function, or a layer's step; all times are microseconds a call.
        t_out_us, t_plan_us: with ``out=``, and a plan's run.
        best: who was the fastest of the others; empty if there was nobody.
        t_best_us: its time.
        t_copy_us: what the copy in the same turns would take for as many bytes.
        events_ours_us: the public function, with its launching.
        events_operator_us: the fastest of torch's own operators, with its launching.
        spread: the largest of all, interquartile range over median.
        cold: whether nothing was found in L2 that a call before had left there.
        path: the plan's way through the kernels.
    """

    case: str
    operator: str
    shape: str
    dtype: str
    layout: str
    elements: int
    bytes: int
    timing: str
    t_ours_us: float
    t_out_us: float
    t_plan_us: float
    best: str
    t_best_us: float
    t_copy_us: float
    events_ours_us: float
    events_operator_us: float
    spread: float
    cold: bool
    path: str

    @property
    def part(self) -> Part:
        """What its operator belongs to."""
        return Operator(self.operator).part

    @property
    def tensor_bytes(self) -> int:
        """Of one tensor."""
        return self.elements * dtypes.BY_NAME[self.dtype].itemsize

    @property
    def speedup(self) -> float:
        """Times as fast as the best contender, both with new outputs."""
        return self.t_best_us / self.t_ours_us

    @property
    def moving_us(self) -> float:
        """The time that bandwidth is counted with: with ``out=``, if there is such a call."""
        return self.t_ours_us if math.isnan(self.t_out_us) else self.t_out_us

    @property
    def tbs(self) -> float:
        """Effective bandwidth: the bytes that have to move, in 10¹² a second."""
        return self.bytes / self.moving_us / 1e6

    @property
    def copy_tbs(self) -> float:
        """The bandwidth of the copy in the same turns."""
        return self.bytes / self.t_copy_us / 1e6

    @property
    def share(self) -> float:
        """Of the copy's bandwidth."""
        return self.t_copy_us / self.moving_us

    @property
    def xbound(self) -> float:
        """Times the bound, which is the bytes over the copy's bandwidth."""
        return self.moving_us / self.t_copy_us

    @property
    def small_call(self) -> float:
        """In terms of torch's operator, both with their launching."""
        return self.events_ours_us / self.events_operator_us


def figures(found: Results) -> list[Figures]:
    """Each case's, in the order of the rows."""
    by_case: dict[str, list[Row]] = {}
    for row in found.rows:
        by_case.setdefault(row.case, []).append(row)
    l2 = int(found.facts["l2_bytes"])
    return [_figures(mine, l2) for mine in by_case.values()]


def _common_timing(rows: Sequence[Row]) -> str:
    """Graphs, if each contender has one: nobody is left out for not being captured."""
    everybody = {row.contender for row in rows}
    captured = {row.contender for row in rows if row.timing == GRAPH}
    return GRAPH if captured == everybody else EVENTS


def _figures(rows: Sequence[Row], l2: int) -> Figures:
    timing = _common_timing(rows)
    times = {row.contender: row.t_us for row in rows if row.timing == timing}
    events = {row.contender: row.t_us for row in rows if row.timing == EVENTS}
    others = _others(times)
    best = min(others, key=others.__getitem__, default="")
    (copy,) = (row for row in rows if (row.contender, row.timing) == (COPY, timing))
    row = next(row for row in rows if row.contender == OURS)
    operators = [time for name, time in _others(events).items() if OPERATORS in name]
    return Figures(
        case=row.case,
        operator=row.operator,
        shape=row.shape,
        dtype=row.dtype,
        layout=row.layout,
        elements=row.elements,
        bytes=row.bytes,
        timing=timing,
        t_ours_us=times[OURS],
        t_out_us=times.get(OUT, math.nan),
        t_plan_us=times.get(PLAN, math.nan),
        best=best,
        t_best_us=others.get(best, math.nan),
        t_copy_us=copy.t_us * row.bytes / copy.bytes,
        events_ours_us=events.get(OURS, math.nan),
        events_operator_us=min(operators, default=math.nan),
        spread=max(entry.spread for entry in rows),
        cold=row.rotated_bytes > TIMES_L2 * l2,
        path=row.path,
    )


def _others(times: Mapping[str, float]) -> dict[str, float]:
    return {name: time for name, time in times.items() if name not in (*MINE, COPY)}


def worst(found: Iterable[Figures]) -> Figures | None:
    """The gradient larger than the caches that is furthest from the copy; else the slowest call.

    It is the one to look at in a profiler.
    """
    every = list(found)
    gradients = [one for one in every if one.part is Part.GRADIENTS] or every
    large = [one for one in gradients if one.cold and one.elements >= PROFILED_ELEMENTS]
    return max(large or gradients, key=lambda one: one.xbound, default=None)
