"""Where the C libraries enter Python: their tables are filled with callbacks."""

from __future__ import annotations

import atexit
import ctypes
import importlib
from collections.abc import Callable
from typing import Any

from . import libc
from .declarations import digest, functions_of
from .errors import ERRORS
from .report import REPORT
from .signatures import Function

#: Callbacks live as long as the process: C may call them at any time.
_callbacks: list[Any] = []
_last_words: list[Any] = []


def fill(library: str, its_digest: str, table: int, last_words: int, interrupted: int) -> None:
    """Fill a library's table.

    Args:
        library: its name, such as "opapi".
        its_digest: of the signatures that it was made from.
        table: the address of its pointers.
        last_words: the address of a pointer to what runs when the program exits; 0 in a Python
            that was running before, which has its own way.
        interrupted: the address of an int: whether a KeyboardInterrupt came during a call.

    Raises:
        RuntimeError: it was made by another version.
    """
    if its_digest != digest():
        raise RuntimeError(
            "the C libraries were built by another version of normgrad; build them again with "
            "`normgrad capi build`"
        )
    functions = functions_of(library)
    pointers = (ctypes.c_void_p * len(functions)).from_address(table)
    for index, function in enumerate(functions):
        module = importlib.import_module(f"{__package__}.{function.module}")
        callback = function.ctype(_guarded(function, getattr(module, function.name), interrupted))
        _callbacks.append(callback)
        pointers[index] = ctypes.cast(callback, ctypes.c_void_p).value
    if not _last_words:
        _report_at_exit(last_words)


def _report_at_exit(pointer: int) -> None:
    """What aclFinalize has not reported is reported at the program's end."""
    if pointer:
        _last_words.append(ctypes.CFUNCTYPE(None)(REPORT.print_if_wanted))
        address = ctypes.cast(_last_words[0], ctypes.c_void_p).value
        libc.store(ctypes.c_void_p, pointer, address)
    else:
        _last_words.append(atexit.register(REPORT.print_if_wanted))


def _guarded(
    function: Function, python: Callable[..., Any], interrupted: int
) -> Callable[..., Any]:
    """The function, which lets no exception out: C gets a status, and the text is kept."""
    name, failure = function.name, function.failure

    def call(*arguments: Any) -> Any:
        try:
            try:
                result = python(*arguments)
            except BaseException as error:
                return failed(error)
        except KeyboardInterrupt:  # while that was being told
            libc.store(ctypes.c_int, interrupted, 1)
            return failure or 0
        return 0 if result is None else result

    def failed(error: BaseException) -> int:
        status, message = getattr(error, "status", None), str(error)
        if status is None:
            message = f"{name}: unforeseen {type(error).__name__}: {error}"
        result = failure if failure is None or status is None else int(status)
        ERRORS.record(result, message)
        if isinstance(error, KeyboardInterrupt):
            libc.store(ctypes.c_int, interrupted, 1)  # raised anew where the call was made
        return result or 0

    return call
