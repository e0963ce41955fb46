"""What went wrong: the text of a thread's last error, and the report."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from enum import IntEnum
from typing import Any

#: The environment variables that are read at aclInit, and at a library's first call.
REPORT_VARIABLE = "NORMGRAD_CAPI_REPORT"
HOST_MEMORY_VARIABLE = "NORMGRAD_CAPI_HOST_MEMORY"

#: How many different failures are kept for a report.
_MOST_FAILURES = 1000


class CallError(Exception):
    """A call that did not succeed.

    Attributes:
        status: what the function returns.
    """

    def __init__(self, status: IntEnum, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_on(variable: str) -> bool:
    """Whether an environment variable is set to 1."""
    return os.environ.get(variable) == "1"


class Errors:
    """The last error of each thread, and all failures that were not reported yet."""

    def __init__(self) -> None:
        self._message: Any = None
        self._size = 0
        self._failures: dict[str, int] = {}

    def use(self, message: int, size: int) -> None:
        """Take the address of the C function that gives a thread its place for a text, and the
        bytes that such a place has."""
        self._size = size
        self._message = ctypes.CFUNCTYPE(ctypes.c_void_p)(message)

    def record(self, status: int | None, message: str) -> None:
        """Keep a failure, with its status if it has one.

        The first of its kind is printed at once, where a report is wanted.
        """
        text = message.replace("\0", " ").encode("utf-8", "replace")[: self._size - 1]
        text = text.decode("utf-8", "ignore").encode()  # no half of a character at its end
        ctypes.memmove(self.last(), text + b"\0", len(text) + 1)
        if not is_on(REPORT_VARIABLE):
            return
        line = f"error: {message}" if status is None else f"error {status}: {message}"
        if line not in self._failures:
            if len(self._failures) >= _MOST_FAILURES:
                return
            complain(line)
        self._failures[line] = self._failures.get(line, 0) + 1

    def last(self) -> int:
        """The address of the text of this thread's last error."""
        address: int = self._message()
        return address

    def take_failures(self) -> dict[str, int]:
        """The failures since they were taken last, each with how often it happened."""
        failures, self._failures = self._failures, {}
        return failures


def complain(line: str) -> None:
    """One line on stderr; a program without one, or with one that cannot be written, goes on."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(f"normgrad: {line}", file=sys.stderr, flush=True)


ERRORS = Errors()
