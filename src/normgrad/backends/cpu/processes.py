"""Compiling units in several processes at once, so that Numba is not imported in this one.

The processes stay for some seconds, since a program that needs kernels often needs more soon: those
of the backward pass after those of the forward pass.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct

from ... import stacks

#: The program of a process. It finds modules where this process does, but not in the current
#: folder, whose files may have the names of modules.
_START = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "import json; sys.path[:] = json.loads(sys.argv[1]); "
    "from normgrad.backends.cpu.processes import work; work(int(sys.argv[2]))"
)
#: The variable by which a process knows that it was started for compiling, and starts none itself:
#: ``sys.executable`` may be the user's whole program.
_INSIDE = "_NORMGRAD_COMPILES"
#: What a process writes before an object file: the unit's place in the batch, and the file's size.
#: A size of 0 ends the batch.
_HEADER = Struct("<BI")

#: The seconds that processes wait for more to compile.
_IDLE = 5.0

#: The seconds after which a wait is interrupted to say that time has passed.
_TICK = 0.25

#: How long some units take to compile, where most take one of that; those that start threads take
#: next to nothing.
_LONG = {"arithmetic: channels": 4, "tasks": 2, "driver": 0}


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
    """A process that compiles one batch of units at a time.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        paths = [path for path in sys.path if isinstance(path, str) and path]
        paths.append(str(Path(__file__).parents[3]))
        results, answer = os.pipe()  # anything may print to its standard output
        self.output = os.fdopen(results, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(paths), str(answer)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(answer,),
                env={**os.environ, _INSIDE: "1"},
                bufsize=0,
                start_new_session=True,  # an interrupt is this process's
            )
        except BaseException:
            self.output.close()
            raise
        finally:
            os.close(answer)
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._batch: list[str] = []

    def give(self, batch: list[str]) -> bool:
        """Have it compile a batch; returns whether it is there to do so."""
        self._batch = batch
        try:
            self._input.write(json.dumps(batch).encode() + b"\n")
        except OSError:
            return False
        return True

    def take(self) -> tuple[str, bytes] | None:
        """The next unit with its object file; None if the batch has ended.

        Raises:
            EOFError: the process has ended.
        """
        place, size = _HEADER.unpack(self._read(_HEADER.size))
        if size == 0:
            return None
        if place >= len(self._batch):
            raise EOFError
        return self._batch[place], self._read(size)

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
        self._input.close()
        self.output.close()


#: The processes that wait for more.
_idle: list[_Process] = []


@atexit.register
def _end_all() -> None:
    while _idle:
        with suppress(IndexError):  # another thread took it
            _idle.pop().end()


def _forget_all() -> None:
    while _idle:
        _idle.pop().forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _end_soon() -> None:
    """End the processes that wait, after some seconds."""

    def end() -> None:
        time.sleep(_IDLE)
        _end_all()

    try:
        stacks.start(end, "normgrad")
    except RuntimeError:  # no more threads can be started
        _end_all()


def _next() -> _Process:
    """A process that waits, or a new one.

    Raises:
        OSError: none can be started.
    """
    with suppress(IndexError):
        return _idle.pop()
    return _Process()


def compiled(
    units: Sequence[str], count: int, tick: Callable[[], object]
) -> Generator[tuple[str, bytes], None, None]:
    """Compile units in up to ``count`` processes; yields the name and object file of each.

    A process that fails ends, and the others go on, so some units may not be yielded. If the
    iterator is not exhausted, the processes are killed; if this process ends first, they end after
    their current batch. ``tick`` is called while nothing happens.
    """
    can_start = sys.executable and not getattr(sys, "frozen", False) and _INSIDE not in os.environ
    batches = _batches(units, count) if can_start else []
    working: list[_Process] = []
    with selectors.DefaultSelector() as waiting:
        try:
            with suppress(OSError):  # the processes that could be started are enough
                while batches and len(working) < count:
                    process = _next()
                    working.append(process)
                    if process.give(batches[0]):
                        del batches[0]
                        waiting.register(process.output, selectors.EVENT_READ, process)
                    else:
                        working.remove(process)
                        process.end()
            while working:
                ready = waiting.select(_TICK)
                if not ready:
                    tick()
                for key, _ in ready:
                    process = key.data
                    try:
                        unit = process.take()
                    except EOFError:
                        is_there = False
                    else:
                        if unit is not None:
                            yield unit
                            continue
                        is_there = not batches or process.give(batches[0])
                        if batches and is_there:
                            del batches[0]
                            continue
                    waiting.unregister(process.output)
                    working.remove(process)
                    if is_there:
                        _idle.append(process)
                    else:
                        process.end()
        finally:
            for process in working:
                process.end()
            if _idle:
                _end_soon()


def work(answer: int) -> None:
    """The program of one process, which writes object files to a pipe."""
    import gc

    gc.disable()  # it takes a ninth of a compilation
    warnings.simplefilter("ignore")
    # Numba would import it to look for linear algebra, which takes 0.2 s.
    sys.modules["scipy"] = None  # type: ignore[assignment]
    from .compiler import object_of

    with os.fdopen(answer, "wb") as file:
        while line := sys.stdin.readline():
            for place, unit in enumerate(json.loads(line)):
                with suppress(Exception):  # the other process compiles it again, and says why
                    content = object_of(unit)
                    file.write(_HEADER.pack(place, len(content)) + content)
                    file.flush()
            file.write(_HEADER.pack(0, 0))
            file.flush()
