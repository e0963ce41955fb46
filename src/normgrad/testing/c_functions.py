"""Call a dialect's C functions in shared libraries.

Arguments are numbers, addresses, arrays and references of ctypes, and None for null pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

from ..aclnn import Status
from ..capi.declarations import functions_of
from ..capi.signatures import Function
from ..infiniop import infiniStatus_t

#: The statuses that have names in a report, by their C type.
_NAMED: dict[str, type[IntEnum]] = {"aclnnStatus": Status, "infiniStatus_t": infiniStatus_t}


class RefusedError(Exception):
    """A function returned a status other than success."""

    def __init__(self, status: str, function: str, text: str = "") -> None:
        super().__init__(f"{function}: {text}" if text else function)
        self.status = status


def find(function: Function, libraries: Sequence[ctypes.CDLL]) -> Any:
    """A declared function in the first library that exports it; None if none does."""
    for library in libraries:
        with suppress(AttributeError):
            symbol = getattr(library, function.name)
            symbol.argtypes, symbol.restype = function.arguments, function.result
            return symbol
    return None


class Functions:
    """The functions that normgrad's libraries of some names export, in libraries of any name."""

    def __init__(self, names: Sequence[str], libraries: Sequence[ctypes.CDLL]) -> None:
        declared = [each for name in names for each in functions_of(name)]
        found = {each.name: find(each, libraries) for each in declared}
        self._symbols = {name: each for name, each in found.items() if each is not None}
        self._types = {each.name: each.returns for each in declared}

    def __contains__(self, name: str) -> bool:
        return name in self._symbols

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function and return its result: a status, a number, or an address."""
        return self._symbols[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status.

        Raises:
            RefusedError: the status is not success.
        """
        status = self.ask(name, *arguments)
        if status:
            word = f"status {status}"
            with suppress(KeyError, ValueError):
                word = _NAMED[self._types[name]](status).name
            raise RefusedError(word, name, self.last_error())

    def last_error(self) -> str:
        """The first line of the library's message about its last error; empty without one."""
        text = self.ask("aclGetRecentErrMsg") if "aclGetRecentErrMsg" in self else None
        message = ctypes.string_at(text).decode(errors="replace") if text else ""
        return next(iter(message.splitlines()), "")
