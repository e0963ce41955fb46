"""Run a suite's cases on an implementation in a separate process, and judge the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from .cases import Case, Topic
from .outcomes import Judged, Verdict, judge
from .process import Process
from .subjects import NO_PARAMETER
from .suites import cases_of


@dataclass(frozen=True)
class Trial:
    """The results of a suite's cases on one implementation.

    Attributes:
        spec: the implementation's name, as :func:`normgrad.testing.load` takes it.
        name: the implementation's own name for itself.
        suite: the name of the suite, one of ``SUITES``.
        facts: the implementation's properties for a report.
        strict: whether the implementation must accept all that normgrad does.
        judged: the cases in their order.
        beside: additional plain calls, which show whether an operator answers.
        total: how many cases the whole suite has.
        unjudged: how many cases were left when the trial was interrupted.
    """

    spec: str
    name: str
    suite: str
    facts: Mapping[str, str]
    strict: bool
    judged: tuple[Judged, ...]
    beside: tuple[Judged, ...]
    total: int
    unjudged: int = 0

    @property
    def passed(self) -> bool:
        """Whether some case was met and no defect found; if strict, no refusal either.

        An interrupted trial has not passed.
        """
        is_met = any(each.verdict is Verdict.MET for each in self.judged)
        return is_met and not self.defects and not self.unjudged

    @property
    def defects(self) -> tuple[Judged, ...]:
        """The cases that count against the implementation; if strict, all that are not met.

        Refusals count too for an operator that never answers.
        """

        def is_defect(judged: Judged) -> bool:
            is_unmet = judged.verdict is not Verdict.MET
            return judged.verdict.is_defect or (self.strict and is_unmet) or self.is_silence(judged)

        return (*filter(self.is_silence, self.beside), *filter(is_defect, self.judged))

    def is_silence(self, judged: Judged) -> bool:
        """Whether an operator in ``silent`` left this case unanswered."""
        return judged.case.operator in self.silent and _is_unanswered(judged)

    @cached_property
    def silent(self) -> dict[str, Judged]:
        """The offered operators that answer no legal call, each with its first such call.

        An operator that raises NotImplementedError is not offered. An interrupted trial has none,
        since the calls that an operator answers may have been left.
        """
        if self.unjudged:
            return {}
        every = (*self.beside, *self.judged)
        answering = {each.case.operator for each in every if each.is_answer}
        by_operator: dict[str, Judged] = {}
        for each in filter(_is_unanswered, every):
            if each.case.operator not in answering:
                by_operator.setdefault(each.case.operator, each)
        return by_operator


class TrialInterrupted(KeyboardInterrupt):
    """An interrupt of :func:`try_cases`; ``trial`` has the cases that were judged before it."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial


def _is_unanswered(judged: Judged) -> bool:
    """Whether an operator that is offered did not answer a legal call."""
    if judged.case.is_mistake or judged.verdict in (Verdict.MET, Verdict.BROKEN):
        return False
    # An operator cannot leave out a parameter that even the plain call needs.
    is_plain = judged.case.topic is Topic.PLAIN
    return judged.verdict is not Verdict.ABSENT or (
        is_plain and judged.detail.startswith(NO_PARAMETER)
    )


def try_cases(
    spec: str,
    quick: bool = False,
    wanted: Callable[[Case], bool] = lambda case: True,
    started: Callable[[str, int], None] = lambda name, count: None,
    progress: Callable[[Judged], None] = lambda judged: None,
    only: str = "",
) -> Trial:
    """Run the suite's cases on an implementation.

    Args:
        spec: the implementation, as :func:`normgrad.testing.load` takes it.
        quick: whether to try only a part of the suite.
        wanted: whether to try a case.
        started: called with the implementation's name and the number of cases before the first.
        progress: called with each case's verdict.
        only: the name of the case to try; if no case has it, a text in the names of those to try.

    Raises:
        SubjectError: there is no such implementation.
        TrialInterrupted: an interrupt came after the first case was begun.
    """
    process = Process(spec)
    futures: list[Future[Judged]] = []
    is_interrupted = False
    try:
        whole = cases_of(process, quick)
        matches = [case for case in whole if case.name == only]
        matches = matches or [case for case in whole if only in case.name]
        cases = [case for case in matches if wanted(case)]
        kinds = {case.kind for case in cases} - {c.kind for c in cases if c.topic is Topic.PLAIN}
        beside = [case for case in whole if case.topic is Topic.PLAIN and case.kind in kinds]
        started(process.name, len(cases) + len(beside))
        # Judge one case while the process computes the next.
        with suppress(KeyboardInterrupt), ThreadPoolExecutor(1) as judging:
            is_interrupted = True
            for case in (*cases, *beside):
                futures.append(judging.submit(judge, case, process.run(case), process.strict))
                for each in futures[-2:-1]:
                    progress(each.result())
            for each in futures[-1:]:
                progress(each.result())
            is_interrupted = False
    finally:
        process.end()
    judged = [each.result() for each in futures]
    bases = {each.case.kind: each for each in judged if each.case.topic is Topic.PLAIN}
    judged = [each.beside(bases.get(each.case.kind)) for each in judged]
    trial = Trial(
        spec=spec,
        name=process.name,
        suite=process.suite,
        facts=process.facts,
        strict=process.strict,
        judged=tuple(judged[: len(cases)]),
        beside=tuple(judged[len(cases) :]),
        total=len(cases_of(process)),
        unjudged=len(cases) + len(beside) - len(judged),
    )
    if is_interrupted:
        raise TrialInterrupted(trial)
    return trial
