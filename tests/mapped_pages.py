"""Map memory in separate pages, which can be protected and unmapped one by one."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PAGE = mmap.PAGESIZE
_library = ctypes.CDLL(None)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
protect = _library.mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

#: The pages that are mapped now. The addresses of unmapped pages may be reused by others.
_mapped: set[int] = set()


def unmap(address: int) -> None:
    """Unmap a page."""
    _mapped.remove(address)
    assert _library.munmap(address, PAGE) == 0


@contextmanager
def mapping() -> Iterator[Any]:
    """A function that maps memory, anonymous or from a file, until the context ends."""

    def make(size: int, file: int = -1) -> int:
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if file < 0 else mmap.MAP_SHARED
        address = _library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, file, 0)
        assert address != ctypes.c_void_p(-1).value
        _mapped.update(range(address, address + size, PAGE))
        return int(address)

    yield make
    for address in tuple(_mapped):
        unmap(address)
