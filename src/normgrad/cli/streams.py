"""Standard output and standard error, of which either may be closed, full or read by nobody."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, TextIO


def keep_numbers() -> None:
    """Have the numbers of standard streams, where they are closed, mean no other file.

    Whatever is opened next would get them, and with them what libraries and other processes print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # it is the lowest that is free
        os.set_inheritable(number, True)
    os.close(number)


class Stream:
    """A standard stream that raises nothing when it is written to; what fails is told afterwards.

    Attributes:
        failure: why not all that was written has arrived, or None.
    """

    failure: OSError | None = None

    def __init__(self, stream: TextIO | None) -> None:
        # None is what Python has for one that was closed by whoever started this. Something has to
        # take its place, or print writes to standard output what is meant for standard error.
        self._stream = io.StringIO() if stream is None else stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, as far as that can be done."""
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Write what is held back, as far as that can be done."""
        self._try(self._stream.flush)

    def _try(self, function: Callable[..., object], *arguments: str) -> None:
        try:
            function(*arguments)
        except OSError as error:
            self.failure = error
            # Whatever it still holds back, and whatever comes: the interpreter flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
