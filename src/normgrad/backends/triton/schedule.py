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

from dataclasses import dataclass

from ...declarations.problem import Problem, Role
from .config import ARGUMENT, COLUMNS, INVSTD, MEAN, OUTPUTS, PILOT, RESULT, SAVED, SUMS, VARIANCE
from .cuts import Cut, cut
from .device import Device
from .launches import ALIGNMENT as ALIGNMENT
from .launches import Builder, Launch
from .layouts import SHORT, groups_of, layout_of
from .lines import Lines, lines_of, reads_lines


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


def build(problem: Problem, device: Device) -> Schedule:
    """Build the schedule for a problem on a device.

    Raises:
        ValueError: more channels than the kernels' 32-bit indices allow.
    """
    if reads_lines(problem):
        problem = lines_of(problem)
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


def _cut(builder: Builder, whole: bool) -> Cut:
    """The division of a builder's problem among programs."""
    return cut(builder.problem, builder.layout, builder.device, whole)


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
    elif problem.parameters:
        if not problem.by_row:
            builder.problem = problem._replace(sets=problem.sets._replace(size=1))
        builder.combine_parameters(0)


def _fill(builder: Builder) -> str:
    """Add the launches of a problem with elements, and return their passes over memory."""
    problem = builder.problem
    if problem.missing_mean or problem.missing_invstd:
        _find_statistics(builder)
    if problem.result_needs_sums or isinstance(problem, Lines):
        return _sums_and_write(builder)
    if problem.needs_sums:
        _sums_alone(builder)
    elif problem.result is not None:
        builder.over_parts("write", _cut(builder, whole=False), RESULT)
    return ""


def _sum_parts(builder: Builder, found: Cut, stores: int) -> None:
    """Launch what sums the parts of a division."""
    if isinstance(builder.problem, Lines):
        builder.groups(found, stores)
    else:
        builder.over_parts("sums", found, stores)


def _find_statistics(builder: Builder) -> None:
    """Add the launches that store missing statistics in the workspace.

    In float64 arithmetic a first round computes the mean as the point for moments, since squares
    about a pilot would be too inexact for float64 data.
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
        found = _cut(builder, whole=False)
        builder.reserve_sums(found.parts)
        _sum_parts(builder, found, SUMS)
        builder.combine_parts(found.parts, which)
        if which != INVSTD:
            builder.about = SAVED
        if which != MEAN:
            builder.invstd = SAVED
    builder.problem = problem


def _sums_alone(builder: Builder) -> None:
    """Add the launches of per-channel outputs; in evaluation they write dx too."""
    problem, found = builder.problem, _cut(builder, whole=True)
    writes = RESULT * (problem.result is not None and problem.constant)
    if found.parts == 1 and problem.per_group == 1 and not problem.grouped:
        builder.over_parts("sums", found, OUTPUTS | writes)
        return
    builder.reserve_sums(found.parts)
    builder.over_parts("sums", found, SUMS | writes)
    if problem.grouped:
        builder.combine_parameters(found.slots)
    else:
        builder.combine_parts(found.parts, OUTPUTS)


def _sums_and_write(builder: Builder) -> str:
    """Add the launches for dx or y from sums over the same tensors, and return their passes.

    Those of lines may want the gradients of parameters alone.
    """
    problem, found = builder.problem, _cut(builder, whole=True)
    lines, writes = isinstance(problem, Lines), problem.result is not None
    # The gradients of parameters that samples or rows share are sums over these, which come last.
    later = problem.grouped and problem.wants_parameters
    outputs = problem.forward if lines else problem.wants_parameters and not later
    divided = writes and found.is_divided
    short = not (lines or divided or builder.wide)
    stores = later * (COLUMNS if lines else SUMS)
    if later and lines:
        # In layer norm the sets share the parameters, so each set has slots of its own.
        count = 2 * found.slots * problem.parameters * (problem.sets.size if problem.by_row else 1)
        builder.reserve("columns", count * problem.arithmetic.itemsize)
    if divided or (later and not lines):
        builder.reserve_sums(found.parts, 4 if short else 8)
    if divided:
        _sum_parts(builder, found, SUMS | stores)
        builder.write_from_sums(found, outputs)
    elif writes or later:
        stores |= (RESULT | OUTPUTS * outputs) * writes
        builder.groups(found, stores, short=short)
    if later:
        builder.combine_parameters(found.slots, short=short)
    return found.passes if writes else ""
