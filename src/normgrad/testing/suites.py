"""The suites, by name: their cases and their judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import aclnn_suite, infiniop_suite
from .outcomes import Judged, Outcome, judge
from .suite import cases

Facts = Mapping[str, str]


@dataclass(frozen=True)
class Suite:
    """What an implementation is tried with.

    Attributes:
        cases: the cases, or a quick run's part of them, for an implementation that says these facts
            of itself.
        judge: a case's verdict from its outcome; strictly, if so asked.
    """

    cases: Callable[[bool, Facts], tuple[Any, ...]]
    judge: Callable[[Any, Outcome, bool], Judged]


#: By what :attr:`.subjects.Subject.suite` says.
SUITES: Mapping[str, Suite] = {
    "operators": Suite(lambda quick, facts: cases(quick), judge),
    "infiniop": Suite(infiniop_suite.cases, infiniop_suite.judge),
    "aclnn": Suite(aclnn_suite.cases, aclnn_suite.judge),
}
