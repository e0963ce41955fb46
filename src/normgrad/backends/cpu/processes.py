"""Kernels compiled by several processes at once, which leave them on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress

from . import disk, kernels

#: Not ``python -m``, which would import files of the current folder in the place of libraries.
_START = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "from normgrad.backends.cpu.processes import work; work()"
)

#: A process starts in the time that so many units take.
UNITS = 4

#: What takes longest begins first, so that no process is left with it at the end: the beginnings of
#: names. The first takes more than a second, most take a third of one.
_LONGEST = ("arithmetic: channels", "sums", "parameters", "entry", "tasks", "evaluate", "moments")


def is_kept(unit: str) -> bool:
    """Whether a unit is on disk, from where it is read."""
    try:
        with disk.beforehand(compiles=False):
            kernels.compiled(unit)
    except disk.NotKeptError:
        return False
    return True


def _rank(unit: str) -> int:
    places = (place for place, start in enumerate(_LONGEST) if unit.startswith(start))
    return next(places, len(_LONGEST))


def compiled(units: Sequence[str], count: int) -> Generator[str, None, None]:
    """Have so many processes compile units; gives each when it is on disk.

    A process that fails in any way ends, and the others go on. So what is not given is not on disk:
    whoever compiles it here finds out why. Processes end with the iterator, and where this process
    ends without it, after the unit that they are at.
    """
    units = sorted(units, key=_rank)
    running: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        take, offer, told, tell = (
            stack.enter_context(os.fdopen(end, mode, buffering=0))
            for end, mode in zip((*os.pipe(), *os.pipe()), ("rb", "wb") * 2, strict=True)
        )
        # Each process takes a number when it has done the last, and gives it back when it is done.
        offer.write(bytes(range(len(units))))
        offer.close()
        stack.callback(_end, running)
        with suppress(OSError):  # those there are will do
            while len(running) < count:
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-c", _START, *units],
                        stdin=take,
                        stdout=tell,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,  # an interrupt is this process's
                    )
                )
        tell.close()
        while number := told.read(1):
            yield units[number[0]]


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.kill()
    for process in running:
        process.wait()


def work() -> None:
    """One of the processes: the units' names are its arguments."""
    tell = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("error", RuntimeWarning)  # what cannot be kept is not done
    with disk.beforehand():
        while number := os.read(sys.stdin.fileno(), 1):
            kernels.compiled(sys.argv[1 + number[0]])
            os.write(tell, number)
