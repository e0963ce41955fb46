"""A dialect's C functions, of a shared library or our own: what is called is the same for both.

Arguments are plain numbers: pointers are addresses, None where they are null.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from ..aclnn.status import Status as aclnnStatus
from ..capi.declarations import RECENT_MESSAGES, functions_of
from ..capi.enums import aclError
from ..capi.signatures import Function
from ..infiniop import infiniStatus_t
from .subjects import SubjectError


@dataclass(frozen=True)
class Dialect:
    """What is looked for in a shared library, and done with it.

    Attributes:
        name: of the dialect, and of its suite.
        markers: functions by any one of which a library is known to speak it.
        needed: others, without which nothing can be tried.
        companions: libraries that may have them.
        libraries: ours, as the list of what they export names them.
        facts: what a report says of the library at a path with these functions; raises
            SubjectError.
        prepare: what a program does once before it computes, in the process that computes; raises
            RefusedError. What it gives is the last argument of ``steps``.
        steps: the :class:`.libraries.Steps` of a request.
    """

    name: str
    markers: tuple[str, ...]
    needed: tuple[str, ...]
    companions: tuple[str, ...]
    libraries: tuple[str, ...]
    facts: Callable[[str, Functions], dict[str, str]]
    prepare: Callable[[Functions], int | None]
    steps: Callable[[Functions, Any, int | None], Any]


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


class Functions:
    """A dialect's functions.

    Args:
        dialect: which.
        find: gives the function that is declared so, or None if it is not there.
    """

    def __init__(
        self, dialect: Dialect, find: Callable[[Function], Callable[..., Any] | None]
    ) -> None:
        self._known = {
            each.name: each for library in dialect.libraries for each in functions_of(library)
        }
        found = {name: find(function) for name, function in self._known.items()}
        self._found = {name: each for name, each in found.items() if each is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def ask(self, name: str, *arguments: Any) -> Any:
        """What a function returns: a status, a number, or an address."""
        return self._found[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status.

        Raises:
            RefusedError: it is not success.
        """
        status = self.ask(name, *arguments)
        if status:
            text = f"status {status}"
            with suppress(ValueError):
                text = _STATUSES[self._known[name].returns](status).name
            raise RefusedError(text, name, self.last_error())

    def last_error(self) -> str:
        """What the dialect says of its last error, if it says anything."""
        text = self.ask("aclGetRecentErrMsg") if "aclGetRecentErrMsg" in self else None
        said = ctypes.string_at(text).decode(errors="replace") if text else ""
        return next(iter(said.splitlines()), "")


def of_libraries(libraries: Sequence[ctypes.CDLL]) -> Callable[[Function], Any]:
    """Finds functions in the first of some libraries that has them."""

    def find(function: Function) -> Any:
        for library in libraries:
            with suppress(AttributeError):
                found = getattr(library, function.name)
                found.argtypes, found.restype = function.arguments, function.result
                return found
        return None

    return find


def our_own(function: Function) -> Callable[..., Any] | None:
    """A function in this process: what our C libraries call, without the C."""
    if function.name in RECENT_MESSAGES:  # whose texts are the C part's
        return None

    def call(*arguments: Any) -> Any:
        module = importlib.import_module(f"normgrad.capi.{function.module}")
        try:
            return getattr(module, function.name)(*arguments) or 0
        except Exception as error:
            status = getattr(error, "status", None)
            if status is None:
                raise
            return int(status) if function.returns in _STATUSES else 0

    return call


def open_library(path: str, dialects: Sequence[Dialect]) -> tuple[Dialect, Functions]:
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
        functions = Functions(dialect, of_libraries(libraries))
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
