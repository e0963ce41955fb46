"""The layout of tensors on a GPU, and the choice of tiles for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...declarations.problem import Problem
from ...tensors.dtypes import FLOATS, DType
from ...tensors.strides import Axis, ceil_div
from .config import ALONG_CHANNELS, ALONG_POSITIONS, SCATTERED, Tensor
from .config import Axis as AxisWords
from .device import Device

#: The bytes that one thread reads of a tensor at once, and that one memory transaction moves.
VECTOR, LINE = 16, 128
#: The bytes that a tile should at least read of each position: a sector of the GPU's caches.
SECTOR = 32
#: If dy and x together have at most this many bytes, they are read in one pass even if tiles read
#: parts of sectors: the extra bytes take less time than another launch. An estimate: not measured.
SMALL = 1 << 20
#: The bytes that a program should at least read: with them, each of 256 threads reads one vector of
#: each of two tensors, which takes longer than starting a program. An estimate: not measured.
LEAST = 8 << 10
#: The number of vectors of a tensor that a thread reads before it uses the first. With two tensors
#: and 256 threads that is 32 KiB, as much as each of 132 processors must have in flight for 4.8
#: TB/s if the latency is 700 ns. An estimate: not measured.
AHEAD = 4
#: The elements of a group that a thread has at least, where a group is small.
EACH = 8
#: The elements of a channel that a thread has where a program holds it alone. An estimate: not
#: measured; with fewer, the work of each channel is a larger part of all instructions.
HELD_EACH = 16
#: The channels of a tile if tensors have different layouts: about a square, to be transposed.
SQUARE = 32
#: The largest numbers of parts' sums, and of a group's channels, that are added up at once.
MOST_ROWS, MOST_FAN = 2048, 128
#: The largest number of tiles of a channel or line, for the code is that of each.
MOST_TILES = 3
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
    return math.gcd(VECTOR // dtype.itemsize, *sizes, *strides)


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
        channels = max(MOST_ROWS, power_of_two(problem.channel.size))
        reach = max(reach, far + channels * abs(channel.strides[index]))
    return Layout(pattern, *tensors, axes, problem.positions >= SHORT, reach >= SHORT)


@dataclass(frozen=True)
class Tile:
    """The tile of a program: positions by channels, of which the last may be padding.

    Attributes:
        positions, channels: the numbers of positions and channels, powers of two.
        step: the number of channels without padding; the next tile begins after them.
        groups: the number of groups whose sums a program combines, a power of two.
        warps: the number of warps of the program.
        leading, adjacent: the positions of one thread; see :class:`.config.Config`.
        vector: the largest number of elements that a thread reads at once, a power of two.
        next: the tile of a line after this one, of the same threads.
    """

    positions: int
    channels: int
    step: int
    groups: int = 1
    warps: int = 1
    leading: int = 1
    adjacent: int = 1
    vector: int = VECTOR
    next: Tile | None = None

    @property
    def line(self) -> int:
        """The positions of this tile and of those after it."""
        return self.positions + (self.next.line if self.next else 0)


def fitting(tensor: Tensor, tile: Tile) -> Tensor:
    """A tensor with the alignment of its tiles, which start at multiples of the tile's size."""
    width = tile.step if tensor.along == ALONG_CHANNELS else tile.positions
    return tensor._replace(vector=math.gcd(tensor.vector, width, tile.vector))


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


def tiles_of(problem: Problem, tile: Tile) -> int:
    """The number of tiles along all sets' channels."""
    return problem.sets.size * ceil_div(problem.channel.size, tile.step)


def _piece(size: int, least: int, most: int) -> int:
    """The largest power of two, within limits, into which a size divides with little padding."""
    pieces = [min(most, power_of_two(size))]
    while pieces[-1] > least:
        pieces.append(pieces[-1] // 2)
    padded = [ceil_div(size, piece) * piece for piece in pieces]
    return next(
        piece for piece, all_ in zip(pieces, padded, strict=True) if 8 * all_ <= 9 * min(padded)
    )


def narrowest(problem: Problem, layout: Layout) -> int:
    """The bytes of the smallest vector that a thread reads or writes."""
    tensors = [layout.x]
    if not problem.forward:
        tensors.append(layout.dy)
    if problem.result is not None:
        tensors.append(layout.dx)
    return min(tensor.vector * ITEMSIZES[tensor.code] for tensor in tensors)


def by_threads(tile: Tile, layout: Layout) -> Tile:
    """A tile with the positions that each of its threads holds.

    Triton distributes a tile's elements as vectors along the contiguous axis: to threads along that
    axis first, then along the other, and starts again with the remaining elements. If the tensors
    have different layouts, Triton redistributes some of them, so a thread adds up nothing.
    """
    threads = 32 * tile.warps
    vector = layout.x.vector
    if layout.pattern == "rows":
        adjacent = min(vector, tile.vector, tile.positions)
        leading = max(1, tile.positions // (adjacent * threads))
        return replace(tile, leading=leading, adjacent=adjacent)
    if layout.pattern == "columns":
        across = max(1, tile.channels // min(vector, tile.vector, tile.channels))
        return replace(tile, leading=max(1, tile.positions // max(1, threads // across)))
    return tile


def tile_of(problem: Problem, layout: Layout, device: Device) -> Tile:
    """The tile of a program that loops over a tensor; it is smaller if few programs would run."""
    ahead = _ahead(narrowest(problem, layout))
    while True:
        tile = _tile(problem, layout, device, ahead)
        programs = tiles_of(problem, tile) * ceil_div(problem.positions, tile.positions)
        if ahead == 1 or 4 * programs >= 3 * device.processors:
            return tile
        ahead //= 2


def _tile(problem: Problem, layout: Layout, device: Device, ahead: int) -> Tile:
    """The tile in which each thread reads ``ahead`` vectors."""
    each = VECTOR // itemsize(problem)
    most = device.threads * each * ahead
    positions, channels = problem.positions, problem.channel.size
    if layout.pattern == "rows":
        # A tile should have at least as many positions as the threads of a warp read at once.
        height = _piece(positions, min(most, 32 * layout.x.vector), most)
        width = min(power_of_two(channels), most // height)
    elif layout.pattern == "columns":
        line = min(most, LINE // itemsize(problem))
        width = min(line, power_of_two(channels))
        height = min(power_of_two(positions), most // width)
        width = min(power_of_two(channels), most // height)
        if width == line:
            width = _piece(channels, max(1, line // 2), line)
            height = min(power_of_two(positions), most // width)
    else:
        most = device.threads * each // 2  # a transposed tensor takes twice the registers
        width = min(SQUARE, most // 2, power_of_two(channels))
        height = min(power_of_two(positions), most // width)
        each //= 2
    warps = max(1, min(device.threads, height * width // each) // 32)
    return by_threads(Tile(height, width, width, 1, warps), layout)


def group_tile(problem: Problem, layout: Layout, device: Device) -> Tile:
    """The tile in which a program reads a group twice: some of the group's channels at a time."""
    per_group = problem.per_group
    group = problem._replace(channel=problem.channel._replace(size=per_group))
    narrow = narrowest(problem, layout)
    if layout.pattern == "columns":
        narrow = min(narrow, itemsize(problem) * (per_group & -per_group))
    tile = _tile(group, layout, device, _ahead(narrow))
    width = tile.channels
    if width > per_group and layout.pattern == "rows":
        # Rather fewer channels at once than some that are not there.
        width = _piece(per_group, 1, width)
    # A thread reads a vector at least, and of a small group so much that its coefficients are worth
    # their work.
    vectors = tile.positions * width * itemsize(problem) // VECTOR
    enough = power_of_two(ceil_div(problem.positions * per_group, EACH))
    warps = max(1, min(32 * tile.warps, enough, vectors) // 32)
    tile = by_threads(replace(tile, channels=width, warps=warps), layout)
    # A tile may start at each multiple of this many channels.
    return replace(tile, step=math.gcd(per_group, tile.channels))


def _ahead(narrow: int) -> int:
    """The vectors that a thread reads ahead, if the smallest has ``narrow`` bytes.

    Each read keeps an address in registers.
    """
    return max(1, min(AHEAD, 2 * AHEAD * narrow // VECTOR))


def row_of(size: int, layout: Layout, each: int, most: int, most_warps: int) -> Tile | None:
    """A channel or line alone: its tiles of at most ``most`` elements, in as few warps as hold it.

    The sums of a tile with several would have another layout than the tile, which would then be
    converted to it through shared memory. A size that is no power of two is divided into up to
    three that are, of which the last may be padded. It is None for a longer one.
    """
    if size > MOST_TILES * most:
        return None
    warps = min(most_warps, power_of_two(ceil_div(size, 40 * each)))
    sizes: list[int] = []
    rest = size
    while rest > 0:
        piece = 1 << (rest.bit_length() - 1) if len(sizes) < MOST_TILES - 1 else power_of_two(rest)
        sizes.append(max(32 * warps, min(most, piece)))
        rest -= sizes[-1]
    if sum(sizes) >= power_of_two(size) <= most:
        sizes = [power_of_two(size)]
    row: Tile | None = None
    for piece in reversed(sizes):
        tile = Tile(piece, 1, 1, 1, warps, vector=max(1, piece // (32 * warps)))
        row = replace(by_threads(tile, layout), next=row)
    return row


def persistent_tile(problem: Problem, layout: Layout, device: Device) -> Tile | None:
    """A tile with all positions of channels that are groups of their own.

    It is None if channels are not, or a program's registers cannot hold one.
    """
    item, channels = itemsize(problem), problem.channel.size
    positions = power_of_two(problem.positions)
    most = device.persistent // (4 if problem.arithmetic.itemsize == 8 else 1)

    def fitting_tile(step: int) -> Tile | None:
        """The tile of a number of channels; None if they are too few or the tile is too large."""
        elements = positions * step
        if step > power_of_two(channels) or elements > most:
            return None
        # The coefficients of each channel of a thread take registers too: with more channels,
        # 16 to 352 bytes per thread were spilled.
        most_each = 8 if layout.pattern == "tiles" else 4
        warps = max(1, min(2 * device.threads, power_of_two(elements * item // VECTOR)) // 32)
        vector = VECTOR
        while True:
            threads = 32 * warps
            tile = by_threads(Tile(positions, step, step, 1, warps, vector=vector), layout)
            each = elements // (threads * tile.leading * tile.adjacent)
            if each <= most_each:
                return tile
            # Take more threads, or then read fewer channels at once.
            if threads < 2 * device.threads:
                warps *= 2
            elif layout.pattern == "columns" and vector > 4:
                vector = 4
            else:
                return None

    if problem.per_group > 1:
        return None
    if layout.pattern == "rows" and positions >= 32 * HELD_EACH:
        most_warps = 2 * device.threads // 32
        row = row_of(problem.positions, layout, HELD_EACH, min(most, positions), most_warps)
        return row if row is not None and row.line <= most else None
    tile = fitting_tile(1)
    if tile is None:
        return None
    least = ceil_div(LEAST, element_bytes(problem) * problem.positions)
    if layout.pattern != "rows":
        least = max(least, min(LINE // item, channels))
    # Take more channels, so that programs are worth starting and read whole lines of the cache.
    while tile.step < least:
        more = fitting_tile(2 * tile.step)
        if more is None:
            break
        tile = more
    sector = min(SECTOR, channels * item)
    elements = problem.sets.size * channels * problem.positions
    small = elements * element_bytes(problem) <= SMALL
    return tile if layout.pattern == "rows" or tile.step * item >= sector or small else None
