"""Compiling kernels in several processes at once, which write them to disk."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress

from . import disk, kernels

#: Not ``python -m``, which would prefer files of the current folder to installed modules.
_START = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "from normgrad.backends.cpu.processes import work; work()"
)

#: Starting a process takes as long as compiling so many units.
UNITS = 4

#: Prefixes of the units that take longest to compile. These come first, so that no process is left
#: with one at the end. The first takes more than a second, most units take a third of one.
_LONGEST = ("arithmetic: channels", "sums", "parameters", "entry", "tasks", "evaluate", "moments")


def _rank(unit: str) -> int:
    places = (place for place, start in enumerate(_LONGEST) if unit.startswith(start))
    return next(places, len(_LONGEST))


def compiled(units: Sequence[str], count: int) -> Generator[str, None, None]:
    """Compile units in ``count`` processes; yields the name of each when it is on disk.

    A process that fails ends, and the others go on. So a unit that is not yielded is not on disk,
    and compiling it in this process shows why. The processes end with the iterator; if this process
    ends first, they end after their current unit.
    """
    units = sorted(units, key=_rank)
    with ExitStack() as stack:
        take, offer, told, tell = (
            stack.enter_context(os.fdopen(end, mode, buffering=0))
            for end, mode in zip((*os.pipe(), *os.pipe()), ("rb", "wb") * 2, strict=True)
        )
        # A process takes one unit's number at a time, and returns it when the unit is on disk.
        offer.write(bytes(range(len(units))))
        offer.close()
        with suppress(OSError):  # the processes that could be started are enough
            for _ in range(count):
                process = subprocess.Popen(
                    [sys.executable, "-c", _START, *units],
                    stdin=take,
                    stdout=tell,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt is this process's
                )
                stack.enter_context(process)  # at the end it is waited for, once it is killed
                stack.callback(process.kill)
        tell.close()
        while number := told.read(1):
            yield units[number[0]]


def work() -> None:
    """The program of one process; its arguments are the units' names."""
    tell = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("error", RuntimeWarning)  # a kernel that cannot be kept is an error
    disk.beforehand()
    while number := os.read(sys.stdin.fileno(), 1):
        kernels.compiled(sys.argv[1 + number[0]])
        os.write(tell, number)
