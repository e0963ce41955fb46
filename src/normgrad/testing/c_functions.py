"""Call a dialect's C functions in the same way in a shared library and in normgrad itself.

Arguments are plain numbers: pointers are addresses, and null pointers are None. An object of ctypes
is a place in memory, whose address is passed.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..capi.declarations import RECENT_MESSAGES, functions_of
from ..capi.signatures import Function

#: Places in memory, for a value or for an array.
_Place: Any = ctypes._SimpleCData | ctypes.Array


class RefusedError(Exception):
    """A function returned a status other than success."""

    def __init__(self, status: str, function: str, text: str = "") -> None:
        super().__init__(f"{function}: {text}" if text else function)
        self.status = status


class Functions:
    """A dialect's functions.

    Args:
        libraries: normgrad's libraries that export them, by their names in the list of exports.
        find: returns the function for a declaration, or None if the function does not exist.
    """

    def __init__(
        self, libraries: Sequence[str], find: Callable[[Function], Callable[..., Any] | None]
    ) -> None:
        self._known = {each.name: each for library in libraries for each in functions_of(library)}
        pairs = ((name, find(function)) for name, function in self._known.items())
        self._callables = {name: each for name, each in pairs if each is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._callables

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function and return its result: a status, a number, or an address."""
        addresses = (
            ctypes.addressof(each) if isinstance(each, _Place) else each for each in arguments
        )
        return self._callables[name](*addresses)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status, and check that status.

        Raises:
            RefusedError: the status is not success.
        """
        status = self.ask(name, *arguments)
        if status:
            text = f"status {status}"
            with suppress(ValueError):
                text = type(self._known[name].statuses.refusal)(status).name
            raise RefusedError(text, name, self.last_error())

    def last_error(self) -> str:
        """The first line of the library's message about its last error; empty without one."""
        text = self.ask("aclGetRecentErrMsg") if "aclGetRecentErrMsg" in self else None
        message = ctypes.string_at(text).decode(errors="replace") if text else ""
        return next(iter(message.splitlines()), "")


def of_libraries(libraries: Sequence[ctypes.CDLL]) -> Callable[[Function], Any]:
    """Return a function that looks up a declaration in the first library that exports it."""

    def find(function: Function) -> Any:
        for library in libraries:
            with suppress(AttributeError):
                symbol = getattr(library, function.name)
                symbol.argtypes, symbol.restype = function.arguments, function.result
                return symbol
        return None

    return find


def our_own(function: Function) -> Callable[..., Any] | None:
    """The Python function in this process that normgrad's C library would call."""
    if function.name in RECENT_MESSAGES:  # the C code holds the messages' texts
        return None

    def call(*arguments: Any) -> Any:
        module = importlib.import_module(f"normgrad.capi.{function.module}")
        try:
            return getattr(module, function.name)(*arguments) or 0
        except Exception as error:
            status = getattr(error, "status", None)
            if status is None:
                raise
            return 0 if function.failure is None else int(status)

    return call
