"""PyTorch's own OpenMP threads, for our tasks.

PyTorch brings an OpenMP runtime of its own, and Numba loads another. The threads of one wait for
more by spinning after each of its parallel regions, on the cores that the other's are to run on. So
where PyTorch is loaded with GNU's runtime, our tasks run on its threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

#: What is called, in the order in which the driver's table has it.
_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def of_torch() -> tuple[int, ...] | None:
    """The addresses of its functions, or None where there are none to be shared."""
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
            # Only what is loaded already: another one would be of no use.
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            addresses = [
                ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS
            ]
            return tuple(address or 0 for address in addresses)
    return None
