"""What programs point to on the host: whether it is there is asked of the system, not tried out.

A pointer that is wrong would end the process where it is followed. So every range is looked at
before a call does anything. What another thread unmaps meanwhile is not seen.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..memory import POPULATE_READ, POPULATE_WRITE
from . import libc
from .signatures import Pointer

#: More values than anything has: a number of them that is none. Its function refuses it.
MOST_VALUES = 1 << 20

#: No process has memory from here on.
_TOP = 1 << 63

#: Ranges from this size on are looked at by mapping, smaller ones by page. Of memory in pages of
#: 4 KiB, 64 KiB took 1.2 µs by page, 1 MiB 8 and 64 MiB 500, which is 6 to 10 % of the time to copy
#: it; by mapping each took 2 µs.
_LARGE = 256 << 10

#: This process's mappings, in order.
_MAPS = "/proc/self/maps"

#: ioctl(2) on them, Linux 6.11: the mapping at an address, if it allows what is asked.
_PROCMAP_QUERY = 0xC0686611
_QUERY = struct.Struct("9Q4I2Q")
_READABLE, _WRITABLE, _SHARED = 1, 2, 8


def problem(address: int, size: int, writing: bool) -> str | None:
    """What is wrong with bytes that are to be read, or written; None if nothing is."""
    at = fault(address, address + size, writing)
    if at is None:
        return None
    use, allowed = ("write to", "written") if writing else ("read from", "read")
    return (
        f"no memory at {at:#x} to {use}, byte {at - address} of {size}; allowed: memory that can "
        f"be {allowed}"
    )


def wrong(pointers: Sequence[Pointer], arguments: Sequence[Any]) -> tuple[str, str] | None:
    """The first of a call's pointers that is wrong, by name, and how; null is not looked at."""
    seen = None  # a page; most often a call's variables are on one of the stack
    for pointer in pointers:
        address = arguments[pointer.index]
        count = pointer.count if pointer.counted_by is None else arguments[pointer.counted_by]
        if address is None or not 0 < count <= MOST_VALUES:
            continue
        size, writing = count * pointer.size, pointer.is_result
        page = address // mmap.PAGESIZE, writing
        if page == seen and (address + size - 1) // mmap.PAGESIZE == page[0]:
            continue
        found = problem(address, size, writing)
        if found is not None:
            return pointer.name, found
        seen = page
    return None


def text(address: int) -> bytes:
    """A text that ends with a zero.

    Raises:
        ValueError: it cannot all be read.
    """
    end = address
    while True:
        page = end // mmap.PAGESIZE * mmap.PAGESIZE + mmap.PAGESIZE
        if fault(end, page, False) is not None:
            raise ValueError(
                f"no memory at {end:#x} to read from, byte {end - address} of a text; allowed: a "
                "text that ends with a zero"
            )
        length = libc.strnlen(end, page - end)
        if length < page - end:
            return ctypes.string_at(address, end - address + length)
        end = page


def fault(first: int, end: int, writing: bool) -> int | None:
    """The first address of a range that cannot be read, or written; None if all can."""
    if first >= end:
        return None
    if first >= _TOP:
        return first
    end = min(end, _TOP)
    if end - first >= _LARGE:
        with suppress(OSError):  # an older kernel
            return _fault_by_mapping(first, end, writing)
    return _fault_by_page(first, end, writing)


def _fault_by_mapping(first: int, end: int, writing: bool) -> int | None:
    """The same. What is no file's is there if it is mapped; a file may end before its mapping."""
    wanted = _WRITABLE if writing else _READABLE
    maps = os.open(_MAPS, os.O_RDONLY)
    try:
        while first < end:
            query = bytearray(_QUERY.size)
            _QUERY.pack_into(query, 0, _QUERY.size, wanted, first, *[0] * 12)
            try:
                fcntl.ioctl(maps, _PROCMAP_QUERY, query)
            except FileNotFoundError:  # no mapping, or one that does not allow it
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
    """The same: every page is made present, as its use would."""
    advice = POPULATE_WRITE if writing else POPULATE_READ
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    if libc.madvise(start, end - start, advice) == 0:
        return None
    if ctypes.get_errno() == errno.EINVAL:
        return _fault_in_listing(first, end, writing)
    for page in range(start, end, mmap.PAGESIZE):
        if libc.madvise(page, mmap.PAGESIZE, advice) != 0:
            return max(first, page)
    return None


def _fault_in_listing(first: int, end: int, writing: bool) -> int | None:
    """The same, for what the system does not make present.

    That is memory that does not allow it, a device's that is mapped, or any on Linux before 5.14.
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
