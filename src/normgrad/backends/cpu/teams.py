"""The threads that share a call's tasks: PyTorch's OpenMP threads if loaded, else workers."""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import memory, stacks, threads
from . import block as B
from . import openmp, store, units


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

#: The largest number of threads of a call.
MOST = 256


class _Workers:
    """A process's worker threads, which wait for tasks in compiled code, without Python's lock."""

    def __init__(self) -> None:
        self._pool: npt.NDArray[np.int64] = memory.aligned(8 * B.SEMAPHORE_WORDS * (1 + MOST)).view(
            np.int64
        )
        self._pool[:] = 0
        library: Any = ctypes.CDLL(None)
        for field, name in ((B.SEM_WAIT, "sem_wait"), (B.SEM_POST, "sem_post")):
            self._pool[field] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for thread in range(MOST):
            semaphore = self.address + 8 * (B.DONE + B.SEMAPHORE_WORDS * thread)
            if library.sem_init(ctypes.c_void_p(semaphore), 0, 0):
                raise OSError("the system has no unnamed semaphores")
        self._serve = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(
            store.addresses([units.SERVE])[units.SERVE]
        )
        #: The number of threads that a call may have by now, with its own.
        self.count = 1
        self._is_starting = False
        # Workers wait in this memory until the process ends, when Python may free it first.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool))

    @property
    def address(self) -> int:
        """The address of the pool."""
        return self._pool.ctypes.data

    def start(self, count: int) -> int:
        """Start workers for calls of so many threads; returns how many threads there are.

        A signal handler that computes meanwhile does with those that there are.
        """
        if not self._is_starting:
            self._is_starting = True
            try:
                while self.count < min(count, MOST):
                    name, place = f"normgrad-{self.count}", (self.address, self.count)
                    stacks.start(partial(self._serve, *place), name)
                    self.count += 1
            except RuntimeError:  # as many as memory and the system's limits allow
                pass
            finally:
                self._is_starting = False
        return min(count, self.count)


class _Most(threading.local):
    """The size of the largest team of OpenMP's threads that a thread has had."""

    size = 1


class _Threads:
    """The state that decides which threads may run in parallel, and with how many others."""

    def __init__(self) -> None:
        self.usable = True
        self.most = _Most()
        self.workers: _Workers | None = None
        # The lock is reentrant, since a signal handler may compute during a call that holds it.
        #: Held while a team's threads are started.
        self.starting = threading.RLock()

    def forked(self) -> None:
        # Threads do not survive a fork, and starting OpenMP's anew ends or hangs the child. The
        # user's code or PyTorch may have started them.
        started = self.workers is not None or "torch" in sys.modules
        self.usable = self.usable and not started
        self.starting = threading.RLock()


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
def team(functions: tuple[int, ...] | None, count: int, pool: int = 0) -> Team:
    """The team of so many threads: OpenMP's, by the addresses of its functions, or of a pool."""
    unit = units.START if functions is None else units.OPENMP
    address = store.addresses([unit])[unit]
    rest = [address, 0, 0, 0, pool] if functions is None else [*functions, address, 0]
    table = np.array([_clock(), 0, *rest], np.int64)
    _tables.append(table)
    return Team(table.ctypes.data, count)


def ready() -> Team | None:
    """The team of this thread's next call; None if ``made`` has to start OpenMP's threads."""
    if not _threads.usable:
        return ALONE
    count = min(threads.get_num_threads(), MOST)
    if count == 1:
        return ALONE
    functions = openmp.of_torch()
    if functions is None:
        return _of_workers(count)
    return team(functions, count) if count <= _threads.most.size else None


def _of_workers(count: int) -> Team:
    """The team of this thread and worker threads, as far as these can be started."""
    workers = _threads.workers
    if workers is None or workers.count < count:
        with _threads.starting:
            if _threads.workers is None:
                try:
                    _threads.workers = _Workers()
                except (OSError, AttributeError):  # the system has no such semaphores
                    _threads.usable = False
                    return ALONE
            workers = _threads.workers
            count = workers.start(count)
    return ALONE if count == 1 else team(None, count, workers.address)


@contextmanager
def made() -> Iterator[Team]:
    """A context with the team for a call, whose threads OpenMP starts in it if need be."""
    found = ready()
    if found is not None:
        yield found
        return
    functions = openmp.of_torch()
    count = min(threads.get_num_threads(), MOST)
    with _threads.starting:
        if count > _threads.most.size and not _can_start(count - _threads.most.size):
            yield ALONE
            return
        yield team(functions, count)
        _threads.most.size = max(count, _threads.most.size)
