"""Write to standard output and standard error even if they are closed, full or without reader."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, TextIO


def keep_numbers() -> None:
    """Open /dev/null at the descriptors of closed standard streams.

    The next files opened would get these descriptors otherwise, and libraries and child processes
    would print into them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # open returns the lowest free one
        os.set_inheritable(number, True)
    os.close(number)


class Stream:
    """A standard stream whose writes raise no error, but keep it for later.

    Attributes:
        failure: the error because of which some output was lost, or None.
    """

    failure: OSError | None = None

    def __init__(self, stream: TextIO | None) -> None:
        # Python has None for a stream that the parent process closed. It needs a replacement, since
        # print would write a message for standard error to standard output.
        self._stream = io.StringIO() if stream is None else stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, as far as possible."""
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Write buffered text, as far as possible."""
        self._try(self._stream.flush)

    def _try(self, function: Callable[..., object], *arguments: str) -> None:
        try:
            function(*arguments)
        except OSError as error:
            self.failure = error
            # Discard buffered and later text, since the interpreter flushes again when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
