"""A program's pointers to host memory: reading and writing through them, after checks.

An access through a wrong pointer would end the process. So the system is asked about every range
before a call does anything. Memory that another thread unmaps after the check is not noticed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from mmap import PAGESIZE
from typing import Any

from ..pages import fault
from .signatures import Pointer

#: A pointer or a handle that C passes; None for null.
Address = int | None

#: The maximum number of values of an array; functions refuse a larger number.
MOST_VALUES = 1 << 20


def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the C library, with the ctypes types of its result and its arguments."""
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = result, arguments
    return function


@lru_cache(256)
def _array(kind: Any, count: int) -> Any:
    return kind * count


def store_all(kind: Any, address: int, values: Sequence[Any]) -> None:
    """Write values through a pointer, one after the other."""
    _array(kind, len(values)).from_address(address)[:] = values


def load(kind: Any, address: Address, count: int) -> list[Any]:
    """Read values of a ctypes type through a pointer, which may be null if there are none."""
    return _array(kind, count).from_address(address)[:] if count else []


def problem(first: int, end: int, writing: bool) -> str | None:
    """The message on a range of bytes that cannot be read, or written; None if it can."""
    at = fault(first, end, writing)
    if at is None:
        return None
    use, allowed = ("write to", "written") if writing else ("read from", "read")
    return (
        f"no memory at {at:#x} to {use}, byte {at - first} of {end - first}; allowed: "
        f"memory that can be {allowed}"
    )


def wrong(pointers: Sequence[Pointer], arguments: Sequence[Any]) -> tuple[str, str] | None:
    """The name of a call's first wrong pointer, and the message on it; nulls are not checked."""
    seen = None  # the last page checked; a call's variables are mostly on one page of the stack
    for pointer in pointers:
        address = arguments[pointer.index]
        count = pointer.count if pointer.counted_by is None else arguments[pointer.counted_by]
        if address is None or not 0 < count <= MOST_VALUES:
            continue
        size, writing = count * pointer.size, pointer.is_result
        page = address // PAGESIZE, writing
        if page == seen and (address + size - 1) // PAGESIZE == page[0]:
            continue
        message = problem(address, address + size, writing)
        if message is not None:
            return pointer.name, message
        seen = page
    return None


def text(address: int) -> bytes:
    """Read a text that ends with a zero byte.

    Raises:
        ValueError: a byte of the text cannot be read.
    """
    content, zero = bytearray(), b""
    while not zero:  # page by page
        at = address + len(content)
        end = at // PAGESIZE * PAGESIZE + PAGESIZE
        if fault(at, end, False) is not None:
            raise ValueError(
                f"no memory at {at:#x} to read from, byte {len(content)} of a text; allowed: a "
                "text that ends with a zero"
            )
        part, zero, _ = ctypes.string_at(at, end - at).partition(b"\0")
        content += part
    return bytes(content)
