"""Launches of kernels over the tiles of a problem, and their builder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import dtypes
from ...layout import ceil_div, round_up
from ...problem import OTHERS, STATISTICS, VECTORS, Problem, Role, Vector
from .config import (
    ABSENT,
    ARGUMENT,
    PILOT,
    Arguments,
    Config,
    Numbers,
    Sizes,
    Steps,
    Strides,
    Tensor,
    Work,
    pack,
    slot,
)
from .device import Device
from .lines import PROCESSORS, WARPS, Lines
from .tiling import (
    MOST_FAN,
    MOST_ROWS,
    Layout,
    Tile,
    axis_words,
    fitting,
    groups_of,
    power_of_two,
    tiles_of,
)

#: The alignment in bytes of every array in the workspace, and of the part of it that is used.
ALIGNMENT = 256

#: The numbers of channels, and of sums of each channel, that a program which only adds up sums
#: processes at once.
SUM_CHANNELS, SUM_ROWS = 8, (1, 16, 256)
#: The number of batch norm's channels of which a program combines the parts: the fewer, the more
#: programs. On an H200, 64 channels of 523 and 1046 parts took 12.5 and 19.5 µs with 8, 6.1 and 8.4
#: µs with 2.
COMBINED_CHANNELS = 2
#: The largest number of sums of each line or parameter, and of all, that ``write`` adds up at once.
WRITE_ROWS, WRITE_SUMS = 64, 512


@dataclass(frozen=True)
class Launch:
    """A kernel with all its arguments except addresses.

    Attributes:
        kernel: the kernel's name in ``kernels.py``.
        programs: the number of programs.
        config: the compile-time constants.
        arguments: the arguments, with zeros for addresses.
        warps: the number of warps of each program.
    """

    kernel: str
    programs: int
    config: Config
    arguments: Arguments
    warps: int

    @property
    def word(self) -> str:
        """The launch's name in a plan's path."""
        words, config = self.kernel.split("_"), self.config
        if self.kernel == "sums":
            words += ["scale"] * config.writes + ["outputs"] * config.outputs
        elif self.kernel == "groups":
            words += ["lines"] * (config.sharing > 0) + ["twice"] * (not config.resident)
        elif self.kernel == "write":
            words += ["sums"] * config.from_sums + ["lines"] * (config.parameters > 0)
        return "+".join(words)

    def at(self, addresses: Sequence[int]) -> Arguments:
        """The arguments with these addresses, which are in the order of roles."""
        return self.arguments._replace(at=tuple(addresses[:OTHERS]))


@dataclass
class Builder:
    """The builder of a program's launches and workspace.

    Attributes:
        problem, device, layout: the problem, the GPU, and the layout of the tensors.
        end: the bytes of workspace that are reserved so far.
        launches: the launches that were added so far.
        work: the offsets of the arrays in the workspace.
        about, invstd: the sources of the mean and 1/std, as in :class:`.config.Config`.
    """

    problem: Problem
    device: Device
    layout: Layout
    end: int = 0
    launches: list[Launch] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    about: int = ARGUMENT
    invstd: int = ARGUMENT

    @property
    def wide(self) -> bool:
        """Whether the arithmetic is float64."""
        return self.problem.arithmetic is dtypes.float64

    # The workspace

    def reserve(self, name: str, size: int) -> None:
        """Reserve bytes for one of the arrays in :class:`.config.Work`."""
        self.work = self.work._replace(**{name: self.end})
        self.end += round_up(size, ALIGNMENT)

    def reserve_sums(self, parts: int, itemsize: int = 8) -> None:
        """Reserve room for the sums of a number of parts; earlier sums are no longer used."""
        problem = self.problem
        sums = 2 * parts * problem.sets.size * problem.channel.size
        self.reserve("sums", sums * itemsize)
        if self.about == PILOT:
            self.reserve("pilots", problem.sets.size * groups_of(problem) * 8)

    # Launches

    def over_parts(self, kernel: str, tile: Tile, parts: int, part: int, **config: Any) -> None:
        """Launch a kernel on parts of ``part`` positions of each tile."""
        programs = tiles_of(self.problem, tile) * parts
        self._launch(kernel, programs, tile, self._sizes(tile, parts, part), self.layout, **config)

    def groups(
        self, tile: Tile, each: int = 1, parts: int = 1, *, resident: bool = True, **config: Any
    ) -> None:
        """Launch ``groups``, whose programs have ``each`` tiles, or groups that are read twice."""
        problem = self.problem
        blocks = ceil_div(problem.channel.size, tile.step) if resident else groups_of(problem)
        slots = ceil_div(blocks, each)
        programs = problem.sets.size * parts * slots
        part = tile.positions if resident else problem.positions
        sizes = self._sizes(tile, parts, part)._replace(each=each, slots=slots)
        self._launch("groups", programs, tile, sizes, self.layout, resident=resident, **config)

    def combine_parts(self, parts: int, **config: Any) -> None:
        """Combine the sums of all parts, for each group."""
        problem = self.problem
        groups, fan = 1, min(power_of_two(problem.per_group), MOST_FAN)
        if problem.per_group == 1:
            groups = power_of_two(min(COMBINED_CHANNELS, groups_of(problem)))
        programs = problem.sets.size * ceil_div(groups_of(problem), groups)
        tile = Tile(1, 1, 1, groups)
        self._of_sums("parts", programs, tile, parts, parts, groups * fan, fan=fan, **config)

    def combine_sets(self, parts: int, *, short: bool = False) -> None:
        """Combine the sums of all sets and parts, for each parameter."""
        channels = self.problem.channel.size
        width = _width_of(channels)
        tile = Tile(1, width, width)
        programs, sums = ceil_div(channels, width), parts * self.problem.sets.size
        self._of_sums("sets", programs, tile, parts, sums, width, short_sums=short)

    def combine_lines(self, parameters: int, slots: int, **config: Any) -> None:
        """Combine the lines' terms of the parameters' gradients."""
        width, shared = _width_of(parameters), self.problem.by_row
        count = slots * (self.problem.sets.size if shared else 1)
        config |= {"parameters": width, "shared": shared}
        programs = ceil_div(parameters, width)
        self._of_sums("lines", programs, Tile(1, 1, 1), 1, count, width, slots=slots, **config)

    def write_lines(
        self, tile: Tile, pieces: int, parameters: int, slots: int, **config: Any
    ) -> None:
        """Launch ``write`` on lines whose pieces have sums, and on the parameters if there are any.

        Programs write many pieces each, since each program computes the coefficients anew.
        """
        problem = self.problem
        most_parts = ceil_div(WARPS // tile.warps, tiles_of(problem, tile))
        each = ceil_div(pieces, most_parts)
        parts = ceil_div(pieces, each)
        sizes = self._sizes(tile, parts, each * tile.positions)
        sizes = sizes._replace(summed=pieces, slots=slots)
        width = _width_of(parameters) if parameters else 0
        rows = max(1, min(WRITE_ROWS, WRITE_SUMS // max(tile.channels, width)))
        config |= {
            "from_sums": True, "parameters": width, "shared": problem.by_row, "rows": rows
        }  # fmt: skip
        programs = tiles_of(problem, tile) * parts
        if parameters:
            programs += ceil_div(parameters, width)
        self._launch("write", programs, tile, sizes, self.layout, **config)

    def combine_ranks(self) -> None:
        """Combine the statistics of all ranks."""
        channels, count = self.problem.channel.size, self.problem.counts
        width = min(32, power_of_two(channels))
        rows = min(power_of_two(count.elements), 64) if count is not None else 1
        # With 8 numbers per thread Triton 3.6 spilled 16 to 152 bytes of registers; with 64,
        # Triton 3.9 spilled 2008.
        tile = Tile(1, width, width, warps=max(1, rows * width // 128))
        programs, sizes = ceil_div(channels, width), self._sizes(tile)
        self._launch("combine_ranks", programs, tile, sizes, self.layout, rows=rows)

    def _of_sums(
        self,
        kind: str,
        programs: int,
        tile: Tile,
        parts: int,
        count: int,
        width: int,
        slots: int = 1,
        **config: Any,
    ) -> None:
        """Combine ``count`` sums of each channel, for ``width`` channels at once.

        Its configuration contains no properties of the tensors, so that many shapes share a kernel.
        """
        rows = next(rows for rows in SUM_ROWS if rows >= min(count, SUM_ROWS[-1]))
        rows = min(rows, MOST_ROWS // width)
        tile = replace(tile, warps=max(1, min(8, rows * width // 128)))
        none = Tensor(dtypes.float32.code)
        layout = Layout("", none, none, none, self.layout.axes[:1], False, False)
        sizes = self._sizes(tile, parts)._replace(slots=slots)
        self._launch(f"combine_{kind}", programs, tile, sizes, layout, rows=rows, **config)

    def _sizes(self, tile: Tile, parts: int = 1, part: int = 1) -> Sizes:
        """The argument ``sizes`` of kernels."""
        problem = self.problem
        return Sizes(
            sets=problem.sets.size,
            channels=problem.channel.size,
            per_group=problem.per_group,
            groups=groups_of(problem),
            sharing=problem.sharing,
            positions=problem.positions,
            step=tile.step,
            parts=parts,
            part=part,
            summed=parts,
            each=1,
            slots=1,
        )

    def _launch(
        self, kernel: str, programs: int, tile: Tile, sizes: Sizes, layout: Layout, **config: Any
    ) -> None:
        """Add a launch; ``config`` are constants that do not follow from the problem and tile."""
        problem = self.problem
        codes = {slot(role): vector.dtype.code for role, vector in problem.vectors.items()}
        mean = problem.vectors.get(Role.MEAN)
        given_in_two = not self.wide and mean is not None and mean.dtype is dtypes.float64
        compiled = Config(
            forward=problem.forward,
            constant=problem.constant,
            grouped=problem.grouped,
            wide=self.wide,
            dy=fitting(layout.dy, tile),
            x=fitting(layout.x, tile),
            dx=fitting(layout.dx, tile),
            vectors=pack(codes),
            counts=ABSENT if problem.counts is None else problem.counts.dtype.code,
            positions=tile.positions,
            channels=tile.channels,
            leading=tile.leading,
            adjacent=tile.adjacent,
            sharing=problem.padded if isinstance(problem, Lines) else 0,
            groups=tile.groups,
            rank=len(layout.axes),
            long_positions=layout.long_positions,
            long_offsets=layout.long_offsets,
            about=self.about,
            invstd=self.invstd,
            rest=self.about != ARGUMENT or given_in_two,
            # Kernels that combine sums have few of them, which are float64.
            singles=not (kernel.startswith("combine") or self.wide or self.device.fast_float64),
            centred=problem.centred,
            **config,
        )
        set_sizes = tuple(axis.size for axis in problem.set_axes[1:])
        dy, x, dx = (
            Steps(
                Strides(tuple(axis.strides[index] for axis in problem.set_axes), set_sizes),
                problem.channel.strides[index],
                tuple(axis.strides[index] for axis in layout.axes),
            )
            for index in range(3)
        )
        count = problem.counts
        counts = Strides((0,))
        if count is not None and count.rank:
            counts = Strides(count.strides, count.shape[1:])
        arguments = Arguments(
            at=(0,) * OTHERS,
            sizes=sizes,
            axes=tuple(axis_words(axis.size) for axis in layout.axes),
            dy=dy,
            x=x,
            dx=dx,
            vectors=tuple(self._steps(role, set_sizes) for role in VECTORS),
            numbers=_numbers(problem),
            counts=counts,
            work=self.work,
        )
        self.launches.append(Launch(kernel, programs, compiled, arguments, tile.warps))

    def _steps(self, role: Role, set_sizes: tuple[int, ...]) -> Steps:
        """The strides of a vector; those of an absent one are 0."""
        vector = self.problem.vectors.get(role, Vector(dtypes.float32, 0))
        if role in STATISTICS and vector.outer_strides:
            return Steps(Strides(vector.outer_strides, set_sizes), Strides((vector.stride,)))
        along = Strides(
            (*vector.outer_strides, vector.stride),
            self.problem.parameter_sizes if vector.outer_strides else (),
        )
        return Steps(Strides((vector.set_stride,)), along)


def _width_of(parameters: int) -> int:
    """The number of parameters whose sums a program combines, so that there are many programs."""
    return min(SUM_CHANNELS, power_of_two(ceil_div(parameters, PROCESSORS)))


def _numbers(problem: Problem) -> Numbers:
    m, count = problem.divisor, problem.counts
    return Numbers(
        eps=dtypes.bits(problem.eps),
        divisor=dtypes.bits(m),
        inverse=dtypes.bits(1 / m if m else math.inf),
        unbiased=dtypes.bits(m / (m - 1) if m > 1 else 1.0),
        momentum=dtypes.bits(problem.momentum),
        counts=count.elements if count is not None else 0,
    )
