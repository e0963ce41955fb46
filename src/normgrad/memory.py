"""Memory that cannot be written, found without writing to it."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import cache

from .layout import Region

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


def check_writable(name: str, region: Region) -> None:
    """Raise a ValueError where the first or last page of a tensor is mapped read-only.

    PyTorch keeps no note of it: a tensor over a file mapped for reading looks like any other, and
    writing to it would end the process.
    """
    madvise = _madvise()
    first, end = region.bounds()
    if madvise is None or first == end:
        return
    page = mmap.PAGESIZE
    for start in {first // page * page, (end - 1) // page * page}:
        if madvise(start, page, _MADV_POPULATE_WRITE) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise ValueError(
                f"{name}: read-only memory ({reason}); allowed: memory that can be written"
            )
