"""Summarise trials in tables and sentences, for a terminal and for a page."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .cases import Topic
from .outcomes import Judged, Verdict
from .subjects import OTHER_BITS, THREADS
from .trials import Trial

#: The phrase for an operator that has answered no legal call.
_SILENT = "answers no legal call"

#: The titles of the columns after a row's title.
HEADER = (*(verdict.value for verdict in Verdict), "max error / bound")


def row(title: str, judged: Iterable[Judged]) -> tuple[str, ...]:
    """A row for some cases: the title, the count of each verdict, and the largest error of a
    returned result in units of the bound."""
    judged = list(judged)
    counts = Counter(each.verdict for each in judged)
    units = max((each.units for each in judged if each.units is not None), default=None)
    numbers = (str(counts[verdict] or "") for verdict in Verdict)
    return (title, *numbers, "" if units is None else f"{units:.3g}")


def rows(trial: Trial, attribute: str) -> list[tuple[str, ...]]:
    """A row for each topic, or each value of another attribute of cases, in the suite's order."""
    groups: dict[str, list[Judged]] = {}
    for each in trial.judged:
        groups.setdefault(str(getattr(each.case, attribute)), []).append(each)
    return [row(title, judged) for title, judged in groups.items()]


class Finding(NamedTuple):
    """Cases with the same verdict, which counts against it; the title says what they share."""

    title: str
    judged: tuple[Judged, ...]

    @property
    def first(self) -> Judged:
        """The case that represents the finding: the one of largest error, else the first."""
        return max(self.judged, key=lambda each: each.units or 0.0)


def findings(trial: Trial) -> list[Finding]:
    """A trial's findings: operators that never answer, then the others, worst verdicts first."""
    order = [*(Verdict.CRASHED, Verdict.HUNG, Verdict.ACCEPTED, Verdict.BROKEN), *Verdict]
    groups: dict[tuple[int, str], list[Judged]] = {}
    for each in trial.defects:
        rank, title = order.index(each.verdict), f"{each.case.topic.value}, {each.case.kind}"
        if trial.is_silence(each):
            rank, title = -1, f"{each.case.operator} {_SILENT}"
        groups.setdefault((rank, title), []).append(each)
    by_rank = sorted(groups.items(), key=lambda item: item[0][0])
    return [Finding(title, tuple(judged)) for (_, title), judged in by_rank]


def command(trial: Trial, judged: Judged) -> str:
    """The shell command that repeats a case."""
    options = ("--alone", "--backend", trial.spec, "--only", judged.case.name)
    return shlex.join(("normgrad", "verify", *options))


def refusals(trial: Trial) -> list[tuple[str, int]]:
    """The reasons why legal calls were refused or not offered, with counts, largest first."""
    reasons = Counter(
        f"{each.verdict.value}: {each.detail}"
        for each in trial.judged
        if each.verdict in (Verdict.REFUSED, Verdict.ABSENT)
    )
    return reasons.most_common()


class Claim(NamedTuple):
    """A trial's result in one respect, the title; it holds unless a case contradicts it."""

    title: str
    text: str
    holds: bool


def claims(trial: Trial) -> list[Claim]:
    """What the trial shows of an implementation's precision, determinism and contract."""
    offered = [each for each in trial.judged if each.verdict is not Verdict.ABSENT]
    legal = [each for each in offered if not each.case.is_mistake]
    mistakes = [each.verdict for each in offered if each.case.is_mistake]
    results = []
    if trial.unjudged:
        text = f"after {len(trial.judged)} cases, of which the rest is; {trial.unjudged} were left"
        results.append(Claim("interrupted", text, False))
    silence, first = _silence(trial), next(iter((*trial.silent.values(), *trial.judged)), None)
    if not silence and not any(each.verdict is Verdict.MET for each in trial.judged):
        silence = "nothing is met"
    if silence and first is not None:
        reason = f"{first.case.name}: {first.verdict.value}: {first.detail}"
        results.append(Claim("operators", f"{silence}; the first was {reason}", False))
    results += _precision([each for each in trial.judged if each.units is not None])
    results += _determinism([each for each in offered if each.case.topic is Topic.DETERMINISM])
    if legal:
        results.append(_answers(Counter(each.verdict for each in legal)))
    if mistakes:
        met = mistakes.count(Verdict.MET)
        text = f"{met} of {len(mistakes)} refused"
        results.append(Claim("wrong calls", text, met == len(mistakes)))
    return results


def _silence(trial: Trial) -> str:
    """Name the operators that answer no legal call; empty if there are none."""
    names = ", ".join(trial.silent) + (": each" if len(trial.silent) > 1 else "")
    return f"{names} {_SILENT}" if names else ""


def _precision(measured: Sequence[Judged]) -> list[Claim]:
    worst: dict[str, float] = {}
    for each in measured:
        worst[each.case.kind] = max(worst.get(each.case.kind, 0.0), each.units or 0.0)
    if not worst:
        return []
    beyond = [f"{kind} ({units:.3g})" for kind, units in worst.items() if units > 1]
    if beyond:
        return [Claim("precision", f"beyond the bound: {', '.join(beyond)}", False)]
    results = f"{len(measured)} result{'s' if len(measured) > 1 else ''}"
    text = f"{results} within the bound; the largest error is {max(worst.values()):.3g} of it"
    return [Claim("precision", text, True)]


def _determinism(repeated: Sequence[Judged]) -> list[Claim]:
    answered = [each for each in repeated if each.verdict in (Verdict.MET, Verdict.BROKEN)]
    if not answered:
        return []
    other = dict.fromkeys(each.case.kind for each in answered if OTHER_BITS in each.detail)
    if other:
        return [Claim("determinism", f"{OTHER_BITS} from call to call: {', '.join(other)}", False)]
    numbers = ", ".join(str(count or "all") for count in THREADS)
    text = f"the same bits from call to call, with {numbers} threads if their number can be set"
    return [Claim("determinism", text, True)]


def _answers(verdicts: Counter[Verdict]) -> Claim:
    """The claim that legal calls are answered, from the counts of their verdicts."""
    refused, lost = verdicts[Verdict.REFUSED], verdicts[Verdict.CRASHED] + verdicts[Verdict.HUNG]
    text = f"{verdicts.total() - refused - lost} of {verdicts.total()} answered"
    text += f", {refused} refused" if refused else ""
    text += f", {lost} end the process or never come back" if lost else ""
    return Claim("legal calls", text, not refused and not lost)


def headline(trial: Trial) -> str:
    """A trial's summary in a few words."""
    counts = Counter(each.verdict for each in trial.judged)
    phrases = [_silence(trial)] if trial.silent else []
    if not trial.defects:
        phrases = ["no defect found" if counts[Verdict.MET] else "nothing was met"]
    if counts[Verdict.MET] == len(trial.judged) > 0:
        phrases = ["every case is met"]
    if trial.unjudged:
        phrases = [f"interrupted after {len(trial.judged)} cases", *phrases]
    phrases += [
        f"{counts[verdict]} {verdict.value}" for verdict in [*Verdict][1:] if counts[verdict]
    ]
    return ", ".join(phrases)
