"""Memory that cannot be written, found without writing to it."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import cache

import numpy as np
import numpy.typing as npt

#: madvise(2), Linux 5.14: make pages present for writing, as writing to them would, and leave what
#: is in them. It fails on a mapping that is read-only.
_MADV_POPULATE_WRITE = 23


@cache
def _madvise() -> ctypes._NamedFuncPointer | None:
    """The system call, or None where it does not tell writable memory from read-only."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        madvise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        view = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(view)
        del view
        if madvise(address, mmap.PAGESIZE, _MADV_POPULATE_WRITE) != 0:
            return None  # an older kernel
    return madvise


#: NumPy asks the system for huge pages from this size on, PyTorch does not. Writing a new tensor
#: of 205 MB for the first time took 22 ms in NumPy's memory and 44 ms in PyTorch's (Linux 6, huge
#: pages on request), so large results lie in NumPy's.
HUGE = 4 << 20


#: A cache line, and the widest vector.
LINE = 64


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """New memory that starts at a cache line."""
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def unwritable(first: int, end: int) -> str | None:
    """Why bytes cannot be written: their first or last page is mapped read-only. None if they can.

    PyTorch keeps no note of it: a tensor over a file mapped for reading looks like any other, and
    writing to it would end the process.
    """
    madvise = _madvise()
    if madvise is None or first == end:
        return None
    page = mmap.PAGESIZE
    start, last = first // page * page, (end - 1) // page * page
    if madvise(start, page, _MADV_POPULATE_WRITE) == 0 and (
        start == last or madvise(last, page, _MADV_POPULATE_WRITE) == 0
    ):
        return None
    reason = os.strerror(ctypes.get_errno())
    return f"read-only memory ({reason}); allowed: memory that can be written"
