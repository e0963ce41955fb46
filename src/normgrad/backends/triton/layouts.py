"""The layout of tensors on a GPU, and their sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...declarations.problem import Problem
from ...tensors.dtypes import FLOATS, DType
from ...tensors.strides import Axis, ceil_div
from .config import ALONG_CHANNELS, ALONG_POSITIONS, SCATTERED, Tensor
from .config import Axis as AxisWords
from .policy import POLICY

#: Offsets and positions below this fit in 32 bits, with a margin for the last tile's padding.
SHORT = (1 << 31) - (1 << 20)
#: The item sizes by the dtypes' codes.
ITEMSIZES = {dtype.code: dtype.itemsize for dtype in FLOATS}


def power_of_two(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


@dataclass(frozen=True)
class Layout:
    """The axes along which a problem's tensors are contiguous.

    Attributes:
        pattern: "rows" if all tensors are contiguous along positions, "columns" if all are along
            channels, otherwise "tiles".
        dy, x, dx: the descriptions of the tensors for kernels.
        axes: the axes that positions run over, outermost first.
        long_positions, long_offsets: whether positions and offsets need more than 32 bits.
    """

    pattern: str
    dy: Tensor
    x: Tensor
    dx: Tensor
    axes: tuple[Axis, ...]
    long_positions: bool
    long_offsets: bool


def axis_words(size: int) -> AxisWords:
    """An axis with its magic number for division: n // size is the high half of n·magic, shifted.

    This holds for 0 <= n < 2³¹ (Granlund and Montgomery, "Division by Invariant Integers using
    Multiplication", 1994). For size 1, by which kernels do not divide, the magic number is 0.
    """
    bits = (size - 1).bit_length()
    magic = ceil_div(1 << (31 + bits), max(1, size))
    return AxisWords(size, magic if bits else 0, max(0, bits - 1))


def _vector(dtype: DType, sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements that can be read at once: a power of two that divides all of these."""
    return math.gcd(POLICY.vector // dtype.itemsize, *sizes, *strides)


def layout_of(problem: Problem) -> Layout:
    """Find the axes along which a problem's tensors are contiguous."""
    axes = (*problem.outer, problem.inner)
    channel = problem.channel
    dtypes = (problem.grad_out, problem.input, problem.result or problem.input)
    indices = range(3) if problem.result is not None else range(2)

    def tensor(index: int) -> Tensor:
        dtype = dtypes[index]
        outer = [axis.strides[index] for axis in problem.outer]
        others = [axis.strides[index] for axis in problem.set_axes if axis.size > 1]
        if problem.inner.strides[index] == 1 and problem.inner.size > 1:
            steps = [*outer, *others, *([channel.strides[index]] if channel.size > 1 else [])]
            vector = _vector(dtype, [problem.inner.size], steps)
            return Tensor(dtype.code, ALONG_POSITIONS, vector)
        if channel.strides[index] == 1 or channel.size == 1:
            steps = [*outer, *others, problem.inner.strides[index] * (problem.inner.size > 1)]
            return Tensor(dtype.code, ALONG_CHANNELS, _vector(dtype, [channel.size], steps))
        return Tensor(dtype.code, SCATTERED, 1)

    tensors = (tensor(0), tensor(1), tensor(2))

    def wish(index: int) -> int:
        """The axis along which to read a tensor: the contiguous one, or that of smaller stride."""
        if tensors[index].along != SCATTERED:
            return tensors[index].along
        near = abs(problem.inner.strides[index]), abs(channel.strides[index])
        return ALONG_POSITIONS if near[0] <= near[1] else ALONG_CHANNELS

    wishes = {wish(index) for index in indices}
    pattern = "tiles"
    if len(wishes) == 1:
        pattern = "rows" if wishes == {ALONG_POSITIONS} else "columns"
    reach = 0
    for index in indices:
        far = sum((axis.size - 1) * abs(axis.strides[index]) for axis in axes)
        # A tile has at most this many channels.
        channels = max(POLICY.sums, power_of_two(problem.channel.size))
        reach = max(reach, far + channels * abs(channel.strides[index]))
    return Layout(pattern, *tensors, axes, problem.positions >= SHORT, reach >= SHORT)


def _itemsizes(problem: Problem) -> list[int]:
    """The item sizes of the tensors that are read; the forward pass has no dy."""
    read = [problem.input] if problem.forward else [problem.grad_out, problem.input]
    return [dtype.itemsize for dtype in read]


def itemsize(problem: Problem) -> int:
    """The smallest item size that is read, which decides how much a thread reads at once."""
    return min(_itemsizes(problem))


def element_bytes(problem: Problem) -> int:
    """The bytes that are read of dy and x for each element."""
    return sum(_itemsizes(problem))


def groups_of(problem: Problem) -> int:
    """The number of statistics groups in a set; in batch norm each channel is one."""
    return problem.channel.size // problem.per_group


def narrowest(problem: Problem, layout: Layout) -> int:
    """The bytes of the smallest vector that a thread reads or writes."""
    tensors = [layout.x]
    if not problem.forward:
        tensors.append(layout.dy)
    if problem.result is not None:
        tensors.append(layout.dx)
    return min(tensor.vector * ITEMSIZES[tensor.code] for tensor in tensors)
