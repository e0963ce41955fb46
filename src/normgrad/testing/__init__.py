"""Test any implementation of the operators, normgrad's or another, against the oracle.

    from normgrad import testing

    for case in testing.cases(kinds=("stats",)):
        call = case.call()
        result = my_kernel(**call.tensors, **call.options)
        print(case, testing.check(case, result))

A case is a call of one operator. Checking a case compares the call's results with the float64
oracle (:mod:`normgrad.reference`) in units of the error bound (:mod:`normgrad.precision`).
``pytest --pyargs normgrad.testing --backend module:Name`` has a test for each case, and ``normgrad
verify`` writes a report on all of them.
"""

from __future__ import annotations

from typing import Any

from .cases import Case, Topic
from .conversions import outputs
from .outcomes import Judged, Outcome, Verdict, judge
from .subjects import Implementation, Subject, SubjectError
from .suite import cases
from .suites import SUITES, load, run
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
    "run",
    "try_cases",
]


def check(case: Case, result: Any) -> Judged:
    """Judge what a function returned for a case's call: ``str`` of the verdict says all of it.

    The shapes, dtypes and bounds are the operator's; :func:`run` also sees what a call writes to,
    whether it gives the same bits again, and what memory it keeps.

    Args:
        case: one of :func:`cases`, whose ``call()`` has the tensors and options of the call.
        result: the result in the order of normgrad's function of the operator: a tensor, or a
            sequence of tensors and, for those masked off, None. Tensors are NumPy's, PyTorch's on
            any device, or any with ``__dlpack__``. For a call that raised an error, the exception.

    Raises:
        TypeError: something in the result is no tensor.
    """
    if isinstance(result, BaseException):
        return judge(case, Outcome(error=(type(result).__name__, str(result))))
    return judge(case, Outcome(outputs(case.call(), result)))
