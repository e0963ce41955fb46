"""A dialect's C functions, of a shared library or our own: what is called is the same for both.

Arguments are plain numbers: pointers are addresses, None where they are null.
"""

from __future__ import annotations

import ctypes
import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from ..aclnn.status import Status as aclnnStatus
from ..capi.declarations import functions_of
from ..capi.enums import aclError
from ..capi.signatures import Function
from ..infiniop import infiniStatus_t
from .subjects import SubjectError


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
