"""What is done with a segment, by access pattern: sums, moments and dx.

A *segment* is a run of positions with a constant step, over some channels; offsets are where it
starts in each tensor. :mod:`.rows`, :mod:`.columns` and :mod:`.tiles` each treat it in their own
way, and a kernel is compiled for one of them.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core.extending import models, overload, register_model

from . import columns, rows, tiles

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

_MODULES = {"rows": rows, "columns": columns, "tiles": tiles}


class Pattern(types.Type):  # type: ignore[misc]
    """An access pattern, as a type."""


@register_model(Pattern)
class _PatternModel(models.OpaqueModel):  # type: ignore[misc]
    pass


PATTERNS = {name: Pattern(name) for name in _MODULES}


def segment_sums(
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
    """Add a segment's Σdy and Σdy·(x − mean) to each channel's sums."""
    raise NotImplementedError


@overload(segment_sums)
def _segment_sums(pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums):
    by_pattern = _MODULES[pattern.name].segment_sums
    return lambda pattern, dy, x, dy_at, x_at, block, channels, count, mean, sums: by_pattern(
        dy, x, dy_at, x_at, block, channels, count, mean, sums
    )


def segment_moments(
    pattern: Any,
    dy: Any,
    x: Any,
    x_at: Any,
    block: Any,
    channels: Any,
    count: Any,
    mean: Any,
    sums: Any,
) -> None:
    """Add a segment's Σ(x − mean) and Σ(x − mean)² to each channel's sums."""
    raise NotImplementedError


@overload(segment_moments)
def _segment_moments(pattern, dy, x, x_at, block, channels, count, mean, sums):
    by_pattern = _MODULES[pattern.name].segment_moments
    return lambda pattern, dy, x, x_at, block, channels, count, mean, sums: by_pattern(
        dy, x, x_at, block, channels, count, mean, sums
    )


def segment_apply(
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
    """Write a segment of dx = scale · (gain·dy − (shift + slope·(x − mean)))."""
    raise NotImplementedError


@overload(segment_apply)
def _segment_apply(
    pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients
):
    by_pattern = _MODULES[pattern.name].segment_apply
    return (
        lambda pattern, dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients: (
            by_pattern(dy, x, dx, dy_at, x_at, dx_at, block, channels, count, mean, coefficients)
        )
    )


def segment_scale(
    pattern: Any,
    dy: Any,
    x: Any,
    dx: Any,
    dy_at: Any,
    dx_at: Any,
    block: Any,
    channels: Any,
    count: Any,
    scale: Any,
) -> None:
    """Write a segment of dx = scale · dy."""
    raise NotImplementedError


@overload(segment_scale)
def _segment_scale(pattern, dy, x, dx, dy_at, dx_at, block, channels, count, scale):
    by_pattern = _MODULES[pattern.name].segment_scale
    return lambda pattern, dy, x, dx, dy_at, dx_at, block, channels, count, scale: by_pattern(
        dy, x, dx, dy_at, dx_at, block, channels, count, scale
    )
