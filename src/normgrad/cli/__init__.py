"""The command line: ``normgrad run`` and ``normgrad info``."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NoReturn

#: What of the extra ``cli`` the commands cannot do without.
_NEEDED = ("typer", "rich", "safetensors")


#: Exit status where input, output or memory cannot be used.
UNUSABLE = 2

#: Exit status after an interrupt, as a shell has it.
INTERRUPTED = 130


def interrupted() -> NoReturn:
    """End the process with one line."""
    print("normgrad: interrupted", file=sys.stderr, flush=True)
    # At once: a compiler that was interrupted leaves things half made, which the interpreter would
    # stumble over, or crash on, when it clears them away.
    os._exit(INTERRUPTED)


def out_of_memory(error: MemoryError) -> NoReturn:
    """End the process with one line."""
    why = f"not enough memory ({error})" if str(error) else "not enough memory"
    print(f"normgrad: {why}", file=sys.stderr)
    sys.exit(UNUSABLE)


def main() -> None:
    """The entry point ``normgrad``."""
    try:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            print(
                f"normgrad: the command line needs {' and '.join(missing)}: "
                "pip install 'normgrad[cli]'",
                file=sys.stderr,
            )
            sys.exit(UNUSABLE)
        from .app import app

        app(prog_name="normgrad")
    except KeyboardInterrupt:
        interrupted()
    except MemoryError as error:
        out_of_memory(error)
