"""The threads that share a call's tasks: PyTorch's OpenMP threads if loaded, else Python's.

PyTorch brings an OpenMP runtime of its own. After a parallel region its threads spin while they
wait for work, on the cores that other threads need. So where PyTorch is loaded with GNU's runtime,
tasks run on PyTorch's threads. Elsewhere Python calls the steps one by one, and wakes threads of
its own for those whose tasks are shared. They take tasks from a counter, in compiled code without
Python's lock, as the calling thread does, which waits for none that has not come yet.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...support import threads
from .objects import store, units
from .schedule import block as B


class Team(NamedTuple):
    """The threads that share the tasks of a step.

    Attributes:
        address: the address of the table by which the driver starts them; 0 for Python's, which
            only Python can use, and for none.
        size: their number, with the calling thread.
    """

    address: int
    size: int


#: The team of the calling thread alone.
ALONE = Team(0, 1)

#: The largest number of threads of a call.
MOST = 256

#: A step that threads share (see block.py).
_Shared = ctypes.c_int64 * B.SHARED_FIELDS


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class _Workers:
    """This process's threads for tasks, which wait in a queue of the standard library."""

    def __init__(self) -> None:
        #: Steps that are shared, each with the number of a thread that is wanted for it.
        self._wanted: SimpleQueue[tuple[ctypes.Array[ctypes.c_int64], int]] = SimpleQueue()
        self._take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
            store.addresses([units.TAKE])[units.TAKE]
        )
        self._yield = _address(ctypes.CDLL(None).sched_yield)
        self._count = 1
        self._is_starting = False

    def start(self, count: int) -> int:
        """Start threads for calls of so many; returns how many there are, with the calling one.

        A signal handler that computes meanwhile does with those that there are.
        """
        if not self._is_starting:
            self._is_starting = True
            try:
                while self._count < count:
                    name = f"normgrad-{self._count}"
                    threading.Thread(target=self._serve, name=name, daemon=True).start()
                    self._count += 1
            except RuntimeError:  # as many as memory and the system's limits allow
                pass
            finally:
                self._is_starting = False
        return min(count, self._count)

    def _serve(self) -> None:
        while True:
            self._take(*self._wanted.get())

    def run(self, block: int, step: int, tasks: int, count: int) -> None:
        """Share a step's tasks among this thread and others, as far as these come in time."""
        shared = _Shared(0, 0, block, step, tasks, max(1, tasks // (8 * count)), self._yield)
        try:
            # Threads that are wanted already are busy, and would come too late.
            for number in range(1, min(count, tasks) - self._wanted.qsize()):
                self._wanted.put((shared, number))
        finally:  # an interrupt has to wait, since others use the call's memory
            self._take(shared, 0)


class _State:
    """The threads that this process has started."""

    def __init__(self) -> None:
        self.usable = True
        self.workers: _Workers | None = None
        #: ``size`` is that of a thread's last team of OpenMP's threads.
        self.openmp = threading.local()
        #: Held while threads are started; reentrant, since a signal handler may compute meanwhile.
        self.starting = threading.RLock()

    def forked(self) -> None:
        # Threads do not survive a fork, and starting OpenMP's anew ends or hangs the child. The
        # user's code or PyTorch may have started them.
        self.usable = self.usable and self.workers is None and "torch" not in sys.modules
        self.starting = threading.RLock()


_state = _State()
os.register_at_fork(after_in_child=_state.forked)

#: The driver's tables of teams, kept for as long as their addresses are in use.
_tables: list[npt.NDArray[np.int64]] = []


@cache
def team(functions: tuple[int, ...], count: int) -> Team:
    """The team of so many of OpenMP's threads, by the addresses of its functions."""
    # driver.py knows the clocks of Linux alone.
    clock = _address(ctypes.CDLL(None).clock_gettime) if sys.platform.startswith("linux") else 0
    share = store.addresses([units.OPENMP])[units.OPENMP]
    table = np.array([clock, 0, *functions, share, 0, 0], np.int64)
    _tables.append(table)
    return Team(table.ctypes.data, count)


def ready(for_workers: bool) -> Team:
    """The team of this thread's next call, whose threads are started as far as they can be.

    ``for_workers`` is whether the call is worth worker threads, if there are none of PyTorch's.
    """
    if not _state.usable:
        return ALONE
    count = min(threads.get_num_threads(), MOST)
    if count == 1:
        return ALONE
    functions = of_torch()
    if functions is None:
        return Team(0, _start_workers(count)) if for_workers else ALONE
    return team(functions, count) if _start_openmp(functions, count) else ALONE


def _start_workers(count: int) -> int:
    with _state.starting:
        _state.workers = _state.workers or _Workers()
        return _state.workers.start(count)


def run_step(block: int, step: int, tasks: int, count: int) -> None:
    """Run a step's tasks on this thread and on Python's threads that were started."""
    assert _state.workers is not None
    _state.workers.run(block, step, tasks, count)


def _start_openmp(functions: tuple[int, ...], count: int) -> bool:
    """Have OpenMP start this thread's team, unless the system cannot start so many threads.

    OpenMP ends the threads that a smaller team than the last has no use for.
    """
    size = getattr(_state.openmp, "size", 1)
    if count == size:
        return True
    with _state.starting:
        if count > size and not _can_start(count - size):
            return False
        # Any function will do that takes no time, such as that which tells a thread's number.
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_uint] * 2)
        kind(functions[0])(functions[1], None, count, 0)
        _state.openmp.size = count
    return True


#: The semaphore that threads on trial wait for, in memory that outlives them.
_gate = ctypes.create_string_buffer(64)


def _can_start(count: int) -> bool:
    """Whether so many threads can be started now; they are started on trial, and end at once.

    OpenMP ends the process if it cannot start its threads, because memory or their number is
    limited. Those on trial are the system's, with stacks as OpenMP's: Python's need memory too, and
    Python waits for ever for one that finds none.
    """
    library = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)  # a pthread_attr_t has 56 bytes or fewer
    library.pthread_attr_init(attributes)
    size = max(_stack_sizes(), default=0)
    if size:
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
    library.sem_init(_gate, 0, 0)
    threads = (ctypes.c_ulong * count)()
    started = 0
    try:
        while started < count and not library.pthread_create(
            ctypes.byref(threads, started * ctypes.sizeof(ctypes.c_ulong)),
            attributes,
            library.sem_wait,
            _gate,
        ):
            started += 1
    finally:
        for _ in range(count):
            library.sem_post(_gate)
    for thread in threads[:started]:
        library.pthread_join(ctypes.c_ulong(thread), None)  # which frees its stack
    return started == count


#: The OpenMP functions that the driver calls, in the order of its table.
_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")

#: The variables that set the stacks of OpenMP's threads, with the unit of a number without one.
_STACK_SIZES = {"OMP_STACKSIZE": "k", "GOMP_STACKSIZE": "k", "KMP_STACKSIZE": "b"}


def _stack_sizes() -> list[int]:
    """The sizes that the variables set for the stacks of OpenMP's threads."""
    sizes = []
    for name, unit in _STACK_SIZES.items():
        parts = re.fullmatch(r"\s*(\d+)\s*([bkmg]?)\s*", os.environ.get(name, "").lower())
        if parts:
            sizes.append(int(parts[1]) << 10 * "bkmg".index(parts[2] or unit))
    return sizes


def of_torch() -> tuple[int, ...] | None:
    """The addresses of PyTorch's OpenMP functions; None if they cannot be shared."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):  # not, or not yet, imported
        return None
    return _functions(torch)


@cache
def _functions(torch: ModuleType) -> tuple[int, ...] | None:
    if sys.platform != "linux" or torch.__file__ is None:
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        with suppress(OSError, AttributeError):
            # Only a runtime that is already loaded: another one has other threads.
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            return tuple(_address(getattr(library, name)) for name in _FUNCTIONS)
    return None
