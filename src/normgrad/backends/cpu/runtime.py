"""Compiling, keeping and running the kernels.

Numba is imported with this module, which happens when the first program runs.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import time
import types as python_types
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core.ccallback import CFunc
from numba.np.ufunc import parallel as numba_threads

from ... import dtypes, threads
from ...loading import compiling, loading
from . import block as B
from . import channels, forward, openmp, tiles
from . import kernel as kernel_module
from .disk import cache_for
from .patterns import PATTERNS, SUMMING
from .program import Program


def cache_folder() -> str | None:
    """Where compiled kernels are kept, or None where they are not."""
    path: str | None = cache_for(kernel_module.add_sums).cache_path
    return path


def _compiled(function: Any, signature: Any) -> CFunc:
    compiled = CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options={"error_model": "numpy", "nopython": True},
    )
    compiled._cache = cache_for(function)
    with compiling():
        compiled.compile()
    return compiled


@cache
def compiled_kernel(pattern: str, operation: str, code: int) -> CFunc:
    """The kernel for an access pattern, an operation and a dtype, compiled or from the disk."""
    signature = kernel_module.signature(pattern, operation, code)
    return _compiled(kernel_module.kernel_of(operation), signature)


#: Per-channel arithmetic, by a program's name for it: one does not wait for the other to compile.
_CHANNEL_KERNELS = {"channels": channels.channel_kernel, "forward": forward.forward_kernel}


@cache
def compiled_channel_kernel(name: str, code: int) -> CFunc:
    """The channel kernel for an arithmetic's dtype, compiled or from the disk."""
    return _compiled(_CHANNEL_KERNELS[name], channels.channel_signature(code))


@cache
def compiled_mover(code: int, real: int) -> CFunc:
    """What copies tiles of a dtype, compiled or from the disk."""
    return _compiled(tiles.mover, tiles.mover_signature(code, real))


def _driver(name: str, parallel: bool) -> Any:
    # Under a name of its own: Numba's cache tells functions apart by name, not by options.
    drive = kernel_module.drive
    function = python_types.FunctionType(drive.__code__, drive.__globals__, name)
    function.__qualname__ = name
    function.__module__ = drive.__module__
    dispatcher = numba.njit(parallel=parallel, nogil=True, error_model="numpy")(function)
    dispatcher._cache = cache_for(function)
    numbers = [types.int64] * (drive.__code__.co_argcount - 1)
    signature = types.int64(*numbers, kernel_module.ADDRESSES_TYPE)
    with compiling():
        dispatcher.compile(signature)
    # Past the dispatcher, which would find out every argument's type again.
    return dispatcher.overloads[signature.args].entry_point


@cache
def _team(functions: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """A team's table for the driver: OpenMP's functions, and what each thread does."""
    team = _compiled(kernel_module.team, types.void(types.int64))
    return np.array([*functions, team.address], np.int64)


@cache
def _serial_driver() -> Any:
    return _driver("drive_serially", parallel=False)


@cache
def _parallel_driver() -> Any:
    with warnings.catch_warnings():
        # Not every function it calls has a loop that can be shared out; the one that matters has.
        warnings.simplefilter("ignore", numba.core.errors.NumbaPerformanceWarning)
        return _driver("drive_in_parallel", parallel=True)


class _Team(threading.local):
    """What this thread runs kernels with.

    Attributes:
        size: the most threads that it has run with, itself among them: they wait for more.
    """

    size = 1


class _Threads:
    """Who may run in parallel, and with how many threads."""

    def __init__(self) -> None:
        self.started = False
        self.usable = True
        self.team = _Team()
        self._new_locks()

    def _new_locks(self) -> None:
        # Reentrant: a signal's handler may compute where a call has them already.
        #: Held while a thread's team is started.
        self.starting = threading.RLock()
        # Numba's own work queue, the last resort where there is no OpenMP, ends the process when
        # two threads use it at once.
        self.one_at_a_time: contextlib.AbstractContextManager[Any] = threading.RLock()

    def forked(self) -> None:
        # OpenMP's threads do not survive a fork, and starting new ones ends or hangs the child.
        # Whoever started them: a function of the user's, a question about their number, PyTorch.
        started = getattr(numba_threads, "_is_initialized", True) or "torch" in sys.modules
        self.usable = self.usable and not started
        self._new_locks()

    def usual(self) -> int | None:
        """How many threads Numba has for this thread, started if they were not; None for none."""
        if self.started:
            return int(numba.get_num_threads())
        with self.starting:
            if not _can_start(numba.config.NUMBA_NUM_THREADS - 1):
                return None
            try:
                with loading():
                    return int(numba.get_num_threads())
            except ValueError as error:
                self.usable = False
                why = " ".join(str(error).split())
                warnings.warn(f"{why} Calls use one thread.", RuntimeWarning, stacklevel=4)
                return None


def _can_start(count: int) -> bool:
    """Whether so many threads can be started now: as many are, and end at once.

    OpenMP ends the process where it cannot start its own, for want of memory or because there is a
    limit to their number.
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
    # What they had is there for others when the system has done with them.
    for number in numbers:
        while _TASKS.joinpath(str(number)).exists():
            time.sleep(0)
    return started == count


#: Where Linux shows a process its threads.
_TASKS = Path("/proc/self/task")

_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.forked)


class Runner:
    """A program with its kernel compiled, ready for addresses."""

    def __init__(self, program: Program, guards: npt.NDArray[np.int64]) -> None:
        self._guards = guards
        self._kernels = {
            operation: compiled_kernel(program.pattern, operation, program.code)
            for operation in program.operations
        }
        self._channel_kernel = compiled_channel_kernel(program.channels, program.arithmetic)
        self._template = program.template.copy()
        if program.pattern == "tiles":
            self._movers = [compiled_mover(code, program.arithmetic) for code in program.data]
            self._template[B.MOVERS : B.MOVERS + 3] = [mover.address for mover in self._movers]
        steps = np.zeros((len(program.steps), B.STEP_FIELDS), np.int64)
        for words, step in zip(steps, program.steps, strict=True):
            for operation in step.operations:
                word = B.SUMS_KERNEL if operation in SUMMING else B.DX_KERNEL
                words[word] = self._kernels[operation].address
            words[B.CHANNEL_KERNEL] = self._channel_kernel.address
            words[B.TASKS] = step.tasks
            words[B.FLAGS] = step.flags
            words[B.CHANNEL_BLOCK] = step.channel_block
            words[B.PARTS] = step.parts
            words[B.PART_SIZE] = step.part_size
            words[B.THREADS] = step.parallel and step.tasks > 1
        self._steps: npt.NDArray[np.int64] = steps
        self._program = self._template.ctypes.data, steps.ctypes.data, len(program.steps)
        self._guard = guards.ctypes.data
        self._parallel = bool(steps[:, B.THREADS].any())
        self._serial = None if self._parallel else _serial_driver()

    def run(self, addresses: Sequence[int], given: int) -> int:
        """Compute, with the addresses of a block in their order; the GIL is released.

        ``given`` has a bit for each output that the caller brought. If something is wrong with
        their memory, or with an input's, nothing is done and the result is not 0.
        """
        if not self._parallel or not _threads.usable:
            return self._run_serially(addresses, given)
        wanted = threads.wanted_threads()
        functions = openmp.of_torch()
        usual: int | None = None
        if functions is None or wanted is None:
            functions = None
            usual = 1 if wanted == 1 else _threads.usual()
            if usual is None:
                return self._run_serially(addresses, given)
        count = usual if wanted is None else min(wanted, numba.config.NUMBA_NUM_THREADS)
        if count is None or count == 1:
            return self._run_serially(addresses, given)
        if count <= _threads.team.size:
            return self._run_in_parallel(addresses, given, functions, count, usual)
        with _threads.starting:
            if not _can_start(count - _threads.team.size):
                return self._run_serially(addresses, given)
            status = self._run_in_parallel(addresses, given, functions, count, usual)
            _threads.team.size = count
        return status

    def _run_in_parallel(
        self,
        addresses: Sequence[int],
        given: int,
        functions: tuple[int, ...] | None,
        count: int,
        usual: int | None,
    ) -> int:
        """With so many threads: OpenMP's by its functions, or Numba's, of which there are usually
        so many."""
        if functions is not None:
            return self._run_serially(addresses, given, _team(functions).ctypes.data, count)
        driver, places = _parallel_driver(), tuple(addresses)
        with _threads.one_at_a_time:
            if count == usual:
                status: int = driver(*self._program, 0, 0, self._guard, given, places)
            else:
                # Numba's number is the calling thread's own, and its user's.
                numba.set_num_threads(count)
                try:
                    status = driver(*self._program, 0, 0, self._guard, given, places)
                finally:
                    numba.set_num_threads(usual)
        if not _threads.started:
            _threads.started = True
            if numba.threading_layer() != "workqueue":
                _threads.one_at_a_time = contextlib.nullcontext()
        return status

    def _run_serially(
        self, addresses: Sequence[int], given: int, team: int = 0, count: int = 0
    ) -> int:
        """In this thread, or in a team of so many."""
        if self._serial is None:  # not compiled before it is needed: it takes most of a second
            self._serial = _serial_driver()
        status: int = self._serial(
            *self._program, team, count, self._guard, given, tuple(addresses)
        )
        return status


def everything() -> list[tuple[str, Callable[[], Any]]]:
    """All that can be compiled: what it is called, and what compiles it or reads it from disk."""
    singles, doubles = dtypes.float32.code, dtypes.float64.code
    names = {dtype.code: dtype.name for dtype in dtypes.FLOATS}
    units: list[tuple[str, Callable[[], Any]]] = [
        ("driver", _serial_driver),
        ("team", partial(_team, (0, 0, 0))),
    ]
    if _threads.usual() is not None:  # else Numba compiles nothing for them
        units.append(("driver with threads", _parallel_driver))
    units += [
        (f"{name}, {names[real]} arithmetic", partial(compiled_channel_kernel, name, real))
        for name in _CHANNEL_KERNELS
        for real in (singles, doubles)
    ]
    for pattern, operation in PATTERNS:
        codes = (singles, doubles) if pattern == "tiles" else names
        units += [
            (
                f"{operation} of {pattern}, {names[code]}",
                partial(compiled_kernel, pattern, operation, code),
            )
            for code in codes
        ]
    for real in (singles, doubles):
        units += [
            (f"tiles of {names[code]} in {names[real]}", partial(compiled_mover, code, real))
            for code in names
            if real == doubles or code != doubles
        ]
    return units
