"""Memory that is watched: a call must write to its outputs' elements and to nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .. import layout
from .tensors import Array

#: Bytes before and after a guarded array: a multiple of any element's size, and of what devices
#: align memory to.
GUARD = 512


class Watched:
    """All the memory that an array is a view of, as it was.

    Attributes:
        value: the array.
        start: its first element, in bytes from the start of that memory.
    """

    def __init__(self, value: Array) -> None:
        self.value = value
        self._whole = _whole(value)
        self.start = value.ctypes.data - _bounds(self._whole)[0]
        self._before = self.bytes()

    def bytes(self) -> Array:
        """A copy of the memory as it is now."""
        return np.frombuffer(self._whole.tobytes("A"), np.uint8).copy()

    def fault(self, written: bool, now: Array | None = None) -> str:
        """What is other than it was.

        Args:
            written: whether the array is an output, whose own elements may be.
            now: the memory's bytes, where they are not the array's own.
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
    """The same values in the same layout, in new memory with more on both sides.

    The guards, and the gaps of a layout, are NaN in every floating dtype.
    """
    low, end = _bounds(value)
    memory = np.full(end - low + 2 * GUARD, 0xFF, np.uint8)
    start = GUARD + value.ctypes.data - low
    view: Array = np.ndarray(value.shape, value.dtype, memory, start, value.strides)
    view[...] = value
    return view


def reverse(arrays: Iterable[Array | None]) -> None:
    """Turn the order of each array's elements round, where they lie; twice is as before."""
    for array in arrays:
        if array is not None:
            array[...] = np.flip(array).copy()


def _whole(value: Array) -> Array:
    """The array that owns the memory."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


def _bounds(value: Array) -> tuple[int, int]:
    """The address of an array's first byte, and the one behind its last."""
    steps = tuple(step // value.itemsize for step in value.strides)
    return layout.Region(value.ctypes.data, value.shape, steps, value.itemsize).bounds()
