"""What is done with a segment, by access pattern: sums, moments, dx and y.

A *segment* is a run of positions with a constant step, over some channels; offsets are where it
starts in each tensor. :mod:`.rows`, :mod:`.columns` and :mod:`.tiles` each treat it in their own
way, and a kernel is compiled for one of them.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core.extending import models, overload, register_model

from . import columns, rows, tiles
from .intrinsics import HELPER

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

_MODULES = {"rows": rows, "columns": columns, "tiles": tiles}

#: What a kernel does with a tile: add to its sums, or write dx (or y).
SUMMING, WRITING = ("sums", "moments"), ("apply", "scale", "normalise")


class Pattern(types.Type):  # type: ignore[misc]
    """An access pattern and an operation, as a type."""

    def __init__(self, name: str, operation: str) -> None:
        super().__init__(f"{operation} of {name}")
        self.operation = operation
        loop = operation if operation in SUMMING else "write"
        self.segment = getattr(_MODULES[name], f"segment_{loop}")


@register_model(Pattern)
class _PatternModel(models.OpaqueModel):  # type: ignore[misc]
    pass


PATTERNS = {
    (name, operation): Pattern(name, operation)
    for name in _MODULES
    for operation in (*SUMMING, *WRITING)
}


def add_segment(
    pattern: Any,
    dy: Any,
    x: Any,
    dy_at: Any,
    x_at: Any,
    block: Any,
    channels: Any,
    count: Any,
    mean: Any,
    sums: Any,
) -> None:
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums; or its moments."""
    raise NotImplementedError


# The functions themselves, not others that call them: each takes a quarter of a second to compile.
@overload(add_segment, jit_options=HELPER)
def _add_segment(pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums):
    return pattern.segment


def write_segment(
    pattern: Any,
    dy: Any,
    x: Any,
    dx: Any,
    dy_at: Any,
    x_at: Any,
    dx_at: Any,
    block: Any,
    channels: Any,
    count: Any,
    mean: Any,
    coefficients: Any,
) -> None:
    """Write a segment of dx or y, as elements.py says."""
    raise NotImplementedError


@overload(write_segment, jit_options=HELPER)
def _write_segment(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients
):
    return pattern.segment
