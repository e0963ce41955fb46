"""Schedules of the Triton backend: a problem's kernels, tiles and workspace.

A schedule is made from specs and a description of the device. If coefficients depend on sums over
the same tensors that they are applied to, the tensors are read in

- *one pass*, if the registers can hold whole statistics groups, which are summed and then written;
- *two passes* otherwise: the first computes all sums, the second reads the tensors again and writes
  the result.

Problems without sums, or with sums only, always take one pass. No program on the GPU waits for
another. Layer norm, and group norm whose channels have few positions, are read line by line; see
lines.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...declarations.problem import Problem, Role
from ...tensors import dtypes
from ...tensors.strides import ceil_div
from .config import ARGUMENT, COLUMNS, INVSTD, MEAN, OUTPUTS, PILOT, RESULT, SAVED, SUMS, VARIANCE
from .device import Device
from .launches import ALIGNMENT as ALIGNMENT
from .launches import Builder, Launch
from .lines import PROCESSORS, Cut, Lines, cut_of, lines_of, reads_lines
from .tiling import (
    LEAST,
    SHORT,
    Tile,
    element_bytes,
    group_tile,
    groups_of,
    layout_of,
    persistent_tile,
    tile_of,
    tiles_of,
)

#: The largest number of tiles that a program adds up one after the other in float64 arithmetic.
#: With the additions within a tile and of 10⁸ elements' parts, a term is rounded 64 times at most,
#: as often as the bound allows.
MOST_WIDE = 16


@dataclass(frozen=True, eq=False)
class Schedule:
    """The launches that a plan runs on a GPU.

    Attributes:
        passes: "one pass", "two passes", or "" if there is no choice.
        pattern: the layout of the tensors: "rows", "columns" or "tiles".
        launches: the launches, which run one after the other.
        workspace_size: the bytes of the workspace, including a margin to align the caller's buffer.
    """

    passes: str
    pattern: str
    launches: tuple[Launch, ...]
    workspace_size: int

    @property
    def path(self) -> str:
        """A description: the passes over memory, the layout of the tensors, and each launch."""
        words = (self.passes, self.pattern, *(launch.word for launch in self.launches))
        return " ".join(("triton", *filter(None, words)))


def _parts(builder: Builder, tile: Tile) -> tuple[int, int]:
    """The number of parts of the positions that keep a device busy, and the positions in each."""
    problem, device = builder.problem, builder.device
    most = ceil_div(device.processors * device.programs_each, max(1, tiles_of(problem, tile)))
    if builder.wide:
        most = max(most, ceil_div(problem.positions, MOST_WIDE * tile.positions))
    read = element_bytes(problem) * tile.positions * tile.step
    step = tile.positions * ceil_div(LEAST, read)
    parts = max(1, min(most, problem.positions // step))
    part = ceil_div(ceil_div(problem.positions, parts), tile.positions) * tile.positions
    return ceil_div(problem.positions, part), part


def build(problem: Problem, device: Device) -> Schedule:
    """Build the schedule for a problem on a device.

    Raises:
        ValueError: more channels than the kernels' 32-bit indices allow.
    """
    whole = problem
    if reads_lines(whole):
        problem = lines_of(whole)
    layout = layout_of(problem)
    channels = problem.sets.size * problem.channel.size
    if channels >= SHORT:
        raise ValueError(
            f"input: {channels} channels of all samples that have statistics of their own; allowed "
            f"on a GPU: fewer than {SHORT}"
        )
    invstd = VARIANCE if problem.invstd_is_variance else ARGUMENT
    builder = Builder(problem, device, layout, invstd=invstd)
    passes = ""
    if problem.gathers:
        if problem.channel.size:
            builder.combine_ranks()
    elif problem.is_empty:
        _nothing(builder)
    elif isinstance(problem, Lines):
        passes = _line_by_line(builder, problem, whole)
    else:
        passes = _fill(builder)
    launches = tuple(builder.launches)
    over_tensors = launches and not problem.gathers and not problem.is_empty
    return Schedule(
        passes,
        layout.pattern if over_tensors else "",
        launches,
        builder.end + ALIGNMENT - 1 if builder.end else 0,
    )


def _nothing(builder: Builder) -> None:
    """Add the launches for tensors without elements, whose sums and statistics are 0."""
    problem = builder.problem
    if not problem.wants_parameters:
        return
    if problem.by_row:
        problem = builder.problem = lines_of(problem)
    if problem.forward or not problem.grouped:
        if problem.sets.size and problem.channel.size:
            builder.combine_parts(0, OUTPUTS)
    elif problem.by_row and problem.positions:
        builder.combine_parameters(problem.positions, 0)
    elif not problem.by_row and problem.channel.size:
        builder.problem = problem._replace(sets=problem.sets._replace(size=1))
        builder.combine_parameters(problem.channel.size, 0)


def _fill(builder: Builder) -> str:
    """Add the launches of a problem with elements, and return their passes over memory."""
    problem = builder.problem
    if problem.missing_mean or problem.missing_invstd:
        _find_statistics(builder)
    if problem.result_needs_sums:
        return _sums_and_write(builder)
    if problem.needs_sums:
        _sums_alone(builder)
    elif problem.result is not None:
        tile = tile_of(problem, builder.layout, builder.device)
        builder.over_parts("write", tile, *_parts(builder, tile), RESULT)
    return ""


def _line_by_line(builder: Builder, lines: Lines, problem: Problem) -> str:
    """Add the launches for lines, and return their passes over memory.

    Args:
        builder: the builder for ``lines``.
        lines: the problem in the form of lines.
        problem: the same problem in its original form.
    """
    cut = cut_of(lines, builder.layout, builder.device)
    if lines.missing_mean:
        _find_statistics(builder, cut)
    forward, writes = lines.forward, lines.result is not None
    columns = lines.wants_parameters and not forward
    # A program has one line, whose neighbours in a tile would not be there.
    reads_twice = not columns and not builder.wide and cut.tile.step == 1
    reads_twice = reads_twice and tiles_of(lines, cut.tile) >= PROCESSORS
    passes = ""
    shared: dict[str, Any] = {"stages": cut.stages}
    stores = RESULT | OUTPUTS * forward if writes else 0
    if columns:
        # In layer norm the sets share the parameters, so each set has slots of its own.
        slots = cut.slots * (lines.sets.size if problem.by_row else 1)
        builder.reserve("columns", 2 * slots * problem.parameters * lines.arithmetic.itemsize)
        shared |= {"chain": cut.chain, "chains": cut.chains}
        stores |= COLUMNS
    if writes and cut.whole:
        # A line that is read again is in the L2 cache.
        passes = "one pass"
        shared["again"] = cut.again
        builder.groups(cut.tile, cut.each, stores=stores, **shared)
    elif writes and reads_twice:
        passes = "two passes"
        builder.groups(cut.tile, resident=False, stores=stores)
    elif writes:
        passes = "two passes"
        builder.reserve_sums(cut.pieces)
        builder.groups(cut.tile, cut.each, cut.pieces, stores=SUMS | stores & COLUMNS, **shared)
        builder.write_from_sums(cut.tile, cut.pieces, cut.tile.positions, forward)
    elif columns:
        builder.groups(cut.tile, cut.each, cut.pieces, stores=stores, **shared)
    if columns:
        builder.combine_parameters(problem.parameters, cut.slots)
    return passes


def _find_statistics(builder: Builder, cut: Cut | None = None) -> None:
    """Add the launches that store missing statistics in the workspace.

    In float64 arithmetic a first round computes the mean as the point for moments, since squares
    about a pilot would be too inexact for float64 data. Lines are read with the division ``cut``.
    """
    problem = builder.problem
    rounds = []
    if problem.missing_mean:
        builder.about = PILOT
        if builder.wide:
            rounds.append(MEAN)
    if not problem.forward:
        statistics = MEAN | INVSTD if problem.missing_invstd else MEAN
        rounds.append(statistics if problem.missing_mean else INVSTD)
        mean = problem.vectors.get(Role.MEAN)
        vectors = {} if mean is None else {Role.MEAN: mean}
        builder.problem = problem._replace(forward=True, result=None, vectors=vectors)
    if rounds:
        builder.reserve("statistics", 3 * 8 * problem.sets.size * groups_of(problem))
    for which in rounds:
        if cut:
            parts = cut.pieces
            builder.reserve_sums(parts)
            builder.groups(cut.tile, cut.each, parts, stores=SUMS, stages=cut.stages)
        else:
            tile = tile_of(builder.problem, builder.layout, builder.device)
            parts, part = _parts(builder, tile)
            builder.reserve_sums(parts)
            builder.over_parts("sums", tile, parts, part, SUMS)
        builder.combine_parts(parts, which)
        if which != INVSTD:
            builder.about = SAVED
        if which != MEAN:
            builder.invstd = SAVED
    builder.problem = problem


def _sums_alone(builder: Builder) -> None:
    """Add the launches of per-channel outputs; in evaluation they write dx too."""
    problem, device, layout = builder.problem, builder.device, builder.layout
    # The tiles are those of dx or y, or a channel's first, so that most sums have the same bits.
    tile = persistent_tile(problem, layout, device) or tile_of(problem, layout, device)
    tile = replace(tile, next=None)
    parts, part = _parts(builder, tile)
    writes = RESULT * (problem.result is not None and problem.constant)
    if parts == 1 and problem.per_group == 1 and not problem.grouped:
        builder.over_parts("sums", tile, 1, part, OUTPUTS | writes)
        return
    builder.reserve_sums(parts)
    builder.over_parts("sums", tile, parts, part, SUMS | writes)
    if problem.grouped:
        builder.combine_parameters(problem.channel.size, parts)
    else:
        builder.combine_parts(parts, OUTPUTS)


def _fits(problem: Problem, device: Device) -> bool:
    """Whether a processor's cache has a group when it is read again."""
    return problem.per_group * problem.positions <= device.persistent


def _takes_groups(problem: Problem, device: Device) -> bool:
    """Whether programs take whole groups: small ones, or so many that each processor has some.

    In batch norm, channels are read in parts, since a sample's channels are next to each other.
    """
    if problem.per_group == 1 and problem.sets.size == 1:
        return False
    wide = problem.arithmetic is dtypes.float64  # which adds up few tiles one after the other
    many = not wide and problem.sets.size * groups_of(problem) >= device.processors
    return many or _fits(problem, device)


def _sums_and_write(builder: Builder) -> str:
    """Add the launches for dx or y from sums over the same tensors, and return their passes."""
    problem, device, layout = builder.problem, builder.device, builder.layout
    # The gradients of group norm's parameters are sums over all samples, which come last.
    later = problem.grouped and problem.wants_parameters
    outputs = problem.wants_parameters and not later
    parts, short = 1, not builder.wide
    tile = persistent_tile(problem, layout, device)
    resident = tile is not None
    if tile is not None or _takes_groups(problem, device):
        passes = "one pass" if resident or _fits(problem, device) else "two passes"
        if later:
            builder.reserve_sums(1, 4 if short else 8)
        each = 1
        if tile is None:
            tile = group_tile(problem, layout, device)
        else:  # several tiles for each program, if there are many
            read = element_bytes(problem) * problem.positions * tile.step
            each = max(1, min(tiles_of(problem, tile) // device.processors, ceil_div(LEAST, read)))
        stores = RESULT | OUTPUTS * outputs | SUMS * later
        builder.groups(tile, each, resident=resident, short=short, stores=stores)
    else:
        passes, short = "two passes", False
        tile = tile_of(problem, layout, device)
        parts, part = _parts(builder, tile)
        builder.reserve_sums(parts)
        builder.over_parts("sums", tile, parts, part, SUMS)
        builder.write_from_sums(tile, parts, part, outputs)
    if later:
        builder.combine_parameters(problem.channel.size, parts, short=short)
    return passes
