"""The command line's entry point, its standard streams, and how its process ends."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from ..support.values import shorten

#: The packages of the extra ``cli`` that all commands need.
_NEEDED = ("typer", "rich", "safetensors")

#: The most bytes that parsing a command takes (200 KiB were measured). If an allocation fails then,
#: pydantic, which Typer uses, ends the process.
PARSER_MEMORY = 1 << 20

#: The most characters of a line on standard error: more than the longest path with a message.
LONGEST = 5000

#: Exit statuses: a result is wrong; input or output cannot be used, or memory is short; and, by the
#: shell's convention, an interrupt.
FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130


def escaped(text: object) -> str:
    """The text on one line, with control characters escaped."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in str(text)
    )


def say(message: object) -> None:
    """Write one line to standard error, without its middle if it is very long."""
    print(f"normgrad: {shorten(escaped(message), LONGEST)}", file=sys.stderr, flush=True)


def lack(*names: str, extra: str = "cli") -> str | None:
    """A message that names the missing ones of these packages; None if all are installed."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"needs {' and '.join(absent)}: pip install 'normgrad[{extra}]'" if absent else None


@contextmanager
def ending_in_one_line() -> Iterator[None]:
    """End the process with one line on an interrupt, or if memory is short."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        # Exit without cleaning up: an interrupted compiler leaves unfinished objects, on which the
        # interpreter could fail or crash.
        os._exit(INTERRUPTED)
    except MemoryError as error:
        say(f"not enough memory ({error})" if str(error) else "not enough memory")
        sys.exit(UNUSABLE)


class _Stream:
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
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, function: Callable[..., object], *arguments: str) -> None:
        try:
            function(*arguments)
        except OSError as error:
            self.failure = error
            # Discard buffered and later text, since the interpreter flushes again when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def main(command: Callable[[], object] | None = None) -> None:
    """The entry point ``normgrad``, or that of another command whose lines end in the same way."""
    output: Any = _Stream(sys.stdout)
    errors: Any = _Stream(sys.stderr)
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            with ending_in_one_line():
                (command or _run)()
        except SystemExit:
            output.flush()
            # A reader that closed the pipe has read enough, so the exit status stays the result's.
            if output.failure is None or isinstance(output.failure, BrokenPipeError):
                raise
            say(f"standard output: {output.failure.strerror or output.failure}")
            sys.exit(UNUSABLE)


def _run() -> None:
    if needs := lack(*_NEEDED):
        say(f"the command line {needs}")
        sys.exit(UNUSABLE)
    from ..support import memory
    from .app import app

    memory.need("reading the command", PARSER_MEMORY)
    app(prog_name="normgrad")
