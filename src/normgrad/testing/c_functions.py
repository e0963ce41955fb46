"""Call a dialect's C functions in shared libraries.

Arguments are numbers, addresses, arrays and references of ctypes, and None for null pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..dialects.aclnn import Status
from ..dialects.c.declarations import functions_of
from ..dialects.c.signatures import Function
from ..dialects.infiniop import infiniStatus_t
from .framework_tensors import NotOfferedError

#: The statuses that have names in a report, by their C type.
_NAMED: dict[str, Any] = {"aclnnStatus": Status, "infiniStatus_t": infiniStatus_t}

#: The libraries of operators.
_OF_OPERATORS = ("opapi", "infiniop")


class RefusedError(Exception):
    """A function returned a status other than success."""

    def __init__(self, status: str, function: str, text: str) -> None:
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
    """The functions of normgrad's libraries of these names, as other libraries export them.

    Operators are those of the first library, which is under test. Others, of a runtime, may be in
    any of them.
    """

    def __init__(self, names: Sequence[str], libraries: Sequence[ctypes.CDLL]) -> None:
        self._known = {each.name: each for name in names for each in functions_of(name)}
        found = {
            name: find(each, libraries[:1] if each.library in _OF_OPERATORS else libraries)
            for name, each in self._known.items()
        }
        self._symbols = {name: each for name, each in found.items() if each is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._symbols

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function and return its result: a status, a number, or an address.

        Raises:
            NotOfferedError: no library exports it.
        """
        if name not in self:
            raise NotOfferedError(f"no {name}")
        return self._symbols[name](*arguments)

    def text(self, name: str) -> str:
        """The text that a function returns; empty without one, or without the function."""
        address = self.ask(name) if name in self else None
        return ctypes.string_at(address).decode(errors="replace") if address else ""

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status, and raise a RefusedError if it is no success."""
        status = self.ask(name, *arguments)
        if status:
            names = {each: each.name for each in _NAMED.get(self._known[name].returns, ())}
            raise self.refused(names.get(status, f"status {status}"), name)

    def refused(self, status: str, name: str) -> RefusedError:
        """The error of a function, with the first line of the library's message, if it has one."""
        return RefusedError(status, name, self.text("aclGetRecentErrMsg").partition("\n")[0])
