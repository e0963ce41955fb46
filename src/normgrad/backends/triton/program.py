"""From a problem to a program: which kernels, on which tiles, how much workspace.

Made from specs and a description of the device alone. There are four ways through memory, where
coefficients follow from sums over the very tensors that they are applied to:

- *held*: a program has all that shares a statistic in registers, reads it once and writes it;
- *team*: several programs have it together, and tell each other their sums;
- *blocked*: sums of some channels, then what is written of them while the L2 cache has them;
- *streamed*: sums of all, then all is read again.

What needs no sums, or nothing but sums, is streamed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...problem import Problem, Role, Rule
from .config import BOTH, MEAN, PILOT, SAVED, SPREAD
from .device import Device
from .launches import ALIGNMENT as ALIGNMENT
from .launches import Builder, Launch
from .tiling import (
    SECTOR,
    SHORT,
    UNROLL,
    Tile,
    ceil_div,
    element_bytes,
    groups_of,
    held_tile,
    itemsize,
    layout_of,
    most_held,
    power_of_two,
    read_bytes,
    tile_of,
    unroll,
)

#: Bytes of dy and x that a task of the blocked way takes: enough for what a task costs (a ticket, a
#: few reads that wait for each other) to be little beside it. An estimate: not measured.
TASK_BYTES = 64 << 10


@dataclass(frozen=True, eq=False)
class Program:
    """What a plan runs.

    Attributes:
        way: through memory: "held", "team", "blocked", "streamed", or "" where there is no choice.
        pattern: how tensors lie: "rows", "columns" or "tiles".
        launches: one after the other.
        workspace_size: bytes, including what aligning the caller's buffer may cost.
        input_is_grad_out: x is not needed, and dy is read in its place.
    """

    way: str
    pattern: str
    launches: tuple[Launch, ...]
    workspace_size: int
    input_is_grad_out: bool

    @property
    def path(self) -> str:
        """The way chosen, for people and tests."""
        words = (self.way, self.pattern, *(launch.word for launch in self.launches))
        return " ".join(("triton", *filter(None, words)))


def _parts(problem: Problem, tile: Tile, blocks: int, device: Device) -> tuple[int, int]:
    """Into how many parts positions are cut so that a device is busy, and how long each is."""
    step = tile.positions * UNROLL
    wanted = ceil_div(device.processors * device.programs_each, max(1, problem.sets.size * blocks))
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
    way = ""
    if problem.rule is Rule.GATHER:
        _gather(builder)
    elif problem.is_empty:
        _nothing(builder)
    else:
        way = _fill(builder)
    launches = tuple(builder.launches)
    return Program(
        way,
        layout.pattern
        if launches and problem.positions and problem.rule is not Rule.GATHER
        else "",
        launches,
        builder.end + ALIGNMENT - 1 if builder.end else 0,
        input_is_grad_out,
    )


def _gather(builder: Builder) -> None:
    problem = builder.problem
    width = min(32, power_of_two(problem.channel.size))
    ranks = problem.count.elements if problem.count is not None else 0
    rows = max(1, min(power_of_two(ranks), 64))
    tile = Tile(1, width, 1, 1)
    programs = ceil_div(problem.channel.size, width)
    if programs:
        builder.launch(
            "gather", "gather", programs, builder.config(tile, rows=rows),
            builder.arguments(tile), tile.warps,
        )  # fmt: skip


def _nothing(builder: Builder) -> None:
    """Without elements: what is summed over them is 0."""
    problem = builder.problem
    if not problem.wants_parameters or problem.channel.size == 0:
        return
    if problem.rule is Rule.FORWARD:
        if problem.sets.size:
            builder.moments(0, sums=False)
    else:
        builder.outputs(0)


def _fill(builder: Builder) -> str:
    """The launches of a problem with elements; the way they take."""
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
    parts, part = _parts(builder.problem, tile, builder.blocks(tile), builder.device)
    values = problem.sets.size * groups_of(problem) * 8
    if not builder.work.mean_rest:  # the first of them may well stand at 0
        builder.work = builder.work._replace(
            mean=builder.reserve(values),
            mean_rest=builder.reserve(values),
            spread=builder.reserve(values),
            spread_error=builder.reserve(values if builder.wide else 0),
        )
    builder.reserve_sums(parts)
    builder.over_parts("sums", "moments", tile, parts, part)
    builder.moments(parts, sums=True, saves=which)
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
    problem = builder.problem
    tile = tile_of(problem, builder.layout, builder.device)
    parts, part = _parts(problem, tile, builder.blocks(tile), builder.device)
    writes = problem.grad_input is not None and problem.rule is Rule.EVAL
    single = problem.per_group == 1 and problem.rule is not Rule.GROUP
    word = "sums+scale" if writes else "sums"
    if parts == 1 and single:
        builder.over_parts("sums", f"{word}+outputs", tile, 1, part, outputs=True, writes=writes)
        return
    builder.reserve_sums(parts)
    builder.over_parts("sums", word, tile, parts, part, writes=writes)
    if problem.rule is Rule.FORWARD:
        builder.moments(parts, sums=True)
    else:
        builder.outputs(parts)


def _write_alone(builder: Builder) -> None:
    """dx or y from what is given."""
    tile = tile_of(builder.problem, builder.layout, builder.device)
    parts, part = _parts(builder.problem, tile, builder.blocks(tile), builder.device)
    builder.over_parts("write", "write", tile, parts, part)


def _sums_and_write(builder: Builder) -> str:
    """dx or y from sums over the tensors themselves; the way chosen."""
    problem, device, layout = builder.problem, builder.device, builder.layout
    # What is read is read once, if it can be.
    tile = held_tile(problem, layout, device)
    if tile is not None and not (builder.wide and builder.about == PILOT):
        _held(builder, tile, 1)
        return "held"
    total = read_bytes(problem)
    team = _team(builder)
    if team is not None and total <= device.l2_share:
        _held(builder, *team)
        return "team"
    tile = tile_of(problem, layout, device)
    stage = _stage(builder, tile)
    if stage and total > device.l2_share:
        _blocked(builder, tile, stage)
        return "blocked"
    parts, part = _parts(problem, tile, builder.blocks(tile), device)
    builder.reserve_sums(parts)
    builder.over_parts("sums", "sums", tile, parts, part)
    builder.over_parts(
        "write", "write", tile, parts, part, sums=True, outputs=builder.own_outputs, reverse=True
    )
    if builder.outputs_later:
        builder.outputs(parts)
    return "streamed"


def _held(builder: Builder, tile: Tile, parts: int) -> None:
    """A program, or a team of them, has all that shares a statistic."""
    problem = builder.problem
    later = builder.outputs_later
    part = problem.positions if parts == 1 else tile.positions
    if parts > 1 or later:
        builder.reserve_sums(parts)
    programs = problem.sets.size * builder.blocks(tile) * parts
    if parts > 1:
        builder.counters(programs // parts)
    config = builder.config(
        tile, parts, sums=True, outputs=builder.own_outputs, keeps_sums=later, team=parts
    )
    arguments = builder.arguments(tile, parts, part)
    word = "held" if parts == 1 else f"team of {parts}"
    builder.launch("held", word, programs, config, arguments, tile.warps)
    if later:
        builder.outputs(parts)


def _team(builder: Builder) -> tuple[Tile, int] | None:
    """What each of how many programs holds of what shares a statistic, if all run at once."""
    problem, device = builder.problem, builder.device
    if problem.per_group > 1:
        # A part of a group's positions has a part of each of its channels.
        least = power_of_two(problem.per_group)
    elif builder.layout.pattern == "rows":
        least = 1
    else:
        least = power_of_two(min(SECTOR // itemsize(problem), problem.channel.size))
    most = most_held(problem, builder.layout, device)
    if least > most:
        return None
    parts = ceil_div(problem.positions, max(1, most // least))
    tile = held_tile(problem, builder.layout, device, parts)
    if tile is None or parts < 2:
        return None
    parts = ceil_div(problem.positions, tile.positions)
    programs = problem.sets.size * builder.blocks(tile) * parts
    return (tile, parts) if programs <= device.processors else None


def _stage(builder: Builder, tile: Tile) -> int:
    """How many units a stage of the blocked way has: a quarter of the share; 0 where none fits.

    Two stages are under way at once, and what is written takes room as well.
    """
    problem = builder.problem
    channels = tile.channels if tile.groups > 1 or problem.per_group == 1 else problem.per_group
    unit = min(channels, problem.channel.size) * problem.positions * element_bytes(problem)
    return builder.device.l2_share // 2 // unit


def _blocked(builder: Builder, tile: Tile, units: int) -> None:
    problem = builder.problem
    blocks = builder.blocks(tile)
    in_unit = ceil_div(problem.per_group, tile.members)
    every = problem.sets.size * blocks // in_unit
    units = min(units, every)
    step = tile.positions * UNROLL
    bytes_of_position = tile.channels * element_bytes(problem)
    part = max(1, TASK_BYTES // (step * bytes_of_position)) * step
    part = min(part, ceil_div(problem.positions, tile.positions) * tile.positions)
    parts = ceil_div(problem.positions, part)
    builder.reserve_sums(parts)
    stage = units * in_unit * parts
    stages = ceil_div(every, units)
    builder.work = builder.work._replace(stage=stage, stages=stages)
    builder.counters(every)
    config = builder.config(
        tile,
        parts,
        unroll=unroll(problem, builder.layout, tile, part),
        sums=True,
        outputs=builder.own_outputs,
        keep=True,
    )
    arguments = builder.arguments(tile, parts, part)
    builder.launch("blocked", f"{stages} stages", 2 * stage * stages, config, arguments, tile.warps)
    if builder.outputs_later:
        builder.outputs(parts)
