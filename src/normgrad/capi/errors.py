"""What went wrong: the text of a thread's last error, and the report."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import OrderedDict
from enum import IntEnum

#: The environment variables that are read at aclInit, and at a library's first call.
REPORT_VARIABLE = "NORMGRAD_CAPI_REPORT"
HOST_MEMORY_VARIABLE = "NORMGRAD_CAPI_HOST_MEMORY"

#: How many threads' last errors are kept, and how many different failures.
_THREADS, _FAILURES = 1024, 1000


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
        self._last: OrderedDict[int, bytes] = OrderedDict()
        # What a thread was handed last: it may still read it.
        self._handed: OrderedDict[int, ctypes.Array[ctypes.c_char]] = OrderedDict()
        self._failures: dict[str, int] = {}

    def record(self, status: int | None, message: str) -> None:
        """Keep a failure, with its status if it has one.

        The first of its kind is printed at once, where a report is wanted.
        """
        thread = threading.get_ident()
        self._last[thread] = message.encode("utf-8", "replace").replace(b"\0", b" ")
        if len(self._last) > _THREADS:
            self._last.popitem(last=False)
        if not is_on(REPORT_VARIABLE):
            return
        line = f"error: {message}" if status is None else f"error {status}: {message}"
        if line not in self._failures:
            if len(self._failures) >= _FAILURES:
                return
            complain(line)
        self._failures[line] = self._failures.get(line, 0) + 1

    def last(self) -> int:
        """The address of the text of this thread's last error."""
        thread = threading.get_ident()
        text = ctypes.create_string_buffer(self._last.get(thread, b""))
        self._handed[thread] = text
        self._handed.move_to_end(thread)
        if len(self._handed) > _THREADS:
            self._handed.popitem(last=False)
        return ctypes.addressof(text)

    def take_failures(self) -> dict[str, int]:
        """The failures since they were taken last, each with how often it happened."""
        failures, self._failures = self._failures, {}
        return failures


def complain(line: str) -> None:
    """One line on stderr; a program without one goes on."""
    if sys.stderr is not None:
        print(f"normgrad: {line}", file=sys.stderr, flush=True)


ERRORS = Errors()
