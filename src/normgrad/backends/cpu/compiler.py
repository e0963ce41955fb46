"""The sources of units, by name, and their compilation to object files.

This module imports Numba, and is imported only when something has to be compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import binding as llvm
from numba import types
from numba.core.ccallback import CFunc

from . import (
    along,
    arithmetic,
    coefficients,
    column_moments,
    columns,
    drive,
    forward_along,
    moves,
    row_moments,
    row_writes,
    rows,
    statistics,
    target,
    units,
    walk,
)
from .elements import Operation
from .helpers import OPTIONS, UNIT_COMPILER
from .intrinsics import INT_POINTER, POINTERS
from .layout import ALONG
from .steps import EXACT

#: The kernels' functions, by access pattern and operation.
_KERNELS = {
    "rows": {
        **dict.fromkeys(("sums", "evaluate", "sums" + ALONG), rows.sums),
        **dict.fromkeys(("moments", EXACT), row_moments.moments),
        **dict.fromkeys(("apply", "scale", "normalise"), row_writes.write),
        **dict.fromkeys(("apply" + ALONG, "normalise" + ALONG), row_writes.write),
        "parameters" + ALONG: along.parameters,
        "gradients" + ALONG: along.gradients,
        "forward" + ALONG: forward_along.forward,
    },
    "columns": {
        **dict.fromkeys(("sums", "evaluate"), columns.sums),
        **dict.fromkeys(("moments", EXACT), column_moments.moments),
        **dict.fromkeys(("apply", "scale", "normalise"), columns.write),
    },
}
#: The units of per-channel arithmetic, by a program's name for it; each is compiled separately.
_ARITHMETIC = {
    "channels": (arithmetic.arithmetic, arithmetic.SIGNATURE),
    "count": (coefficients.count, arithmetic.SIGNATURE),
    "weights": (coefficients.weights, arithmetic.SIGNATURE),
    "gather": (statistics.gather, arithmetic.SIGNATURE),
    "batch": (coefficients.batch, arithmetic.COEFFICIENTS),
    "groups": (coefficients.groups, arithmetic.COEFFICIENTS),
    "constant": (coefficients.constant, arithmetic.COEFFICIENTS),
}


class Source(NamedTuple):
    """The function and type that a unit is compiled from."""

    function: Any
    signature: Any


def _sources() -> dict[str, Source]:
    found = {
        units.DRIVER: Source(drive.drive, drive.SIGNATURE),
        units.OPENMP: Source(drive.share, drive.SHARE_SIGNATURE),
        units.START: Source(drive.start, drive.START_SIGNATURE),
        units.SERVE: Source(drive.serve, drive.SERVE_SIGNATURE),
        units.TASKS: Source(walk.run_tasks, walk.SIGNATURE),
        units.TASKS_IN_TILES: Source(walk.in_tiles, walk.TILES_SIGNATURE),
    }
    for name, source in _ARITHMETIC.items():
        found[units.arithmetic(name)] = Source(*source)
    for pattern, operation, code in units.kernels():
        kind = types.void(Operation(operation, pattern), *[POINTERS[code]] * 3, INT_POINTER)
        function = _KERNELS[pattern][operation].py_func
        found[units.kernel(pattern, operation, code)] = Source(function, kind)
    for code, tile in units.movers():
        found[units.mover(code, tile)] = Source(moves.mover, moves.mover_signature(code, tile))
    return found


#: All units' sources, by name.
SOURCES = _sources()

#: Numba's functions for Python's errors. Units refer to them, but never call them.
_NEVER_CALLED = (
    *("NRT_Free", "numba_do_raise", "numba_gil_ensure", "numba_gil_release", "numba_unpickle"),
    "numba_runtime_build_excinfo_struct",
)
_TRAP = """
define void @{}() noinline {{
  call void @llvm.trap()
  unreachable
}}
"""


def object_of(unit: str) -> bytes:
    """A unit's object file, compiled now; it can be loaded without Numba."""
    module = module_of(unit)
    return bytes(machine_for(module).emit_object(module))


def module_of(unit: str) -> Any:
    """LLVM's module of a unit, optimised, in which nothing but the unit has a symbol."""
    function, signature = SOURCES[unit]
    made = CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options=OPTIONS,
        pipeline_class=UNIT_COMPILER,
    )
    made.compile()
    module = llvm.parse_assembly(made.inspect_llvm())
    traps = "".join(_TRAP.format(name) for name in _NEVER_CALLED if name in _names(module))
    about = f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n'
    module.link_in(llvm.parse_assembly(about + traps + "declare void @llvm.trap()\n"))
    for value in (*module.functions, *module.global_variables):
        if value.name == made.native_name:
            value.name = units.symbol(unit)
        elif not value.is_declaration:
            value.linkage = "internal"
    return module


def machine_for(module: Any) -> Any:
    """LLVM's description of the processor, for emitting a module."""
    name, features = target.processor()
    return llvm.Target.from_triple(module.triple).create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="small"
    )


def _names(module: Any) -> set[str]:
    return {value.name for value in (*module.functions, *module.global_variables)}
