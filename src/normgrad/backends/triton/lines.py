"""Group norm line by line, for channels with few positions, which would need too many sums.

A *line* consists of the elements that share a statistic: a group's elements in one sample. Lines
take the place of channels, and a group's elements the place of positions, which then have the
parameters. The workspace has sums per line, and per parameter over several lines at once. Layer
norm is computed in the same way: its rows are lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ...declarations.problem import STATISTICS, Problem, Role, Vector
from ...tensors import dtypes
from ...tensors.strides import Axis, ceil_div
from .device import Device
from .tiling import (
    LEAST,
    SQUARE,
    Layout,
    Tile,
    by_threads,
    element_bytes,
    groups_of,
    itemsize,
    narrowest,
    power_of_two,
    row_of,
)

#: The largest number of positions of a channel for which group norm is read line by line. With more
#: positions, the sums of each sample's channels take little memory: for 16 half-precision elements
#: of dy and x, the pair of sums takes an eighth of their bytes.
FEW = 16
#: The least number of lines whose terms of the parameters' gradients a program adds up, if each
#: processor can then have two programs, and otherwise. With 8, writing and reading the sums
#: of lines moves a third of the bytes of dy, x and dx in half precision, most of them in the L2
#: cache.
LEAST_LINES, FEWEST_LINES = 8, 2
#: The number of warps that lines are divided among at least: as many as fit at once in an H200 with
#: 128 registers per thread. It is the same on all GPUs, so that sums are added in the same order.
PROCESSORS = 132
WARPS = PROCESSORS * 16
#: The number of warps of a program that has pieces of lines, since it cannot hold a whole one.
PIECE_WARPS = 4
#: The bytes of x per thread in the forward pass, and the largest number of elements. On an H200,
#: layer norm of (4096, 4096) in float32 took 58, 42 and 47 µs with 32, 64 and 128 bytes; in
#: bfloat16 37, 29 and 76.
BYTES_OF_X, MOST_OF_X = 64, 32
#: The number of elements of dy and x per thread.
EACH_OF_BOTH = 16
#: The numbers of elements of x, and of dy and x, per thread: in float64 arithmetic, and for threads
#: that read less than NARROW bytes at once, since each read keeps an address in registers.
WIDE_EACH, NARROW_EACH, NARROW = (4, 2), (8, 4), 8
#: The number of elements per thread of a program that has ``Device.persistent`` of them.
PERSISTENT_EACH = 16
#: The largest number of lines per thread, since their coefficients take registers too; it is at
#: most half the number of elements. With as many lines as elements, one kernel of 40 spilled 8
#: bytes per thread.
LINES_EACH = 4
#: The number of tiles whose terms of the parameters' gradients are added in float32, and of such
#: chains whose sums are added to each other in float32. A term has three roundings, of x − μ, its
#: product with dy, and 1/std; then there are one for each tile and chain, and the result's: 16, as
#: many as the bound allows. Longer chains of halves would exceed it too: where large terms cancel,
#: the error is one of small terms that were added to a large sum.
CHAIN, CHAINS = 8, 4
#: The same where both are of float64, whose bound allows 64 roundings; and the length of chains of
#: float64 numbers beside float32 data.
WIDE_CHAINS, LONG_CHAIN = 32, 256
#: The number of a program's lines that are read or computed at once. On an H200, layer norm's
#: gradients of (8192, 768) in float32 took 42 µs without, 36 with 2 and 29 with 3 or 4.
STAGES = 3
#: The bytes of shared memory that stages may take: a program of compute capability 8.6 has 99 KiB.
SHARED = 96 << 10


class Lines(Problem):
    """Group norm line by line: a group takes the place of a set, and its lines that of channels.

    Attributes:
        sharing: the number of consecutive elements of a line that share a parameter.
        rows: in layer norm, the axes of rows that take the place of sets, whose axis has no
            strides; empty if rows have one axis.
        parameter_sizes: the sizes of the axes of the parameters, except the first.
    """

    __slots__ = ()

    @property
    def padded(self) -> int:
        """The number of a tile's positions for each parameter's elements, a power of two."""
        return power_of_two(self.sharing)

    @property
    def positions(self) -> int:
        """The number of elements of a line, with the padding of each parameter's elements."""
        return super().positions // self.sharing * self.padded


def reads_lines(problem: Problem) -> bool:
    """Whether a problem is read line by line; batch norm never is."""
    if problem.is_empty:
        return False
    return problem.by_row or (problem.per_group > 1 and problem.positions <= FEW)


def _rows_as_lines(problem: Problem) -> Lines:
    """Layer norm as lines: its rows are the lines, and their outer axes take the place of sets."""
    positions = [*problem.outer[problem.outer_rows :], problem.inner]
    # The strides of each vector of parameters over the positions' axes.
    strides = {
        role: (*vector.outer_strides[problem.outer_rows :], vector.stride)
        for role, vector in problem.vectors.items()
        if role not in STATISTICS
    }
    of_positions = list(strides.values())
    order = sorted(range(len(positions)), key=lambda k: [-abs(each[k]) for each in of_positions])
    positions = [positions[k] for k in order]
    follow = all(
        each[outer] == each[inner] * axis.size
        for each in of_positions
        for (outer, inner), axis in zip(pairwise(order), positions[1:], strict=True)
    )

    def seen_by_lines(role: Role, vector: Vector) -> Vector:
        if role in STATISTICS:
            return vector._replace(outer_strides=vector.outer_strides[: problem.outer_rows])
        *outer, inner = (strides[role][k] for k in order)
        return Vector(vector.dtype, inner, outer_strides=() if follow else tuple(outer))

    vectors = {role: seen_by_lines(role, vector) for role, vector in problem.vectors.items()}
    return Lines(*problem)._replace(
        rows=problem.outer[: problem.outer_rows],
        outer=tuple(positions[:-1]),
        inner=positions[-1],
        vectors=vectors,
        parameter_sizes=() if follow else tuple(axis.size for axis in positions[1:]),
    )


def lines_of(problem: Problem) -> Lines:
    """Convert a problem of group or layer norm to lines."""
    if problem.by_row:
        return _rows_as_lines(problem)
    per_group, channel = problem.per_group, problem.channel
    axes = (Axis(per_group, channel.strides), *problem.outer)
    if problem.positions > 1:
        axes = (*axes, problem.inner)

    def turned(role: Role, vector: Vector) -> Vector:
        if role in STATISTICS:
            return Vector(vector.dtype, vector.set_stride, vector.stride)
        return Vector(vector.dtype, vector.stride, per_group * vector.stride)

    return Lines(*problem)._replace(
        sets=Axis(groups_of(problem), tuple(per_group * step for step in channel.strides)),
        outer=axes[:-1],
        channel=problem.sets,
        inner=axes[-1],
        vectors={role: turned(role, vector) for role, vector in problem.vectors.items()},
        per_group=1,
        sharing=problem.positions,
    )


@dataclass(frozen=True)
class Cut:
    """The division of lines among programs.

    It is the same on all GPUs whose programs hold the same number of elements.

    Attributes:
        tile: the tile, of elements by lines; or the first of a line's tiles.
        pieces: the number of tiles into which a line is divided among programs.
        each: the number of tiles, or of lines of several tiles, that a program processes.
        slots: the number of sums of each parameter that the programs store.
        whole: whether a program has whole lines, so that no other has a part of their sums.
        again: whether it reads them again to write dx, since its registers cannot hold them.
        chain, chains: see :class:`.config.Config`.
        stages: the number of tiles that are read or computed at once; 0 for one.
    """

    tile: Tile
    pieces: int
    each: int
    slots: int
    whole: bool
    again: bool
    chain: int
    chains: int
    stages: int


def _elements_each(problem: Lines, layout: Layout) -> tuple[int, int]:
    """The number of elements of a line that a thread should have, and the largest number."""
    each = most = EACH_OF_BOTH
    if problem.forward:
        each, most = BYTES_OF_X // itemsize(problem), MOST_OF_X
    if problem.arithmetic is dtypes.float64:
        each = most = WIDE_EACH[not problem.forward]
    if narrowest(problem, layout) < NARROW:
        each = most = min(each, NARROW_EACH[not problem.forward])
    return each, most


def cut_of(problem: Lines, layout: Layout, device: Device) -> Cut:
    """Give a program whole lines if its registers can hold one, otherwise pieces of lines."""
    each, most_each = _elements_each(problem, layout)
    lines, height = problem.channel.size, power_of_two(problem.positions)
    most_warps = warps = 2 * device.threads // 32
    held = device.persistent * most_each // PERSISTENT_EACH
    columns = problem.wants_parameters and not problem.forward
    wide = problem.arithmetic is dtypes.float64
    alone = layout.pattern == "rows"
    row = None
    if alone and height >= 32 * each:
        row = row_of(problem.positions, layout, each, min(held, height), most_warps)
    whole = height <= held if row is None else row.line <= held
    # The registers hold the columns of a longer line, and one of its tiles at a time.
    again = row is not None and held < row.line <= 2 * held and columns and not wide
    if row is not None and (whole or again):
        warps, height = row.warps, row.line
    else:
        row = None
        if alone:
            warps = min(most_warps if whole else PIECE_WARPS, max(1, height // (32 * each)))
        if not whole:
            together = 1 if alone else min(SQUARE, power_of_two(lines))
            height = min(height, max(problem.padded, 32 * warps * each // together))
    pieces = ceil_div(problem.positions, height)
    read = element_bytes(problem) * min(height, problem.positions)
    lines_each = ceil_div(lines * problem.sets.size * pieces, WARPS // warps)
    fewest = 1
    if columns:
        are_many = lines * problem.sets.size >= 2 * LEAST_LINES * PROCESSORS
        fewest = ceil_div(LEAST_LINES if are_many else FEWEST_LINES, problem.sharing)
    least = ceil_div(LEAST * 32 * warps // device.threads, read)
    part = min(lines, max(fewest, least, lines_each))
    tile = row
    if tile is None:
        width = min(power_of_two(part), max(1, 32 * warps * each // height))
        tile = _tile(problem, layout, most_warps, each, height, width)
    tiles_each = ceil_div(part, tile.step)
    # In half precision the forward pass was 5 to 10 % faster without stages, and tiles of several
    # lines up to twice as fast. In float64 arithmetic they took registers that were not there.
    staged = tile.step == 1 and not wide and (not problem.forward or itemsize(problem) > 2)
    staged = staged and (STAGES - 1) * element_bytes(problem) * height <= SHARED and not again
    chain, chains = CHAIN, CHAINS
    if wide:
        chains = WIDE_CHAINS
    elif problem.sharing > 1:  # the chains are of float64
        chain = LONG_CHAIN
    slots = ceil_div(ceil_div(lines, tile.step), tiles_each) * ceil_div(tiles_each, chain * chains)
    stages = STAGES if staged else 0
    return Cut(tile, pieces, tiles_each, slots, whole or again, again, chain, chains, stages)


def _tile(problem: Lines, layout: Layout, most: int, each: int, height: int, width: int) -> Tile:
    """A tile of ``height`` elements by at most ``width`` lines, for at most ``most`` warps."""
    lines = each if layout.pattern == "tiles" else min(LINES_EACH, each // 2)
    warps = min(most, max(1, height * width // (32 * each)))
    while True:
        tile = by_threads(Tile(height, width, width, 1, warps), layout)
        lines_each = height * width // (32 * warps * tile.leading * tile.adjacent)
        if lines_each <= lines or (warps == most and width == 1):
            return tile
        # Each thread has too many lines: take more warps, or then fewer lines.
        if warps < most:
            warps *= 2
        else:
            width //= 2
