"""Run programs that suffer a fault, in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Seconds: long enough for a busy machine that compiles every kernel, but short enough to notice a
#: hang.
TIMEOUT = 300

#: Whether to run longer tests, and a minute of every kind of call at once.
STRESSED = os.environ.get("NORMGRAD_STRESS") == "1"

TESTS = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with the tests on the path and no settings of thread numbers."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NORMGRAD_NUM_THREADS", "OMP_NUM_THREADS")
    }
    paths = [str(TESTS / "faults"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def command(code: str, *arguments: object) -> list[str]:
    """The command of a Python program, in which warnings are errors."""
    return [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]


def python(code: str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program; ``more`` is added to its environment."""
    return subprocess.run(
        command(code, *arguments),
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
