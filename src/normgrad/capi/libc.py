"""Functions of the C library, and functions that read and write through pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_library = ctypes.CDLL(None, use_errno=True)

malloc: Any = _library.malloc
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p

free: Any = _library.free
free.argtypes, free.restype = [ctypes.c_void_p], None

dladdr: Any = _library.dladdr
dladdr.argtypes, dladdr.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int

strnlen: Any = _library.strnlen
strnlen.argtypes, strnlen.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_size_t

getenv: Any = _library.getenv
getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p


def store(kind: Any, address: int | None, value: Any) -> None:
    """Write a value through a pointer.

    Args:
        kind: the value's ctypes type.
        address: the pointer; not null.
        value: the value.
    """
    kind.from_address(address).value = value


@lru_cache(256)
def _array(kind: Any, count: int) -> Any:
    return kind * count


def store_all(kind: Any, address: int, values: Sequence[Any]) -> None:
    """Write values through a pointer, one after the other."""
    _array(kind, len(values)).from_address(address)[:] = values


def load(kind: Any, address: int | None, count: int) -> list[Any]:
    """Read values through a pointer.

    Args:
        kind: the values' ctypes type.
        address: the pointer; not null unless ``count`` is 0.
        count: the number of values.
    """
    return _array(kind, count).from_address(address)[:] if count else []
