"""The entry from the C libraries to Python: their tables are filled with callbacks."""

from __future__ import annotations

import atexit
import ctypes
import importlib
from collections.abc import Callable
from typing import Any

from ..loading import LOADING, leave_interrupts
from . import pointers
from .calls import ERRORS
from .declarations import digest, functions_of
from .report import REPORT
from .signatures import Function

#: The callbacks, which must live as long as the process, since C may call them at any time.
_callbacks: list[Any] = []
_hooks: list[Any] = []


def fill(
    library: str,
    its_digest: str,
    table: int,
    message: int,
    message_size: int,
    thread: int,
    interrupted: int,
    ending: int,
    hooks: int,
) -> None:
    """Fill a library's table.

    Args:
        library, its_digest: the library's name, and the digest of the list that it was built from.
        table: the address of the table of pointers.
        message, message_size: the address of the C function that returns a thread's buffer for an
            error's text, and the buffer's size in bytes.
        thread: the address of the C function that returns a thread's :class:`.calls.OfThread`.
        interrupted: the address of an int, which is set if a KeyboardInterrupt occurs in a call.
        ending: the address of the status with which the process shall end, if it is not 0.
        hooks: the address of three function pointers, which are called when the program exits,
            before it forks, and after; 0 in a Python that ran before, which has its own hooks.

    Raises:
        RuntimeError: another version of normgrad has built the library.
    """
    if its_digest != digest():
        raise RuntimeError(
            "the C libraries were built by another version of normgrad; build them again with "
            "`normgrad capi build`"
        )
    ERRORS.use(message, message_size, thread)
    REPORT.ending = ctypes.c_int.from_address(ending)
    functions = functions_of(library)
    targets = (ctypes.c_void_p * len(functions)).from_address(table)
    for index, function in enumerate(functions):
        module = importlib.import_module(f"{__package__}.{function.module}")
        python = getattr(module, function.name)
        callback_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *function.arguments)
        callback = callback_type(_guarded(function, python, interrupted))
        _callbacks.append(callback)
        targets[index] = ctypes.cast(callback, ctypes.c_void_p).value
    if not _hooks:
        _set_hooks(hooks)


def _set_hooks(address: int) -> None:
    """Print the report at exit, and make forks wait for imports and compilations."""
    if not address:
        _hooks.append(atexit.register(REPORT.last_words))
        return
    leave_interrupts()
    kind = ctypes.CFUNCTYPE(None)
    _hooks.extend(map(kind, (REPORT.last_words, LOADING.acquire, LOADING.release)))
    targets = [ctypes.cast(hook, ctypes.c_void_p).value for hook in _hooks]
    pointers.store_all(ctypes.c_void_p, address, targets)


def _guarded(
    function: Function, python: Callable[..., Any], interrupted: int
) -> Callable[..., None]:
    """Wrap a function for C so that it never raises: an exception becomes a status and a text.

    The wrapper writes the result to the address in its first argument. If it writes nothing, C
    returns the failure with which it has initialised the result.
    """
    name, failure, kind = function.name, function.failure, function.result
    was_interrupted = ctypes.c_int.from_address(interrupted)

    def call(result: int, *arguments: Any) -> None:
        try:
            try:
                value = python(*arguments)
            except BaseException as error:
                value = failed(error)
            kind.from_address(result).value = value or 0
        except KeyboardInterrupt:  # an interrupt during the handling of an error
            was_interrupted.value = 1

    def failed(error: BaseException) -> int | None:
        status, message = getattr(error, "status", None), str(error)
        if status is None:
            message = f"{name}: unforeseen {type(error).__name__}: {error}"
        value = failure if failure is None or status is None else int(status)
        ERRORS.record(value, message, getattr(error, "is_mistake", True))
        if isinstance(error, KeyboardInterrupt):
            was_interrupted.value = 1  # C raises it again after the call
        return value

    return call
