"""Dense layouts, exact overlap tests and merging of axes, from shapes and strides.

Strides are in elements, unless a name says bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..support.memory import array_at

Shape = tuple[int, ...]
Strides = tuple[int, ...]


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Row-major strides; axes of size 0 count as 1, as in NumPy and PyTorch."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def channels_last_strides(shape: Sequence[int]) -> Strides:
    """The strides of PyTorch's channels-last formats: axis 1 is the innermost."""
    samples, *positions, channels = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (samples, channels, *positions)


def dense_like(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """The strides of a new dense tensor with the same order of axes in memory.

    A tensor that is dense already keeps its strides. Otherwise gaps are removed, and negative
    strides become positive. An axis whose stride does not determine its place (size 1, or expanded
    with stride 0) is placed just outside the next axis. Without elements the strides do not change.
    """
    if 0 in shape:
        return tuple(strides)
    order = [axis for axis, size in enumerate(shape) if size > 1 and strides[axis] != 0]
    order.sort(key=lambda axis: -abs(strides[axis]))
    for axis in reversed(range(len(shape))):
        if axis not in order:
            order.insert(order.index(axis + 1) if axis + 1 < len(shape) else len(order), axis)
    dense = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        dense[axis] = step
        step *= shape[axis]
    is_dense = all(size == 1 or dense[axis] == strides[axis] for axis, size in enumerate(shape))
    return tuple(strides if is_dense else dense)


def used_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides, with 1 for axes of one element, whose strides are never used."""
    return tuple([step if size != 1 else 1 for size, step in zip(shape, strides, strict=True)])


def divides(itemsize: int, shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether all strides in bytes are multiples of the item size; a record's field has others."""
    return all(step % itemsize == 0 for step, size in zip(steps, shape, strict=True) if size > 1)


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest element offset of a view; 0 and -1 without elements."""
    if 0 in shape:
        return 0, -1
    low = high = 0
    for size, step in zip(shape, strides, strict=True):
        if step < 0:
            low += (size - 1) * step
        else:
            high += (size - 1) * step
    return low, high


#: The limit on NumPy's work in an exact overlap test; views that need more count as overlapping.
#: Sliced, transposed and interleaved views need a few steps; only adversarial strides come near it.
_OVERLAP_WORK = 1_000_000


class Region(NamedTuple):
    """The bytes of a view, by its address, its shape, its strides and the size of an element."""

    address: int
    shape: Shape
    strides: Strides
    itemsize: int

    def bounds(self) -> tuple[int, int]:
        """The addresses of the first byte and of one past the last; equal without elements."""
        low, high = extent(self.shape, self.strides)
        return self.address + low * self.itemsize, self.address + (high + 1) * self.itemsize

    def _array(self, base: int) -> npt.NDArray[np.void]:
        # The array's contents are never read; only its addresses are compared.
        element = np.dtype((np.void, self.itemsize))
        start = self.address - base + 2**40
        return array_at(start, self.shape, self.strides, element, None, writeable=False)


def overlap(a: Region, b: Region) -> bool:
    """Whether two views share a byte, exactly (True where that is too hard to tell)."""
    a_low, a_high = a.bounds()
    b_low, b_high = b.bounds()
    if a_high <= b_low or b_high <= a_low or a_low == a_high or b_low == b_high:
        return False
    base = min(a.address, b.address)
    try:
        return np.shares_memory(a._array(base), b._array(base), max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(shape: Shape, strides: Strides) -> bool:
    """Whether two different indices of a view name the same element, exactly."""
    if 0 in shape:
        return False
    axes = [(abs(step), size) for size, step in zip(shape, strides, strict=True) if size > 1]
    axes.sort()
    # In the usual case each stride exceeds the range of all smaller ones.
    reach = 0
    for step, size in axes:
        if step <= reach:
            break
        reach += step * (size - 1)
    else:
        return False
    # Test pairs of indices that agree on the axes before this one. On this axis the first index is
    # 0, and the second is positive.
    for first, (step, size) in enumerate(axes):
        rest = axes[first + 1 :]
        sizes = tuple(size for _, size in rest)
        steps = tuple(step for step, _ in rest)
        if overlap(
            Region(0, (1, *sizes), (step, *steps), 1),
            Region(step, (size - 1, *sizes), (step, *steps), 1),
        ):
            return True
    return False


def reshape_strides(shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """The strides of a view under another shape with the same elements in row-major order.

    The result is None if no strides describe such a view.
    """
    if 0 in shape:
        return contiguous_strides(new)
    axes = [(size, step) for size, step in zip(shape, strides, strict=True) if size != 1]
    result = [1] * len(new)
    old_at = new_at = 0
    while old_at < len(axes):
        # Find the fewest next axes of both shapes that have the same number of elements.
        old_end, new_end = old_at + 1, new_at + 1
        old_count, new_count = axes[old_at][0], new[new_at]
        while old_count != new_count:
            if new_count < old_count:
                new_count *= new[new_end]
                new_end += 1
            else:
                old_count *= axes[old_end][0]
                old_end += 1
        for (_, step), (size, next_step) in itertools.pairwise(axes[old_at:old_end]):
            if step != size * next_step:
                return None
        step = axes[old_end - 1][1]
        for axis in range(new_end - 1, new_at - 1, -1):
            result[axis] = step
            step *= new[axis]
        old_at, new_at = old_end, new_end
    return tuple(result)


class Axis(NamedTuple):
    """An axis of several tensors of the same shape: its size, and its stride in each."""

    size: int
    strides: Strides


def merge_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Merge axes, and order them by memory, over the same elements of every tensor.

    Axes of size 1 are removed, neighbouring axes that are contiguous in every tensor are merged,
    and the innermost axis is the one with the smallest strides. The order of the elements may
    change, so this is correct only if they are summed or processed independently.
    """
    longer = [axis for axis in axes if axis.size != 1]
    if len(longer) < 2:
        return longer
    longer.sort(key=lambda axis: [*map(abs, axis.strides)], reverse=True)
    result = longer[:1]
    for axis in longer[1:]:
        outer = result[-1]
        if outer.strides == tuple([axis.size * step for step in axis.strides]):
            result[-1] = Axis(outer.size * axis.size, axis.strides)
        else:
            result.append(axis)
    return result


def ceil_div(number: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-number // divisor)


def round_up(number: int, unit: int) -> int:
    """The least multiple of a unit that is not less than a number."""
    return -(-number // unit) * unit
