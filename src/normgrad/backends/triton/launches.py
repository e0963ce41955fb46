"""Launches, and what makes them: the words for a kernel over the tiles of a problem."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import dtypes
from ...problem import Problem, Role, Rule
from .config import (
    ABSENT,
    GIVEN,
    PILOT,
    VECTORS,
    Addresses,
    Arguments,
    Config,
    CountAxis,
    Numbers,
    Sizes,
    Strides,
    Work,
    pack,
)
from .device import Device
from .tiling import (
    MOST_FAN,
    MOST_ROWS,
    Layout,
    Tile,
    ceil_div,
    fitting,
    groups_of,
    is_dense,
    power_of_two,
    unroll,
)

#: Every array in the workspace starts at a multiple of this, and so does the workspace in use,
#: wherever the caller's buffer starts.
ALIGNMENT = 256

#: Channels, and sums of each, that a program adds up where it does nothing else.
OUTPUT_CHANNELS, OUTPUT_ROWS = 8, 256


@dataclass(frozen=True)
class Launch:
    """A kernel and what it is given but for addresses.

    Attributes:
        kernel: its name in ``kernels.py``.
        programs: how many.
        config: what it is compiled for.
        arguments: with zeros for addresses.
        warps: of each program.
        word: what it does, for people.
    """

    kernel: str
    programs: int
    config: Config
    arguments: Arguments
    warps: int
    word: str

    def at(self, addresses: Sequence[int]) -> Arguments:
        """The arguments, at addresses in the order of roles."""
        return self.arguments._replace(at=Addresses(*addresses[: len(Addresses._fields)]))


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


_NO_WORK = Work(*(0,) * len(Work._fields))


@dataclass
class Builder:
    """A program in the making."""

    problem: Problem
    device: Device
    layout: Layout
    end: int = 0
    launches: list[Launch] = field(default_factory=list)
    work: Work = _NO_WORK
    about: int = GIVEN
    saved_spread: bool = False

    def reserve(self, size: int) -> int:
        """So many bytes of the workspace."""
        start = self.end
        self.end += ceil_div(size, ALIGNMENT) * ALIGNMENT
        return start

    @property
    def wide(self) -> bool:
        """Whether the arithmetic is float64."""
        return self.problem.arithmetic is dtypes.float64

    @property
    def own_outputs(self) -> bool:
        """Whether what writes dx or y has the per-channel outputs, too.

        Not group norm's, which are sums over all samples, and of channels rather than groups.
        """
        return self.problem.rule is not Rule.GROUP

    @property
    def outputs_later(self) -> bool:
        """Whether a launch of its own has them, of sums that are left for it."""
        return self.problem.wants_parameters and not self.own_outputs

    def fan(self, tile: Tile) -> int:
        """How many of a group's channels are added up at once, to a group of a tile."""
        if tile.groups > 1:
            return tile.members
        return min(power_of_two(self.problem.per_group), MOST_FAN)

    def reserve_sums(self, parts: int) -> None:
        """Room for sums in so many parts; what other parts left there is done with."""
        problem = self.problem
        size = parts * problem.sets.size * problem.channel.size * 8
        error = size if self.wide else 0
        self.work = self.work._replace(
            sum_dy=self.reserve(size),
            sum_dy_xmu=self.reserve(size),
            sum_dy_error=self.reserve(error),
            sum_dy_xmu_error=self.reserve(error),
        )
        if self.about == PILOT:
            pilots = problem.sets.size * groups_of(problem) * 8
            self.work = self.work._replace(pilot=self.reserve(pilots))

    def config(self, tile: Tile, parts: int = 1, **rest: Any) -> Config:
        """What a kernel over tiles is compiled for."""
        problem, layout = self.problem, self.layout
        codes = {
            int(role) - int(Role.MEAN): vector.dtype.code
            for role, vector in problem.vectors.items()
        }
        single = problem.per_group == 1 and problem.rule is not Rule.GROUP
        fan = self.fan(tile)
        base = Config(
            rule=int(problem.rule),
            wide=self.wide,
            dy=fitting(layout.dy, tile),
            x=fitting(layout.x, tile),
            dx=fitting(layout.dx, tile),
            vectors=pack(codes),
            counts=ABSENT if problem.count is None else problem.count.dtype.code,
            positions=tile.positions,
            groups=tile.groups,
            members=tile.members,
            single=single,
            fan=fan,
            dense=is_dense(problem, tile),
            rank=len(layout.axes),
            long_positions=layout.long_positions,
            long_offsets=layout.long_offsets,
            rows=min(
                power_of_two(parts), max(1, MOST_ROWS // max(tile.channels, fan * tile.groups))
            ),
            about=self.about,
            saved_spread=self.saved_spread,
            variance=problem.spread_is_variance,
        )
        return base._replace(**rest)

    def arguments(self, tile: Tile, parts: int = 1, part: int = 1) -> Arguments:
        """What a kernel is given beside addresses."""
        problem = self.problem
        nothing = Strides(0, 0)
        vectors = tuple(
            Strides(problem.vectors[role].set_stride, problem.vectors[role].stride)
            if role in problem.vectors
            else nothing
            for role in VECTORS
        )
        counts: tuple[CountAxis, ...] = (CountAxis(1, 0),)
        if problem.count is not None and problem.count.rank:
            spec = problem.count
            counts = tuple(map(CountAxis, spec.shape, spec.strides))
        sizes = Sizes(
            sets=problem.sets.size,
            channels=problem.channel.size,
            per_group=problem.per_group,
            groups=groups_of(problem),
            positions=problem.positions,
            blocks=ceil_div(problem.per_group, tile.members),
            parts=parts,
            part=part,
            dy_sets=problem.sets.strides[0],
            x_sets=problem.sets.strides[1],
            dx_sets=problem.sets.strides[2],
            dy_channels=problem.channel.strides[0],
            x_channels=problem.channel.strides[1],
            dx_channels=problem.channel.strides[2],
        )
        m = problem.divisor
        numbers = Numbers(
            _bits(problem.eps),
            _bits(m),
            _bits(1 / m if m else math.inf),
            _bits(m / (m - 1) if m > 1 else 1.0),
            _bits(problem.momentum),
            problem.count.elements if problem.count is not None else 0,
        )
        zeros = Addresses(*(0,) * len(Addresses._fields))
        words = self.layout.words()
        return Arguments(zeros, sizes, words, vectors, numbers, counts, self.work)

    def blocks(self, tile: Tile) -> int:
        """How many tiles the channels of a set make."""
        in_group = ceil_div(self.problem.per_group, tile.members)
        return ceil_div(groups_of(self.problem), tile.groups) * in_group

    def launch(
        self,
        kernel: str,
        word: str,
        programs: int,
        config: Config,
        arguments: Arguments,
        warps: int,
    ) -> None:
        """Add a launch."""
        self.launches.append(Launch(kernel, programs, config, arguments, warps, word))

    # What launches do

    def over_parts(
        self, kernel: str, word: str, tile: Tile, parts: int, part: int, **rest: Any
    ) -> None:
        """A program for each part of each tile."""
        programs = self.problem.sets.size * self.blocks(tile) * parts
        config = self.config(
            tile, parts, unroll=unroll(self.problem, self.layout, tile, part), **rest
        )
        self.launch(kernel, word, programs, config, self.arguments(tile, parts, part), tile.warps)

    def outputs(self, parts: int) -> None:
        """The gradients' per-channel outputs, of sums in the workspace."""
        width = min(OUTPUT_CHANNELS, power_of_two(self.problem.channel.size))
        rows = power_of_two(max(1, min(OUTPUT_ROWS, parts * self.problem.sets.size)))
        tile = Tile(1, width, 1, _warps(rows * width))
        config = self.config(tile, rows=rows)
        programs = ceil_div(self.problem.channel.size, width)
        arguments = self.arguments(tile, parts)
        self.launch("outputs", "outputs", programs, config, arguments, tile.warps)

    def moments(self, parts: int, *, sums: bool, saves: int = 0) -> None:
        """Statistics of moments in the workspace."""
        problem = self.problem
        groups = 1
        if problem.per_group == 1:
            groups = power_of_two(min(OUTPUT_CHANNELS, groups_of(problem)))
        tile = Tile(1, groups, 1, 1)
        sums_at_once = power_of_two(max(1, parts)) * groups * self.fan(tile)
        tile = replace(tile, warps=_warps(sums_at_once))
        # One channel of each group stands for all.
        config = self.config(tile, parts, sums=sums, saves=saves)
        arguments = self.arguments(tile, parts)
        arguments = arguments._replace(sizes=arguments.sizes._replace(blocks=1))
        programs = problem.sets.size * ceil_div(groups_of(problem), groups)
        word = "statistics"
        self.launch("moments", word, programs, config, arguments, tile.warps)


def _warps(sums: int) -> int:
    """Warps of a program that adds up so many sums."""
    return max(1, min(8, min(sums, MOST_ROWS) // 128))
