"""Compiling units in several processes at once, so that Numba is not imported in this one.

The processes stay for some seconds, since a program that needs kernels often needs more soon: those
of the backward pass after those of the forward pass.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import selectors
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from struct import Struct

#: The program of a process. It finds modules where this process does, but not in the current
#: folder, whose files may have the names of modules.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from normgrad.backends.cpu.processes import work; work()"
)
#: What a process writes before an object file: the unit's place in the batch, and the file's size.
#: A size of 0 ends the batch.
_HEADER = Struct("<BI")

#: The seconds that a process waits for more to compile.
_IDLE = 5.0

#: The seconds after which a wait is interrupted to say that time has passed.
_TICK = 0.25

#: How long some units take to compile, where most take one of that; those that start threads take
#: next to nothing.
_LONG = {"entry": 4, "arithmetic: channels": 4, "tasks": 2, "driver": 0}


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


class _Process:
    """A process that compiles one batch of units at a time."""

    def __init__(self) -> None:
        paths = json.dumps([path for path in sys.path if path])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # what is read ahead would not be waited for
            start_new_session=True,  # an interrupt is this process's
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self.output = self._process.stdin, self._process.stdout
        self._batch: list[str] = []

    def give(self, batch: list[str]) -> bool:
        """Have it compile a batch; returns whether it is there to do so."""
        self._batch = batch
        try:
            self._input.write(json.dumps(batch).encode() + b"\n")
        except OSError:
            self.end()
            return False
        return True

    def take(self) -> tuple[str, bytes] | None:
        """The next unit with its object file; None if the batch has ended.

        Raises:
            EOFError: the process has ended.
        """
        place, size = _HEADER.unpack(self._read(_HEADER.size))
        return (self._batch[place], self._read(size)) if size else None

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            more = self.output.read(size - len(content))
            if not more:
                raise EOFError
            content += more
        return content

    def end(self) -> None:
        """Kill it, and wait for its end."""
        self._process.kill()
        with suppress(OSError):  # what it was told last may not have been written
            self._input.close()
        self.output.close()
        self._process.wait()

    def forget(self) -> None:
        """Leave it to the process that this one was forked from."""
        self._process.returncode = 0
        os.close(self._input.fileno())
        os.close(self.output.fileno())


#: The processes that wait for more.
_idle: list[_Process] = []


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _forget_all() -> None:
    for process in _idle:
        process.forget()
    _forgotten.extend(_idle)
    _idle.clear()


#: Processes of the process that this one was forked from, whose files must not be closed again.
_forgotten: list[_Process] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _started(batch: list[str]) -> _Process | None:
    """A process that compiles a batch; None if none can be started."""
    while _idle:
        process = _idle.pop()
        if process.give(batch):
            return process
    with suppress(OSError):
        process = _Process()
        if process.give(batch):
            return process
    return None


def compiled(
    units: Sequence[str], count: int, tick: Callable[[], object]
) -> Generator[tuple[str, bytes], None, None]:
    """Compile units in up to ``count`` processes; yields the name and object file of each.

    A process that fails ends, and the others go on, so some units may not be yielded. If the
    iterator is not exhausted, the processes are killed; if this process ends first, they end after
    their current batch. ``tick`` is called while nothing happens.
    """
    batches = _batches(units, count) if sys.executable else []
    working: list[_Process] = []
    with selectors.DefaultSelector() as waiting:
        try:
            while batches and len(working) < count and (process := _started(batches[0])):
                del batches[0]
                working.append(process)
                waiting.register(process.output, selectors.EVENT_READ, process)
            while working:
                ready = waiting.select(_TICK)
                if not ready:
                    tick()
                for key, _ in ready:
                    process = key.data
                    try:
                        made = process.take()
                    except EOFError:
                        made = None
                        process.end()
                    else:
                        if made is not None:
                            yield made
                            continue
                        if batches and process.give(batches[0]):
                            del batches[0]
                            continue
                        _idle.append(process)
                    waiting.unregister(process.output)
                    working.remove(process)
        finally:
            for process in working:
                process.end()


def work() -> None:
    """The program of one process."""
    import gc

    gc.disable()  # it takes a ninth of a compilation
    result = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    # Numba would import it to look for linear algebra, which takes a third of a second.
    sys.modules["scipy"] = None  # type: ignore[assignment]
    from .compiler import object_of

    with os.fdopen(result, "wb") as file:
        while select.select([sys.stdin], [], [], _IDLE)[0] and (line := sys.stdin.readline()):
            for place, unit in enumerate(json.loads(line)):
                with suppress(Exception):  # the other process compiles it again, and says why
                    content = object_of(unit)
                    file.write(_HEADER.pack(place, len(content)) + content)
                    file.flush()
            file.write(_HEADER.pack(0, 0))
            file.flush()
