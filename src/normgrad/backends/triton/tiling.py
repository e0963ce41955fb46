"""How tensors are read on a GPU: along which axis a tile lies in memory, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dtypes import FLOATS, DType
from ...layout import Axis
from ...problem import Problem, Rule
from .config import ALONG_CHANNELS, ALONG_POSITIONS, SCATTERED, Tensor
from .config import Axis as AxisWords
from .device import Device

#: What one thread reads of a tensor at once, and a GPU's memory in one go: bytes.
VECTOR, LINE = 16, 128
#: The least that a tile should read of each position: a GPU's caches hold memory in such sectors.
SECTOR = 32
#: Tensors of so many bytes, dy and x together, are read in one pass even in parts of sectors:
#: what the caches bring too much of takes less time than another launch. An estimate: not measured.
SMALL = 1 << 20
#: Tiles read before any is used, so that enough is under way. 16 bytes of two tensors, four times,
#: by 256 threads, twice on a processor, are 64 KiB; with some 700 ns from asking to answer 32 KiB
#: would do for 4.8 TB/s on 132 processors. An estimate: not measured.
UNROLL = 4
#: Channels to a tile where tensors lie differently in memory: a square, to be turned over.
SQUARE = 32
#: Sums of parts that are added up at once, and channels of a group.
MOST_ROWS, MOST_FAN = 2048, 128
#: Offsets and positions below this need but 32 bits, with room for the tile that reaches past the
#: end.
SHORT = (1 << 31) - (1 << 20)
#: By the dtypes' codes.
ITEMSIZES = {dtype.code: dtype.itemsize for dtype in FLOATS}


def power_of_two(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def ceil_div(number: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-number // divisor)


@dataclass(frozen=True)
class Layout:
    """Where tensors are contiguous, for one problem.

    Attributes:
        pattern: "rows" (positions in all), "columns" (channels in all) or "tiles".
        dy, x, dx: the tensors as the kernels see them.
        axes: what positions run over, outermost first.
        long_positions, long_offsets: whether 32 bits are too few.
    """

    pattern: str
    dy: Tensor
    x: Tensor
    dx: Tensor
    axes: tuple[Axis, ...]
    long_positions: bool
    long_offsets: bool

    def words(self) -> tuple[AxisWords, ...]:
        """The axes as kernels read them."""
        return tuple(_axis_words(axis) for axis in self.axes)


def _axis_words(axis: Axis) -> AxisWords:
    """An axis with what divides by its size: n // size is the high half of n·magic, shifted.

    For 0 <= n < 2³¹ (Granlund and Montgomery, "Division by Invariant Integers using
    Multiplication", 1994). Nothing is divided by 1.
    """
    bits = (axis.size - 1).bit_length()
    magic = ceil_div(1 << (31 + bits), max(1, axis.size))
    return AxisWords(axis.size, magic if bits else 0, max(0, bits - 1), *axis.strides)


def _vector(dtype: DType, sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements can be read at once, where all of these are multiples of it."""
    vector = VECTOR // dtype.itemsize
    while any(number % vector for number in (*sizes, *strides)):
        vector //= 2
    return vector


def layout_of(problem: Problem) -> Layout:
    """Where a problem's tensors are contiguous."""
    axes = (*problem.outer, problem.inner)
    channel, sets = problem.channel, problem.sets
    # Where every channel is a group, or groups are small, all channels follow each other.
    run = channel.size if problem.per_group == 1 else problem.per_group
    dtypes = (problem.grad_out, problem.input, problem.grad_input or problem.input)
    used = range(3) if problem.grad_input is not None else range(2)

    def tensor(index: int) -> Tensor:
        dtype = dtypes[index]
        outer = [axis.strides[index] for axis in problem.outer]
        others = [sets.strides[index]] if sets.size > 1 else []
        if problem.inner.strides[index] == 1 and problem.inner.size > 1:
            steps = [*outer, *others, *([channel.strides[index]] if channel.size > 1 else [])]
            vector = _vector(dtype, [problem.inner.size], steps)
            return Tensor(dtype.code, ALONG_POSITIONS, vector)
        if channel.strides[index] == 1 or channel.size == 1:
            steps = [*outer, *others, problem.inner.strides[index] * (problem.inner.size > 1)]
            return Tensor(dtype.code, ALONG_CHANNELS, _vector(dtype, [run], steps))
        return Tensor(dtype.code, SCATTERED, 1)

    tensors = (tensor(0), tensor(1), tensor(2))

    def wish(index: int) -> int:
        """Along what a tensor is best read: where it is not contiguous, along what is nearer."""
        if tensors[index].along != SCATTERED:
            return tensors[index].along
        near = abs(problem.inner.strides[index]), abs(channel.strides[index])
        return ALONG_POSITIONS if near[0] <= near[1] else ALONG_CHANNELS

    wishes = {wish(index) for index in used}
    pattern = "tiles"
    if len(wishes) == 1:
        pattern = "rows" if wishes == {ALONG_POSITIONS} else "columns"
    reach = 0
    for index in used:
        far = sum((axis.size - 1) * abs(axis.strides[index]) for axis in axes)
        # A tile has so many channels at most, or one group.
        channels = max(MOST_ROWS, problem.per_group)
        reach = max(reach, far + channels * abs(channel.strides[index]))
    return Layout(pattern, *tensors, axes, problem.positions >= SHORT, reach >= SHORT)


@dataclass(frozen=True)
class Tile:
    """What a program takes at once: positions, by channels of groups; and by how many warps."""

    positions: int
    groups: int
    members: int
    warps: int

    @property
    def channels(self) -> int:
        """Of all groups."""
        return self.groups * self.members


def fitting(tensor: Tensor, tile: Tile) -> Tensor:
    """A tensor as its tiles can be read: they start at multiples of their width."""
    width = tile.channels if tensor.along == ALONG_CHANNELS else tile.positions
    return tensor._replace(vector=min(tensor.vector, width))


def itemsize(problem: Problem) -> int:
    """The smaller one of what is read: it decides how much a thread reads at once."""
    if problem.rule is Rule.FORWARD:
        return problem.input.itemsize
    return min(problem.grad_out.itemsize, problem.input.itemsize)


def element_bytes(problem: Problem) -> int:
    """What is read of dy and x for each element."""
    if problem.rule is Rule.FORWARD:
        return problem.input.itemsize
    return problem.grad_out.itemsize + problem.input.itemsize


def read_bytes(problem: Problem) -> int:
    """What is read of dy and x."""
    elements = problem.sets.size * problem.channel.size * problem.positions
    return elements * element_bytes(problem)


def groups_of(problem: Problem) -> int:
    """How many groups of channels have statistics of their own; channels, in batch norm."""
    return problem.channel.size // problem.per_group


def split(problem: Problem, channels: int) -> tuple[int, int]:
    """Some channels as groups by members: whole groups if it is more than one."""
    if problem.per_group == 1:
        return power_of_two(min(channels, problem.channel.size)), 1
    whole = power_of_two(problem.per_group)
    if whole >= channels:
        return 1, channels
    return min(channels // whole, power_of_two(groups_of(problem))), whole


def tile_of(problem: Problem, layout: Layout, device: Device) -> Tile:
    """The tile of a program that goes through a tensor."""
    each = VECTOR // itemsize(problem)
    elements = device.threads * each
    if layout.pattern == "rows":
        channels = 1
    elif layout.pattern == "columns":
        channels = min(LINE // itemsize(problem), elements // 4)
    else:
        elements //= 2  # what is turned over takes registers twice
        channels = min(SQUARE, elements // 2)
    groups, members = split(problem, channels)
    positions = min(elements // (groups * members), power_of_two(problem.positions))
    # Fewer threads where there is little for them.
    share = each // 2 if layout.pattern == "tiles" else each
    warps = max(1, min(device.threads, positions * groups * members // share) // 32)
    return Tile(positions, groups, members, warps)


def most_persistent(problem: Problem, layout: Layout, device: Device) -> int:
    """How many elements of each tensor a program can have in registers.

    Coefficients of each channel that a thread has take some too: with all elements 16 to 56
    bytes of a thread's were put elsewhere.
    """
    wide = problem.arithmetic.itemsize == 8
    most = device.persistent // (4 if wide else 1)
    several = layout.pattern != "rows" or (wide and problem.per_group > 1)
    return most // 2 if several else most


def persistent_tile(problem: Problem, layout: Layout, device: Device) -> Tile | None:
    """A tile with all positions of whole groups, where a program can have it in registers."""
    most = most_persistent(problem, layout, device)
    positions = power_of_two(problem.positions)
    least = power_of_two(problem.per_group)
    if positions * least > most:
        return None
    channels = least
    if layout.pattern != "rows":
        # As many channels as make it whole lines, or at least whole sectors.
        line = power_of_two(min(LINE // itemsize(problem), problem.channel.size))
        channels = max(least, min(line, most // positions))
        small = read_bytes(problem) <= SMALL
        if channels < min(line, 1 if small else SECTOR // itemsize(problem)):
            return None
    elif problem.per_group == 1:
        # Several short rows, for a program to be worth starting.
        channels = max(1, min(power_of_two(problem.channel.size), device.threads // positions))
    groups, members = (channels, 1) if problem.per_group == 1 else (channels // least, least)
    groups = min(groups, power_of_two(groups_of(problem)))
    each = VECTOR // itemsize(problem)
    elements = positions * groups * members
    warps = max(1, min(device.threads * 2, power_of_two(elements // each)) // 32)
    return Tile(positions, groups, members, warps)


def unroll(problem: Problem, layout: Layout, tile: Tile, part: int) -> int:
    """How many tiles are read before any is used: no more than there are.

    Fewer where less is read at once, and each read has an address in a register of its own: with
    four, 20 to 520 bytes of a thread's were put elsewhere.
    """
    tensors = [layout.x]
    if problem.rule is not Rule.FORWARD:
        tensors.append(layout.dy)
    if problem.grad_input is not None:
        tensors.append(layout.dx)
    width = min(fitting(tensor, tile).vector * ITEMSIZES[tensor.code] for tensor in tensors)
    most = max(1, min(UNROLL, 2 * UNROLL * width // VECTOR))
    if layout.pattern == "tiles":
        most = max(1, most // 4)
    return min(most, power_of_two(ceil_div(part, tile.positions)))


def is_dense(problem: Problem, tile: Tile) -> bool:
    """Whether a tile's channels follow each other."""
    return problem.per_group == 1 or tile.groups == 1 or tile.members == problem.per_group
