"""Launches, and what makes them: the words for a kernel over the tiles of a problem."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import dtypes
from ...problem import Problem, Role
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
    Steps,
    Strides,
    Tensor,
    Work,
    pack,
)
from .device import Device
from .tiling import (
    LEAST,
    MOST_FAN,
    MOST_ROWS,
    Layout,
    Tile,
    axis_words,
    ceil_div,
    element_bytes,
    fitting,
    groups_of,
    power_of_two,
)

#: Every array in the workspace starts at a multiple of this, and so does the workspace in use,
#: wherever the caller's buffer starts.
ALIGNMENT = 256

#: Channels, and sums of each at once, that a program adds up where it does nothing else.
SUM_CHANNELS, SUM_ROWS = 8, (1, 16, 256)


@dataclass(frozen=True)
class Launch:
    """A kernel and what it is given but for addresses.

    Attributes:
        kernel: its name in ``kernels.py``.
        programs: how many.
        config: what it is compiled for.
        arguments: with zeros for addresses.
        warps: of each program.
    """

    kernel: str
    programs: int
    config: Config
    arguments: Arguments
    warps: int

    @property
    def word(self) -> str:
        """What it does, for people."""
        words = [self.kernel]
        if self.kernel == "sums":
            words += ["scale"] * self.config.writes + ["outputs"] * self.config.outputs
        return "+".join(words)

    def at(self, addresses: Sequence[int]) -> Arguments:
        """The arguments, at addresses in the order of roles."""
        return self.arguments._replace(at=_addresses(addresses))


def _addresses(flat: Sequence[int]) -> Addresses:
    """Addresses in the order of roles, by their names."""
    dy, x, dx, *rest = flat
    count = len(VECTORS)
    return Addresses(dy, x, dx, tuple(rest[:count]), *rest[count : count + 2])


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
    saves_statistics: bool = False
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
    def single(self) -> bool:
        """Whether each channel is a group of its own."""
        return self.problem.per_group == 1

    def reserve_sums(self, parts: int, itemsize: int = 8) -> None:
        """Room for sums in so many parts; what other parts left there is done with."""
        problem = self.problem
        sums = (4 if self.wide else 2) * parts * problem.sets.size * problem.channel.size
        self.work = self.work._replace(sums=self.reserve(sums * itemsize))
        if self.about == PILOT:
            pilots = self.reserve(problem.sets.size * groups_of(problem) * 8)
            self.work = self.work._replace(pilots=pilots)

    def reserve_coefficients(self) -> None:
        """Room for the coefficients of every channel."""
        problem = self.problem
        size = 5 * problem.sets.size * problem.channel.size * problem.arithmetic.itemsize
        self.work = self.work._replace(coefficients=self.reserve(size))

    def config(self, tile: Tile, **rest: Any) -> Config:
        """What a kernel is compiled for."""
        problem, layout = self.problem, self.layout
        codes = {
            int(role) - int(Role.MEAN): vector.dtype.code
            for role, vector in problem.vectors.items()
        }
        base = Config(
            rule=int(problem.rule),
            wide=self.wide,
            dy=fitting(layout.dy, tile),
            x=fitting(layout.x, tile),
            dx=fitting(layout.dx, tile),
            vectors=pack(codes),
            counts=ABSENT if problem.count is None else problem.count.dtype.code,
            positions=tile.positions,
            channels=tile.channels,
            leading=tile.leading,
            adjacent=tile.adjacent,
            single=self.single,
            groups=tile.groups,
            rank=len(layout.axes),
            long_positions=layout.long_positions,
            long_offsets=layout.long_offsets,
            about=self.about,
            saved_spread=self.saved_spread,
            variance=problem.spread_is_variance,
        )
        return base._replace(**rest)

    def arguments(
        self,
        tile: Tile,
        parts: int = 1,
        part: int = 1,
        tasks: int = 0,
        each: int = 1,
        *,
        over_tensors: bool = True,
    ) -> Arguments:
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
            step=tile.step,
            parts=parts,
            part=part,
            tasks=tasks,
            each=each,
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
        zeros = _addresses([0] * (len(Role) + 1))
        axes = self.layout.axes if over_tensors else self.layout.axes[:1]
        dy, x, dx = (
            Steps(
                problem.sets.strides[index],
                problem.channel.strides[index],
                tuple(axis.strides[index] for axis in axes),
            )
            for index in range(3)
        )
        words = tuple(axis_words(axis.size) for axis in axes)
        return Arguments(zeros, sizes, words, dy, x, dx, vectors, numbers, counts, self.work)

    def tiles(self, tile: Tile) -> int:
        """How many tiles there are beside each other: of all sets' channels."""
        return self.problem.sets.size * ceil_div(self.problem.channel.size, tile.step)

    def launch(
        self, kernel: str, programs: int, config: Config, arguments: Arguments, warps: int
    ) -> None:
        """Add a launch."""
        self.launches.append(Launch(kernel, programs, config, arguments, warps))

    # What launches do

    def over_parts(self, kernel: str, tile: Tile, parts: int, part: int, **rest: Any) -> None:
        """A program for each part of each tile."""
        programs = self.tiles(tile) * parts
        arguments = self.arguments(tile, parts, part)
        self.launch(kernel, programs, self.config(tile, **rest), arguments, tile.warps)

    def persistent(self, tile: Tile, **rest: Any) -> None:
        """A program for each tile, or for some where there are more than a device runs at once."""
        problem, device = self.problem, self.device
        tasks = self.tiles(tile)
        read = element_bytes(problem) * problem.positions * tile.step
        at_once = device.processors * device.programs_each
        each = max(1, min(tasks // at_once, LEAST // read))
        arguments = self.arguments(tile, 1, problem.positions, tasks, each)
        config = self.config(tile, sums=True, **rest)
        self.launch("persistent", ceil_div(tasks, each), config, arguments, tile.warps)

    def finish(self, parts: int, **rest: Any) -> None:
        """What follows from the sums of all parts, for each group."""
        problem = self.problem
        groups, fan = 1, min(power_of_two(problem.per_group), MOST_FAN)
        if problem.per_group == 1:
            groups = power_of_two(min(SUM_CHANNELS, groups_of(problem)))
        tile = Tile(1, 1, 1, groups)
        programs = problem.sets.size * ceil_div(groups_of(problem), groups)
        self._of_sums(
            "finish", programs, tile, parts, parts, groups * fan, fan=fan, sums=True, **rest
        )

    def outputs(self, parts: int, *, short: bool = False) -> None:
        """The gradients of group norm's parameters, of sums in the workspace."""
        width = min(SUM_CHANNELS, power_of_two(self.problem.channel.size))
        tile = Tile(1, width, width)
        programs = ceil_div(self.problem.channel.size, width)
        sums = parts * self.problem.sets.size
        self._of_sums("outputs", programs, tile, parts, sums, width, short_sums=short)

    def _of_sums(
        self,
        kernel: str,
        programs: int,
        tile: Tile,
        parts: int,
        count: int,
        width: int,
        **rest: Any,
    ) -> None:
        """A kernel that adds up so many sums for each of so many channels at once.

        It knows nothing of tensors, so that few are compiled for many shapes.
        """
        rows = next(rows for rows in SUM_ROWS if rows >= min(count, SUM_ROWS[-1]))
        rows = min(rows, MOST_ROWS // width)
        none = Tensor(dtypes.float32.code)
        config = self.config(tile, rows=rows, dy=none, x=none, dx=none, **rest)
        config = config._replace(rank=1, long_positions=False, long_offsets=False)
        arguments = self.arguments(tile, parts, over_tensors=False)
        self.launch(kernel, programs, config, arguments, max(1, min(8, rows * width // 128)))
