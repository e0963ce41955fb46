"""The command line: the entry point, and how a process of it ends."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .streams import Stream, keep_numbers

#: What of the extra ``cli`` the commands cannot do without.
_NEEDED = ("typer", "rich", "safetensors")

#: Bytes that reading a command takes at most (200 KiB were measured): where one allocation fails,
#: Typer's pydantic ends the process.
PARSER_MEMORY = 1 << 20

#: Exit status where what was tried or computed is not what it should be.
FAILED = 1

#: Exit status where input, output or memory cannot be used.
UNUSABLE = 2

#: Exit status after an interrupt, as a shell has it.
INTERRUPTED = 130


def plain(text: object) -> str:
    """The text on one line, with whatever would drive a terminal written out."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in str(text)
    )


def say(message: object) -> None:
    """Write one line to standard error."""
    print(f"normgrad: {plain(message)}", file=sys.stderr, flush=True)


def missing(*names: str) -> list[str]:
    """Those of some packages that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


@contextmanager
def ending_in_one_line() -> Iterator[None]:
    """End the process with one line where the user or memory stops the work."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        # At once: a compiler that was interrupted leaves things half made, which the interpreter
        # would stumble over, or crash on, when it clears them away.
        os._exit(INTERRUPTED)
    except MemoryError as error:
        say(f"not enough memory ({error})" if str(error) else "not enough memory")
        sys.exit(UNUSABLE)


def main() -> None:
    """The entry point ``normgrad``."""
    keep_numbers()
    before = sys.stdout, sys.stderr
    output: Any = Stream(sys.stdout)
    errors: Any = Stream(sys.stderr)
    sys.stdout, sys.stderr = output, errors
    try:
        with ending_in_one_line():
            _run()
    except SystemExit:
        output.flush()
        # Whoever read and went away has seen enough, which changes nothing about the result.
        if output.failure is None or isinstance(output.failure, BrokenPipeError):
            raise
        say(f"standard output: {output.failure.strerror or output.failure}")
        sys.exit(UNUSABLE)
    finally:
        sys.stdout, sys.stderr = before


def _run() -> None:
    absent = missing(*_NEEDED)
    if absent:
        say(f"the command line needs {' and '.join(absent)}: pip install 'normgrad[cli]'")
        sys.exit(UNUSABLE)
    from .. import memory
    from .app import app

    memory.need("reading the command", PARSER_MEMORY)
    app(prog_name="normgrad")
