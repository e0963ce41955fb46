"""The arguments of operators that are not tensors, and the checks of their values.

The error of each check names the argument, its value and what is allowed.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ..support.values import integer, represent


class Options(NamedTuple):
    """The arguments that are not tensors, for all operators; each operator uses some of them."""

    training: bool = True
    eps: float | None = 0.0
    momentum: float = 0.0
    mask: tuple[bool, ...] = ()
    channel_axis: int = 1
    num_groups: int = 1
    normalized_shape: tuple[int, ...] = ()


def flag(name: str, value: Any) -> bool:
    """Check a boolean argument."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(f"{name}: {represent(value)}; allowed: True or False")


def mask(name: str, value: Any, outputs: Sequence[str]) -> tuple[bool, ...]:
    """Check the mask of outputs to compute."""
    entries = None
    with suppress(Exception):  # a scalar, or an array without axes, may raise any type of exception
        entries = None if isinstance(value, (str, bytes)) else tuple(value)
    if entries is None:
        raise TypeError(f"{name}: {represent(value)}; allowed: {len(outputs)} booleans")
    if len(entries) != len(outputs):
        raise ValueError(
            f"{name}: {len(entries)} entries; allowed: {len(outputs)}, for {', '.join(outputs)}"
        )
    return tuple(flag(f"{name}[{index}]", entry) for index, entry in enumerate(entries))


def real(name: str, value: Any) -> float:
    """Check a real argument."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name}: {represent(value)}; allowed: a real number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name}: too large; allowed: a number that float64 can hold") from None
    # All NaNs become the same object, since the cache of options compares NaNs by identity.
    return number if number == number else math.nan


def addend(name: str, value: Any) -> float:
    """Check the number that is added to a variance."""
    number = real(name, value)
    if not number >= 0:
        raise ValueError(f"{name}: {represent(value)}; allowed: 0 or more")
    return number


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """Check the sizes of some axes: one integer, or several."""
    if isinstance(value, (tuple, list)):
        if value:
            return tuple(integer(f"{name}[{i}]", size) for i, size in enumerate(value))
        raise ValueError(f"{name}: {value}; allowed: an integer, or a tuple of one or more")
    with suppress(TypeError):
        return (integer(name, value),)
    raise TypeError(f"{name}: {represent(value)}; allowed: an integer, or a tuple of one or more")


#: The check of each operator's arguments that are not tensors, which also converts their values.
#: Arguments without a field in ``Options`` are entries of the mask.
OPTIONS: dict[str, Callable[..., Any]] = {
    "training": flag,
    "eps": addend,
    "momentum": real,
    "channel_axis": integer,
    "num_groups": integer,
    "normalized_shape": sizes,
    "output_mask": mask,
    "input_g": flag,
    "weight_g": flag,
    "bias_g": flag,
}
