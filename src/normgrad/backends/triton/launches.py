"""Launches of kernels over the tiles of a problem, and their builder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...declarations.problem import OTHERS, STATISTICS, VECTORS, Problem, Role, Vector
from ...tensors import dtypes
from ...tensors.strides import ceil_div, round_up
from ...tensors.symbolic import bits
from .config import (
    ABSENT,
    ALONG_CHANNELS,
    ARGUMENT,
    COLUMNS,
    OUTPUTS,
    PILOT,
    RESULT,
    SUMS,
    TOTALS,
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
from .cuts import Cut, Tile, tiles_of
from .device import Device
from .layouts import Layout, axis_words, element_bytes, groups_of, power_of_two
from .lines import Lines
from .policy import POLICY

#: The alignment in bytes of every array in the workspace, and of the part of it that is used.
ALIGNMENT = 256


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
            words += ["scale"] * bool(config.stores & RESULT)
            words += ["outputs"] * bool(config.stores & OUTPUTS)
        elif self.kernel == "groups":
            words += ["lines"] * (config.sharing > 0) + ["twice"] * (not config.resident)
        elif self.kernel == "write":
            words += ["sums"] * (config.from_sums > 0)
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

    def over_parts(self, kernel: str, cut: Cut, stores: int) -> None:
        """Launch a kernel on the parts of each tile."""
        programs = tiles_of(self.problem, cut.tile) * cut.parts
        sizes = self._sizes(cut.tile, cut.parts, cut.part)
        self._launch(kernel, programs, cut.tile, sizes, self.layout, stores=stores)

    def groups(self, cut: Cut, stores: int, *, short: bool = False) -> None:
        """Launch ``groups`` on tiles that programs hold, or on groups that they read twice."""
        problem, tile = self.problem, cut.tile
        blocks = ceil_div(problem.channel.size, tile.step) if cut.resident else groups_of(problem)
        slots = ceil_div(blocks, cut.each)
        programs = problem.sets.size * cut.parts * slots
        constants: dict[str, Any] = {"stores": stores, "short": short, "stages": cut.stages}
        constants |= {"resident": cut.resident, "again": cut.again and bool(stores & RESULT)}
        if stores & COLUMNS:
            slots = cut.slots
            constants |= {"chain": cut.chain, "chains": cut.chains}
        sizes = self._sizes(tile, cut.parts, cut.part)._replace(each=cut.each, slots=slots)
        self._launch("groups", programs, tile, sizes, self.layout, **constants)

    def combine_parts(self, parts: int, stores: int) -> None:
        """Combine the sums of all parts, for each group."""
        problem = self.problem
        groups, fan = 1, min(power_of_two(problem.per_group), POLICY.fan)
        if problem.per_group == 1:
            groups = power_of_two(min(POLICY.combined, groups_of(problem)))
        programs = problem.sets.size * ceil_div(groups_of(problem), groups)
        config = {"groups": groups, "fan": fan, "stores": stores}
        self._of_sums("parts", programs, parts, parts, groups * fan, **config)

    def combine_parameters(self, slots: int, *, short: bool = False) -> None:
        """Combine the terms of the parameters' gradients, which stand in a number of slots."""
        problem = self.problem
        shared = problem.by_row or not isinstance(problem, Lines)
        width = min(
            POLICY.sum_channels, power_of_two(ceil_div(problem.parameters, POLICY.processors))
        )
        count = slots * (problem.sets.size if shared else 1)
        programs = ceil_div(problem.parameters, width)
        if not isinstance(problem, Lines):  # the channels' sums are the terms
            self.work = self.work._replace(columns=self.work.sums)
        config = {"parameters": width, "shared": shared, "slots": slots, "short": short}
        self._of_sums("parameters", programs, 1, count, width, **config)

    def write_from_sums(self, cut: Cut, outputs: bool) -> None:
        """Launch ``write`` on parts that have sums.

        Each program adds up the sums of its channels anew. Those of many parts, and of a group's
        channels, are added up by a launch of their own.
        """
        problem, source, before = self.problem, SUMS, self.work
        tile, parts, part, summed = cut.tile, cut.parts, cut.part, cut.parts
        if isinstance(problem, Lines):  # programs write several pieces each
            each = ceil_div(parts, ceil_div(POLICY.warps // tile.warps, tiles_of(problem, tile)))
            parts, part = ceil_div(parts, each), each * part
        elif (
            problem.per_group > 1
            or parts > POLICY.sum_rows[1]
            or POLICY.sums_again * 16 * parts > element_bytes(problem) * part
        ):
            self.reserve("totals", 16 * problem.sets.size * problem.channel.size)
            self.combine_parts(parts, TOTALS)
            before = self.work
            self.work, source, summed = before._replace(sums=before.totals), TOTALS, 1
        sizes = self._sizes(tile, parts, part)._replace(summed=summed)
        stores = RESULT | OUTPUTS * outputs
        config = {"from_sums": source, "rows": _rows(summed, tile.channels), "stores": stores}
        programs = tiles_of(problem, tile) * parts
        self._launch("write", programs, tile, sizes, self.layout, **config)
        self.work = before

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
        parts: int,
        count: int,
        width: int,
        slots: int = 1,
        **config: Any,
    ) -> None:
        """Combine ``count`` sums of each channel, for ``width`` channels at once.

        Its configuration contains no properties of the tensors, so that many shapes share a kernel.
        """
        rows = _rows(count, width)
        tile = Tile(1, 1, 1, max(1, min(8, rows * width // 128)))
        none = Tensor(dtypes.float32.code)
        layout = self.layout
        layout = Layout("", none, none, none, layout.axes[:1], layout.long_positions, False)
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
            dy=layout.dy,
            x=layout.x,
            dx=layout.dx,
            vectors=pack(codes),
            counts=ABSENT if problem.counts is None else problem.counts.dtype.code,
            channels=tile.channels,
            sharing=problem.padded if isinstance(problem, Lines) else 0,
            adjoining=all(
                vector.stride == 1 and not vector.outer_strides
                for role in (Role.WEIGHT, Role.BIAS)
                if (vector := problem.vectors.get(role)) is not None
            ),
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
        compiled = _for_tile(compiled, tile, layout)
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


def _for_tile(config: Config, tile: Tile, layout: Layout) -> Config:
    """A configuration with the positions of a tile, and that of the tile after it."""

    def aligned(tensor: Tensor) -> Tensor:
        """A tensor with the alignment of its tiles, which start at multiples of their size."""
        width = tile.step if tensor.along == ALONG_CHANNELS else tile.positions
        return tensor._replace(vector=math.gcd(tensor.vector, width, tile.vector))

    return config._replace(
        dy=aligned(layout.dy),
        x=aligned(layout.x),
        dx=aligned(layout.dx),
        positions=tile.positions,
        leading=tile.leading,
        adjacent=tile.adjacent,
        next=_for_tile(config, tile.next, layout) if tile.next else None,
    )


def _rows(count: int, width: int) -> int:
    """The number of ``count`` sums of each of ``width`` channels that are added up at once."""
    enough = next(rows for rows in POLICY.sum_rows if rows >= min(count, POLICY.sum_rows[-1]))
    return min(enough, POLICY.sums // width)


def _numbers(problem: Problem) -> Numbers:
    m, count = problem.divisor, problem.counts
    return Numbers(
        eps=bits(problem.eps),
        divisor=bits(m),
        inverse=bits(1 / m if m else math.inf),
        unbiased=bits(m / (m - 1) if m > 1 else 1.0),
        momentum=bits(problem.momentum),
        counts=count.elements if count is not None else 0,
    )
