"""A run's figures on a GPU, and the file they are kept in: one row for each thing timed."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import normgrad

from .. import results
from ..results import columns_of, version
from ..suite import Case, Operator, Part
from .contenders import COPY, MINE, OURS, Ready
from .rotation import Rotation
from .timing import EVENTS, GRAPH, Times


@dataclass(frozen=True)
class Row:
    """A contender on a case, timed in one way; the fields are the file's columns.

    Attributes:
        case: its id.
        operator, shape, dtype, parameters, layout: the case's.
        groups: of group norm, else 0.
        elements: of one tensor.
        contender: "ours", the public function with new outputs or a layer's step; "out", the same
            with ``out=``; "plan", a plan's run with ``out=`` and ``workspace=``; "copy", torch's
            ``copy_`` of a tensor larger than L2; else who computes the same, with new outputs.
        timing: "events" around calls in a row, or "graph", around replays of a CUDA graph of them.
        t_us: microseconds a call, the median.
        spread: interquartile range over median.
        rounds: how often it was timed.
        calls: that were timed together.
        copies: of the tensors, that calls went through.
        rotated_bytes: what these move in all; up to twice L2's size some of it may stay there.
        bytes: what a call has to move: dy, x and dx once each, without dx for reduce; x and y for
            the forward pass; all five for a layer; what is read and written for the copy.
        path: our plan's way through the kernels; empty for others and for layers.
    """

    case: str
    operator: str
    shape: str
    dtype: str
    parameters: str
    layout: str
    groups: int
    elements: int
    contender: str
    timing: str
    t_us: float
    spread: float
    rounds: int
    calls: int
    copies: int
    rotated_bytes: int
    bytes: int
    path: str

    @property
    def part(self) -> Part:
        """What its operator belongs to."""
        return Operator(self.operator).part


@dataclass(frozen=True)
class Results:
    """What a file holds: facts about the run, by name, and the rows."""

    facts: Mapping[str, str]
    rows: tuple[Row, ...]


def rows(case: Case, rotation: Rotation, ready: Ready, times: Times, copied: int) -> list[Row]:
    """A case's rows.

    Args:
        case: that was measured.
        rotation: of its tensors.
        ready: what ran.
        times: how long it took.
        copied: the bytes that the copy moves.
    """
    found = []
    for (contender, timing), sample in times.samples.items():
        copy = contender == COPY
        found.append(
            Row(
                **columns_of(case),
                contender=contender,
                timing=timing,
                t_us=sample.median * 1e6,
                spread=sample.spread,
                rounds=times.rounds,
                calls=sample.calls,
                copies=1 if copy else rotation.copies,
                rotated_bytes=copied if copy else rotation.bytes,
                bytes=copied if copy else case.bytes,
                path=ready.path if contender in MINE else "",
            )
        )
    return found


#: What stands in a file beside what the device says of itself.
_PACKAGES = ("numpy", "torch", "triton")
#: What a device must say of itself.
DEVICE_FACTS = (
    *("gpu", "compute_capability", "multiprocessors", "memory_bytes", "l2_bytes"),
    *("driver", "cuda", "cudnn"),
)
#: What must be the same for rows of two runs to stand in one file.
SAME = ("gpu", "driver", "cuda", "cudnn", "normgrad", "python", *_PACKAGES)


def facts(device: Mapping[str, str], cpu: str, command: str) -> dict[str, str]:
    """Where and with what a run was made.

    Args:
        device: what it says of itself, :data:`DEVICE_FACTS`.
        cpu: the host's, which launches.
        command: what was asked for.
    """
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        **{name: device[name] for name in DEVICE_FACTS},
        "cpu": cpu,
        "load_before": load,
        "system": f"{platform.system()} {platform.machine()}",
        "normgrad": normgrad.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def read(path: Path) -> Results:
    """A run's file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file.
    """
    found, entries = results.read_table(path, Row)
    wanted = ("date", "command", *SAME, *DEVICE_FACTS)
    missing = [name for name in wanted if name not in found]
    if missing or not entries:
        raise ValueError(f"no {', '.join(missing) or 'rows'}")
    for entry in entries:
        _check(entry)
    there = {(entry.case, entry.contender, entry.timing) for entry in entries}
    for case in dict.fromkeys(entry.case for entry in entries):
        for contender in (OURS, COPY):
            if (case, contender, EVENTS) not in there:
                raise ValueError(f"{case}: no {contender}")
    return Results(found, tuple(entries))


def _check(row: Row) -> None:
    """Raise a ValueError for an unknown operator or timing, or a figure that is missing."""
    Operator(row.operator)
    if row.timing not in (EVENTS, GRAPH):
        raise ValueError(f"{row.case}: timing {row.timing!r}; allowed: {EVENTS}, {GRAPH}")
    for name, value in asdict(row).items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{row.case}: no {name}")


def check_same(there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise a ValueError for runs of different devices or versions."""
    other = [
        f"{name} {there[name]} there, {here[name]} here"
        for name in SAME
        if there[name] != here[name]
    ]
    if other:
        raise ValueError("; ".join(other))


def added(old: Results, new: Results, order: Sequence[str]) -> Results:
    """An earlier run's cases, with another's in the place of those that it measured again.

    Args:
        old: the earlier one.
        new: the later one; its facts are kept, with both commands.
        order: ids of the cases; others come after them.

    Raises:
        ValueError: the runs are of different devices or versions.
    """
    check_same(old.facts, new.facts)
    measured = {row.case for row in new.rows}
    kept = [row for row in old.rows if row.case not in measured]
    places = {case: index for index, case in enumerate(order)}
    both = sorted([*kept, *new.rows], key=lambda row: places.get(row.case, len(places)))
    return Results({**new.facts, "command": _joined(old, new)}, tuple(both))


def _joined(*runs: Results) -> str:
    return "; ".join(dict.fromkeys(_commands(run.facts["command"] for run in runs)))


def _commands(texts: Iterable[str]) -> list[str]:
    return [command for text in texts for command in text.split("; ")]
