"""The units that programs are run with, by name, and where their machine code is.

A unit is a C function of its own, which is called by its address. The package may bring its machine
code (packaged.py); else it is compiled (kernels.py), and only then is Numba imported.
"""

from __future__ import annotations

from functools import cache

from ... import dtypes
from ...loading import loading
from ..choice import check_numba
from . import block as B
from . import packaged
from .program import Program
from .steps import Step

#: What runs a program's steps, and what Python calls, with a plan or without one.
DRIVER, ENTRY = "driver", "entry"
#: What goes through the tensors for a task; the same through tensors that are moved to tiles.
TASKS, TASKS_IN_TILES = "tasks", "tasks in tiles"
#: What each of OpenMP's threads does, and what starts Numba's threads on a step.
OPENMP, NUMBA = "threads of OpenMP", "threads of Numba"

_DTYPES = {dtype.code: dtype.name for dtype in dtypes.FLOATS}
#: What has a step to itself, by its flag.
_ALONE = {B.DO_COUNT: "count", B.DO_WEIGHTS: "weights", B.DO_GATHER: "gather"}


def arithmetic(name: str) -> str:
    """Arithmetic of channels, by a program's name for it."""
    return f"arithmetic: {name}"


def kernel(pattern: str, operation: str, code: int) -> str:
    """What goes through whole tensors of a dtype, by access pattern and operation."""
    return f"{operation} of {pattern}, {_DTYPES[code]}"


def mover(code: int, tile: int) -> str:
    """What copies between a tensor of a dtype and a tile's."""
    return f"tiles of {_DTYPES[tile]} from {_DTYPES[code]}"


def of_program(program: Program) -> dict[int, str]:
    """What all steps of a program have in common, by the block's fields that hold its addresses."""
    access = program.access
    found = {
        B.MOVERS + tensor: mover(dtype.code, access.dtype.code)
        for tensor, (dtype, moved) in enumerate(zip(access.data, access.moved, strict=True))
        if moved
    }
    return {**found, B.IN_TILES: TASKS_IN_TILES} if found else {}


def of_step(program: Program, step: Step) -> dict[int, str]:
    """What a step takes, by the step's fields that hold its addresses."""
    access = program.access
    found = {B.RUN_TASKS: TASKS, B.ARITHMETIC: arithmetic(_ALONE.get(step.last, "channels"))}
    for field, pattern, operation in (
        (B.SUMS_KERNEL, access.pattern, step.sums),
        (B.WRITE_KERNEL, access.pattern, None if step.columns else step.write),
        (B.PARAMETER_KERNEL, "along", "parameters" if step.columns else None),
    ):
        if operation:
            found[field] = kernel(pattern, operation, access.dtype.code)
    if (step.before | step.after) & B.DO_COEFFICIENTS:
        found[B.COEFFICIENTS] = arithmetic(program.coefficients)
    return found


def needed(program: Program) -> list[str]:
    """All that a program may take, whoever's threads it will run with."""
    units = [DRIVER, ENTRY, *of_program(program).values()]
    for step in program.steps:
        units += of_step(program, step).values()
    if any(step.fields()[B.THREADS] for step in program.steps):
        units += [OPENMP, NUMBA]
    return units


@cache
def address(unit: str) -> int:
    """Where a unit's machine code is, which stays there.

    Raises:
        MemoryError: there is too little to compile it.
        KernelError: Numba was told to compile nothing.
    """
    found = packaged.address(unit)
    if found is not None:
        return found
    check_numba()
    with loading():
        from . import kernels
    return int(kernels.compiled(unit).address)
