"""The current call of each thread, how it fails, what is noted of failures, and functions for C."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, NoReturn

from ..aclnn import products
from ..dialects import DialectError, Use
from . import pointers
from .declarations import functions_of
from .signatures import Function

#: The environment variables, which aclInit and a library's first call read.
REPORT_VARIABLE = "NORMGRAD_CAPI_REPORT"
HOST_MEMORY_VARIABLE = "NORMGRAD_CAPI_HOST_MEMORY"
STREAMS_VARIABLE = "NORMGRAD_CAPI_STREAMS"
DEVICES_VARIABLE = "NORMGRAD_CAPI_DEVICES"
_VARIABLES = (
    REPORT_VARIABLE, HOST_MEMORY_VARIABLE, STREAMS_VARIABLE, DEVICES_VARIABLE,
    products.PRODUCT_VARIABLE, products.SAVE_INVSTD_VARIABLE,
)  # fmt: skip

_getenv = pointers.c_function("getenv", ctypes.c_char_p, ctypes.c_char_p)

#: The maximum number of devices.
_MOST_DEVICES = 64

#: The maximum number of different lines for a report.
_MOST_LINES = 1000


class SETTINGS:
    """What the environment asks for; it is read once, since a look takes microseconds.

    Attributes:
        report: whether the report is printed: if it is wanted, or if streams are checked.
        is_fatal: whether a program that has findings ends with status 1.
        checked: whether streams are checked: they delay their work to detect races.
        host_memory: whether tensors may be in memory that is not a device's.
        devices: the number of devices.
        product: the product that the environment names; None if there is no such product.
    """

    report = is_fatal = checked = host_memory = False
    devices = 1
    product: products.Device | None = None


def read_settings() -> None:
    """Read the settings from the environment."""
    report = os.environ.get(REPORT_VARIABLE)
    SETTINGS.checked = os.environ.get(STREAMS_VARIABLE) == "checked"
    SETTINGS.is_fatal = report == "error"
    SETTINGS.report = report in ("1", "error") or SETTINGS.checked
    SETTINGS.host_memory = os.environ.get(HOST_MEMORY_VARIABLE) == "1"
    SETTINGS.devices = _devices() or 1
    SETTINGS.product = None
    with suppress(ValueError):
        SETTINGS.product = products.of_environment()


def _devices() -> int | None:
    """The number of devices that the environment asks for; None if it is not allowed."""
    text = os.environ.get(DEVICES_VARIABLE) or "1"
    return int(text) if text in map(str, range(1, _MOST_DEVICES + 1)) else None


read_settings()


def read_again() -> None:
    """Read the settings from the C environment, which the program may have changed."""
    for name in _VARIABLES:
        value = _getenv(name.encode())
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = os.fsdecode(value)
    read_settings()


def check_variables(status: IntEnum | None = None) -> None:
    """Fail this thread's call if a variable for streams or devices has a wrong value."""
    if _devices() is None:
        text = os.environ[DEVICES_VARIABLE]
        fail(f"{DEVICES_VARIABLE}: {text!r}; allowed: 1 to {_MOST_DEVICES}", status)
    value = os.environ.get(STREAMS_VARIABLE, "")
    if value not in ("", "checked"):
        fail(f"{STREAMS_VARIABLE}: {value!r}; allowed: 'checked', or none", status)


class OfThread(ctypes.Structure):
    """The state of a thread between its calls.

    Attributes:
        caller: the address in the program from which the last call was made.
        life: the device's entry of ``acl.STATE.lives`` when the thread got its context; 0 without
            one.
        context: the handle of the context; 0 for the device's own.
        device: the number of the context's device.
    """

    _fields_ = (
        ("caller", ctypes.c_void_p),
        ("life", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("device", ctypes.c_uint64),
    )


class _Current(threading.local):
    """A thread's current function, and its state between calls that do not come through C."""

    function: Function

    def __init__(self) -> None:
        self.state = OfThread()


CURRENT = _Current()


def fail(message: str, status: IntEnum | None = None, is_mistake: bool = True) -> NoReturn:
    """Fail this thread's call; the default status is the dialect's for wrong arguments."""
    function = CURRENT.function
    error = DialectError(status or function.statuses.refusal, function.name, message)
    error.is_mistake = is_mistake
    raise error


def refuse(name: str, message: str, status: IntEnum | None = None) -> NoReturn:
    """Fail this thread's call because of the parameter with this name."""
    fail(f"{name}: {message}", status)


def refuse_null(name: str, allowed: str = "a pointer", status: IntEnum | None = None) -> NoReturn:
    """Fail this thread's call because the parameter with this name is null."""
    refuse(name, f"null; allowed: {allowed}", status or CURRENT.function.statuses.null)


def need_memory(name: str, address: pointers.Address, size: int, writing: bool = False) -> int:
    """The address; this thread's call fails if it is null, or bytes there cannot be accessed."""
    if address is None:
        refuse_null(name)
    problem = pointers.problem(address, address + size, writing)
    if problem is not None:
        refuse(name, problem)
    return address


def need_access(use: Use) -> None:
    """Fail this thread's call if the bytes of a use of memory cannot be accessed."""
    problem = pointers.problem(*use.region.bounds(), use.writes)
    if problem is not None:
        refuse(use.name, problem)


def product(status: IntEnum) -> products.Device:
    """The product that the operators emulate; without one this thread's call fails."""
    try:
        return products.current(SETTINGS.product)
    except ValueError as error:
        fail(str(error), status)


class Errors:
    """The last error of each thread, and all lines since the last report."""

    def __init__(self) -> None:
        self._message: Any = None
        self._thread: Any = None
        self._size = 0
        self._lines: dict[str, tuple[str, int]] = {}

    def use(self, message: int, size: int, thread: int) -> None:
        """Use two C functions, of a thread's buffer of ``size`` bytes and of its OfThread."""
        self._size = size
        self._message = ctypes.CFUNCTYPE(ctypes.c_void_p)(message)
        self._thread = ctypes.CFUNCTYPE(ctypes.c_void_p)(thread)

    def thread(self) -> OfThread:
        """This thread's state between calls."""
        return OfThread.from_address(self._thread()) if self._thread else CURRENT.state

    def caller(self) -> int:
        """The address that this thread's call returns to; 0 if no report is wanted."""
        return self.thread().caller or 0 if SETTINGS.report else 0

    def record(self, status: int | None, message: str, is_mistake: bool = True) -> None:
        """Store a failure's text as the thread's last error, and note it for the report."""
        text = message.replace("\0", " ").encode("utf-8", "replace")[: self._size - 1]
        text = text.decode("utf-8", "ignore").encode()  # without a truncated character at the end
        ctypes.memmove(self.last(), text + b"\0", len(text) + 1)
        if is_mistake:
            self.note(f"error: {message}" if status is None else f"error {status}: {message}")

    def note_device(self, message: str) -> None:
        """Note something that succeeds here, and that a device may refuse or get wrong."""
        self.note(f"device: {CURRENT.function.name}: {message} on devices")

    def note(self, line: str, key: str | None = None) -> None:
        """Note a line, which begins with "error", "race" or "device", if a report is wanted.

        Lines with the same key, by default the line itself, count as one, which is also printed.
        """
        if not SETTINGS.report:
            return
        first, count = self._lines.get(key or line, (line, 0))
        if count == 0:
            if len(self._lines) >= _MOST_LINES:
                return
            complain(line)
        self._lines[key or line] = first, count + 1

    def last(self) -> int:
        """The address of the text of this thread's last error."""
        address: int = self._message()
        return address

    def take(self) -> list[tuple[str, int]]:
        """Remove and return all noted lines, each with the number of times it was noted."""
        lines, self._lines = list(self._lines.values()), {}
        return lines


def complain(line: str) -> None:
    """Print a line to stderr, if there is one that can be written to."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(f"normgrad: {line}", file=sys.stderr, flush=True)


ERRORS = Errors()


def export(
    module: dict[str, Any],
    library: str,
    calls: Mapping[str, Callable[..., Any]],
    checks: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Add a library's functions to a Python module, in the form that C calls.

    Args:
        module: the module's globals, which contain the implementations that ``calls`` lacks.
        library: the library's name.
        calls: implementations of functions, by name. They return the result in C, or they take no
            pointers to results, and return what is stored there: a tuple if there are several.
        checks: checks that run before functions, by name.
    """
    for function in functions_of(library):
        name = function.name
        check = (checks or {}).get(name)
        module[name] = _c_form(function, calls.get(name) or module[name], check)


#: How many of a function's pointers to results may be null, if not 0.
_MOST_NULLS = {"infinirtGetDevice": 1}


def _c_form(
    function: Function, python: Callable[..., Any], check: Callable[[], None] | None
) -> Callable[..., Any]:
    """A function in the form that C calls.

    It checks its pointers before it does anything, and stores results through them.
    """
    value_pointers = function.pointers
    results = [pointer for pointer in value_pointers if pointer.is_result]
    first = results[0].index if results else 0
    end = first + len(results)  # the pointers to results are next to each other
    is_one = len(results) == 1
    most_nulls = _MOST_NULLS.get(function.name, 0)

    def call(*arguments: Any) -> Any:
        CURRENT.function = function
        mistake = pointers.wrong(value_pointers, arguments) if value_pointers else None
        if mistake is not None:
            refuse(*mistake)
        if check is not None:
            check()
        if not results:
            return python(*arguments)
        addresses = arguments[first:end]
        # If the first argument is a null handle, ``python`` refuses that.
        if addresses.count(None) > most_nulls and (first == 0 or arguments[0] is not None):
            refuse_null(results[addresses.index(None)].name, "a pointer to write to")
        outputs = python(*arguments[:first], *arguments[end:])
        if is_one:
            outputs = (outputs,)
        for result, address, output in zip(results, addresses, outputs):  # noqa: B905 - time
            if result.count > 1:
                pointers.store_all(result.kind, address, output)
            elif address is not None:
                result.kind.from_address(address).value = output
        return None

    return call
