"""Compiling units in several processes at once, so that Numba is not imported in this one."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .. import target

#: The program of a process. It says with an empty message that it runs. It finds modules where this
#: process does, but not in the current folder, whose files may have the names of modules.
_START = (
    "import os, sys; os.write(int(sys.argv[2]), bytes(4)); "
    "sys.path[:] = [path for path in sys.path if path]; "
    "import json; sys.path[:] = json.loads(sys.argv[1]); "
    "from normgrad.backends.cpu.objects.processes import work; work(int(sys.argv[2]))"
)
#: The variable by which a process knows that it was started for compiling, and starts none itself:
#: ``sys.executable`` may be the user's whole program.
_INSIDE = "_NORMGRAD_COMPILES"

#: The seconds in which a process has to say that it runs: ``sys.executable`` may be a program that
#: embeds Python and knows no ``-c``. No more are started then.
_PATIENCE = 15.0
_is_python = True

#: The seconds after which a wait is interrupted to say that time has passed.
_TICK = 0.25

#: How long some units take to compile, where most take one of that; those that start threads take
#: next to nothing.
_LONG = {"arithmetic: channels": 4, "tasks": 2, "driver": 0}


class _Process:
    """A process that compiles a batch of units, one at a time.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        folders = [path for path in sys.path if isinstance(path, str) and path]
        paths = [str(Path(path).absolute()) for path in folders]
        paths.append(str(Path(__file__).parents[4]))
        # Numba has no settings but these, and none of a file in the current folder.
        variables = {name: os.environ[name] for name in os.environ if name[:6] != "NUMBA_"}
        self.connection, answer = Pipe()  # anything may print to its standard output
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(paths), str(answer.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(answer.fileno(),),
                env={**variables, **target.settings(), _INSIDE: "1"},
                cwd=Path(__file__).parent,
                start_new_session=True,  # an interrupt is this process's
            )
        except BaseException:
            self.connection.close()
            raise
        finally:
            answer.close()
        self.units: list[str] = []
        #: When it has to have said that it runs; None if it has.
        self.deadline: float | None = time.monotonic() + _PATIENCE

    def give(self, units: list[str]) -> None:
        """Have it compile the first of some units; it has to compile the others later."""
        self.units = units
        with suppress(OSError):  # it has ended, which shows when its answer is read
            self.connection.send_bytes(units[0].encode())

    def take(self) -> tuple[str, bytes] | None:
        """Read the object file of the unit that it has compiled; it is empty if that failed.

        Returns:
            None if it has said that it runs.

        Raises:
            EOFError, OSError: the process has ended.
        """
        content = self.connection.recv_bytes()
        if self.deadline is not None:
            self.deadline = None
            return None
        return self.units.pop(0), content

    def is_late(self) -> bool:
        """Whether it should have said by now that it runs."""
        is_over = self.deadline is not None and time.monotonic() > self.deadline
        return is_over and not self.connection.poll()

    def end(self) -> None:
        """Kill it, and wait for its end."""
        self.process.kill()
        self.connection.close()
        self.process.wait()


def _family(unit: str) -> str:
    """The name of the units that share most of a unit's helpers, which are then compiled once."""
    start, _, rest = unit.partition(" of ")
    return rest if rest and start != "tiles" else start.partition(":")[0].partition(" ")[0]


def _batches(units: Sequence[str], count: int) -> list[list[str]]:
    """The units by families, which are cut so that there is something to do for each process."""
    families: dict[str, list[str]] = {}
    for unit in units:
        families.setdefault(_family(unit), []).append(unit)
    most = -(-len(units) // count)
    batches = [
        family[start : start + most]
        for family in families.values()
        for start in range(0, len(family), most)
    ]
    return sorted(batches, key=lambda batch: -sum(_LONG.get(unit, 1) for unit in batch))


def compiled(
    units: Sequence[str], count: int, tick: Callable[[], object]
) -> Generator[tuple[str, bytes], None, None]:
    """Compile units in up to ``count`` processes; yields the name and object file of each.

    A process that fails, or does not say that it runs, ends, and the others go on, so some units
    may not be yielded. If the iterator is not exhausted, the processes are killed; if this process
    ends first, they end after their current unit. ``tick`` is called while nothing happens.
    """
    global _is_python
    is_whole = not sys.executable or getattr(sys, "frozen", False) or _INSIDE in os.environ
    batches = _batches(units, count) if _is_python and not is_whole else []
    working: dict[Any, _Process] = {}
    try:
        with suppress(OSError):  # the processes that could be started are enough
            while batches and len(working) < count:
                process = _Process()
                working[process.connection] = process
                process.give(batches.pop(0))
        while working:
            ready = wait([*working], _TICK)
            if not ready:
                tick()
            for connection in ready:
                process = working[connection]
                try:
                    answer = process.take()
                except (EOFError, OSError):
                    del working[connection]
                    process.end()
                    continue
                if answer is None:
                    continue
                unit, content = answer
                if process.units or batches:
                    process.give(process.units or batches.pop(0))
                else:
                    del working[connection]
                    process.end()
                if content:
                    yield unit, content
            for process in [each for each in working.values() if each.is_late()]:
                _is_python = False
                del working[process.connection]
                process.end()
    finally:
        for process in working.values():
            process.end()


def work(answer: int) -> None:
    """The program of a process: it compiles the units that come by a connection."""
    gc.disable()  # it takes a ninth of a compilation
    warnings.simplefilter("ignore")
    # Numba would import it to look for linear algebra, which takes 0.2 s.
    sys.modules["scipy"] = None  # type: ignore[assignment]
    from .compiler import object_of

    with Connection(answer) as connection, suppress(EOFError, OSError):  # this one is not needed
        while True:
            unit, content = connection.recv_bytes().decode(), b""
            with suppress(Exception):  # the other process compiles it again, and says why
                content = object_of(unit)
            connection.send_bytes(content)
