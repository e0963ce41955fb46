"""Memory for results, and arrays over memory at an address."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

#: The bytes of a cache line, and of the widest vector.
LINE = 64

#: NumPy results of at least this size start at a cache line, as all of PyTorch's do. NumPy itself
#: would start them 16 bytes after one, with which batch norm's gradients took 1.05 to 1.11 times as
#: long.
ALIGNED = 256 << 10


def _missing(what: str, size: int) -> MemoryError:
    """The error for an allocation that the system cannot satisfy."""
    return MemoryError(f"{what}: no memory for {size} bytes; allowed: what the system has left")


@contextmanager
def allocating(what: str, size: int) -> Iterator[None]:
    """A context that names what a failed allocation is for; PyTorch's error is a RuntimeError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise _missing(what, size) from None


def shortage(room: int, needed: int) -> str:
    """The message on a tensor whose memory is too small."""
    return (
        f"a storage of {max(room, 0)} bytes from the first element on; allowed: at least {needed}, "
        "for its shape and strides"
    )


def need(what: str, size: int) -> None:
    """Raise a MemoryError if there is too little for work that would end the process without it."""
    try:
        # The test is a new mapping, since an array might reuse memory that the process has freed.
        mmap.mmap(-1, max(size, 1)).close()
    except (OSError, OverflowError):
        raise _missing(what, size) from None


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """New memory that starts at a cache line."""
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def array_at(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: Any,
    writeable: bool = True,
) -> npt.NDArray[Any]:
    """An array over memory that ``owner`` keeps alive; strides are in elements."""
    interface = {
        "version": 3,
        "typestr": f"|V{dtype.itemsize}",  # bfloat16 has no type string
        "shape": shape,
        "strides": tuple(step * dtype.itemsize for step in strides),
        "data": (address, not writeable),
    }
    # The array keeps its base alive, and so the owner.
    base = SimpleNamespace(__array_interface__=interface, owner=owner)
    return np.asarray(base).view(dtype)
