"""Compiling, keeping and running the kernels.

Numba is imported with this module, which happens when the first program runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core.ccallback import CFunc

from ... import dtypes, native
from ...overlap import Place
from . import (
    along,
    arithmetic,
    coefficients,
    columns,
    drive,
    enter,
    guard,
    moves,
    rows,
    statistics,
    teams,
    walk,
)
from . import block as B
from .access import ALONG
from .compiling import compiled, python_function
from .disk import cache_for
from .elements import Operation
from .intrinsics import INT_POINTER, POINTERS
from .program import Program
from .steps import Step
from .teams import ALONE, Team

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


@cache
def compiled_kernel(pattern: str, operation: str, code: int) -> CFunc:
    """The kernel for an access pattern, an operation and a dtype, compiled or from the disk."""
    return compiled(kernel_of(pattern, operation), signature(operation, code))


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
    return compiled(*_ARITHMETIC[name])


@cache
def compiled_walk() -> CFunc:
    """What goes through the tensors for a task, compiled or from the disk."""
    return compiled(walk.run_tasks, walk.SIGNATURE)


@cache
def compiled_tiles() -> CFunc:
    """What goes through tensors that are moved to tiles, compiled or from the disk."""
    return compiled(walk.in_tiles, walk.TILES_SIGNATURE)


@cache
def compiled_mover(code: int, tile: int) -> CFunc:
    """What copies between a tensor of a dtype and a tile's, compiled or from the disk."""
    return compiled(moves.mover, moves.mover_signature(code, tile))


@cache
def compiled_driver() -> CFunc:
    """What runs a program's steps, compiled or from the disk."""
    return compiled(drive.drive, drive.SIGNATURE)


@cache
def compiled_entry() -> CFunc:
    """What Python calls, with a plan or without one, compiled or from the disk."""
    return compiled(enter.function, enter.SIGNATURE)


@cache
def answer() -> Callable[..., Any]:
    """As ``native.answer``."""
    native.known[native.TEAM] = id(teams.ready)
    return python_function("answer", compiled_entry(), native.known.ctypes.data)


#: In the place of the outputs that were given: nothing is looked at.
UNGUARDED = -1


def _not_ready(tensors: tuple[Any, ...], out: Any, workspace: Any) -> None:
    """Enter before any tensors were learned."""


class Runner:
    """A program with its kernels compiled, ready for a call's tensors, or for their addresses."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Place | None],
        outputs: Sequence[Place | None],
    ) -> None:
        #: What is compiled, kept for as long as its addresses are.
        self._compiled: list[CFunc] = []
        template = program.template.copy()
        for field, unit in _of_program(program).items():
            template[field] = self._address(unit.compile())
        steps = np.zeros((len(program.steps), B.STEP_FIELDS), np.int64)
        for fields, step in zip(steps, program.steps, strict=True):
            for field, value in step.fields().items():
                fields[field] = value
            for field, unit in _of_step(program, step).items():
                fields[field] = self._address(unit.compile())
        self._parallel = bool(steps[:, B.THREADS].any())
        driver = compiled_driver()
        guards = guard.table(inputs, outputs, program.workspace_size)
        table = np.zeros(B.ENTRY_FIELDS, np.int64)
        self._arrays = template, steps, guards, table
        for field, value in {
            B.E_KNOWN: native.known.ctypes.data,
            B.E_DRIVE: driver.address,
            B.E_TEMPLATE: template.ctypes.data,
            B.E_STEPS: steps.ctypes.data,
            B.E_STEP_COUNT: len(steps),
            B.E_GUARDS: guards.ctypes.data,
            B.E_PARALLEL: self._parallel,
            B.E_WORKSPACE: program.workspace_size,
            B.E_INPUTS: len(inputs),
            B.E_RESULTS: len(outputs),
            B.E_READS_DY: program.input_is_grad_out,
            B.E_READS_X: all(place is None or place.slot != B.DY for place in inputs),
        }.items():
            table[field] = value
        for index, place in enumerate((*inputs, *outputs)):
            table[B.E_SLOTS + index] = -1 if place is None else place.slot
        self._table = table
        #: As in choice.Entry.
        self.enter: Callable[[tuple[Any, ...], Any, Any], Any] = _not_ready
        native.answer = answer()
        self._drive = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 8)(driver.address)

    def _address(self, function: CFunc) -> int:
        self._compiled.append(function)
        return int(function.address)

    def run(self, addresses: Sequence[int]) -> None:
        """Compute, with the addresses of a block in their order; the GIL is released."""
        places = np.array(addresses, np.int64)

        def drive(team: Team) -> None:
            template, steps, *_ = self._arrays
            program = template.ctypes.data, steps.ctypes.data, len(steps)
            self._drive(*program, *team, 0, UNGUARDED, places.ctypes.data)

        team = teams.ready() if self._parallel else ALONE
        if team is not None:
            drive(team)
        else:
            with teams.made() as made:
                drive(made)

    def learn(
        self,
        tensors: tuple[Any, ...],
        results: tuple[Any, ...],
        makers: Sequence[tuple[Callable[[Any], Any], int] | None],
    ) -> native.Ready | None:
        """As :meth:`.choice.Entry.learn`."""
        key = answer()(None, tensors, results, ())
        if key is None:
            return None
        words = np.frombuffer(key, np.int64)
        self._table[B.E_WORDS : B.E_WORDS + len(words)] = words
        self._table[B.E_LENGTH] = len(words)
        for index, each in enumerate(makers):
            self._table[B.E_LIKES + index] = 0 if each is None else each[1]
        made = tuple([None if each is None else each[0] for each in makers])
        ready = self._table.ctypes.data, made, self._arrays
        self._enter = python_function("enter", compiled_entry(), ready)
        self.enter = self._enter_in_a_team if self._parallel else self._enter
        return ready

    def _enter_in_a_team(self, tensors: tuple[Any, ...], out: Any, workspace: Any) -> Any:
        """Enter with this thread's team, which is made if need be."""
        team = teams.ready()
        if team is not None:
            return self._enter(tensors, out, workspace, *team)
        with teams.made() as made:
            return self._enter(tensors, out, workspace, *made)


class Unit(NamedTuple):
    """One of the things that are compiled.

    Attributes:
        name: what it is called, for people and among all that there are.
        compile: compiles it, or reads it from disk.
    """

    name: str
    compile: Callable[[], Any]


_WALK, _TILES = Unit("tasks", compiled_walk), Unit("tasks in tiles", compiled_tiles)
_ENTRIES = Unit("driver", compiled_driver), Unit("entry", compiled_entry)
_OPENMP = Unit("threads of OpenMP", teams.compiled_share)
_NUMBA = Unit("threads of Numba", teams.compiled_start)
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
    units = [*_ENTRIES, *_of_program(program).values()]
    for step in program.steps:
        units += _of_step(program, step).values()
    if any(step.fields()[B.THREADS] for step in program.steps):
        units += [_OPENMP, _NUMBA]
    return units


def everything() -> list[Unit]:
    """All that can be compiled here."""
    # Where there are no threads, Numba compiles nothing for them.
    return [unit for unit in all_units() if unit != _NUMBA or teams.has_numbas()]


def all_units() -> list[Unit]:
    """All that there is to compile."""
    singles, doubles = dtypes.float32.code, dtypes.float64.code
    units = [*_ENTRIES, _OPENMP, _NUMBA, _WALK, _TILES, *map(_arithmetic, _ARITHMETIC)]
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
