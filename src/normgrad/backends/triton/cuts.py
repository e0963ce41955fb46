"""The division of a problem among programs: one function, which follows policy.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...declarations.problem import Problem
from ...tensors import dtypes
from ...tensors.strides import ceil_div
from .device import Device
from .layouts import Layout, element_bytes, groups_of, itemsize, narrowest, power_of_two
from .lines import Lines
from .policy import POLICY


@dataclass(frozen=True)
class Tile:
    """The tile of a program: positions by channels, of which the last may be padding.

    Attributes:
        positions, channels: the numbers of positions and channels, powers of two.
        step: the number of channels without padding; the next tile begins after them.
        warps: the number of warps of the program.
        leading, adjacent: the positions of one thread; see :class:`.config.Config`.
        vector: the largest number of elements that a thread reads at once, a power of two.
        next: the tile of a line after this one, of the same threads.
    """

    positions: int
    channels: int
    step: int
    warps: int = 1
    leading: int = 1
    adjacent: int = 1
    vector: int = POLICY.vector
    next: Tile | None = None

    @property
    def line(self) -> int:
        """The positions of this tile and of those after it."""
        return self.positions + (self.next.line if self.next else 0)


@dataclass(frozen=True)
class Cut:
    """The division of a problem among programs.

    That of lines is the same on all GPUs whose programs hold the same number of elements.

    Attributes:
        passes: "one pass" if dy and x pass through memory once to be summed and written.
        tile: the tile of a program, or the first of a line's.
        parts, part: the number of parts of the positions, and the positions of each.
        each: the number of tiles, lines of several tiles, or groups that a program processes.
        resident: whether a program's registers hold its elements; otherwise it reads its groups
            twice.
        again: whether it reads lines again to write dx, since its registers cannot hold them.
        slots: the number of terms of each parameter's gradient that the programs of a set store.
        chain, chains, stages: see :class:`.config.Config`.
    """

    passes: str
    tile: Tile
    parts: int
    part: int
    each: int = 1
    resident: bool = True
    again: bool = False
    slots: int = 1
    chain: int = 1
    chains: int = 1
    stages: int = 0

    @property
    def is_divided(self) -> bool:
        """Whether programs have parts of groups, whose sums others need before they write."""
        return self.resident and self.passes == "two passes"


def tiles_of(problem: Problem, tile: Tile) -> int:
    """The number of tiles along all sets' channels."""
    return problem.sets.size * ceil_div(problem.channel.size, tile.step)


def cut(problem: Problem, layout: Layout, device: Device, whole: bool) -> Cut:
    """Divide a problem among programs.

    Args:
        problem: the problem, of channels or of lines.
        layout: its layout.
        device: the GPU.
        whole: whether programs should have whole statistics groups, which they can write without
            another's sums; or if nothing is written from sums, the tiles of these, so that most
            sums have the same bits. A line always is whole if the registers can hold it.
    """
    if isinstance(problem, Lines):
        return _cut_of_lines(problem, layout, device)
    writes = problem.result_needs_sums
    tile = _held(problem, layout, device) if whole else None
    if tile is not None and not writes:
        return _in_parts(problem, replace(tile, next=None), device)
    if tile is not None:  # several tiles for each program, if there are many
        read = element_bytes(problem) * problem.positions * tile.step
        most = min(tiles_of(problem, tile) // device.processors, ceil_div(POLICY.least, read))
        return Cut("one pass", tile, 1, tile.line, max(1, most))
    # Programs take whole groups that are small, for a processor's cache has these when they are
    # read again; or so many that each processor has some, but in float64 arithmetic, which adds up
    # few tiles one after the other. Batch norm's channels are read in parts, since a sample's
    # channels are next to each other.
    fits = problem.per_group * problem.positions <= device.persistent
    groups = problem.sets.size * groups_of(problem)
    many = groups >= device.processors and problem.arithmetic is not dtypes.float64
    several = problem.per_group > 1 or problem.sets.size > 1
    if whole and writes and several and (fits or many):
        passes = "one pass" if fits else "two passes"
        return Cut(passes, _group(problem, layout, device), 1, problem.positions, resident=False)
    ahead = _ahead(narrowest(problem, layout))
    while True:  # tiles are smaller if few programs would run
        tile = _looped(problem, layout, device, ahead)
        programs = tiles_of(problem, tile) * ceil_div(problem.positions, tile.positions)
        if ahead == 1 or programs >= POLICY.busy * device.processors:
            return _in_parts(problem, tile, device)
        ahead //= 2


def _in_parts(problem: Problem, tile: Tile, device: Device) -> Cut:
    """Divide the positions into as many parts as keep a device busy."""
    most = ceil_div(device.processors * device.programs_each, max(1, tiles_of(problem, tile)))
    if problem.arithmetic is dtypes.float64:
        most = max(most, ceil_div(problem.positions, POLICY.most_wide * tile.positions))
    read = element_bytes(problem) * tile.positions * tile.step
    step = tile.positions * ceil_div(POLICY.least, read)
    parts = max(1, min(most, problem.positions // step))
    part = ceil_div(ceil_div(problem.positions, parts), tile.positions) * tile.positions
    parts = ceil_div(problem.positions, part)
    return Cut("two passes", tile, parts, part, slots=parts)


def _by_threads(tile: Tile, layout: Layout) -> Tile:
    """A tile with the positions that each of its threads holds.

    Triton distributes a tile's elements as vectors along the contiguous axis: to threads along that
    axis first, then along the other, and starts again with the remaining elements. If the tensors
    have different layouts, Triton redistributes some of them, so a thread adds up nothing.
    """
    threads = 32 * tile.warps
    vector = min(layout.x.vector, tile.vector)
    if layout.pattern == "rows":
        adjacent = min(vector, tile.positions)
        leading = max(1, tile.positions // (adjacent * threads))
        return replace(tile, leading=leading, adjacent=adjacent)
    if layout.pattern == "columns":
        across = max(1, tile.channels // min(vector, tile.channels))
        return replace(tile, leading=max(1, tile.positions // max(1, threads // across)))
    return tile


# Tiles in a loop


def _piece(size: int, least: int, most: int) -> int:
    """The largest power of two, within limits, into which a size divides with little padding."""
    pieces = [min(most, power_of_two(size))]
    while pieces[-1] > least:
        pieces.append(pieces[-1] // 2)
    padded = [ceil_div(size, piece) * piece for piece in pieces]
    enough = POLICY.padding * min(padded)
    return next(piece for piece, all_ in zip(pieces, padded, strict=True) if all_ <= enough)


def _ahead(narrow: int) -> int:
    """The vectors that a thread reads ahead, if the smallest has ``narrow`` bytes.

    Each read keeps an address in registers.
    """
    return max(1, min(POLICY.ahead, 2 * POLICY.ahead * narrow // POLICY.vector))


def _looped(problem: Problem, layout: Layout, device: Device, ahead: int) -> Tile:
    """The tile of a loop in which each thread reads ``ahead`` vectors."""
    each = POLICY.vector // itemsize(problem)
    most = device.threads * each * ahead
    positions, channels = problem.positions, problem.channel.size
    if layout.pattern == "rows":
        # A tile should have at least as many positions as the threads of a warp read at once.
        height = _piece(positions, min(most, 32 * layout.x.vector), most)
        width = min(power_of_two(channels), most // height)
    elif layout.pattern == "columns":
        line = min(most, POLICY.line // itemsize(problem))
        width = min(line, power_of_two(channels))
        height = min(power_of_two(positions), most // width)
        width = min(power_of_two(channels), most // height)
        if width == line:
            width = _piece(channels, max(1, line // 2), line)
            height = min(power_of_two(positions), most // width)
    else:
        most = device.threads * each // 2  # a transposed tensor takes twice the registers
        width = min(POLICY.square, most // 2, power_of_two(channels))
        height = min(power_of_two(positions), most // width)
        each //= 2
    warps = max(1, min(device.threads, height * width // each) // 32)
    return _by_threads(Tile(height, width, width, warps), layout)


def _group(problem: Problem, layout: Layout, device: Device) -> Tile:
    """The tile in which a program reads a group twice: some of the group's channels at a time."""
    per_group = problem.per_group
    group = problem._replace(channel=problem.channel._replace(size=per_group))
    narrow = narrowest(problem, layout)
    if layout.pattern == "columns":
        narrow = min(narrow, itemsize(problem) * (per_group & -per_group))
    tile = _looped(group, layout, device, _ahead(narrow))
    width = tile.channels
    if width > per_group and layout.pattern == "rows":
        # Rather fewer channels at once than some that are not there.
        width = _piece(per_group, 1, width)
    # A thread reads a vector at least, and of a small group so much that its coefficients are worth
    # their work.
    vectors = tile.positions * width * itemsize(problem) // POLICY.vector
    enough = power_of_two(ceil_div(problem.positions * per_group, POLICY.of_group))
    warps = max(1, min(32 * tile.warps, enough, vectors) // 32)
    # A tile may start at each multiple of ``step`` channels.
    step = math.gcd(per_group, width)
    return _by_threads(replace(tile, channels=width, warps=warps, step=step), layout)


# Tiles in registers


def _alone(size: int, layout: Layout, each: int, most: int, most_warps: int) -> Tile | None:
    """A channel or line alone: its tiles of at most ``most`` elements, in as few warps as hold it.

    The sums of a tile with several would have another layout than the tile, which would then be
    converted to it through shared memory. A size that is no power of two is divided into up to
    three that are, of which the last may be padded. It is None for a longer one.
    """
    if size > POLICY.tiles * most:
        return None
    warps = min(most_warps, power_of_two(ceil_div(size, POLICY.alone * each)))
    sizes: list[int] = []
    rest = size
    while rest > 0:
        last = len(sizes) == POLICY.tiles - 1
        piece = power_of_two(rest) if last else 1 << (rest.bit_length() - 1)
        sizes.append(max(32 * warps, min(most, piece)))
        rest -= sizes[-1]
    if sum(sizes) >= power_of_two(size) <= most:
        sizes = [power_of_two(size)]
    row: Tile | None = None
    for piece in reversed(sizes):
        tile = Tile(piece, 1, 1, warps, vector=max(1, piece // (32 * warps)))
        row = replace(_by_threads(tile, layout), next=row)
    return row


def _of_threads(
    layout: Layout, height: int, width: int, warps: int, most_warps: int, most: int, vector: int
) -> Tile | None:
    """A tile of as many warps as leave each thread at most ``most`` channels; None if too few."""
    while warps <= most_warps:
        tile = _by_threads(Tile(height, width, width, warps, vector=vector), layout)
        if height * width <= most * 32 * warps * tile.leading * tile.adjacent:
            return tile
        warps *= 2
    return None


def _held(problem: Problem, layout: Layout, device: Device) -> Tile | None:
    """A tile with all positions of channels that are groups of their own.

    It is None if channels are not, or a program's registers cannot hold one.
    """
    item, channels = itemsize(problem), problem.channel.size
    positions = power_of_two(problem.positions)
    most = device.persistent // (4 if problem.arithmetic.itemsize == 8 else 1)
    most_warps = 2 * device.threads // 32

    def of_channels(step: int) -> Tile | None:
        """The tile of a number of channels; None if they are too few or the tile is too large."""
        elements = positions * step
        if step > power_of_two(channels) or elements > most:
            return None
        most_each = POLICY.channels[layout.pattern != "tiles"]
        warps = max(1, min(32 * most_warps, power_of_two(elements * item // POLICY.vector)) // 32)
        tile = _of_threads(layout, positions, step, warps, most_warps, most_each, POLICY.vector)
        if tile is None and layout.pattern == "columns":  # read fewer channels at once
            return _of_threads(layout, positions, step, most_warps, most_warps, most_each, 4)
        return tile

    if problem.per_group > 1:
        return None
    if layout.pattern == "rows" and positions >= 32 * POLICY.of_channel:
        most_of_tile = min(most, positions)
        row = _alone(problem.positions, layout, POLICY.of_channel, most_of_tile, most_warps)
        return row if row is not None and row.line <= most else None
    tile = of_channels(1)
    if tile is None:
        return None
    least = ceil_div(POLICY.least, element_bytes(problem) * problem.positions)
    if layout.pattern != "rows":
        least = max(least, min(POLICY.line // item, channels))
    # Take more channels, so that programs are worth starting and read whole lines of the cache.
    while tile.step < least and (more := of_channels(2 * tile.step)):
        tile = more
    sector = min(POLICY.sector, channels * item)
    elements = problem.sets.size * channels * problem.positions
    small = elements * element_bytes(problem) <= POLICY.small
    return tile if layout.pattern == "rows" or tile.step * item >= sector or small else None


# Lines


def _elements_each(problem: Lines, layout: Layout) -> tuple[int, int]:
    """The number of elements of a line that a thread should have, and the largest number."""
    each = most = POLICY.of_both
    if problem.forward:
        each, most = POLICY.bytes_of_x // itemsize(problem), POLICY.most_of_x
    if problem.arithmetic is dtypes.float64:
        each = most = POLICY.wide[not problem.forward]
    if narrowest(problem, layout) < POLICY.narrow:
        each = most = min(each, POLICY.few[not problem.forward])
    return each, most


def _cut_of_lines(problem: Lines, layout: Layout, device: Device) -> Cut:
    """Give a program whole lines if its registers can hold one, otherwise pieces of lines."""
    each, most_each = _elements_each(problem, layout)
    lines, height = problem.channel.size, power_of_two(problem.positions)
    most_warps = warps = 2 * device.threads // 32
    held = device.persistent * most_each // POLICY.persistent
    columns = problem.wants_parameters and not problem.forward
    wide = problem.arithmetic is dtypes.float64
    alone = layout.pattern == "rows"
    tile = None
    if alone and height >= 32 * each:
        tile = _alone(problem.positions, layout, each, min(held, height), most_warps)
    whole = height <= held if tile is None else tile.line <= held
    # The registers hold the columns of a longer line, and one of its tiles at a time.
    again = tile is not None and held < tile.line <= 2 * held and columns and not wide
    if tile is not None and (whole or again):
        warps, height = tile.warps, tile.line
    else:
        tile = None
        if alone:
            pieces_warps = most_warps if whole else POLICY.piece_warps
            warps = min(pieces_warps, max(1, height // (32 * each)))
        if not whole:
            together = 1 if alone else min(POLICY.square, power_of_two(lines))
            height = min(height, max(problem.padded, 32 * warps * each // together))
    pieces = ceil_div(problem.positions, height)
    read = element_bytes(problem) * min(height, problem.positions)
    lines_each = ceil_div(lines * problem.sets.size * pieces, POLICY.warps // warps)
    fewest = 1
    if columns:
        many, few = POLICY.least_lines
        are_many = lines * problem.sets.size >= 2 * many * POLICY.processors
        fewest = ceil_div(many if are_many else few, problem.sharing)
    least = ceil_div(POLICY.least * 32 * warps // device.threads, read)
    part = min(lines, max(fewest, least, lines_each))
    if tile is None:
        width = min(power_of_two(part), max(1, 32 * warps * each // height))
        tile = _together(layout, most_warps, each, height, width)
    if not (whole or again or columns or wide) and tile.step == 1:
        # A program has one line, whose neighbours in a tile would not be there.
        if tiles_of(problem, tile) >= POLICY.processors:
            return Cut("two passes", tile, 1, problem.positions, resident=False)
    # In half precision the forward pass was 5 to 10 % faster without stages, and tiles of several
    # lines up to twice as fast. In float64 arithmetic they took registers that were not there.
    staged = tile.step == 1 and not wide and (not problem.forward or itemsize(problem) > 2)
    in_shared = (POLICY.stages - 1) * element_bytes(problem) * height
    staged = staged and in_shared <= POLICY.shared and not again
    chain, chains = POLICY.chain, POLICY.chains
    if wide:
        chains = POLICY.wide_chains
    elif problem.sharing > 1:  # the chains are of float64
        chain = POLICY.long_chain
    tiles_each = ceil_div(part, tile.step)
    slots = ceil_div(ceil_div(lines, tile.step), tiles_each) * ceil_div(tiles_each, chain * chains)
    return Cut(
        "one pass" if whole or again else "two passes",
        tile,
        pieces,
        height,
        tiles_each,
        again=again,
        slots=slots,
        chain=chain,
        chains=chains,
        stages=POLICY.stages if staged else 0,
    )


def _together(layout: Layout, most: int, each: int, height: int, width: int) -> Tile:
    """A tile of ``height`` elements by at most ``width`` lines, for at most ``most`` warps."""
    lines = each if layout.pattern == "tiles" else min(POLICY.lines, each // 2)
    warps = min(most, max(1, height * width // (32 * each)))
    while True:
        tile = _of_threads(layout, height, width, warps, most, lines, POLICY.vector)
        if tile is not None or width == 1:
            return tile or _by_threads(Tile(height, 1, 1, most), layout)
        # Each thread of all warps has too many lines: take fewer.
        warps, width = most, width // 2
