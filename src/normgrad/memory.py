"""Memory for results, arrays over memory at an address, and memory that cannot be used."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

#: madvise(2), Linux 5.14: make pages present for writing, as writing to them would, and leave what
#: is in them. It fails on a mapping that is read-only.
POPULATE_WRITE = 23

#: The same for reading. It fails on what is not mapped, or not for reading.
POPULATE_READ = 22


#: msync(2): do nothing, since Linux writes back by itself, but fail where anything is not mapped.
MS_ASYNC = 1

#: A range of at most so many pages is probed page by page, in half a microsecond. A page takes
#: 30 ns, so that all pages of 4 MiB would add 5 % to what batch norm's gradients of it take.
FEW_PAGES = 16


class _Probes(NamedTuple):
    """The system calls that tell what memory is there: void(address, size, flag), 0 for success."""

    madvise: ctypes._NamedFuncPointer
    msync: ctypes._NamedFuncPointer


@cache
def _probes() -> _Probes | None:
    """The system calls, or None where they do not tell writable memory from read-only."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        probes = _Probes(library.madvise, library.msync)
    except (OSError, AttributeError):
        return None
    for probe in probes:
        probe.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        view = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(view)
        del view
        if probes.madvise(address, mmap.PAGESIZE, POPULATE_WRITE) != 0:
            return None  # an older kernel
    return probes


#: A cache line, and the widest vector.
LINE = 64

#: NumPy results from this size on start at a cache line, as PyTorch's all do: NumPy's own memory
#: starts 16 bytes after one, and batch norm's gradients took 1.05 to 1.11 times as long there.
ALIGNED = 256 << 10

#: PyTorch results from this size on are asked to lie in huge pages, as NumPy's are. Writing to new
#: memory of 50 to 196 MiB, batch norm's gradients took 0.43 to 0.47 of the time.
HUGE = 4 << 20


def missing(what: str, size: int) -> MemoryError:
    """The error for memory that the system does not give."""
    return MemoryError(f"{what}: no memory for {size} bytes; allowed: what the system has left")


def lacking(room: int, needed: int) -> str:
    """Why memory of so many bytes does not hold a tensor that reaches over others."""
    return (
        f"a storage of {max(room, 0)} bytes from the first element on; allowed: at least {needed}, "
        "for its shape and strides"
    )


def need(what: str, size: int) -> None:
    """Find out beforehand whether there is memory for what would end the process without it.

    Raises:
        MemoryError: there is not.
    """
    try:
        np.empty(size, np.uint8)
    except MemoryError:
        raise missing(what, size) from None


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """New memory that starts at a cache line."""
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def prefer_huge_pages(address: int, size: int) -> None:
    """Ask the system to back memory that nobody has written yet with huge pages."""
    probes = _probes()
    if probes is None:
        return
    # From one page to another: what shares a page with others is theirs.
    first, end = -(-address // mmap.PAGESIZE), (address + size) // mmap.PAGESIZE
    probes.madvise(first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)


class _Owned:
    """What an array over memory holds as its base; it keeps the owner alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def array_at(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: Any,
    writeable: bool = True,
) -> npt.NDArray[Any]:
    """An array over memory that ``owner`` keeps; strides in elements."""
    # Through integers of the same size: bfloat16 has no type string of its own.
    plain = np.dtype(f"u{dtype.itemsize}") if dtype.itemsize <= 8 else dtype
    interface = {
        "version": 3,
        "typestr": plain.str,
        "shape": shape,
        "strides": tuple(step * dtype.itemsize for step in strides),
        "data": (address, not writeable),
    }
    return np.asarray(_Owned(interface, owner)).view(dtype)


def probe_addresses() -> tuple[int, int]:
    """Where madvise(2) and msync(2) are, for compiled code; 0 where they tell too little."""
    probes = _probes()
    if probes is None:
        return 0, 0
    madvise, msync = (ctypes.cast(probe, ctypes.c_void_p).value or 0 for probe in probes)
    return madvise, msync


def unreadable(first: int, end: int) -> str | None:
    """Why bytes cannot be read, as far as :func:`_probe` sees; None if they can."""
    failed = _probe(first, end, POPULATE_READ)
    return _absent(first, failed) if failed else None


def unwritable(first: int, end: int) -> str | None:
    """Why bytes cannot be written, as far as :func:`_probe` sees; None if they can.

    PyTorch keeps no note of it: a tensor over a file mapped for reading looks like any other, and
    writing to it would end the process.
    """
    failed = _probe(first, end, POPULATE_WRITE)
    if failed in (0, errno.ENOMEM):
        return _absent(first, failed) if failed else None
    return f"read-only memory ({os.strerror(failed)}); allowed: memory that can be written"


def _absent(first: int, failed: int) -> str:
    return f"no memory at {first:#x} ({os.strerror(failed)}); allowed: memory"


def _probe(first: int, end: int, advice: int) -> int:
    """Make the pages of a range present; 0, or the error of one that cannot be.

    Of a range of more than ``FEW_PAGES`` the first and the last page are made present, and those
    between are asked to be mapped: what is protected among them is not seen.
    """
    probes = _probes()
    if probes is None or first == end:
        return 0
    page = mmap.PAGESIZE
    start, last = first // page * page, (end - 1) // page * page
    size = last + page - start
    if size <= FEW_PAGES * page:
        failed = probes.madvise(start, size, advice)
    else:
        failed = (
            probes.madvise(start, page, advice)
            or probes.madvise(last, page, advice)
            or probes.msync(start, size, MS_ASYNC)
        )
    return ctypes.get_errno() if failed else 0
