"""The sources of units, by name, and their compilation to object files.

This module imports Numba, and is imported only when something has to be compiled.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

from llvmlite import binding as llvm
from numba import types
from numba.core.ccallback import CFunc

from .. import kernels, target
from ..kernels.elements import Operation
from ..vector import tiles
from ..vector.helpers import OPTIONS, UNIT_COMPILER
from ..vector.intrinsics import INT_POINTER, POINTERS
from . import units

if target.processor().triple != llvm.get_process_triple():
    # Numba compiles for the machine that LLVM says this process runs on.
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: target.processor().triple

#: The parameters of units that are pointers to integers; the others are integers.
_POINTERS = ("block", "step", "job")


@cache
def sources() -> dict[str, tuple[Any, Any]]:
    """All units' functions and signatures, by name."""
    by_unit = {}
    for unit, place in units.FUNCTIONS.items():
        function = _at(place)
        names = inspect.signature(function).parameters
        kinds = [INT_POINTER if name in _POINTERS else types.int64 for name in names]
        by_unit[unit] = function, types.void(*kinds)
    for unit, (pattern, operation, code) in units.KERNELS.items():
        function = _at(units.LOOPS[pattern][operation]).py_func
        kind = types.void(Operation(operation, pattern), *[POINTERS[code]] * 3, INT_POINTER)
        by_unit[unit] = function, kind
    for unit, (code, tile) in units.MOVERS.items():
        kind = types.void(POINTERS[code], POINTERS[tile], *[types.int64] * 6)
        by_unit[unit] = tiles.mover, kind
    return by_unit


def _at(place: str) -> Any:
    """What is at a place among the kernels, such as ``reductions.reduce_rows``."""
    module, name = place.split(".")
    return getattr(import_module(f"{kernels.__name__}.{module}"), name)


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
    return bytes(machine().emit_object(module_of(unit)))


def module_of(unit: str) -> Any:
    """LLVM's module of a unit, optimised, in which nothing but the unit has a symbol."""
    function, signature = sources()[unit]
    compiled = CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options=OPTIONS,
        pipeline_class=UNIT_COMPILER,
    )
    compiled.compile()
    module = llvm.parse_assembly(compiled.inspect_llvm())
    traps = "".join(_TRAP.format(name) for name in _NEVER_CALLED if name in _names(module))
    about = f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n'
    module.link_in(llvm.parse_assembly(about + traps + "declare void @llvm.trap()\n"))
    for value in (*module.functions, *module.global_variables):
        if value.name == compiled.native_name:
            value.name = units.symbol(unit)
        elif not value.is_declaration:
            value.linkage = "internal"
    return module


def _names(module: Any) -> set[str]:
    return {value.name for value in (*module.functions, *module.global_variables)}


def machine() -> Any:
    """LLVM's description of the processor, for emitting units."""
    return target.machine(opt=3, reloc="pic", codemodel="small")
