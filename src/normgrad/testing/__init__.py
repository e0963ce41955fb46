"""Test any implementation of the operators, normgrad's or another, against the oracle.

    from normgrad import testing

    for case in testing.cases(kinds=("stats",)):
        call = case.call()
        result = my_kernel(**call.tensors, **call.options)
        print(case, testing.check(case, result))

A case is a call of one operator. Checking a case compares the call's results with the float64
oracle (:mod:`normgrad.operators.reference`), in units of normgrad's error bound and of what plain
float32 code gives (:mod:`normgrad.operators.precision`).
``pytest --pyargs normgrad.testing --subject module:Name`` has a test for each case, and ``normgrad
verify module:Name`` is the same with workers, in which a crash loses one case alone.
"""

from __future__ import annotations

from typing import Any

from ..declarations.contract import Kind
from .cases import Case, Topic
from .findings import Finding, findings
from .judging import Judged, judge
from .loading import SUITES, load, run
from .operator_suite import cases
from .outcomes import Fault, Level, Outcome
from .own import Operator
from .subjects import Implementation, Subject, SubjectError, outputs
from .tensors import FORWARD, GRADIENTS, LAYOUTS, Call, lay_out, make

__all__ = [
    "FORWARD",
    "GRADIENTS",
    "LAYOUTS",
    "SUITES",
    "Call",
    "Case",
    "Fault",
    "Finding",
    "Implementation",
    "Judged",
    "Kind",
    "Level",
    "Operator",
    "Outcome",
    "Subject",
    "SubjectError",
    "Topic",
    "cases",
    "check",
    "findings",
    "judge",
    "lay_out",
    "load",
    "make",
    "run",
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
