"""The call that each thread makes: its function, how it fails, and how C reaches it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NoReturn

from .declarations import functions_of
from .pointers import wrong
from .signatures import Function


class CallError(Exception):
    """A call that did not succeed.

    Attributes:
        status: what the function returns.
        is_mistake: whether a report names it; samples of the vendors' fail in ways that do no harm.
    """

    def __init__(self, status: IntEnum, message: str, is_mistake: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.is_mistake = is_mistake


class OfThread(ctypes.Structure):
    """What is kept of a thread between its calls.

    Attributes:
        caller: where in the program the last one was made.
        life, context: in which of the device's lives the thread has one, and of which context if it
            is not the device's own; 0 for none.
    """

    _fields_ = (
        ("caller", ctypes.c_void_p),
        ("life", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
    )


class _Current(threading.local):
    """What Python keeps of a thread.

    Attributes:
        function: the exported function that it is in.
        kept: what is kept between its calls, where they do not come through C.
    """

    function: Function

    def __init__(self) -> None:
        self.kept = OfThread()


CURRENT = _Current()


def fail(message: str, status: IntEnum | None = None, is_mistake: bool = True) -> NoReturn:
    """Fail this thread's call: with its dialect's status for wrong arguments, or another."""
    function = CURRENT.function
    status = function.refusal if status is None else status
    raise CallError(status, f"{function.name}: {message}", is_mistake)


def refuse(name: str, message: str, status: IntEnum | None = None) -> NoReturn:
    """Fail this thread's call because of an argument, by the name of its parameter."""
    fail(f"{name}: {message}", status)


def out(name: str, address: int | None) -> int:
    """A pointer to write through: not null."""
    if address is None:
        refuse(name, "null; allowed: a pointer to write to")
    return address


def export(
    module: dict[str, Any],
    library: str,
    calls: Mapping[str, Callable[..., Any]],
    checks: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Put a library's functions into a Python module, as C calls them.

    Args:
        module: its globals; what ``calls`` lacks is there already, by the function's name.
        library: such as "opapi".
        calls: what functions do, by name.
        checks: what is asked before a function does anything, by name.
    """
    for function in functions_of(library):
        name = function.name
        check = (checks or {}).get(name)
        module[name] = _exported(function, calls.get(name) or module[name], check)


def _exported(
    function: Function, python: Callable[..., Any], check: Callable[[], None] | None
) -> Callable[..., Any]:
    """The function as C calls it: pointers that are wrong are refused before it does anything."""
    pointers = function.pointers

    def call(*arguments: Any) -> Any:
        CURRENT.function = function
        found = wrong(pointers, arguments) if pointers else None
        if found is not None:
            refuse(*found)
        if check is not None:
            check()
        return python(*arguments)

    return call
