"""Group norm line by line, for channels with few positions, which would need too many sums.

A *line* consists of the elements that share a statistic: a group's elements in one sample. Lines
take the place of channels, and a group's elements the place of positions, which then have the
parameters. The workspace has sums per line, and per parameter over several lines at once. Layer
norm is computed in the same way: its rows are lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ... import dtypes
from ...layout import Axis, ceil_div
from ...problem import STATISTICS, Problem, Role, Vector
from .device import Device
from .tiling import (
    LEAST,
    VECTOR,
    Layout,
    Tile,
    by_threads,
    element_bytes,
    groups_of,
    itemsize,
    narrowest,
    power_of_two,
)

#: The largest number of positions of a channel for which group norm is read line by line. With more
#: positions, the sums of each sample's channels take little memory: for 16 half-precision elements
#: of dy and x, the pair of sums takes an eighth of their bytes.
FEW = 16
#: The limits on the number of lines whose sums for each parameter a program adds up before it
#: stores them, where gradients of parameters are wanted: with 64 lines, writing and reading these
#: sums moves a twenty-fourth of the bytes of dy, x and dx in half precision, and half of that in
#: float32. Elsewhere a program may have a single line.
MOST_LINES, LEAST_LINES = 64, 8
#: The number of programs that fewer lines are taken for: that of an H200's processors. On it, layer
#: norm's gradients of (4096, 4096) in float32 took 115 µs with 96 programs, 92 with 132, 116 with
#: 192 and 96 with 264; those of (8192, 768) 54, 54, 70 and 59.
PROGRAMS = 132
#: The number of lines of which a program has the same piece, if it cannot hold a whole line; they
#: share the parameters that the program reads. An estimate: not measured.
LINES_OF_PIECE = 4
#: The number of elements per thread in float32 arithmetic: of x alone, and of dy and x with float64
#: sums of each. In float64 arithmetic it is a quarter. It is half if a thread reads fewer than
#: NARROW bytes at once, since each read keeps an address in registers.
EACH_OF_X, EACH_OF_BOTH, NARROW = 16, 8, 8
#: The largest number of lines per thread, since their coefficients take registers too; it is at
#: most half the number of elements. With as many lines as elements, one kernel of 40 spilled 8
#: bytes per thread.
LINES_EACH = 4


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


def parameters_of(problem: Problem) -> Problem:
    """The problem of the parameters alone, which become the channels of one set."""
    one = Axis(1, (1, 1, 1))
    if not problem.by_row:
        return problem._replace(sets=one)
    lines = _rows_as_lines(problem)
    return problem._replace(
        sets=one,
        outer=(),
        channel=Axis(problem.parameters, (1, 1, 1)),
        inner=one,
        vectors=lines.vectors,
        parameter_sizes=lines.parameter_sizes,
        by_row=False,
        outer_rows=0,
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
        tile: the tile, of elements by lines.
        pieces: the number of tiles into which a line is divided.
        each: the number of tiles that a program processes one after the other.
        slots: the number of programs that process the same piece of different lines.
        whole: whether a program holds its lines in registers, and reads them only once.
    """

    tile: Tile
    pieces: int
    each: int
    slots: int
    whole: bool


def cut_of(problem: Lines, layout: Layout, device: Device) -> Cut:
    """Give a program whole lines if its registers can hold them, otherwise pieces of lines."""
    each = EACH_OF_X if problem.forward else EACH_OF_BOTH
    if problem.arithmetic is dtypes.float64:
        each //= 4
    if narrowest(problem, layout) < NARROW:
        each //= 2
    most = device.persistent * each // EACH_OF_X
    lines, height = problem.channel.size, power_of_two(problem.positions)
    whole = height <= most
    if not whole:
        most = 2 * device.threads * each
        height = min(height, max(problem.padded, most // min(LINES_OF_PIECE, power_of_two(lines))))
    pieces = ceil_div(problem.positions, height)
    read = element_bytes(problem) * min(height, problem.positions)
    wanted = ceil_div(lines * problem.sets.size * pieces, PROGRAMS)
    fewest = LEAST_LINES if problem.wants_parameters and not problem.forward else 1
    least = max(ceil_div(fewest, problem.sharing), ceil_div(LEAST, read))
    part = min(lines, max(least, min(wanted, MOST_LINES)))
    width = min(power_of_two(part), max(1, most // height))
    tile = _tile(problem, layout, 2 * device.threads // 32, each, height, width)
    taken = ceil_div(part, tile.step)
    return Cut(tile, pieces, taken, ceil_div(ceil_div(lines, tile.step), taken), whole)


def _tile(problem: Lines, layout: Layout, most: int, each: int, height: int, width: int) -> Tile:
    """A tile of ``height`` elements by at most ``width`` lines, for at most ``most`` warps."""
    lines = each if layout.pattern == "tiles" else min(LINES_EACH, each // 2)
    threads = height * width // min(each, VECTOR // itemsize(problem))
    warps = min(most, max(1, threads // 32))
    while True:
        tile = by_threads(Tile(height, width, width, 1, warps), layout)
        found = height * width // (32 * warps * tile.leading * tile.adjacent)
        if found <= lines or (warps == most and width == 1):
            return tile
        # Each thread has too many lines: take more warps, or then fewer lines.
        if warps < most:
            warps *= 2
        else:
            width //= 2
