"""Test any implementation of the operators, normgrad's or another, against the oracle.

    from normgrad import testing

    for case in testing.cases():
        print(case, testing.check(case, MyOps).verdict)

A case is a call of one operator. Checking a case compares the call's results with the float64
oracle (:mod:`normgrad.reference`) in units of the error bound (:mod:`normgrad.precision`).
``normgrad verify`` checks the whole suite, in a separate process, and writes a report.
"""

from __future__ import annotations

from typing import Any

from .cases import Case, Topic
from .outcomes import Judged, Outcome, Verdict, judge
from .subjects import Implementation, Subject, SubjectError
from .suite import cases
from .suites import SUITES, load
from .tensors import FORWARD, GRADIENTS, LAYOUTS, Call, lay_out, make
from .trials import Trial, TrialInterrupted, try_cases

__all__ = [
    "FORWARD",
    "GRADIENTS",
    "LAYOUTS",
    "SUITES",
    "Call",
    "Case",
    "Implementation",
    "Judged",
    "Outcome",
    "Subject",
    "SubjectError",
    "Topic",
    "Trial",
    "TrialInterrupted",
    "Verdict",
    "cases",
    "check",
    "judge",
    "lay_out",
    "load",
    "make",
    "try_cases",
]


def check(case: Case, operators: Any) -> Judged:
    """Run a case on an implementation, in this process, and return its verdict.

    Args:
        case: one of :func:`cases`; for a library, one of its suite in ``SUITES``.
        operators: an object or class as :class:`Subject` takes it, or what :func:`load` returns.
    """
    is_loaded = isinstance(operators, Implementation)
    subject: Implementation = operators if is_loaded else Subject("it", operators)

    def judged(case: Case) -> Judged:
        return judge(case, subject.run(case), subject.strict)

    found = judged(case)
    if not case.is_mistake:
        return found
    suite = SUITES[subject.suite].cases(True, subject.facts)
    plain = (each for each in suite if (each.topic, each.kind) == (Topic.PLAIN, case.kind))
    return found.beside(next(map(judged, plain), None))
