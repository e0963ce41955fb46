"""The suites, by name, and whatever can be tried with one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import aclnn_suite, infiniop_suite, subjects
from .aclnn_library import ACLNN
from .c_functions import open_library
from .infiniop_library import INFINIOP
from .libraries import Library
from .subjects import Implementation, Subject, SubjectError
from .suite import cases

Facts = Mapping[str, str]


class Suite(NamedTuple):
    """What an implementation is tried with.

    Attributes:
        cases: the cases, or a quick run's part of them, for an implementation that says these facts
            of itself.
    """

    cases: Callable[[bool, Facts], tuple[Any, ...]]


#: By what :attr:`.subjects.Implementation.suite` says.
SUITES: Mapping[str, Suite] = {
    "operators": Suite(lambda quick, facts: cases(quick)),
    "infiniop": Suite(infiniop_suite.cases),
    "aclnn": Suite(aclnn_suite.cases),
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
        return Library(spec, *open_library(spec, (INFINIOP, ACLNN)))
    return subjects.imported(spec)
