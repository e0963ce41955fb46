"""A dialect's C functions, of a shared library or our own: what is called is the same for both.

Arguments are plain numbers: pointers are addresses, None where they are null.
"""

from __future__ import annotations

import ctypes
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from .. import dtypes
from ..aclnn.status import Status as aclnnStatus
from ..capi.declarations import functions_of
from ..capi.enums import aclError
from ..capi.signatures import Function
from ..infiniop import infiniStatus_t
from .cases import Topic
from .outcomes import Judged, Outcome, Verdict, within_bounds
from .subjects import OTHER_BITS, Implementation, SubjectError
from .watched import reverse


@dataclass(frozen=True)
class Dialect:
    """What is looked for in a shared library.

    Attributes:
        name: of the dialect, and of its suite.
        markers: functions by any one of which a library is known to speak it.
        needed: others, without which nothing can be tried.
        companions: libraries that may have them.
        libraries: ours, as the list of what they export names them.
    """

    name: str
    markers: tuple[str, ...]
    needed: tuple[str, ...]
    companions: tuple[str, ...]
    libraries: tuple[str, ...]

    @property
    def functions(self) -> dict[str, Function]:
        """Every function of the dialect, by name."""
        return {each.name: each for library in self.libraries for each in functions_of(library)}


#: By the type of a function's result: its numbers' names.
_STATUSES: dict[str, type[IntEnum]] = {
    "infiniStatus_t": infiniStatus_t,
    "aclnnStatus": aclnnStatus,
    "aclError": aclError,
}


class RefusedError(Exception):
    """A function returned another status than success."""

    def __init__(self, status: str, function: str, text: str = "") -> None:
        super().__init__(f"{function}: {text}" if text else function)
        self.status = status


class Functions(ABC):
    """A dialect's functions."""

    def __init__(self, dialect: Dialect) -> None:
        self._known = dialect.functions

    @abstractmethod
    def __contains__(self, name: str) -> bool:
        """Whether there is such a function."""

    @abstractmethod
    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function.

        Returns:
            what it returns: a status, a number, or an address.
        """

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status.

        Raises:
            RefusedError: it is not success.
        """
        status = self.ask(name, *arguments)
        if status:
            raise RefusedError(self._named(name, status), name, self.last_error())

    def last_error(self) -> str:
        """What the dialect says of its last error, if it says anything."""
        return ""

    def _named(self, name: str, status: int) -> str:
        with suppress(ValueError):
            return _STATUSES[self._known[name].returns](status).name
        return f"status {status}"


class SharedLibrary(Functions):
    """Those of a shared library, and of its companions."""

    def __init__(self, dialect: Dialect, libraries: Sequence[ctypes.CDLL]) -> None:
        super().__init__(dialect)
        self._found: dict[str, Any] = {}
        for name, function in self._known.items():
            for library in libraries:
                with suppress(AttributeError):
                    found = getattr(library, name)
                    found.argtypes, found.restype = function.arguments, function.result
                    self._found[name] = found
                    break

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def ask(self, name: str, *arguments: Any) -> Any:
        """See :class:`Functions`."""
        return self._found[name](*arguments)

    def last_error(self) -> str:
        """See :class:`Functions`."""
        if "aclGetRecentErrMsg" not in self:
            return ""
        text = self.ask("aclGetRecentErrMsg")
        said = ctypes.string_at(text).decode(errors="replace") if text else ""
        return next(iter(said.splitlines()), "")


class OurOwn(Functions):
    """Those of the dialect in this process: what our C libraries call, without the C."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def ask(self, name: str, *arguments: Any) -> Any:
        """See :class:`Functions`."""
        module = importlib.import_module(f"normgrad.capi.{self._known[name].module}")
        try:
            return getattr(module, name)(*arguments) or 0
        except Exception as error:
            status = getattr(error, "status", None)
            if status is None:
                raise
            returns_status = self._known[name].returns in _STATUSES
            return int(status) if returns_status else 0


def open_library(path: str, dialects: Sequence[Dialect]) -> tuple[Dialect, SharedLibrary]:
    """Open a shared library, and find out what it speaks.

    Args:
        path: a file.
        dialects: what it may speak.

    Raises:
        SubjectError: there is no such file, or it is no library, or speaks none of them.
    """
    file = Path(path).absolute()
    if not file.is_file():
        raise SubjectError(f"{path}: no such file; allowed: a shared library")
    library = _open(file, [name for dialect in dialects for name in dialect.companions])
    for dialect in dialects:
        if any(hasattr(library, name) for name in dialect.markers):
            break
    else:
        wanted = " or ".join(dialect.markers[0] for dialect in dialects)
        raise SubjectError(f"{path}: neither dialect's functions; allowed: a library with {wanted}")
    libraries = [library]
    # A companion from elsewhere is looked for only where it has to be.
    for folder in (f"{file.parent}/", ""):
        for name in dialect.companions:
            with suppress(OSError):
                libraries.append(_loaded(folder + name))
        functions = SharedLibrary(dialect, libraries)
        missing = [name for name in dialect.needed if name not in functions]
        if not missing:
            return dialect, functions
    raise SubjectError(
        f"{path}: no {missing[0]}; allowed: a library that has it, itself or in "
        f"{' or '.join(dialect.companions)} in its folder or on the loader's path"
    )


def _open(file: Path, companions: Sequence[str]) -> ctypes.CDLL:
    with suppress(OSError):
        return _loaded(file)
    # It may need what lies beside it, where the loader does not look; and that may need another.
    beside = [file.parent / name for name in companions if (file.parent / name).is_file()]
    for _ in beside:
        for each in beside:
            with suppress(OSError):
                _loaded(each)
    try:
        return _loaded(file)
    except OSError as error:
        raise SubjectError(f"{file}: cannot be loaded: {error}") from None


def _loaded(name: str | Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL)


#: How often what must give the same bits is called again.
_AGAIN = 3


class LibrarySubject(Implementation):
    """A shared library to be tried.

    Args:
        path: its file.
        functions: what it has.
        facts: what a report says of it.
    """

    strict = False
    _is_ready = False

    def __init__(self, path: str, functions: Functions, facts: dict[str, str]) -> None:
        self.name = Path(path).name
        self._functions = functions
        self._facts = {"library": path, **facts}

    @property
    def facts(self) -> dict[str, str]:
        """See :class:`Implementation`."""
        return self._facts

    def run(self, case: Any) -> Outcome:
        """See :class:`.subjects.Implementation`."""
        try:
            if not self._is_ready:
                self.prepare()
                self._is_ready = True
        except RefusedError as error:
            return Outcome(error=(error.status, str(error)))
        request = case.request()
        if case.topic is not Topic.DETERMINISM:
            return self.perform(request)
        # First with other values in the same memory, so that nothing may be kept from a call.
        reverse(request.inputs)
        self.perform(request)
        reverse(request.inputs)
        first = self.perform(request)
        if first.error is not None or first.absent:
            return first
        unlike = []
        for _ in range(_AGAIN):
            again = self.perform(case.request()).outputs
            for name, value in first.outputs.items():
                if name not in again or again[name].tobytes() != value.tobytes():
                    unlike.append(f"{name}: {OTHER_BITS} when it is called again")
        return Outcome(first.outputs, faults=(*first.faults, *dict.fromkeys(unlike)))

    @abstractmethod
    def prepare(self) -> None:
        """What a program does once before it computes, in the process that computes.

        Raises:
            RefusedError: it cannot be done.
        """

    @abstractmethod
    def perform(self, request: Any) -> Outcome:
        """What comes of a case's request."""


def judge(case: Any, outcome: Outcome, ours: Callable[[], Outcome]) -> Judged:
    """What an outcome of a library is worth; see :func:`.outcomes.judge`.

    Args:
        case: of its suite.
        outcome: what came of it.
        ours: what our own dialect makes of the same request, for a wrong call.
    """
    if outcome.absent:
        return Judged(case, Verdict.ABSENT, detail=outcome.absent)
    if case.topic is Topic.MISTAKES:
        return _judge_mistake(case, outcome, ours())
    if outcome.error is not None:
        return Judged(case, Verdict.REFUSED, detail=": ".join(outcome.error))
    if outcome.faults:
        return Judged(case, Verdict.BROKEN, detail="; ".join(outcome.faults))
    return within_bounds(case, outcome.outputs, case.exact(), dtypes.float32, case.normal)


def _judge_mistake(case: Any, outcome: Outcome, expected: Outcome) -> Judged:
    """The verdict on a wrong call, from what our dialect makes of it."""
    assert expected.error is not None, f"{case}: our own dialect takes it"
    allowed = expected.error[0]
    if outcome.error is None:
        return Judged(case, Verdict.ACCEPTED, detail=f"{case.change}: success; allowed: {allowed}")
    status, said = outcome.error
    if outcome.faults:
        return Judged(case, Verdict.BROKEN, detail="; ".join(outcome.faults))
    detail = f"{case.change}: {status} ({said})"
    if status != allowed:
        return Judged(case, Verdict.BROKEN, detail=f"{detail}; allowed: {allowed}")
    return Judged(case, Verdict.MET, detail=detail)
