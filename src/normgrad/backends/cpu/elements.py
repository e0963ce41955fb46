"""What is written for each element: the one formula in which apply, scale and normalise differ.

The loops of :mod:`.rows`, :mod:`.columns` and :mod:`.tiles` are the same for all of them. Which one
a kernel is compiled for is the operation of its pattern (see patterns.py).
"""

from __future__ import annotations

from typing import Any

from numba.core.extending import overload

from .intrinsics import HELPER
from .lanes import load_part

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


def written(pattern: Any, dy: Any, x: Any, i: Any, j: Any, terms: Any, part: Any) -> Any:
    """dx or y of a part of a row, from i on in dy and from j in x.

    The terms are lanes: mean, gain, offset, slope and scale. dx = scale · (gain·dy − (offset +
    slope·(x − mean))); in evaluation dx = scale · dy; y = scale · (x − mean) + offset.
    """
    raise NotImplementedError


@overload(written, jit_options=HELPER)
def _written(pattern, dy, x, i, j, terms, part):
    if pattern.operation == "scale":
        return lambda pattern, dy, x, i, j, terms, part: terms[4] * load_part(dy, i, part)
    if pattern.operation == "normalise":

        def normalised(pattern, dy, x, i, j, terms, part):
            return terms[4] * (load_part(x, j, part) - terms[0]) + terms[2]

        return normalised

    def applied(pattern, dy, x, i, j, terms, part):
        inner = terms[2] + terms[3] * (load_part(x, j, part) - terms[0])
        return terms[4] * (terms[1] * load_part(dy, i, part) - inner)

    return applied


def reads_dy(pattern: Any) -> Any:
    """Whether what is written depends on dy."""
    raise NotImplementedError


@overload(reads_dy, jit_options=HELPER)
def _reads_dy(pattern):
    found = pattern.operation != "normalise"
    return lambda pattern: found


def reads_x(pattern: Any) -> Any:
    """Whether what is written depends on x."""
    raise NotImplementedError


@overload(reads_x, jit_options=HELPER)
def _reads_x(pattern):
    found = pattern.operation != "scale"
    return lambda pattern: found
