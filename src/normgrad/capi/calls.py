"""The current call of each thread, the ways in which it fails, and the functions for C."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NoReturn

from ..dialects import DialectError
from .declarations import functions_of
from .pointers import wrong
from .signatures import Function


class OfThread(ctypes.Structure):
    """The state of a thread between its calls.

    Attributes:
        caller: the address in the program from which the last call was made.
        life: the value of ``acl.STATE.life`` when the thread got its context; 0 without one.
        context: the handle of the context; 0 for the device's own.
    """

    _fields_ = (
        ("caller", ctypes.c_void_p),
        ("life", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
    )


class _Current(threading.local):
    """Python's own state of a thread.

    Attributes:
        function: the exported function that the thread is executing.
        kept: the thread's state between calls that do not come through C.
    """

    function: Function

    def __init__(self) -> None:
        self.kept = OfThread()


CURRENT = _Current()


def fail(message: str, status: IntEnum | None = None, is_mistake: bool = True) -> NoReturn:
    """Fail this thread's call; the default status is the dialect's for wrong arguments."""
    function = CURRENT.function
    error = DialectError(status or function.refusal, function.name, message)
    error.is_mistake = is_mistake
    raise error


def refuse(name: str, message: str, status: IntEnum | None = None) -> NoReturn:
    """Fail this thread's call because of the parameter with this name."""
    fail(f"{name}: {message}", status)


def out(name: str, address: int | None) -> int:
    """Check that a pointer to write through is not null, and return it."""
    if address is None:
        refuse(name, "null; allowed: a pointer to write to")
    return address


def export(
    module: dict[str, Any],
    library: str,
    calls: Mapping[str, Callable[..., Any]],
    checks: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Add a library's functions to a Python module, in the form that C calls.

    Args:
        module: the module's globals, which contain the implementations that ``calls`` lacks.
        library: the library's name, such as "opapi".
        calls: implementations of functions, by name.
        checks: checks that run before functions, by function's name.
    """
    for function in functions_of(library):
        name = function.name
        check = (checks or {}).get(name)
        module[name] = _exported(function, calls.get(name) or module[name], check)


def _exported(
    function: Function, python: Callable[..., Any], check: Callable[[], None] | None
) -> Callable[..., Any]:
    """A function in the form that C calls, which checks its pointers before it does anything."""
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
