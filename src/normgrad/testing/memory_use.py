"""The memory that this process uses, measured so that leaks show."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NamedTuple

#: The calls of a round, and the rounds after the first, in which caches and pools are filled.
CALLS, ROUNDS = 25, 3

#: The least memory that a call may leave, in bytes: the C library allocates no less.
_LEAST = 16
#: How many blocks less than one a call a leak may show in a round.
_FREED = 3


class _Used(NamedTuple):
    """The bytes that the C library has allocated, and Python's own blocks of memory."""

    allocated: int
    blocks: int


class _Info(ctypes.Structure):
    """The structure ``mallinfo2`` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


@cache
def _mallinfo2() -> Callable[[], _Info] | None:
    """The function of glibc 2.33 and later; None with another C library."""
    with suppress(AttributeError, OSError):
        function = ctypes.CDLL(None).mallinfo2
        function.restype = _Info
        return function
    return None


def _used() -> _Used:
    gc.collect()  # a whole collection also empties Python's lists of free objects
    info = _mallinfo2()
    counters = info() if info is not None else None
    allocated = 0 if counters is None else int(counters.uordblks + counters.hblkhd)
    return _Used(allocated, sys.getallocatedblocks())


def leak_of(call: Callable[[], object]) -> str:
    """Repeat a call; say what it leaves each time, or return an empty string if it leaves nothing.

    Only what grows in every round counts: a cache that is filled once is no leak.
    """
    collects = gc.isenabled()
    gc.disable()
    gc.freeze()  # collections then look at what is made from here on, which takes less time
    samples: list[_Used] = []
    try:
        for _ in range(ROUNDS + 1):
            for _ in range(CALLS):
                call()
            samples.append(_used())
    finally:
        gc.unfreeze()
        if collects:
            gc.enable()
    # A few objects that others left may be freed meanwhile.
    size, blocks = (
        max(0, min(later - earlier for earlier, later in itertools.pairwise(values)) + _FREED)
        // CALLS
        for values in zip(*samples, strict=True)
    )
    if size < _LEAST and not blocks:
        return ""
    return f"each call leaves {size} bytes, and {blocks} of Python's blocks"
