"""Running tasks on PyTorch's own OpenMP threads.

PyTorch brings an OpenMP runtime of its own. After a parallel region its threads spin while they
wait for work, on the cores that other threads need. So where PyTorch is loaded with GNU's runtime,
tasks run on PyTorch's threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from ...stacks import ROOM

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

#: The OpenMP functions that the driver calls, in the order of its table.
_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")

#: The variables that set the stacks of OpenMP's threads, with the unit of a number without one.
_STACK_SIZES = {"OMP_STACKSIZE": "k", "GOMP_STACKSIZE": "k", "KMP_STACKSIZE": "b"}


def have_room() -> bool:
    """Whether the stacks of OpenMP's threads have room for kernels.

    The runtime reads the variables once. Without them stacks are as large as that of the main
    thread may become.
    """
    sizes = []
    for name, unit in _STACK_SIZES.items():
        parts = re.fullmatch(r"\s*(\d+)\s*([bkmg]?)\s*", os.environ.get(name, "").lower())
        if parts:
            sizes.append(int(parts[1]) << 10 * "bkmg".index(parts[2] or unit))
    if not sizes and resource is not None:
        size = resource.getrlimit(resource.RLIMIT_STACK)[0]
        sizes = [] if size == resource.RLIM_INFINITY else [size]
    return min(sizes, default=2 * ROOM) >= 2 * ROOM


def of_torch() -> tuple[int, ...] | None:
    """The addresses of PyTorch's OpenMP functions; None if they cannot be shared."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):  # not, or not yet, imported
        return None
    return _functions(torch)


@cache
def _functions(torch: ModuleType) -> tuple[int, ...] | None:
    if sys.platform != "linux" or torch.__file__ is None or not have_room():
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
