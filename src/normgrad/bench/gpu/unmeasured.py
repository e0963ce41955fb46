"""What a run did not measure, and why: so that nobody takes what is not there for what is good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..suite import Case, Part
from .run import Measured

#: Cases named of each reason.
NAMED = 2


@dataclass(frozen=True)
class Unmeasured:
    """Something that was not measured.

    Attributes:
        what: a contender; or what is missing of it, or of the case.
        why: the reason.
        cases: their ids; empty if it is all of them.
    """

    what: str
    why: str
    cases: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The cases in words."""
        if not self.cases:
            return "all cases"
        more = len(self.cases) - NAMED
        named = ", ".join(self.cases[:NAMED])
        return f"{named}, and {more} more" if more > 0 else named

    def __str__(self) -> str:
        return f"{self.what}: {self.why} ({self.where})"


def of(found: Iterable[Measured], absent: Mapping[str, str]) -> list[Unmeasured]:
    """What is missing of a run: whole cases first, then contenders, then graphs.

    Args:
        found: what came of each case.
        absent: contenders that met no case, and why.
    """
    every = list(found)
    cases = [("the case", one.reason, one.case) for one in every if one.reason]
    left_out = [(name, why, one.case) for one in every for name, why in one.left_out.items()]
    uncaptured = [
        (f"{name}, in a graph", why, one.case)
        for one in every
        for name, why in one.uncaptured.items()
    ]
    return [
        *_grouped(cases),
        *(Unmeasured(name, why) for name, why in sorted(absent.items())),
        *_grouped(left_out),
        *_grouped(uncaptured),
    ]


def _grouped(found: Iterable[tuple[str, str, str]]) -> list[Unmeasured]:
    groups: dict[tuple[str, str], list[str]] = {}
    for what, why, case in found:
        groups.setdefault((what, why), []).append(case)
    return [Unmeasured(what, why, tuple(cases)) for (what, why), cases in groups.items()]


def nothing(cases: Sequence[Case], why: str) -> list[Unmeasured]:
    """What is missing where there is no device: everything."""
    found = []
    for part in Part:
        mine = tuple(case.id for case in cases if case.operator.part is part)
        if mine:
            found.append(Unmeasured(f"{len(mine)} {part.value}", why, mine))
    return found
