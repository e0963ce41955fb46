"""Findings: the faults of many cases, grouped by what they have in common."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .cases import Case, spelling
from .judging import Judged
from .outcomes import Fault, Level

#: The fields of cases that may be the condition of a fault. Of two that are equally likely, that
#: of fewer cases is taken, or else the first.
_CONDITIONS = (
    *("absent", "mask", "change", "out", "vectors", "channel_axis", "row_axes", "eps", "momentum"),
    *("kind", "dtype", "x_dtype", "parameters", "layout", "x_layout", "topic"),
)
#: A condition is a cause if so large a share of the cases tried with it have the fault, and if so
#: large a share of the cases with the fault have it.
_TRIED, _FOUND = 0.5, 0.1

_Pair = tuple[Case, Fault]
#: The place of a condition's field in ``_CONDITIONS``, and the condition in words.
_Condition = tuple[int, str]


@dataclass(frozen=True)
class Finding:
    """Faults that have a cause in common, as far as can be told from the cases.

    Attributes:
        level: the faults' level.
        operators: the operators.
        what: the outputs that are wrong, or what else happens.
        where: the condition on which it happens; empty if it happens in most cases.
        found: the cases, and the first fault of each.
        tried: the number of cases of the operators with that condition.
    """

    level: Level
    operators: tuple[str, ...]
    what: str
    where: str
    found: tuple[_Pair, ...]
    tried: int

    @property
    def by_layers(self) -> bool:
        """Whether a layer may make such a call."""
        return any(case.by_layers for case, _ in self.found)

    @property
    def smallest(self) -> _Pair:
        """The case of the fewest elements and its fault; of several, that of the shortest name."""
        return min(self.found, key=lambda pair: (math.prod(pair[0].shape), len(pair[0].name)))

    def __str__(self) -> str:
        where = f" where {self.where}" if self.where else ""
        layers = "layers reach it" if self.by_layers else "no layer reaches it"
        counts = f"{len(self.found)} of {self.tried} case{'s' if self.tried > 1 else ''}"
        operators = ", ".join(self.operators)
        return f"{self.level.value}: {operators}: {self.what}{where} ({counts}; {layers})"


def findings(judged: Sequence[Judged]) -> list[Finding]:
    """The findings in all verdicts on an implementation, the gravest level first.

    Of a level, those that layers reach stand before others, and those of more cases before those
    of fewer. Those of the first level are split by their causes; the others are one for each kind
    of fault.
    """
    offered = [each.case for each in judged if not each.absent]
    pairs = [(each.case, fault) for each in judged for fault in each.faults]
    found: list[Finding] = []
    for (level, operator, what), some in itertools.groupby(sorted(pairs, key=_kind), key=_kind):
        of = [case for case in offered if operator in ("", case.operator)]
        if Level(level) is Level.WRONG:
            for together in _connected([*some]):
                found += _split(what, _first_of_each(together), of)
        else:
            found.append(_finding(what, "", _first_of_each([*some]), len(of)))
    levels = [*Level]
    return sorted(
        found, key=lambda each: (levels.index(each.level), not each.by_layers, -len(each.found))
    )


def _kind(pair: _Pair) -> tuple[str, str, str]:
    """What faults of one cause have in common: the level, the operator, and the kind of fault.

    A cause may spoil the values of several outputs.
    """
    case, fault = pair
    what = "" if fault.is_of_value else fault.what
    if fault.level is Level.WRONG:
        return fault.level.value, case.operator, what
    return fault.level.value, "", what


def _connected(pairs: list[_Pair]) -> Iterator[list[_Pair]]:
    """Part the faults of outputs that are never wrong in one case, which have other causes."""
    groups: list[tuple[set[str], set[Case]]] = []
    for what in dict.fromkeys(fault.what for _, fault in pairs):
        outputs, cases = {what}, {case for case, fault in pairs if fault.what == what}
        for group in [group for group in groups if group[1] & cases]:
            groups.remove(group)
            outputs, cases = outputs | group[0], cases | group[1]
        groups.append((outputs, cases))
    for outputs, _ in groups:
        yield [pair for pair in pairs if pair[1].what in outputs]


def _split(what: str, pairs: list[_Pair], offered: Sequence[Case]) -> Iterator[Finding]:
    """Split faults of one kind by the conditions on which most of the tried cases have them."""
    tried = Counter(each for case in offered for each in _conditions(case))
    while pairs:
        count = Counter(each for case, _ in pairs for each in _conditions(case))
        likely = [
            (number, condition)
            for condition, number in count.items()
            if number >= max(_TRIED * tried[condition], _FOUND * len(pairs))
        ]
        if len(pairs) >= _TRIED * len(offered) or not likely:
            yield _finding(what, "", pairs, len(offered))
            return
        # Of equally many, those of the fewest that were tried.
        _, where = max(likely, key=lambda pair: (pair[0], -tried[pair[1]], -pair[1][0]))
        chosen = [pair for pair in pairs if where in _conditions(pair[0])]
        yield _finding(what, where[1], chosen, tried[where])
        pairs = [pair for pair in pairs if where not in _conditions(pair[0])]


def _finding(what: str, where: str, pairs: list[_Pair], tried: int) -> Finding:
    outputs = ", ".join(dict.fromkeys(fault.what for _, fault in pairs))
    operators = tuple(dict.fromkeys(case.operator for case, _ in pairs))
    return Finding(pairs[0][1].level, operators, what or outputs, where, tuple(pairs), tried)


def _first_of_each(pairs: list[_Pair]) -> list[_Pair]:
    """The first pair of each case."""
    return [*{case: (case, fault) for case, fault in reversed(pairs)}.values()][::-1]


def _conditions(case: Case) -> list[_Condition]:
    """What is unusual about a case."""
    rank = _CONDITIONS.index
    found = [(rank("absent"), f"{name} is left out") for name in case.absent]
    for name in _CONDITIONS:
        value, usual = getattr(case, name), getattr(Case, name, None)
        if value in (usual, ""):
            continue
        if name == "absent":
            words = f"only {' and '.join(value)} {'are' if len(value) > 1 else 'is'} left out"
        else:
            words = f"{name} is {value.word if name == 'topic' else spelling(value)}"
        found.append((rank(name), words))
    parts = (index for index, each in enumerate(case.mask) if not each)
    return found + [(rank("mask"), f"mask has no entry {index}") for index in parts]
