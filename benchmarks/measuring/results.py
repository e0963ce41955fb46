"""A run's figures, and reading and writing their file."""

from __future__ import annotations

import csv
import io
import math
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import normgrad
from normgrad.cli.show import scaled
from normgrad.support.files import replacing
from normgrad.support.machine import this_machine, version

from .suite import Case, Part

#: The number of cases to name for each reason why something was not measured.
NAMED = 2

#: The number of threads of a row that was measured on a GPU.
ON_GPU = 0

_GPU_VERSIONS = ("driver", "cuda", "cudnn", "triton")
#: Additional facts of a run on a GPU. The GPU's L2 is the run's cache.
GPU_FACTS = ("gpu", "compute_capability", "multiprocessors", "memory_bytes", *_GPU_VERSIONS)
#: Facts that must agree for rows of two runs to be in one file.
SAME = ("gpu", *_GPU_VERSIONS, "normgrad", "python", "numpy", "torch")

#: The columns of times, in microseconds per call, by the names of timed calls. "python" is
#: of older files: a layer without the library of C++, which is now PyTorch's.
TIMES = {
    "ours": "t_ours_us",
    "python": "t_python_us",
    "plan": "t_plan_us",
    "numpy": "t_numpy_us",
    "torch": "t_torch_us",
    "bound": "t_triad_us",
}
#: The times that a part's cases have; their other cells are empty.
KNOWN = {
    **dict.fromkeys((Part.GRADIENTS, Part.FORWARD, Part.ROWS), ("ours", "plan", "torch", "bound")),
    Part.CALLS: ("ours", "plan", "numpy", "torch", "bound"),
    **dict.fromkeys((Part.LAYERS, Part.NEW_SIZES, Part.STEPS), ("ours", "torch")),
    Part.ACLNN: ("ours",),
}


@dataclass(frozen=True)
class Row:
    """One case at one number of threads, which is :data:`ON_GPU` on a GPU.

    ``us`` has microseconds per call, by the names of :data:`TIMES`. ``rounds`` and ``spread`` are
    those of :class:`.timing.Times`; ``contender``, ``bound`` and ``path`` those of
    :class:`.contenders.Ready`.
    """

    case: Case
    threads: int
    us: Mapping[str, float]
    rounds: int
    spread: float
    contender: str
    bound: str
    path: str

    def figure(self, one: str, other: str = "") -> float:
        """Microseconds of one call, or its time over another's; NaN if not known."""
        time = self.us.get(one, math.nan)
        return time / self.us.get(other, math.nan) if other else time

    @property
    def cells(self) -> dict[str, Any]:
        """The file's columns, by name."""
        return {
            **self.case.cells,
            "threads": self.threads,
            "contender": self.contender,
            "bound": self.bound,
            **{column: self.figure(name) for name, column in TIMES.items()},
            "speedup": self.figure("torch", "ours"),
            "plan_speedup": self.figure("torch", "plan"),
            "xtriad": self.figure("plan", "bound"),
            "gbs": self.case.bytes / self.figure("plan") / 1e3,
            "rounds": self.rounds,
            "spread": self.spread,
            "path": self.path,
        }

    @classmethod
    def read(cls, cells: Mapping[str, str]) -> Row:
        """The row with these cells; a ValueError or KeyError if there is none."""
        case = Case.read(cells)
        us = {name: float(cells[column]) for name, column in TIMES.items() if cells.get(column)}
        for name in KNOWN[case.part]:
            if name not in us:
                raise ValueError(f"{case.id}: no {TIMES[name]}")
        threads, rounds, spread = int(cells["threads"]), int(cells["rounds"]), cells["spread"]
        names = cells["contender"], cells["bound"], cells["path"]
        return cls(case, threads, us, rounds, float(spread), *names)


class Measured(NamedTuple):
    """A case's id, its row if it was measured, and why contenders, or the case, were not."""

    case: str
    row: Row | None
    missing: Mapping[str, str]


@dataclass(frozen=True)
class Results:
    """A file's contents: facts about the run, by name, and the rows."""

    facts: Mapping[str, str]
    rows: tuple[Row, ...]

    @property
    def cache(self) -> int:
        """The bytes of cache that the plans assumed."""
        return int(self.facts["cache_bytes"])

    @property
    def on_gpu(self) -> bool:
        """Whether the run was on a GPU."""
        return "gpu" in self.facts

    @property
    def device(self) -> str:
        """The name of the GPU or CPU of the run."""
        return self.facts["gpu" if self.on_gpu else "cpu"]

    @property
    def counts(self) -> list[int]:
        """The numbers of threads in the rows."""
        return sorted({row.threads for row in self.rows})


def facts(cpu: str, command: str, cache: int | None = None) -> dict[str, str]:
    """The facts of a run: its machine, versions and command, and the bytes of cache to assume."""
    machine = this_machine()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "cpu": cpu,
        "cores": str(machine.cores),
        "l2_bytes": str(machine.l2),
        "l3_bytes": str(machine.l3),
        "cache_bytes": str(machine.l2 if cache is None else cache),
        # Other processes' load affects the figures as much as the CPU does.
        "load_before": f"{os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()} {platform.machine()}",
        "normgrad": normgrad.__version__,
        **commit(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "numba", "torch")},
    }


def commit() -> dict[str, str]:
    """The checkout's commit, with a + if the package differs from it; nothing without git."""
    here = Path(__file__).parents[2]
    if shutil.which("git") is None or not (here / ".git").exists():
        return {}

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    return {"commit": git("rev-parse", "--short", "HEAD") + "+" * bool(git("diff", "HEAD", "src"))}


def slug(device: str) -> str:
    """Spell a CPU's or GPU's name for a file's name."""
    plain = re.sub(r"\((R|TM|C)\)", " ", device, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "unknown"


def spelled_threads(count: int) -> str:
    """A number of threads in words: 2 threads."""
    return "GPU" if count == ON_GPU else f"{count} thread{'s' if count > 1 else ''}"


def spelled_bytes(count: float) -> str:
    """Bytes in the largest unit that fits: 480 MiB."""
    return scaled(count, ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")))


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"


def table_of(facts: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode a file: the facts as comments, a header, and the rows, which are given by column."""
    text = io.StringIO(newline="")
    for name, value in facts.items():
        text.write(f"# {name}: {' '.join(str(value).split())}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for entry in rows:
        writer.writerow(map(_cell, entry.values()))
    return text.getvalue().encode()


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically: the old content stays until all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def read_table(path: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Read a file's facts, and its rows by column."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: dict[str, str] = {}
    while lines and lines[0].startswith("#"):
        name, _, value = lines.pop(0).removeprefix("#").partition(":")
        found[name.strip()] = value.strip()
    return found, list(csv.DictReader(lines))


def read(path: Path) -> Results:
    """Read a run's file, even one of an earlier version, whose unknown columns are ignored.

    Raises:
        ValueError: it is no run's file.
    """
    found, rows = read_table(path)
    # Older files do not name their commit.
    known = (*facts("", ""), *(GPU_FACTS if "gpu" in found else ()))
    wanted = [name for name in known if name != "commit"]
    missing = [name for name in wanted if name not in found]
    if missing or not rows:
        raise ValueError(f"no {', '.join(missing) or 'rows'}")
    try:
        return Results(found, tuple(map(Row.read, rows)))
    except KeyError as error:
        raise ValueError(f"no column {error.args[0]}") from None


def unmeasured(found: Iterable[Measured]) -> list[tuple[str, str, str, str]]:
    """A run's omissions, so that a reader does not take a missing figure for a good one.

    Each is the name (a contender, or the case), the reason, the number of cases, and some cases.
    """
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for one in found:
        for missing in one.missing.items():
            groups.setdefault(missing, {})[one.case] = None
    lines = []
    for (what, why), cases in groups.items():
        more = f", and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
        lines.append((what, why, str(len(cases)), ", ".join(list(cases)[:NAMED]) + more))
    return lines


def nothing(cases: Sequence[Case], why: str) -> list[Measured]:
    """The measurements of a run without a device, which all lack a row for this reason."""
    counts = Counter(case.part for case in cases)
    return [Measured(c.id, None, {f"{counts[c.part]} {c.part.value}": why}) for c in cases]


def check_same(there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise a ValueError for runs of different devices or versions."""
    other = [name for name in SAME if there.get(name) != here[name]]
    if other:
        said = (f"{name} {there.get(name)} there, {here[name]} here" for name in other)
        raise ValueError("; ".join(said))


def added(old: Results, new: Results, order: Iterable[Case]) -> Results:
    """Merge two runs of one device: the later one's rows replace the earlier one's of a case.

    The later run's facts are kept, with both commands. Cases that are not in ``order`` come last.
    """
    check_same(old.facts, new.facts)
    rows = {row.case: row for row in (*old.rows, *new.rows)}
    places = {case: index for index, case in enumerate(order)}
    both = sorted(rows.values(), key=lambda row: places.get(row.case, len(places)))
    commands = [*old.facts["command"].split("; "), *new.facts["command"].split("; ")]
    return Results({**new.facts, "command": "; ".join(dict.fromkeys(commands))}, tuple(both))
