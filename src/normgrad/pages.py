"""Asking the system whether memory can be read or written, since a fault would end the process.

A page that another thread unmaps or protects after the question is not noticed. On other systems
than Linux nothing is asked.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

#: madvise(2), Linux 5.14: make pages present, as reading or writing them would, and keep their
#: content. The call fails where the access would.
POPULATE_READ, POPULATE_WRITE = 22, 23

#: msync(2): do nothing, since Linux writes back by itself, but fail if a page is not mapped.
MS_ASYNC = 1

#: Outputs of at most so many pages are probed page by page in each call, in half a microsecond. A
#: page takes 30 ns, so all pages of 4 MiB would add 5 % to the time of batch norm's gradients.
FEW = 16

#: For PyTorch results from this size on we ask for huge pages, as NumPy does for its own. Batch
#: norm's gradients, written to new memory of 50 to 196 MiB, took 0.42 to 0.47 of the time.
HUGE = 4 << 20

#: The address from which on no process has memory.
_TOP = 1 << 63

#: Ranges from this size on are checked by mapping, smaller ones by page. In pages of 4 KiB, 64 KiB
#: took 1.2 µs by page, 1 MiB 8 and 64 MiB 500, which is 6 to 10 % of the time to copy them; each
#: took 2 µs by mapping.
_LARGE = 256 << 10

#: This process's mappings, in order.
_MAPS = "/proc/self/maps"

#: ioctl(2) on that file, Linux 6.11: query the mapping at an address, if it allows the access.
_PROCMAP_QUERY = 0xC0686611
_QUERY = struct.Struct("9Q4I2Q")
_READABLE, _WRITABLE, _SHARED = 1, 2, 8


@cache
def _library() -> ctypes.CDLL | None:
    """The C library, whose madvise and msync are declared; None on other systems than Linux."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    for call in (library.madvise, library.msync):
        call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


@cache
def probe_addresses() -> tuple[int, int]:
    """The addresses of madvise(2) and msync(2); 0 where pages cannot be populated."""
    library = _library()
    if library is None:
        return 0, 0
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        view = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(view)
        del view
        if library.madvise(address, mmap.PAGESIZE, POPULATE_WRITE) != 0:
            return 0, 0  # an older Linux
    madvise, msync = (
        ctypes.cast(call, ctypes.c_void_p).value or 0 for call in (library.madvise, library.msync)
    )
    return madvise, msync


def advise(first: int, end: int, advice: int) -> None:
    """Give madvise(2) an advice about the pages that lie wholly within a range."""
    library = _library()
    if library is not None:
        start, stop = -(-first // mmap.PAGESIZE), end // mmap.PAGESIZE
        library.madvise(start * mmap.PAGESIZE, (stop - start) * mmap.PAGESIZE, advice)


def prefer_huge(address: int, size: int) -> None:
    """Ask the system to back memory that was not yet written with huge pages."""
    if _library() is not None:  # elsewhere there is no such advice
        advise(address, address + size, mmap.MADV_HUGEPAGE)


def unreadable(first: int, end: int) -> str | None:
    """Why bytes cannot be read; None if they can."""
    at = fault(first, end, writing=False)
    return None if at is None else f"no memory at {at:#x}; allowed: memory"


def unwritable(first: int, end: int) -> str | None:
    """Why bytes cannot be written; None if they can.

    PyTorch does not record it: a tensor over a file mapped for reading looks like any other, and
    writing to it would end the process.
    """
    at = fault(first, end, writing=True)
    if at is None:
        return None
    if fault(at, at + 1, writing=False) is not None:
        return f"no memory at {at:#x}; allowed: memory"
    return f"read-only memory at {at:#x}; allowed: memory that can be written"


def fault(first: int, end: int, writing: bool) -> int | None:
    """The first address of a range that cannot be read, or written; None if all can."""
    if first >= end or _library() is None:
        return None
    if first >= _TOP:
        return first
    end = min(end, _TOP)
    if end - first >= _LARGE:
        with suppress(OSError):  # an older Linux
            return _fault_by_mapping(first, end, writing)
    return _fault_by_page(first, end, writing)


def _fault_by_mapping(first: int, end: int, writing: bool) -> int | None:
    """As ``fault``, one mapping at a time.

    Private memory that is not a file's is usable if it is mapped. A file's pages are checked one by
    one, since the file may be shorter than its mapping.
    """
    wanted = _WRITABLE if writing else _READABLE
    maps = os.open(_MAPS, os.O_RDONLY)
    try:
        while first < end:
            query = bytearray(_QUERY.size)
            _QUERY.pack_into(query, 0, _QUERY.size, wanted, first, *[0] * 12)
            try:
                fcntl.ioctl(maps, _PROCMAP_QUERY, query)
            except FileNotFoundError:  # no mapping, or one that does not allow the access
                return first
            _, _, _, _, high, flags, _, _, inode, *_ = _QUERY.unpack(query)
            high = min(high, end)
            if inode or flags & _SHARED:
                found = _fault_by_page(first, high, writing)
                if found is not None:
                    return found
            first = high
    finally:
        os.close(maps)
    return None


def _fault_by_page(first: int, end: int, writing: bool) -> int | None:
    """As ``fault``, by making every page present."""
    advice = POPULATE_WRITE if writing else POPULATE_READ
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    library = _library()
    if library is None or library.madvise(start, end - start, advice) == 0:
        return None
    if ctypes.get_errno() == errno.EINVAL:
        return _fault_in_listing(first, end, writing)
    for page in range(start, end, mmap.PAGESIZE):
        if library.madvise(page, mmap.PAGESIZE, advice) != 0:
            return max(first, page)
    return None


def _fault_in_listing(first: int, end: int, writing: bool) -> int | None:
    """As ``fault``, by the list of mappings, for pages that madvise(2) cannot make present.

    They are those of some special mappings, those of a mapped device, and all before Linux 5.14.
    """
    wanted = b"w" if writing else b"r"
    try:
        maps = Path(_MAPS).read_bytes()
    except OSError:
        return None  # nothing is known
    for line in maps.split(b"\n")[:-1]:
        span, allowed = line.split(maxsplit=2)[:2]
        low, high = (int(word, 16) for word in span.split(b"-"))
        if high <= first:
            continue
        if low > first or wanted not in allowed:
            break
        first = high
        if first >= end:
            return None
    return first
