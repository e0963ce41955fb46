"""Run the command line in forked children of a test's program, which has all imports already."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from normgrad.cli import main


def here(*arguments: object) -> int:
    """Run ``normgrad`` with these arguments in this process; return its exit status."""
    sys.argv[:] = ["normgrad", *map(str, arguments)]
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def forked(change: Callable[[], object], *arguments: object) -> tuple[int, str]:
    """Run ``normgrad`` in a child, after a change; return its exit status and stderr's text.

    Args:
        change: a function that the child calls first, for instance to set a limit.
        arguments: the command's arguments.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        change()
        os._exit(here(*arguments))
    os.close(writing)
    with os.fdopen(reading) as errors:
        complaint = errors.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), complaint
