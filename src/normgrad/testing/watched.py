"""Detect writes to memory: a call must write to its outputs' elements and to nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .. import layout
from .tensors import Array

#: Bytes before and after a guarded array: a multiple of every element size and of the alignment
#: that devices need.
GUARD = 512


class Watched:
    """A copy of all memory that an array is a view of, to detect later changes.

    Attributes:
        value: the array.
        start: the offset of its first element from the start of that memory, in bytes.
        size: the memory's size in bytes.
    """

    def __init__(self, value: Array) -> None:
        self.value = value
        self._whole = value  # the array that owns the memory
        while isinstance(self._whole.base, np.ndarray):
            self._whole = self._whole.base
        self.start = value.ctypes.data - _bounds(self._whole)[0]
        self._before = self.bytes()
        self.size = self._before.size

    def bytes(self) -> Array:
        """A copy of the memory as it is now."""
        return np.frombuffer(self._whole.tobytes("A"), np.uint8).copy()

    def fault(self, written: bool, now: Array | None = None) -> str:
        """Describe what has changed in the memory; empty if nothing has.

        Args:
            written: whether the array is an output, whose own elements may change.
            now: the memory's bytes to compare, if not the array's own.
        """
        now = self.bytes() if now is None else now.copy()
        if not written:
            return "" if (now == self._before).all() else "written to"
        before = self._before.copy()
        if self.value.size:
            for each in (now, before):
                self.view(each)[...] = 0
        return "" if (now == before).all() else "written beside"

    def view(self, memory: Array) -> Array:
        """The array's elements in a copy of its memory, as unsigned integers."""
        kind = np.dtype(f"u{self.value.itemsize}")
        return np.ndarray(self.value.shape, kind, memory.data, self.start, self.value.strides)


def guarded(value: Array) -> Array:
    """The same values in the same layout, in new memory with guards on both sides.

    The guards, and the gaps of a layout, are NaN in every floating dtype.
    """
    low, end = _bounds(value)
    memory = np.full(end - low + 2 * GUARD, 0xFF, np.uint8)
    start = GUARD + value.ctypes.data - low
    view: Array = np.ndarray(value.shape, value.dtype, memory, start, value.strides)
    view[...] = value
    return view


def reverse(arrays: Iterable[Array]) -> None:
    """Reverse the order of each array's elements in place; a second call undoes it."""
    for array in arrays:
        array[...] = np.flip(array).copy()


def _bounds(value: Array) -> tuple[int, int]:
    """The address of an array's first byte, and the address after its last."""
    steps = tuple(step // value.itemsize for step in value.strides)
    return layout.Region(value.ctypes.data, value.shape, steps, value.itemsize).bounds()
