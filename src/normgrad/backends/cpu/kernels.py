"""The sources of units: the function and type that each unit is compiled from, by its name.

This module imports Numba, and is imported only when something has to be compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.core.ccallback import CFunc

from ... import dtypes
from . import (
    along,
    arithmetic,
    coefficients,
    column_moments,
    columns,
    compiling,
    drive,
    enter,
    forward_along,
    moves,
    row_moments,
    rows,
    statistics,
    teams,
    units,
    walk,
)
from .access import ALONG
from .disk import cache_for
from .elements import Operation
from .intrinsics import INT_POINTER, POINTERS

#: The kernels' modules and functions, by operation. On rows, a suffix of the operation's name tells
#: that weights lie along the row.
_LOOPS = {
    "sums": "sums",
    "evaluate": "sums",
    "parameters": "parameters",
    "gradients": "gradients",
    "forward": "forward",
    "moments": "moments",
    "exact moments": "moments",
    "apply": "write",
    "scale": "write",
    "normalise": "write",
}
#: The modules of the operations that only rows have that are statistics groups.
_ALONG = {"parameters": along, "gradients": along, "forward": forward_along}
_PATTERNS = {"rows": rows, "columns": columns}
_MOMENTS = {"rows": row_moments, "columns": column_moments}
#: The codes of float32 and float64; and the dtype codes for which an operation has no kernel.
_WHOLE = dtypes.float32.code, dtypes.float64.code
_UNUSED = {"moments": _WHOLE, "gradients along": _WHOLE[1:], "forward along": _WHOLE[1:]}
#: All kernels, as pattern and operation.
_KERNELS = (
    *[("rows", name) for name in _LOOPS if name not in _ALONG],
    *[("rows", name + ALONG) for name in ("sums", "apply", "normalise")],
    *[("columns", name) for name in _LOOPS if name not in _ALONG],
    *[("rows", name + ALONG) for name in _ALONG],
)
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


def _kernel(pattern: str, operation: str, code: int) -> Source:
    name = operation.removesuffix(ALONG)
    modules = _MOMENTS if _LOOPS[name] == "moments" else _PATTERNS
    function = getattr(_ALONG.get(name, modules[pattern]), _LOOPS[name])
    signature = types.void(Operation(operation), *[POINTERS[code]] * 3, INT_POINTER)
    return Source(function.py_func, signature)


def _sources() -> dict[str, Source]:
    codes = [dtype.code for dtype in dtypes.FLOATS]
    singles, doubles = _WHOLE
    found = {
        units.DRIVER: Source(drive.drive, drive.SIGNATURE),
        units.ENTRY: Source(enter.function, enter.SIGNATURE),
        units.OPENMP: Source(drive.share, drive.SHARE_SIGNATURE),
        units.NUMBA: Source(drive.start_numba, drive.START_SIGNATURE),
        units.TASKS: Source(walk.run_tasks, walk.SIGNATURE),
        units.TASKS_IN_TILES: Source(walk.in_tiles, walk.TILES_SIGNATURE),
    }
    for name, source in _ARITHMETIC.items():
        found[units.arithmetic(name)] = Source(*source)
    for pattern, operation in _KERNELS:
        for code in codes:
            if code not in _UNUSED.get(operation, ()):
                found[units.kernel(pattern, operation, code)] = _kernel(pattern, operation, code)
    for tile in codes:
        for code in codes:
            if tile in (code, singles, doubles):
                found[units.mover(code, tile)] = Source(
                    moves.mover, moves.mover_signature(code, tile)
                )
    return found


#: All units' sources, by name.
SOURCES = _sources()

#: Compiled functions, kept because their addresses are in use.
_compiled: dict[str, CFunc] = {}


def compiled(unit: str) -> CFunc:
    """A unit, compiled now or read from disk."""
    made = _compiled.get(unit)
    if made is None:
        made = compiling.compiled(*SOURCES[unit], parallel=unit == units.NUMBA)
        # Two threads may have compiled the unit; all use the address of one.
        made = _compiled.setdefault(unit, made)
    return made


def usable() -> list[str]:
    """The names of all units that can be used on this machine."""
    # Numba compiles nothing for threads where it has none.
    return [unit for unit in SOURCES if unit != units.NUMBA or teams.has_numbas()]


def cache_folder() -> str | None:
    """The folder of compiled kernels; None where they cannot be kept."""
    path: str | None = cache_for(drive.drive).cache_path
    return path
