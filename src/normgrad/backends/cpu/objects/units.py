"""The units of machine code that schedules call, by name, and their addresses.

A unit is a C function that is called through its address, which the store finds (store.py).
"""

from __future__ import annotations

import itertools
import re

from ....tensors import dtypes
from ..schedule import block as B
from ..schedule.layout import ALONG
from ..schedule.schedules import Schedule
from ..schedule.steps import EXACT, Step

#: The driver, which runs a schedule's steps.
DRIVER = "driver"
#: The walk of a task through the tensors; and the walk with copies to tiles.
RUN_TASKS, IN_TILES = "tasks", "tasks in tiles"
#: The function of each OpenMP thread; and those with which Python shares steps among its threads.
OPENMP, BEGIN, TAKE = "threads of OpenMP", "begin", "take"

_DTYPES = {dtype.code: dtype.name for dtype in dtypes.FLOATS}
_SINGLE, _DOUBLE = dtypes.float32.code, dtypes.float64.code
#: The kinds of arithmetic that have a unit of their own, by flag.
_ALONE = {B.DO_COUNT: "count", B.DO_WEIGHTS: "weights", B.DO_GATHER: "gather"}


def arithmetic(name: str) -> str:
    """The name of a unit of per-channel arithmetic, from a schedule's name for it."""
    return f"arithmetic: {name}"


#: The functions of units other than kernels and movers, by module.
FUNCTIONS = {
    DRIVER: "driver.drive",
    OPENMP: "driver.share",
    BEGIN: "driver.begin",
    TAKE: "driver.take",
    RUN_TASKS: "tasks.run_tasks",
    IN_TILES: "tasks.in_tiles",
    arithmetic("channels"): "arithmetic.channels",
    arithmetic("gather"): "arithmetic.gather",
    **{
        arithmetic(name): f"coefficients.{name}"
        for name in ("count", "weights", "batch", "channel_groups", "constant")
    },
}
#: The kernels' functions, by access pattern and operation.
LOOPS = {
    "rows": {
        **dict.fromkeys(("sums", "evaluate"), "reductions.reduce_rows"),
        **dict.fromkeys(("moments", EXACT), "moments.moments_of_rows"),
        **dict.fromkeys(("apply", "scale", "normalise"), "writes.write_rows"),
        "sums" + ALONG: "reductions.reduce_rows",
        **dict.fromkeys(("apply" + ALONG, "normalise" + ALONG), "writes.write_rows"),
        "parameters" + ALONG: "groups.parameters",
        "gradients" + ALONG: "groups.gradients",
        "forward" + ALONG: "groups.forward",
    },
    "columns": {
        **dict.fromkeys(("sums", "evaluate"), "reductions.reduce_columns"),
        **dict.fromkeys(("moments", EXACT), "moments.moments_of_columns"),
        **dict.fromkeys(("apply", "scale", "normalise"), "writes.write_columns"),
        "gradients" + ALONG: "samples.gradients",
        "forward" + ALONG: "samples.forward",
    },
}
#: The codes of the dtypes for which a pattern and an operation have no kernel.
_UNUSED = {
    **dict.fromkeys((("rows", "moments"), ("columns", "moments")), (_SINGLE, _DOUBLE)),
    **dict.fromkeys((("columns", "gradients" + ALONG), ("columns", "forward" + ALONG)), (_DOUBLE,)),
}


def kernel(pattern: str, operation: str, code: int) -> str:
    """The name of the kernel for a dtype, an access pattern and an operation."""
    return f"{operation} of {pattern}, {_DTYPES[code]}"


def mover(code: int, tile: int) -> str:
    """The name of the unit that copies between a tensor of one dtype and a tile of another."""
    return f"tiles of {_DTYPES[tile]} from {_DTYPES[code]}"


#: The access pattern, operation and dtype's code of every kernel, by its name.
KERNELS = {
    kernel(pattern, operation, code): (pattern, operation, code)
    for pattern, operations in LOOPS.items()
    for operation, code in itertools.product(operations, _DTYPES)
    if code not in _UNUSED.get((pattern, operation), ())
}
#: The codes of the dtypes of the tensor and of the tile, for every mover, by its name.
MOVERS = {
    mover(code, tile): (code, tile)
    for code, tile in itertools.product(_DTYPES, _DTYPES)
    if tile in (code, _SINGLE, _DOUBLE)
}


def symbol(unit: str) -> str:
    """The symbol of a unit in its object file."""
    return "normgrad_" + re.sub(r"\W+", "_", unit)


def every() -> list[str]:
    """The names of all units."""
    return [*FUNCTIONS, *KERNELS, *MOVERS]


def of_schedule(schedule: Schedule) -> dict[int, str]:
    """The units that all steps of a schedule share, by the block's fields for their addresses."""
    layout = schedule.layout
    by_field = {
        B.MOVERS + tensor: mover(dtype.code, layout.dtype.code)
        for tensor, (dtype, in_tiles) in enumerate(zip(layout.data, layout.tiles, strict=True))
        if in_tiles
    }
    return {**by_field, B.IN_TILES: IN_TILES} if by_field else {}


def of_step(schedule: Schedule, step: Step) -> dict[int, str]:
    """The units of a step, by the step's fields for their addresses."""
    layout = schedule.layout
    by_field = {B.RUN_TASKS: RUN_TASKS, B.ARITHMETIC: arithmetic(_ALONE.get(step.last, "channels"))}
    for field, operation in (
        (B.SUMS_KERNEL, step.sums),
        (B.WRITE_KERNEL, None if step.along else step.write),
        (B.PARAMETER_KERNEL, step.along),
    ):
        if operation:
            by_field[field] = kernel(layout.pattern, operation, layout.dtype.code)
    if (step.before | step.after) & B.DO_COEFFICIENTS:
        by_field[B.COEFFICIENTS] = arithmetic(schedule.coefficients)
    return by_field


def needed(schedule: Schedule) -> list[str]:
    """All units that a schedule may need, whichever threads it runs on."""
    units = [DRIVER, *of_schedule(schedule).values()]
    for step in schedule.steps:
        units += of_step(schedule, step).values()
    if any(step.fields()[B.THREADS] for step in schedule.steps):
        units += [OPENMP, BEGIN, TAKE]
    return units
