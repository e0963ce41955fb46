"""The units of machine code that programs call, by name, and their addresses.

A unit is a C function that is called through its address. The package may bring its machine code
(packaged.py); else it is compiled (kernels.py), and only then is Numba imported.
"""

from __future__ import annotations

from functools import cache, partial

from ... import dtypes
from ...loading import check_numba, loading
from ...stacks import with_room
from . import block as B
from . import packaged
from .program import Program
from .steps import Step

#: The driver, which runs a program's steps, and the function that Python calls.
DRIVER, ENTRY = "driver", "entry"
#: The function that runs the plans of a GPU, which no program of the CPU needs.
LAUNCH = "launch"
#: The walk of a task through the tensors; and the walk with copies to tiles.
TASKS, TASKS_IN_TILES = "tasks", "tasks in tiles"
#: The function of each OpenMP thread, and the one that starts Numba's threads on a step.
OPENMP, NUMBA = "threads of OpenMP", "threads of Numba"

_DTYPES = {dtype.code: dtype.name for dtype in dtypes.FLOATS}
#: The kinds of arithmetic that have a unit of their own, by flag.
_ALONE = {B.DO_COUNT: "count", B.DO_WEIGHTS: "weights", B.DO_GATHER: "gather"}


def arithmetic(name: str) -> str:
    """The name of a unit of per-channel arithmetic, from a program's name for it."""
    return f"arithmetic: {name}"


def kernel(pattern: str, operation: str, code: int) -> str:
    """The name of the kernel for a dtype, an access pattern and an operation."""
    return f"{operation} of {pattern}, {_DTYPES[code]}"


def mover(code: int, tile: int) -> str:
    """The name of the unit that copies between a tensor of one dtype and a tile of another."""
    return f"tiles of {_DTYPES[tile]} from {_DTYPES[code]}"


def of_program(program: Program) -> dict[int, str]:
    """The units that all steps of a program share, by the block's fields for their addresses."""
    access = program.access
    found = {
        B.MOVERS + tensor: mover(dtype.code, access.dtype.code)
        for tensor, (dtype, moved) in enumerate(zip(access.data, access.moved, strict=True))
        if moved
    }
    return {**found, B.IN_TILES: TASKS_IN_TILES} if found else {}


def of_step(program: Program, step: Step) -> dict[int, str]:
    """The units of a step, by the step's fields for their addresses."""
    access = program.access
    found = {B.RUN_TASKS: TASKS, B.ARITHMETIC: arithmetic(_ALONE.get(step.last, "channels"))}
    for field, operation in (
        (B.SUMS_KERNEL, step.sums),
        (B.WRITE_KERNEL, None if step.along else step.write),
        (B.PARAMETER_KERNEL, step.along),
    ):
        if operation:
            found[field] = kernel(access.pattern, operation, access.dtype.code)
    if (step.before | step.after) & B.DO_COEFFICIENTS:
        found[B.COEFFICIENTS] = arithmetic(program.coefficients)
    return found


def needed(program: Program) -> list[str]:
    """All units that a program may need, whichever threads it runs on."""
    units = [DRIVER, ENTRY, *of_program(program).values()]
    for step in program.steps:
        units += of_step(program, step).values()
    if any(step.fields()[B.THREADS] for step in program.steps):
        units += [OPENMP, NUMBA]
    return units


@cache
def address(unit: str) -> int:
    """The address of a unit's machine code, which never changes.

    Raises:
        MemoryError: there is too little memory to compile it.
        KernelError: the environment tells Numba to compile nothing.
    """
    found = packaged.address(unit)
    if found is not None:
        return found
    return with_room(partial(_compiled, unit))


def _compiled(unit: str) -> int:
    check_numba()
    with loading():
        from . import kernels
    return int(kernels.compiled(unit).address)
