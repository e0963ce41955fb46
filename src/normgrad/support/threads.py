"""The number of threads that a call may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .machine import this_machine
from .settings import SettingError
from .values import integer

#: The environment variable with the number of threads, for processes without PyTorch.
VARIABLE = "NORMGRAD_NUM_THREADS"

_count: int | None = None
#: The functions that are called with the number chosen, or 0 for none.
_listeners: list[Callable[[int], object]] = []


def subscribe(listener: Callable[[int], object]) -> None:
    """Have a function called with the number chosen, or 0, now and at every change."""
    _listeners.append(listener)
    listener(_count or 0)


def set_num_threads(count: int | None) -> None:
    """Set the number of threads that each call may use, in this process.

    Results are bitwise the same for any number.

    Args:
        count: at least 1; or None for the default: PyTorch's number if PyTorch is imported
            (:func:`torch.set_num_threads`), else the environment variable ``NORMGRAD_NUM_THREADS``,
            else the number of cores that the process may use.

    Raises:
        TypeError: not an integer.
        ValueError: less than 1.
    """
    global _count
    if count is not None:
        count = integer("count", count)
        if count < 1:
            raise ValueError(f"count: {count}; allowed: a positive integer")
    _count = count
    for listener in _listeners:
        listener(count or 0)


def get_num_threads() -> int:
    """The number of threads that the next call may use."""
    if _count is not None:
        return _count
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    return _from_environment() or this_machine().cores


def _from_environment() -> int | None:
    setting = os.environ.get(VARIABLE)
    if setting is None:
        return None
    count = int(setting) if setting.strip().isdecimal() else 0
    if count < 1:
        raise SettingError(f"{VARIABLE}: {setting!r}; allowed: a positive integer")
    return count
