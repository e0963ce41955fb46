"""Group norm line by line, for channels with few positions, whose sums would be too many.

A *line* is what shares a statistic: a group's elements in one sample. In place of the channels
stand the samples, in place of the positions a group's elements, and parameters belong to these.
What is kept in memory is per line and, of some lines at once, per parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

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

#: Positions of a channel up to which group norm is read line by line. For more of them, the sums of
#: each sample's channels are few: a pair is an eighth of 16 elements of dy and x in halves.
FEW = 16
#: Lines whose sums for each parameter a program adds up before they go to memory. With 64 these,
#: written and read again, are a twenty-fourth of dy, x and dx in halves, half of it in float32;
#: with fewer there are as many programs as keep most of a GPU busy. Estimates: not measured.
MOST_LINES, LEAST_LINES, PROGRAMS = 64, 8, 96
#: Lines of which a program has the same piece, where it cannot have one whole: so many share what
#: is read of the parameters. An estimate: not measured.
LINES_OF_PIECE = 4
#: Elements of a thread in float32 arithmetic: of x alone, and of dy and x with sums in float64 of
#: each; a quarter of it in float64. Half of it where less than this many bytes are read at once,
#: since each read has an address in registers of its own.
EACH_OF_X, EACH_OF_BOTH, NARROW = 16, 8, 8
#: Lines that these are of, whose coefficients take registers too; no more than half as many. With
#: as many, one kernel of 40 put 8 bytes of a thread's elsewhere.
LINES_EACH = 4


@dataclass(frozen=True)
class Lines(Problem):
    """Group norm line by line: a group takes the place of a set, its lines those of channels.

    Attributes:
        sharing: how many elements of a line share a parameter; they follow each other.
        rows: the axes of rows that stand in the sets' place; ``sets`` then has no strides.
        parameter_sizes: the sizes of the axes that parameters are, of all but the first.
    """

    sharing: int = 1
    rows: tuple[Axis, ...] = ()
    parameter_sizes: tuple[int, ...] = ()

    @property
    def set_axes(self) -> tuple[Axis, ...]:
        """The axes that sets count through."""
        return self.rows or super().set_axes

    @property
    def padded(self) -> int:
        """The positions of a tile that a parameter's elements take: a power of two."""
        return power_of_two(self.sharing)

    @property
    def positions(self) -> int:
        """Elements of a line, as tiles count them."""
        return super().positions // self.sharing * self.padded


def reads_lines(problem: Problem) -> bool:
    """Whether a problem is read line by line; batch norm never is."""
    if problem.is_empty:
        return False
    return problem.by_row or (problem.per_group > 1 and problem.positions <= FEW)


def _rows_as_lines(problem: Problem) -> Lines:
    """Layer norm as lines: rows are lines already, and their outer axes take the sets' place."""
    rows = problem.outer[: problem.outer_rows] or (Axis(1, (1, 1, 1)),)
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
    seen = {
        "sets": Axis(prod(axis.size for axis in rows), (0, 0, 0)),
        "rows": rows,
        "outer": tuple(positions[:-1]),
        "inner": positions[-1],
        "vectors": vectors,
        "parameter_sizes": () if follow else tuple(axis.size for axis in positions[1:]),
    }
    return Lines(**{**vars(problem), **seen})


def parameters_of(problem: Problem) -> Problem:
    """The problem of the parameters alone, which are taken as channels of one set."""
    one = Axis(1, (1, 1, 1))
    if not problem.by_row:
        return replace(problem, sets=one)
    return replace(
        problem,
        sets=one,
        outer=(),
        channel=Axis(problem.parameters, (1, 1, 1)),
        inner=one,
        vectors=_rows_as_lines(problem).vectors,
        by_row=False,
        outer_rows=0,
    )


def lines_of(problem: Problem) -> Lines:
    """View group norm line by line."""
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

    seen = {
        "sets": Axis(groups_of(problem), tuple(per_group * step for step in channel.strides)),
        "outer": axes[:-1],
        "channel": problem.sets,
        "inner": axes[-1],
        "vectors": {role: turned(role, vector) for role, vector in problem.vectors.items()},
        "per_group": 1,
        "sharing": problem.positions,
    }
    return Lines(**{**vars(problem), **seen})


@dataclass(frozen=True)
class Cut:
    """The way lines are cut for programs, equal on all GPUs whose programs hold as much.

    Attributes:
        tile: elements by lines.
        pieces: tiles of a line.
        each: tiles of lines that a program takes, one after the other.
        slots: programs that have the same piece of different lines.
        whole: whether a program has all of its lines in registers, and reads them once.
    """

    tile: Tile
    pieces: int
    each: int
    slots: int
    whole: bool


def cut_of(problem: Lines, layout: Layout, device: Device) -> Cut:
    """Choose whole lines for a program, if its registers hold them; else pieces of lines."""
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
    least = max(ceil_div(LEAST_LINES, problem.sharing), ceil_div(LEAST, read))
    part = min(lines, max(least, min(wanted, MOST_LINES)))
    width = min(power_of_two(part), max(1, most // height))
    tile = _tile(problem, layout, 2 * device.threads // 32, each, height, width)
    taken = ceil_div(part, tile.step)
    return Cut(tile, pieces, taken, ceil_div(ceil_div(lines, tile.step), taken), whole)


def _tile(problem: Lines, layout: Layout, most: int, each: int, height: int, width: int) -> Tile:
    """A tile of at most so many elements of so many lines, for at most so many warps."""
    lines = each if layout.pattern == "tiles" else min(LINES_EACH, each // 2)
    threads = height * width // min(each, VECTOR // itemsize(problem))
    warps = min(most, max(1, threads // 32))
    while True:
        tile = by_threads(Tile(height, width, width, 1, warps), layout)
        found = height * width // (32 * warps * tile.leading * tile.adjacent)
        if found <= lines or (warps == most and width == 1):
            return tile
        # More threads, or else fewer lines.
        if warps < most:
            warps *= 2
        else:
            width //= 2
