"""What went wrong: the text of a thread's last error, and the report."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any

from .calls import CURRENT, OfThread

#: The environment variables that are read at aclInit, and at a library's first call.
REPORT_VARIABLE = "NORMGRAD_CAPI_REPORT"
HOST_MEMORY_VARIABLE = "NORMGRAD_CAPI_HOST_MEMORY"
STREAMS_VARIABLE = "NORMGRAD_CAPI_STREAMS"

#: How many different lines are kept for a report.
_MOST_LINES = 1000


def is_on(variable: str) -> bool:
    """Whether an environment variable is set to 1."""
    return os.environ.get(variable) == "1"


def are_checked() -> bool:
    """Whether streams hold their work back, and what happens meanwhile is looked at."""
    return os.environ.get(STREAMS_VARIABLE) == "checked"


def check_streams_variable() -> None:
    """Refuse what the variable for streams may not say.

    Raises:
        ValueError: it says that.
    """
    value = os.environ.get(STREAMS_VARIABLE, "")
    if value not in ("", "checked"):
        raise ValueError(f"{STREAMS_VARIABLE}: {value!r}; allowed: 'checked', or none")


def is_report_wanted() -> bool:
    """Whether mistakes are printed; who has streams checked wants to read what that finds."""
    return is_on(REPORT_VARIABLE) or are_checked()


class Errors:
    """The last error of each thread, and all lines that were not reported yet."""

    def __init__(self) -> None:
        self._message: Any = None
        self._thread: Any = None
        self._size = 0
        self._lines: dict[str, tuple[str, int]] = {}

    def use(self, message: int, size: int, thread: int) -> None:
        """Take the addresses of the C functions that give a thread its place for a text, with the
        bytes that such a place has, and its place for what is kept of it."""
        self._size = size
        self._message = ctypes.CFUNCTYPE(ctypes.c_void_p)(message)
        self._thread = ctypes.CFUNCTYPE(ctypes.c_void_p)(thread)

    def thread(self) -> OfThread:
        """What is kept of this thread."""
        return OfThread.from_address(self._thread()) if self._thread else CURRENT.kept

    def caller(self) -> int:
        """The address that this thread's call returns to; 0 if nobody wants to know."""
        return self.thread().caller or 0 if is_report_wanted() else 0

    def record(self, status: int | None, message: str, is_mistake: bool = True) -> None:
        """Keep a failure's text for the thread, and the failure, with its status if it has one, for
        the report."""
        text = message.replace("\0", " ").encode("utf-8", "replace")[: self._size - 1]
        text = text.decode("utf-8", "ignore").encode()  # no half of a character at its end
        ctypes.memmove(self.last(), text + b"\0", len(text) + 1)
        if is_mistake:
            self.note(f"error: {message}" if status is None else f"error {status}: {message}")

    def note(self, line: str, key: str | None = None) -> None:
        """Keep a line for the report, where one is wanted.

        The first of its kind is printed at once.

        Args:
            line: begins with its sort: error or race.
            key: tells its kind from others; None for the line itself.
        """
        if not is_report_wanted():
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
        """The lines since they were taken last, each with how often it was noted."""
        lines, self._lines = list(self._lines.values()), {}
        return lines


def complain(line: str) -> None:
    """One line on stderr; a program without one, or with one that cannot be written, goes on."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(f"normgrad: {line}", file=sys.stderr, flush=True)


ERRORS = Errors()
