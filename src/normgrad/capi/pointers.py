"""What programs point to on the host: whether it is there is asked of the system, not tried out.

A pointer that is wrong would end the process where it is followed. So every range is looked at
before a call does anything. What another thread unmaps meanwhile is not seen.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

from ..pages import fault
from . import libc
from .signatures import Pointer

#: More values than anything has: a number of them that is none. Its function refuses it.
MOST_VALUES = 1 << 20


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
