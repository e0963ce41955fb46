"""The sources of units, by name, and their compilation to C functions, with a cache on disk.

This module imports Numba, and is imported only when something has to be compiled.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any, NamedTuple

from numba import types
from numba.core.ccallback import CFunc
from numba.core.compiler import Compiler
from numba.core.errors import NumbaPerformanceWarning

from ... import dtypes
from ...loading import compiling
from . import (
    along,
    arithmetic,
    coefficients,
    column_moments,
    columns,
    drive,
    enter,
    forward_along,
    launch,
    moves,
    row_moments,
    row_writes,
    rows,
    statistics,
    teams,
    units,
    walk,
)
from .access import ALONG
from .disk import KernelCache, cache_for, warn
from .elements import Operation
from .intrinsics import INT_POINTER, POINTERS
from .pipeline import OPTIONS, UnitCompiler
from .steps import EXACT

_SINGLE, _DOUBLE = dtypes.float32.code, dtypes.float64.code
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
#: The codes of the dtypes for which an operation has no kernel.
_UNUSED = {
    "moments": (_SINGLE, _DOUBLE),
    "gradients" + ALONG: (_DOUBLE,),
    "forward" + ALONG: (_DOUBLE,),
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
    codes = [dtype.code for dtype in dtypes.FLOATS]
    found = {
        units.DRIVER: Source(drive.drive, drive.SIGNATURE),
        units.ENTRY: Source(enter.function, enter.SIGNATURE),
        units.LAUNCH: Source(launch.run, launch.SIGNATURE),
        units.OPENMP: Source(drive.share, drive.SHARE_SIGNATURE),
        units.NUMBA: Source(drive.start_numba, drive.START_SIGNATURE),
        units.TASKS: Source(walk.run_tasks, walk.SIGNATURE),
        units.TASKS_IN_TILES: Source(walk.in_tiles, walk.TILES_SIGNATURE),
    }
    for name, source in _ARITHMETIC.items():
        found[units.arithmetic(name)] = Source(*source)
    for pattern, functions in _KERNELS.items():
        for (operation, function), code in itertools.product(functions.items(), codes):
            if code not in _UNUSED.get(operation, ()):
                kind = types.void(Operation(operation, pattern), *[POINTERS[code]] * 3, INT_POINTER)
                unit = units.kernel(pattern, operation, code)
                found[unit] = Source(function.py_func, kind)
    for tile, code in itertools.product(codes, codes):
        if tile in (code, _SINGLE, _DOUBLE):
            kind = moves.mover_signature(code, tile)
            found[units.mover(code, tile)] = Source(moves.mover, kind)
    return found


#: All units' sources, by name.
SOURCES = _sources()

#: Compiled functions, kept because their addresses are in use.
_compiled: dict[str, CFunc] = {}


def c_function(unit: str) -> CFunc:
    """A unit's C function, which is not compiled yet."""
    function, signature = SOURCES[unit]
    # A parallel loop takes all of Numba's own passes.
    parallel = unit == units.NUMBA
    return CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options={**OPTIONS, "parallel": parallel},
        pipeline_class=Compiler if parallel else UnitCompiler,
    )


def compiled_anew(unit: str) -> CFunc:
    """A unit, compiled now or read from disk."""
    made = c_function(unit)
    made._cache = cache_for(SOURCES[unit].function)
    if made._cache.cache_path is None:
        warn("no folder can be written")
    with compiling(), warnings.catch_warnings():
        # Numba warns of functions without a parallel loop that a parallel function calls.
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        made.compile()
    return made


def compiled(unit: str) -> CFunc:
    """A unit, compiled or read from disk when this process first asks for it."""
    # If two threads compile a unit at once, both use the address of one.
    return _compiled.get(unit) or _compiled.setdefault(unit, compiled_anew(unit))


def is_kept(unit: str) -> bool:
    """Whether a unit is on disk."""
    made, cache = c_function(unit), cache_for(SOURCES[unit].function)
    where = made._sig, made._targetdescr.target_context
    return isinstance(cache, KernelCache) and cache.holds(*where)


def usable() -> list[str]:
    """The names of all units that can be used on this machine."""
    # Numba compiles nothing for threads where it has none.
    return [unit for unit in SOURCES if unit != units.NUMBA or teams.has_numbas()]


def cache_folder() -> str | None:
    """The folder of compiled kernels; None where they cannot be kept."""
    path: str | None = cache_for(drive.drive).cache_path
    return path
