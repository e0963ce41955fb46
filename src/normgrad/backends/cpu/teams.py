"""The threads that share a call's tasks: PyTorch's OpenMP threads if loaded, else Numba's."""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import threads
from ...loading import check_numba, loading
from ...stacks import with_room
from . import openmp, units


class Team(NamedTuple):
    """The threads that share the tasks of a step.

    Attributes:
        address: the address of the table by which the driver starts them; 0 for none.
        size: their number, with the calling thread.
    """

    address: int
    size: int


#: The team of the calling thread alone.
ALONE = Team(0, 1)


class _Most(threading.local):
    """The size of the largest team that a thread has had."""

    size = 1


class _Threads:
    """The state that decides which threads may run in parallel, and with how many others."""

    def __init__(self) -> None:
        self.started = False
        self.usable = openmp.have_room()
        self.most = _Most()
        self._new_locks()

    def _new_locks(self) -> None:
        # The locks are reentrant, since a signal handler may compute during a call that holds one.
        #: Held while a thread's team is started.
        self.starting = threading.RLock()
        # Numba's own work queue, which it uses without OpenMP, ends the process if two threads use
        # it at once.
        self.one_at_a_time: Any = threading.RLock()

    def forked(self) -> None:
        # OpenMP's threads do not survive a fork, and starting new ones ends or hangs the child. The
        # user's code, a question about their number, or PyTorch may have started them.
        numbas = sys.modules.get("numba.np.ufunc.parallel")
        started = getattr(numbas, "_is_initialized", numbas) or "torch" in sys.modules
        self.usable = self.usable and not started
        self._new_locks()

    def usual(self) -> int | None:
        """The number of Numba's threads for this thread, started if need be; None if impossible."""
        if not self.started:
            with_room(check_numba)
        import numba

        if self.started:
            return int(numba.get_num_threads())
        with self.starting:
            if not _can_start(numba.config.NUMBA_NUM_THREADS - 1):
                return None
            try:
                with_room(_start_numbas)
                return int(numba.get_num_threads())
            except ValueError as error:
                self.usable = False
                why = " ".join(str(error).split())
                warnings.warn(f"{why} Calls use one thread.", RuntimeWarning, stacklevel=4)
                return None


def _start_numbas() -> None:
    """Start Numba's threads.

    Raises:
        ValueError: no threading layer can be loaded.
    """
    import numba

    with loading():
        numba.get_num_threads()


def _can_start(count: int) -> bool:
    """Whether so many threads can be started now; they are started on trial, and end at once.

    OpenMP ends the process if it cannot start its threads, because memory or their number is
    limited.
    """
    gate = threading.Lock()
    numbers: list[int] = []
    told = threading.Semaphore(0)

    def wait() -> None:
        numbers.append(threading.get_native_id())
        told.release()
        with gate:
            pass

    started = 0
    with gate:
        try:
            for _ in range(count):
                _thread.start_new_thread(wait, ())
                started += 1
        except RuntimeError:
            pass
        for _ in range(started):
            told.acquire()
    # Their resources are free once the system no longer lists them.
    for number in numbers:
        while _TASKS.joinpath(str(number)).exists():
            time.sleep(0)
    return started == count


#: The folder in which Linux lists a process's threads.
_TASKS = Path("/proc/self/task")

_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.forked)


def _clock() -> int:
    """The address of clock_gettime(2), whose clocks drive.py knows on Linux alone; else 0."""
    if not sys.platform.startswith("linux"):
        return 0
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


#: The driver's tables of teams, kept for as long as their addresses are in use.
_tables: list[npt.NDArray[np.int64]] = []


@cache
def _team(functions: tuple[int, ...] | None, count: int) -> Team:
    """The team of so many threads: OpenMP's, by the addresses of its functions, or Numba's."""
    if functions is None:
        rest = [units.address(units.NUMBA)]
    else:
        rest = [0, *functions, units.address(units.OPENMP)]
    table = np.array([_clock(), 0, *rest], np.int64)
    _tables.append(table)
    return Team(table.ctypes.data, count)


def has_numbas() -> bool:
    """Whether Numba has threads, which are started if need be."""
    return _threads.usual() is not None


def ready() -> Team | None:
    """The team of this thread's next call; None if ``made`` has to make it."""
    if not _threads.usable:
        return ALONE
    wanted = threads.wanted_threads()
    most = threads.most_threads()
    if 1 in (wanted, most):
        return ALONE
    functions = None if wanted is None else openmp.of_torch()
    if wanted is None or functions is None:
        return _numbas_usual(wanted)
    count = min(wanted, most)
    return _team(functions, count) if count <= _threads.most.size else None


def _numbas_usual(wanted: int | None) -> Team | None:
    """The team of as many of Numba's threads as it is set to use; None if they must be started."""
    if not _threads.started or not isinstance(_threads.one_at_a_time, nullcontext):
        return None
    import numba

    usual = int(numba.get_num_threads())
    if usual > _threads.most.size or wanted not in (None, usual):
        return None
    return ALONE if usual == 1 else _team(None, usual)


@contextmanager
def made() -> Iterator[Team]:
    """A context with the team for a call, whose threads are started and free."""
    wanted = threads.wanted_threads()
    functions = None if wanted is None else openmp.of_torch()
    usual = _threads.usual() if functions is None else None
    count = usual if wanted is None else min(wanted, threads.most_threads())
    if count is None or count == 1 or (functions is None and usual is None):
        yield ALONE
        return
    with ExitStack() as held:
        if count > _threads.most.size:
            held.enter_context(_threads.starting)
            if not _can_start(count - _threads.most.size):
                yield ALONE
                return
        if functions is None and usual is not None:
            held.enter_context(_numbas(count, usual))
        yield _team(functions, count)
        _threads.most.size = max(count, _threads.most.size)


@contextmanager
def _numbas(count: int, usual: int) -> Iterator[None]:
    """A context in which Numba is set to another number of threads."""
    import numba

    with _threads.one_at_a_time:
        if count == usual:
            yield
        else:
            # Numba's number belongs to the calling thread, and so to the user: it is set back.
            numba.set_num_threads(count)
            try:
                yield
            finally:
                numba.set_num_threads(usual)
    if not _threads.started:
        _threads.started = True
        if numba.threading_layer() != "workqueue":
            _threads.one_at_a_time = nullcontext()
