"""Memory for large results, and memory that cannot be written.

Large results lie in memory that is kept when the last of their tensors is gone, and used again for
the next result of that size. All but what was used last stays the system's to take: it is advised
free, lazily, so that nothing is lost but time where memory is short.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections import deque
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

#: madvise(2), Linux 5.14: make pages present for writing, as writing to them would, and leave what
#: is in them. It fails on a mapping that is read-only.
POPULATE_WRITE = 23

#: The same for reading. It fails on what is not mapped, or not for reading.
POPULATE_READ = 22


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
        if madvise(address, mmap.PAGESIZE, POPULATE_WRITE) != 0:
            return None  # an older kernel
    return madvise


#: Results from this size on lie in NumPy's memory, which is kept. Writing 103 MB took 18 to 37 ms
#: in new memory and 10 ms in memory that was written before; elemt on float32 (256, 1024), 1 MB,
#: 254 µs and 57. NumPy asks the system for huge pages from 4 MiB on, PyTorch does not: writing
#: 205 MB for the first time took 22 ms in NumPy's memory and 44 in PyTorch's.
LARGE = 256 << 10

#: A cache line, and the widest vector.
LINE = 64

#: What was used last and is not advised free: advising 12 MB, and writing it then, cost 1.4 ms, as
#: much as batch norm's whole gradient of that size.
HOT = 256 << 20

#: How many MiB of memory are kept; 0 for none. By default an eighth of the machine's.
KEPT_VARIABLE = "NORMGRAD_KEPT_MEMORY"


def missing(what: str, size: int) -> MemoryError:
    """The error for memory that the system does not give."""
    return MemoryError(f"{what}: no memory for {size} bytes; allowed: what the system has left")


def need(what: str, size: int) -> None:
    """Find out beforehand whether there is memory for what would end the process without it.

    Raises:
        MemoryError: there is not.
    """
    try:
        np.empty(size, np.uint8)
    except MemoryError:
        raise missing(what, size) from None


class _Block:
    """Memory that starts at a cache line."""

    __slots__ = ("data", "is_free", "size")

    def __init__(self, size: int) -> None:
        memory = np.empty(size + LINE, np.uint8)
        start = -memory.ctypes.data % LINE
        self.data = memory[start : start + size]
        self.size = size
        self.is_free = False

    def advise_free(self) -> None:
        """Let the system take the pages when it needs them; what is in them is lost then."""
        advice = getattr(mmap, "MADV_FREE", None)
        madvise = _madvise()
        if self.is_free or advice is None or madvise is None:
            return
        page = mmap.PAGESIZE
        first = -(-self.data.ctypes.data // page) * page
        end = (self.data.ctypes.data + self.size) // page * page
        self.is_free = madvise(first, end - first, advice) == 0


class _Lease:
    """What keeps a block in use: arrays over it hold it as their base."""

    __slots__ = ("__array_interface__", "_block", "_pool")

    def __init__(self, block: _Block, pool: Pool) -> None:
        self._block, self._pool = block, pool
        self.__array_interface__ = block.data.__array_interface__

    def __del__(self) -> None:
        with suppress(Exception):  # at the interpreter's end anything may be gone
            self._pool.give_back(self._block)


class Pool:
    """Blocks of memory that were used and may be used again.

    It takes no lock, since a block can come back wherever Python collects garbage, in the middle
    of ``take`` too: a deque's own operations are atomic.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._blocks: deque[_Block] = deque()

    @property
    def kept(self) -> int:
        """Bytes that are kept, and in nobody's use."""
        return sum(block.size for block in tuple(self._blocks))

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory of this size that starts at a cache line; with anything in it."""
        if self.limit < size:
            return self._new(size).data
        return np.asarray(_Lease(self._kept(size) or self._new(size), self))

    def _kept(self, size: int) -> _Block | None:
        for block in tuple(self._blocks):
            if block.size == size:
                with suppress(ValueError):  # another thread has taken it
                    self._blocks.remove(block)
                    block.is_free = False
                    return block
        return None

    def _new(self, size: int) -> _Block:
        try:
            return _Block(size)
        except MemoryError:
            # What is kept may be what is missing: a limit on addresses counts it too.
            self.release()
            return _Block(size)

    def give_back(self, block: _Block) -> None:
        """Keep a block, and of all that are kept the last that fit the limit."""
        self._blocks.append(block)
        size = 0
        for older in reversed(tuple(self._blocks)):
            size += older.size
            if size > self.limit:
                with suppress(ValueError):
                    self._blocks.remove(older)
            elif size > HOT:
                older.advise_free()

    def release(self) -> None:
        """Give everything that is kept back to the system."""
        self._blocks.clear()


def _limit() -> int:
    """What a pool may keep, in bytes."""
    setting = os.environ.get(KEPT_VARIABLE)
    if setting is not None:
        if not setting.strip().isdecimal():
            raise ValueError(f"{KEPT_VARIABLE}: {setting!r}; allowed: a number of MiB, 0 for none")
        return int(setting) << 20
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (AttributeError, OSError, ValueError):
        return 0


@cache
def pool() -> Pool:
    """The process's pool."""
    return Pool(_limit())


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Memory for a large result, which starts at a cache line."""
    return pool().take(size)


def release_memory() -> None:
    """Give the memory that is kept for large results back to the system.

    Results over 256 KiB lie in memory that is kept when they are gone, for the next of the same
    size. The system may take all but the last 256 MiB of it at any time; this is for those who
    want it to be gone at once, or to measure what is in use. At most an eighth of the machine's
    memory is kept, or as many MiB as the environment variable ``NORMGRAD_KEPT_MEMORY`` says; 0
    keeps none.
    """
    pool().release()


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


def madvise_address() -> int:
    """Where the system call is, for compiled code; 0 where it does not tell what can be written."""
    madvise = _madvise()
    return 0 if madvise is None else ctypes.cast(madvise, ctypes.c_void_p).value or 0


def unreadable(first: int, end: int) -> str | None:
    """Why bytes cannot be read: their first or last page is not there. None if they can."""
    reason = _probe(first, end, POPULATE_READ)
    return None if reason is None else f"no memory at {first:#x} ({reason}); allowed: memory"


def unwritable(first: int, end: int) -> str | None:
    """Why bytes cannot be written: their first or last page is mapped read-only. None if they can.

    PyTorch keeps no note of it: a tensor over a file mapped for reading looks like any other, and
    writing to it would end the process.
    """
    reason = _probe(first, end, POPULATE_WRITE)
    if reason is None:
        return None
    return f"read-only memory ({reason}); allowed: memory that can be written"


def _probe(first: int, end: int, advice: int) -> str | None:
    """Why the pages of the first or the last byte cannot be made present."""
    madvise = _madvise()
    if madvise is None or first == end:
        return None
    page = mmap.PAGESIZE
    start, last = first // page * page, (end - 1) // page * page
    if madvise(start, page, advice) == 0 and (start == last or madvise(last, page, advice) == 0):
        return None
    return os.strerror(ctypes.get_errno())
