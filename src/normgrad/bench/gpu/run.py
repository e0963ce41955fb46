"""Going through cases on a GPU: copies of their data, timing, a row, and what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .. import data, results, timing
from ..contenders import Contenders
from ..data import Data
from ..results import ON_GPU, Row
from ..run import Effort
from ..suite import Case, Part
from . import contenders
from .device import Device

#: Cases named of each thing that was not measured.
NAMED = 2


class Measured(NamedTuple):
    """What came of a case.

    Attributes:
        case: its id.
        row: None, if it was not measured.
        missing: what was not, a contender or the case, and why.
    """

    case: str
    row: Row | None
    missing: Mapping[str, str]


def run(
    cases: Sequence[Case], device: Device, effort: Effort, compile_: bool
) -> Iterator[Measured]:
    """Measure the cases; one that cannot be is said to be so, and the next one comes.

    Args:
        cases: those of one look in a row, which share their tensors.
        device: on which they are measured.
        effort: how much time goes into a case.
        compile_: whether torch.compile competes.

    Raises:
        TorchMissingError: there is no torch.
    """
    data.load_torch()
    look: Case | None = None
    tensors: list[Data] = []
    for case in cases:
        try:
            if case.look != look:
                # The old ones go first: two sets of the largest need not fit.
                look, tensors = None, []
                tensors, look = contenders.tensors(case, device), case.look
            measured = _measured(case, tensors, device, effort, compile_)
        except Exception as error:  # ours fails, memory is short, or the device is lost
            measured = Measured(case.id, None, {"the case": contenders.reason(error)})
        yield measured


def _measured(
    case: Case, tensors: Sequence[Data], device: Device, effort: Effort, compile_: bool
) -> Measured:
    ready = contenders.gather(data.load_torch(), case, tensors, compile_)
    if not set(ready.calls) - set(contenders.MINE):
        return Measured(case.id, None, {**ready.failed, "the case": "nobody to compare with"})
    times = timing.measure(ready.calls, effort.seconds, effort.rounds, 0.0, device.seconds)
    theirs = {name: median for name, median in times.medians.items() if name not in contenders.MINE}
    best = min(theirs, key=theirs.__getitem__)
    times = replace(times, medians={**times.medians, "torch": theirs[best]})
    found = Contenders(ready.calls, best, ready.bound, ready.path)
    return Measured(case.id, results.row(case, ON_GPU, found, times), ready.failed)


@dataclass(frozen=True)
class Unmeasured:
    """Something that was not measured, so that nobody takes what is not there for what is good.

    Attributes:
        what: a contender, the case, or how many of which part.
        why: the reason.
        cases: their ids.
    """

    what: str
    why: str
    cases: tuple[str, ...]

    @property
    def where(self) -> str:
        """The cases in words."""
        more = len(self.cases) - NAMED
        named = ", ".join(self.cases[:NAMED])
        return f"{named}, and {more} more" if more > 0 else named

    def __str__(self) -> str:
        return f"{self.what}: {self.why} ({self.where})"


def unmeasured(found: Iterable[Measured]) -> list[Unmeasured]:
    """What is missing of a run, with all of the cases that miss it for the same reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in found:
        for missing in one.missing.items():
            groups.setdefault(missing, []).append(one.case)
    return [Unmeasured(what, why, tuple(cases)) for (what, why), cases in groups.items()]


def nothing(cases: Sequence[Case], why: str) -> list[Unmeasured]:
    """What is missing where there is no device: everything."""
    found = []
    for part in Part:
        mine = tuple(case.id for case in cases if case.operator.part is part)
        if mine:
            found.append(Unmeasured(f"{len(mine)} {part.value}", why, mine))
    return found
