"""From a problem to a program: which kernels, on which tiles, how much workspace.

Made from specs and a description of the device alone. Where coefficients follow from sums over the
very tensors that they are applied to, tensors are read in

- *one pass*, where a program can have all that shares a statistic in registers: it sums and writes;
- *two passes* otherwise: the sums of all, then all is read again and written.

What needs no sums, or nothing but sums, takes one pass in any case. No program waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...problem import Problem, Role, Rule
from .config import BOTH, MEAN, PILOT, SAVED, SPREAD
from .device import Device
from .launches import ALIGNMENT as ALIGNMENT
from .launches import Builder, Launch
from .tiling import (
    LEAST,
    SHORT,
    Tile,
    ceil_div,
    element_bytes,
    groups_of,
    layout_of,
    persistent_tile,
    power_of_two,
    tile_of,
)


@dataclass(frozen=True, eq=False)
class Program:
    """What a plan runs.

    Attributes:
        passes: "one pass", "two passes", or "" where there is no choice.
        pattern: how tensors lie: "rows", "columns" or "tiles".
        launches: one after the other.
        workspace_size: bytes, including what aligning the caller's buffer may cost.
        input_is_grad_out: x is not needed, and dy is read in its place.
    """

    passes: str
    pattern: str
    launches: tuple[Launch, ...]
    workspace_size: int
    input_is_grad_out: bool

    @property
    def path(self) -> str:
        """The passes over memory, how tensors lie, and what each launch does, in words."""
        words = (self.passes, self.pattern, *(launch.word for launch in self.launches))
        return " ".join(("triton", *filter(None, words)))


def _parts(builder: Builder, tile: Tile) -> tuple[int, int]:
    """Into how many parts positions are cut so that a device is busy, and how long each is."""
    problem, device = builder.problem, builder.device
    wanted = ceil_div(device.processors * device.programs_each, max(1, builder.tiles(tile)))
    read = element_bytes(problem) * tile.positions * tile.step
    step = tile.positions * ceil_div(LEAST, read)
    parts = max(1, min(wanted, problem.positions // step))
    part = ceil_div(ceil_div(problem.positions, parts), tile.positions) * tile.positions
    return ceil_div(problem.positions, part), part


def build(problem: Problem, device: Device) -> Program:
    """The program for a problem on a device.

    Raises:
        ValueError: more channels than kernels can count.
    """
    channels = problem.sets.size * problem.channel.size
    if channels >= SHORT:
        raise ValueError(
            f"input: {channels} channels of all samples that have statistics of their own; allowed "
            f"on a GPU: fewer than {SHORT}"
        )
    input_is_grad_out = problem.input_is_grad_out
    problem = problem.reading_one()
    layout = layout_of(problem)
    builder = Builder(problem, device, layout)
    passes = ""
    if problem.rule is Rule.GATHER:
        _gather(builder)
    elif problem.is_empty:
        _nothing(builder)
    else:
        passes = _fill(builder)
    launches = tuple(builder.launches)
    over_tensors = launches and problem.rule is not Rule.GATHER and not problem.is_empty
    return Program(
        passes,
        layout.pattern if over_tensors else "",
        launches,
        builder.end + ALIGNMENT - 1 if builder.end else 0,
        input_is_grad_out,
    )


def _gather(builder: Builder) -> None:
    problem = builder.problem
    width = min(32, power_of_two(problem.channel.size))
    ranks = problem.count.elements if problem.count is not None else 0
    rows = max(1, min(power_of_two(ranks), 64))
    tile = Tile(1, width, width)
    programs = ceil_div(problem.channel.size, width)
    if programs:
        config, arguments = builder.config(tile, rows=rows), builder.arguments(tile)
        # With 8 numbers for a thread Triton 3.6 put 16 to 152 bytes elsewhere; with 64, 3.9
        # put 2008.
        builder.launch("gather", programs, config, arguments, max(1, rows * width // 128))


def _nothing(builder: Builder) -> None:
    """Without elements: what is summed over them is 0."""
    problem = builder.problem
    if not problem.wants_parameters or problem.channel.size == 0:
        return
    if problem.rule is Rule.GROUP:
        builder.outputs(0)
    elif problem.sets.size:
        builder.finish(0, outputs=True)


def _fill(builder: Builder) -> str:
    """The launches of a problem with elements; their passes over memory."""
    problem = builder.problem
    writes = problem.grad_input is not None
    if problem.rule is Rule.FORWARD:
        if problem.missing_mean:
            builder.about = PILOT
            if builder.wide:
                # About a pilot the squares would lose what float64 data have to spare.
                _save(builder, MEAN)
                builder.about = SAVED
        needs = problem.missing_mean
    else:
        if problem.missing_mean or problem.missing_spread:
            _missing(builder)
        needs = writes and problem.rule in (Rule.TRAIN, Rule.GROUP)
    if needs and writes:
        return _sums_and_write(builder)
    if problem.needs_sums:
        _sums_alone(builder)
        return ""
    if writes:
        _write_alone(builder)
    return ""


def _forward(problem: Problem) -> Problem:
    """What finds the statistics that gradients miss."""
    return replace(problem, rule=Rule.FORWARD, grad_input=None, vectors={
        role: vector for role, vector in problem.vectors.items() if role is Role.MEAN
    })  # fmt: skip


def _save(builder: Builder, which: int) -> None:
    """Find statistics, and leave them in the workspace."""
    problem = builder.problem
    if problem.rule is not Rule.FORWARD:
        builder.problem = _forward(problem)
    tile = tile_of(builder.problem, builder.layout, builder.device)
    parts, part = _parts(builder, tile)
    if not builder.saves_statistics:
        builder.saves_statistics = True
        values = 4 * problem.sets.size * groups_of(problem)
        builder.work = builder.work._replace(statistics=builder.reserve(8 * values))
    builder.reserve_sums(parts)
    builder.over_parts("sums", tile, parts, part)
    builder.finish(parts, saves=which)
    builder.problem = problem


def _missing(builder: Builder) -> None:
    """Statistics that are not given to a gradient."""
    problem = builder.problem
    if problem.missing_mean:
        builder.about = PILOT
        if builder.wide:  # a second round about the first one's result
            _save(builder, MEAN)
            builder.about = SAVED
        _save(builder, BOTH if problem.missing_spread else MEAN)
        builder.about = SAVED
    else:
        _save(builder, SPREAD)
    if problem.missing_spread:
        builder.saved_spread = True
        builder.problem = replace(problem, spread_is_variance=False)


def _sums_alone(builder: Builder) -> None:
    """Per-channel outputs; in evaluation dx by the way."""
    problem, device, layout = builder.problem, builder.device, builder.layout
    # On the same tiles as with dx or y, so that sums are the same to the bit.
    tile = persistent_tile(problem, layout, device) or tile_of(problem, layout, device)
    parts, part = _parts(builder, tile)
    writes = problem.grad_input is not None and problem.rule is Rule.EVAL
    if parts == 1 and builder.single and problem.rule is not Rule.GROUP:
        builder.over_parts("sums", tile, 1, part, outputs=True, writes=writes)
        return
    builder.reserve_sums(parts)
    builder.over_parts("sums", tile, parts, part, writes=writes)
    if problem.rule is Rule.GROUP:
        builder.outputs(parts)
    else:
        builder.finish(parts, outputs=True)


def _write_alone(builder: Builder) -> None:
    """dx or y from what is given."""
    tile = tile_of(builder.problem, builder.layout, builder.device)
    builder.over_parts("write", tile, *_parts(builder, tile))


def _sums_and_write(builder: Builder) -> str:
    """dx or y from sums over the tensors themselves; the passes over memory."""
    problem, device, layout = builder.problem, builder.device, builder.layout
    # Group norm's parameters have gradients that are sums over all samples.
    later = problem.rule is Rule.GROUP and problem.wants_parameters
    outputs = problem.wants_parameters and not later
    tile = persistent_tile(problem, layout, device)
    one_pass = tile is not None and not (builder.wide and builder.about == PILOT)
    short = one_pass and not builder.wide
    if tile is not None and one_pass:
        parts = 1
        if later:
            builder.reserve_sums(1, 4 if short else 8)
        builder.persistent(tile, outputs=outputs, keeps_sums=later, short_sums=short)
    else:
        tile = tile_of(problem, layout, device)
        parts, part = _parts(builder, tile)
        builder.reserve_sums(parts)
        builder.reserve_coefficients()
        builder.over_parts("sums", tile, parts, part)
        builder.finish(parts, coefficients=True, outputs=outputs)
        builder.over_parts("write", tile, parts, part, sums=True, reverse=True)
    if later:
        builder.outputs(parts, short=short)
    return "one pass" if one_pass else "two passes"
