"""Programs that something happens to, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Long enough for a busy machine that compiles every kernel, short enough to see a hang.
TIMEOUT = 300

#: Whether there is time for more, and for a minute of every kind of call at once.
STRESSED = os.environ.get("NORMGRAD_STRESS") == "1"

TESTS = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    """This process's, with the tests' modules in reach and without other numbers of threads."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NORMGRAD_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")
    }
    paths = [str(TESTS / "faults"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def command(code: str, *arguments: object) -> list[str]:
    """A program in Python, in which warnings are errors."""
    return [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]


def python(code: str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it; ``more`` is for its environment."""
    return subprocess.run(
        command(code, *arguments),
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
