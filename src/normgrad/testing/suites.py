"""The suites, by name, and whatever can be tried with one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import aclnn_suite, infiniop_suite, subjects
from .aclnn_library import ACLNN, AclnnLibrary
from .c_functions import open_library
from .infiniop_library import INFINIOP, InfiniopLibrary
from .outcomes import Judged, Outcome, judge
from .subjects import Implementation, Subject, SubjectError
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

#: How the file of a shared library is called.
_LIBRARY = re.compile(r".*\.so(\.\d+)*")


def load(spec: str) -> Implementation:
    """The implementation of a name.

    Args:
        spec: "normgrad" or "normgrad:cuda:0"; "torch" for PyTorch's own kernels; the path of a
            shared library that speaks infiniop or aclnn; "module:Name" for an object or class of a
            module that can be imported, or for all of a module without the colon.

    Raises:
        SubjectError: there is none, or it is none.
    """
    name, _, rest = spec.partition(":")
    if name == "normgrad" and (not rest or rest == "cpu" or rest.startswith("cuda")):
        return subjects.ours(rest or "cpu")
    if spec == "torch":
        try:
            from .aten import Aten
        except ModuleNotFoundError as error:
            raise SubjectError(f"torch: {error}") from None
        return Subject(Aten.name, Aten)
    if spec.endswith(".py"):
        raise SubjectError(
            f"{spec}: a file; allowed: its module and a name in it, such as mine:Ops"
        )
    if _LIBRARY.fullmatch(spec) or os.sep in spec:
        dialect, functions = open_library(spec, (INFINIOP, ACLNN))
        return (InfiniopLibrary if dialect is INFINIOP else AclnnLibrary)(spec, functions)
    return subjects.imported(spec)
