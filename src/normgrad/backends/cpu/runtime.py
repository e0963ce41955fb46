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
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core.ccallback import CFunc
from numba.np.ufunc import parallel as numba_threads

from ... import dtypes, threads
from ...loading import compiling, loading
from . import along, arithmetic, coefficients, columns, drive, moves, openmp, rows, statistics, walk
from . import block as B
from .access import ALONG
from .disk import cache_for
from .elements import Operation
from .intrinsics import INT_POINTER, POINTERS
from .program import Program
from .steps import Step

#: What goes through the tensors: its module and function, by operation. Those of rows may have
#: weights along them, which the operation's name says.
_LOOPS = {
    "sums": "sums",
    "evaluate": "sums",
    "parameters": "parameters",
    "moments": "moments",
    "exact moments": "moments",
    "apply": "write",
    "scale": "write",
    "normalise": "write",
}
_PATTERNS = {"rows": rows, "columns": columns, "along": along}
#: The kernels there are, as pattern and operation.
KERNELS = (
    *[("rows", name) for name in _LOOPS if name != "parameters"],
    *[("rows", name + ALONG) for name in ("sums", "apply", "normalise")],
    *[("columns", name) for name in _LOOPS if name != "parameters"],
    ("along", "parameters"),
)


def cache_folder() -> str | None:
    """Where compiled kernels are kept, or None where they are not."""
    path: str | None = cache_for(drive.drive).cache_path
    return path


def signature(operation: str, code: int) -> Any:
    """A kernel's type for an operation and the data's dtype code."""
    return types.void(Operation(operation), *[POINTERS[code]] * 3, INT_POINTER)


def kernel_of(pattern: str, operation: str) -> Any:
    """What is compiled for an access pattern and an operation."""
    function = getattr(_PATTERNS[pattern], _LOOPS[operation.removesuffix(ALONG)])
    return function.py_func


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
    return _compiled(kernel_of(pattern, operation), signature(operation, code))


#: Arithmetic of channels, by a program's name for it: one does not wait for another to compile.
_ARITHMETIC = {
    "channels": (arithmetic.arithmetic, arithmetic.SIGNATURE),
    "count": (coefficients.count, arithmetic.SIGNATURE),
    "weights": (coefficients.weights, arithmetic.SIGNATURE),
    "gather": (statistics.gather, arithmetic.SIGNATURE),
    "batch": (coefficients.batch, arithmetic.COEFFICIENTS),
    "groups": (coefficients.groups, arithmetic.COEFFICIENTS),
    "constant": (coefficients.constant, arithmetic.COEFFICIENTS),
}
#: What has a step to itself, by its flag.
_ALONE = {B.DO_COUNT: "count", B.DO_WEIGHTS: "weights", B.DO_GATHER: "gather"}


@cache
def compiled_arithmetic(name: str) -> CFunc:
    """Arithmetic of channels, compiled or from the disk."""
    return _compiled(*_ARITHMETIC[name])


@cache
def compiled_walk() -> CFunc:
    """What goes through the tensors for a task, compiled or from the disk."""
    return _compiled(walk.run_tasks, walk.SIGNATURE)


@cache
def compiled_tiles() -> CFunc:
    """What goes through tensors that are moved to tiles, compiled or from the disk."""
    return _compiled(walk.in_tiles, walk.TILES_SIGNATURE)


@cache
def compiled_mover(code: int, tile: int) -> CFunc:
    """What copies between a tensor of a dtype and a tile's, compiled or from the disk."""
    return _compiled(moves.mover, moves.mover_signature(code, tile))


def _driver(name: str, parallel: bool) -> Any:
    # Under a name of its own: Numba's cache tells functions apart by name, not by options.
    template = drive.drive
    function = python_types.FunctionType(template.__code__, template.__globals__, name)
    function.__qualname__ = name
    function.__module__ = template.__module__
    dispatcher = numba.njit(parallel=parallel, nogil=True, error_model="numpy")(function)
    dispatcher._cache = cache_for(function)
    numbers = [types.int64] * (template.__code__.co_argcount - 1)
    signature = types.int64(*numbers, drive.ADDRESSES_TYPE)
    with compiling():
        dispatcher.compile(signature)
    # Past the dispatcher, which would find out every argument's type again.
    return dispatcher.overloads[signature.args].entry_point


@cache
def _team(functions: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """A team's table for the driver: OpenMP's functions, and what each thread does."""
    team = _compiled(drive.team, types.void(types.int64))
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
        #: What is compiled, kept for as long as its addresses are.
        self._compiled: list[CFunc] = []
        self._template = program.template.copy()
        for field, unit in _of_program(program).items():
            self._template[field] = self._address(unit.compile())
        steps = np.zeros((len(program.steps), B.STEP_FIELDS), np.int64)
        for fields, step in zip(steps, program.steps, strict=True):
            for field, value in step.fields().items():
                fields[field] = value
            for field, unit in _of_step(program, step).items():
                fields[field] = self._address(unit.compile())
        self._steps: npt.NDArray[np.int64] = steps
        self._program = self._template.ctypes.data, steps.ctypes.data, len(program.steps)
        self._guard = guards.ctypes.data
        self._parallel = bool(steps[:, B.THREADS].any())
        self._serial = None if self._parallel else _serial_driver()

    def _address(self, function: CFunc) -> int:
        self._compiled.append(function)
        return int(function.address)

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
                status: int = driver(*self._program, 0, count, self._guard, given, places)
            else:
                # Numba's number is the calling thread's own, and its user's.
                numba.set_num_threads(count)
                try:
                    status = driver(*self._program, 0, count, self._guard, given, places)
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


class Unit(NamedTuple):
    """One of the things that are compiled.

    Attributes:
        name: what it is called, for people and among all that there are.
        compile: compiles it, or reads it from disk.
    """

    name: str
    compile: Callable[[], Any]


_WALK, _TILES = Unit("tasks", compiled_walk), Unit("tasks in tiles", compiled_tiles)
_SERIAL = Unit("driver", _serial_driver)
_PARALLEL = Unit("driver with threads", _parallel_driver)
_TEAM = Unit("team", partial(_team, (0, 0, 0)))
_DTYPES = {dtype.code: dtype.name for dtype in dtypes.FLOATS}


def _arithmetic(name: str) -> Unit:
    return Unit(f"arithmetic: {name}", partial(compiled_arithmetic, name))


def _kernel(pattern: str, operation: str, code: int) -> Unit:
    name = f"{operation} of {pattern}, {_DTYPES[code]}"
    return Unit(name, partial(compiled_kernel, pattern, operation, code))


def _mover(code: int, tile: int) -> Unit:
    name = f"tiles of {_DTYPES[tile]} from {_DTYPES[code]}"
    return Unit(name, partial(compiled_mover, code, tile))


def _of_program(program: Program) -> dict[int, Unit]:
    """What all steps of a program have in common, by the block's fields that hold its addresses."""
    access = program.access
    found = {
        B.MOVERS + tensor: _mover(dtype.code, access.dtype.code)
        for tensor, (dtype, moved) in enumerate(zip(access.data, access.moved, strict=True))
        if moved
    }
    return {**found, B.IN_TILES: _TILES} if found else {}


def _of_step(program: Program, step: Step) -> dict[int, Unit]:
    """What a step takes, by the step's fields that hold its addresses."""
    access = program.access
    found = {B.RUN_TASKS: _WALK, B.ARITHMETIC: _arithmetic(_ALONE.get(step.last, "channels"))}
    for field, pattern, operation in (
        (B.SUMS_KERNEL, access.pattern, step.sums),
        (B.WRITE_KERNEL, access.pattern, None if step.columns else step.write),
        (B.PARAMETER_KERNEL, "along", "parameters" if step.columns else None),
    ):
        if operation:
            found[field] = _kernel(pattern, operation, access.dtype.code)
    if (step.before | step.after) & B.DO_COEFFICIENTS:
        found[B.COEFFICIENTS] = _arithmetic(program.coefficients)
    return found


def units_of(program: Program) -> list[Unit]:
    """All that a program may take, whoever's threads it will run with."""
    units = [_SERIAL, *_of_program(program).values()]
    for step in program.steps:
        units += _of_step(program, step).values()
    if any(step.fields()[B.THREADS] for step in program.steps):
        units += [_TEAM, _PARALLEL]
    return units


def everything() -> list[Unit]:
    """All that can be compiled here."""
    # Where there are no threads, Numba compiles nothing for them.
    return [unit for unit in all_units() if unit != _PARALLEL or _threads.usual() is not None]


def all_units() -> list[Unit]:
    """All that there is to compile."""
    singles, doubles = dtypes.float32.code, dtypes.float64.code
    units = [_SERIAL, _TEAM, _PARALLEL, _WALK, _TILES, *map(_arithmetic, _ARITHMETIC)]
    units += [
        _kernel(pattern, operation, code)
        for pattern, operation in KERNELS
        for code in _DTYPES
        if operation != "moments" or code not in (singles, doubles)
    ]
    units += [
        _mover(code, tile)
        for tile in _DTYPES
        for code in _DTYPES
        if tile in (code, singles, doubles)
    ]
    return units
