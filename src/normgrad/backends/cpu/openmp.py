"""Running tasks on PyTorch's own OpenMP threads.

PyTorch brings an OpenMP runtime of its own, and Numba loads another. After a parallel region the
threads of one runtime spin while they wait for work, on the cores that the other's threads need. So
where PyTorch is loaded with GNU's runtime, tasks run on PyTorch's threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

#: The OpenMP functions that the driver calls, in the order of its table.
_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def of_torch() -> tuple[int, ...] | None:
    """The addresses of PyTorch's OpenMP functions; None if they cannot be shared."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):  # not, or not yet, imported
        return None
    return _functions(torch)


@cache
def _functions(torch: ModuleType) -> tuple[int, ...] | None:
    if sys.platform != "linux" or torch.__file__ is None:
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        with contextlib.suppress(OSError, AttributeError):
            # Only a runtime that is already loaded: another one has other threads.
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            addresses = [
                ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS
            ]
            return tuple(address or 0 for address in addresses)
    return None
