"""Checks whether memory can be read or written, since a fault would end the process.

The checks ask the operating system, and pass everything on systems other than Linux. They do not
notice a page that another thread unmaps or protects afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

#: Advice to madvise(2), since Linux 5.14: make pages present, as reading or writing them would, and
#: keep their contents. The call fails if the access would.
POPULATE_READ, POPULATE_WRITE = 22, 23

#: PyTorch results of at least this size ask for huge pages, as NumPy's arrays do. With them, batch
#: norm's gradients in new memory of 50 to 196 MiB took 0.42 to 0.47 of the time.
HUGE = 4 << 20

#: The address from which on no process has memory.
_TOP = 1 << 63

#: Ranges of at least this size are checked by mapping first, smaller ones by page alone. With pages
#: of 4 KiB, checking 64 KiB by page took 1.2 µs, 1 MiB 8 µs and 64 MiB 500 µs, which is 6 to 10 %
#: of the time to copy them; each took 2 µs by mapping.
_LARGE = 256 << 10

#: The file that lists this process's mappings in ascending order.
_MAPS = "/proc/self/maps"

#: The request to ioctl(2) on that file, since Linux 6.11, for the mapping at an address that allows
#: an access.
_PROCMAP_QUERY = 0xC0686611
_QUERY = struct.Struct("9Q4I2Q")
_READABLE, _WRITABLE, _SHARED = 1, 2, 8


@cache
def _library() -> ctypes.CDLL | None:
    """The C library, whose madvise is declared; None on other systems than Linux."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def advise(first: int, end: int, advice: int) -> None:
    """Call madvise(2) with an advice for the pages that are entirely within a range."""
    library = _library()
    if library is not None:
        start, stop = -(-first // mmap.PAGESIZE), end // mmap.PAGESIZE
        library.madvise(start * mmap.PAGESIZE, (stop - start) * mmap.PAGESIZE, advice)


def prefer_huge(address: int, size: int) -> None:
    """Ask the system for huge pages behind memory that was not written yet."""
    if _library() is not None:  # other systems than Linux have no such advice
        advise(address, address + size, mmap.MADV_HUGEPAGE)


def unreadable(first: int, end: int) -> str | None:
    """The reason why a tensor's bytes cannot be read; None if they can."""
    at = fault(first, end, writing=False, every_page=False)
    return None if at is None else f"no memory at {at:#x}; allowed: memory"


def unwritable(first: int, end: int) -> str | None:
    """The reason why a tensor's bytes cannot be written; None if they can.

    PyTorch does not know: a tensor over a file that is mapped read-only looks like any other, and
    writing to it would end the process.
    """
    at = fault(first, end, writing=True, every_page=False)
    if at is None:
        return None
    if fault(at, at + 1, writing=False) is not None:
        return f"no memory at {at:#x}; allowed: memory"
    return f"read-only memory at {at:#x}; allowed: memory that can be written"


def fault(first: int, end: int, writing: bool, every_page: bool = True) -> int | None:
    """The first address of a range that cannot be read, or written; None if there is none.

    Unless ``every_page``, pages that fault in spite of their mapping (guard pages of madvise(2),
    those of the kernel's own mappings) may stay unnoticed in a large range.
    """
    if first >= end or _library() is None:
        return None
    if first >= _TOP:
        return first
    end = min(end, _TOP)
    if end - first >= _LARGE:
        with suppress(OSError):  # an older Linux
            # Also before every page is made present: a range that ends in no memory may be as large
            # as the machine's memory until there.
            address = _fault_by_mapping(first, end, writing)
            if address is not None or not every_page:
                return address
    return _fault_by_page(first, end, writing)


def _fault_by_mapping(first: int, end: int, writing: bool) -> int | None:
    """Do the same as ``fault``, one mapping at a time.

    Private memory without a file is usable if it is mapped. A file's pages are checked one by one,
    since the file may be shorter than its mapping.
    """
    access = _WRITABLE if writing else _READABLE
    maps = os.open(_MAPS, os.O_RDONLY)
    try:
        while first < end:
            query = bytearray(_QUERY.size)
            _QUERY.pack_into(query, 0, _QUERY.size, access, first, *[0] * 12)
            try:
                fcntl.ioctl(maps, _PROCMAP_QUERY, query)
            except FileNotFoundError:  # there is no mapping, or it does not allow the access
                return first
            _, _, _, _, high, flags, _, _, inode, *_ = _QUERY.unpack(query)
            high = min(high, end)
            if inode or flags & _SHARED:
                address = _fault_by_page(first, high, writing)
                if address is not None:
                    return address
            first = high
    finally:
        os.close(maps)
    return None


def _fault_by_page(first: int, end: int, writing: bool) -> int | None:
    """Do the same as ``fault``, by making every page present."""
    if _populate(first, end, writing) == 0:
        return None
    for high in _usable_mappings(first, end, writing):
        if _populate(first, high, writing) not in _PRESENT:
            for page in range(first // mmap.PAGESIZE * mmap.PAGESIZE, high, mmap.PAGESIZE):
                if _populate(page, page + 1, writing) not in _PRESENT:
                    return max(first, page)
        first = high
    return first if first < end else None


#: The errors of ``_populate`` for pages that can be used if their mapping can. EINVAL is for those
#: of a mapped device, and for all pages before Linux 5.14.
_PRESENT = (0, errno.EINVAL)


def _populate(first: int, end: int, writing: bool) -> int:
    """Make the pages of a range present; returns 0, or the error of the first that cannot be."""
    library = _library()
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    advice = POPULATE_WRITE if writing else POPULATE_READ
    is_present = library is None or library.madvise(start, end - start, advice) == 0
    return 0 if is_present else ctypes.get_errno()


def _usable_mappings(first: int, end: int, writing: bool) -> Iterator[int]:
    """The end in a range of each mapping that allows an access, up to the first that does not.

    The kernel's own variables, beside the functions that it maps, do not count: some of their pages
    fault although their mapping can be read.
    """
    permission = b"w" if writing else b"r"
    try:
        maps = Path(_MAPS).read_bytes()
    except OSError:
        yield end  # nothing is known
        return
    for line in maps.split(b"\n")[:-1]:
        span, allowed = line.split(maxsplit=2)[:2]
        low, high = (int(word, 16) for word in span.split(b"-"))
        if high <= first:
            continue
        if low > first or permission not in allowed or b"[vvar" in line:
            return
        first = min(high, end)
        yield first
        if first == end:
            return
