"""Checks of memory: what a call writes beside its outputs' elements, and what it never frees."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from ..operators.reference import Array
from ..tensors.strides import Region

#: Bytes before and after a guarded array: a multiple of every element size and of the alignment
#: that devices need.
GUARD = 512


class Watched:
    """A copy of all memory that an array is a view of, to detect later changes.

    Attributes:
        value: the array.
        whole: the array that owns the memory.
        start: the offset of the first element from the start of the memory, in bytes.
    """

    def __init__(self, value: Array) -> None:
        self.value = self.whole = value
        while isinstance(self.whole.base, np.ndarray):
            self.whole = self.whole.base
        self.start = value.ctypes.data - _bounds(self.whole)[0]
        self._before, self._rest_before = self._bytes(), self._rest()

    def _bytes(self) -> Array:
        """A copy of the memory as it is now."""
        return np.frombuffer(self.whole.tobytes("A"), np.uint8).copy()

    def _rest(self) -> object:
        """What the C library has allocated beyond the array's own memory, to fill up a block."""
        if not self.whole.flags.owndata:
            return None
        start, size = self.whole.ctypes.data, self.whole.nbytes
        return ctypes.string_at(start + size, max(0, _usable_size()(start) - size))

    def fault(self, is_output: bool) -> str:
        """Describe what has changed in the memory; empty if nothing has.

        ``is_output`` says whether the array's own elements may change.
        """
        now, before = self._bytes(), self._before.copy()
        if is_output and self.value.size:
            kind = np.dtype(f"u{self.value.itemsize}")
            for each in (now, before):
                elements: Array = np.ndarray(
                    self.value.shape, kind, each.data, self.start, self.value.strides
                )
                elements[...] = 0
        if (now == before).all():
            return "written past its end" if self._rest() != self._rest_before else ""
        return "written outside its elements" if is_output else "written to"


def guarded(value: Array) -> Array:
    """The same values in the same layout, in new memory with guards on both sides.

    The guards, and the gaps of a layout, are NaN in every floating dtype.
    """
    low, end = _bounds(value)
    memory = np.full(end - low + 2 * GUARD, 0xFF, np.uint8)
    start = GUARD + value.ctypes.data - low
    view: Array = np.ndarray(value.shape, value.dtype, memory, start, value.strides)
    view[...] = value
    view.flags.writeable = value.flags.writeable
    return view


def reverse(arrays: Iterable[Array]) -> None:
    """Reverse the order of each array's elements in place; a second call undoes it."""
    for array in arrays:
        array[...] = np.flip(array).copy()


def _bounds(value: Array) -> tuple[int, int]:
    """The address of an array's first byte, and the address after its last."""
    steps = tuple(step // value.itemsize for step in value.strides)
    return Region(value.ctypes.data, value.shape, steps, value.itemsize).bounds()


# Leaks

#: The calls of a round, and the rounds after the first, in which caches and pools are filled.
CALLS, ROUNDS = 25, 3
#: The least memory that a call may leave, in bytes: the C library allocates no less.
_LEAST = 16
#: How many blocks less than one a call a leak may show in a round, since a few objects that others
#: left may be freed meanwhile.
_FREED = 3


class _Mallinfo2(ctypes.Structure):
    """The structure ``mallinfo2`` of glibc, which has ten counters."""

    _fields_ = (("counters", ctypes.c_size_t * 10),)


#: The indices of the counters of allocated bytes: hblkhd of mapped blocks, uordblks of the others.
_MAPPED, _OTHERS = 4, 7


@cache
def _usable_size() -> Callable[[int], int]:
    """The function of glibc that says how many bytes a block has; 0 with another C library."""
    with suppress(AttributeError, OSError):
        function = ctypes.CDLL(None).malloc_usable_size
        function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_size_t
        return function
    return lambda start: 0


@cache
def _mallinfo2() -> Callable[[], Any]:
    """The function of glibc 2.33 and later; with another C library, one that counts nothing."""
    with suppress(AttributeError, OSError):
        function = ctypes.CDLL(None).mallinfo2
        function.restype = _Mallinfo2
        return function
    return _Mallinfo2


def _usage() -> tuple[int, int]:
    """The bytes that the C library has allocated, and Python's own blocks of memory."""
    gc.collect()  # a whole collection also empties Python's lists of free objects
    counters = _mallinfo2()().counters
    return counters[_MAPPED] + counters[_OTHERS], sys.getallocatedblocks()


def leak_of(call: Callable[[], object]) -> str:
    """Repeat a call; say what it leaves each time, or return an empty string if it leaves nothing.

    Only what grows in every round counts: a cache that is filled once is no leak.
    """
    collects = gc.isenabled()
    gc.disable()
    gc.freeze()  # collections then look at what is made from here on, which takes less time
    samples: list[tuple[int, int]] = []
    try:
        for _ in range(ROUNDS + 1):
            for _ in range(CALLS):
                call()
            samples.append(_usage())
    finally:
        gc.unfreeze()
        if collects:
            gc.enable()
    size, blocks = (
        max(0, min(later - earlier for earlier, later in itertools.pairwise(values)) + _FREED)
        // CALLS
        for values in zip(*samples, strict=True)
    )
    if size < _LEAST and not blocks:
        return ""
    return f"each call leaves {size} bytes, and {blocks} of Python's blocks"
