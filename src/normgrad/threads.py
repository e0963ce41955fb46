"""The number of threads that a call may use."""

from __future__ import annotations

import os
import sys
from functools import cache

from . import options
from .machine import this_machine
from .settings import SettingError

#: The environment variable with the number of threads, for processes without PyTorch.
VARIABLE = "NORMGRAD_NUM_THREADS"

_chosen: int | None = None


def set_num_threads(count: int | None) -> None:
    """Set the number of threads that each call may use, in this process.

    Results are bitwise the same for any number. No call uses more threads than Numba has, which is
    the number of cores unless ``NUMBA_NUM_THREADS`` says otherwise when Numba is imported.

    Args:
        count: at least 1; or None for the default: PyTorch's number if PyTorch is imported
            (:func:`torch.set_num_threads`), else the environment variable ``NORMGRAD_NUM_THREADS``,
            else Numba's number (:func:`numba.set_num_threads`).

    Raises:
        TypeError: not an integer.
        ValueError: less than 1.
    """
    global _chosen
    if count is not None:
        count = options.integer("count", count)
        if count < 1:
            raise ValueError(f"count: {count}; allowed: a positive integer")
    _chosen = count


def get_num_threads() -> int:
    """The number of threads that the next call may use."""
    wanted = wanted_threads()
    if wanted is None:
        numbas = getattr(sys.modules.get("numba"), "get_num_threads", None)
        if numbas is not None:
            try:
                return int(numbas())
            except ValueError:  # no threading layer of Numba is available
                return 1
        wanted = this_machine().cores
    return min(wanted, most_threads())


def wanted_threads() -> int | None:
    """The number that the caller, PyTorch or the environment has set; None if none of them has."""
    if _chosen is not None:
        return _chosen
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    return _from_environment()


def _from_environment() -> int | None:
    setting = os.environ.get(VARIABLE)
    if setting is None:
        return None
    if not setting.strip().isdecimal():
        raise SettingError(f"{VARIABLE}: {setting!r}; allowed: a positive integer")
    count = int(setting)
    if count < 1:
        raise SettingError(f"{VARIABLE}: {count}; allowed: a positive integer")
    return count


def most_threads() -> int:
    """The number of threads that Numba has, or will have when it is imported."""
    # The attribute may be missing, since another thread may be importing Numba.
    found = getattr(sys.modules.get("numba.core.config"), "NUMBA_NUM_THREADS", None)
    return _most_from_environment() if found is None else int(found)


@cache
def _most_from_environment() -> int:
    setting = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() else this_machine().cores
