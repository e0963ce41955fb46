"""A run's figures, and the file they are kept in."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_type_hints

import normgrad

from ..machine import this_machine
from ..writing import replacing
from .contenders import Contenders
from .suite import Case, Operator, Part, spelled
from .timing import Times

#: The number of threads of a row that was measured on a GPU.
ON_GPU = 0

#: What a run on a GPU says of it beside the facts of every run; its L2 is the run's cache.
GPU_FACTS = (
    *("gpu", "compute_capability", "multiprocessors", "memory_bytes"),
    *("driver", "cuda", "cudnn", "triton"),
)


@dataclass(frozen=True)
class Row:
    """One case at one number of threads; the fields are the file's columns.

    Of a layer's step only our time and torch's are known: the rest is NaN, an empty cell in the
    file.

    Attributes:
        case: its id.
        operator, shape, dtype, parameters, layout: the case's.
        groups: of group norm, else 0.
        threads: that torch and Numba used; :data:`ON_GPU` on a GPU.
        elements: of one tensor.
        bytes: what has to go through memory: dy, x and dx once each, without dx for reduce and
            without x for eval-input; x and y for the forward pass, without y for stats; all five
            for a layer.
        contender: what torch computed with.
        bound: what stood for the memory.
        t_ours_us: the public function with new outputs, or a layer's step; all times are
            microseconds a call.
        t_out_us: the same with ``out=``.
        t_plan_us: a plan's run with ``out=`` and ``workspace=``.
        t_torch_us: torch, with new outputs.
        t_triad_us: the memory's time.
        speedup: t_torch_us / t_ours_us.
        xtriad: t_out_us / t_triad_us.
        gbs: bytes / t_out_us, in 10⁹ bytes a second.
        rounds: how often each was timed.
        spread: interquartile range over median, the largest of those timed.
        path: the plan's way through the kernels.
    """

    case: str
    operator: str
    shape: str
    dtype: str
    parameters: str
    layout: str
    groups: int
    threads: int
    elements: int
    bytes: int
    contender: str
    bound: str
    t_ours_us: float
    t_out_us: float
    t_plan_us: float
    t_torch_us: float
    t_triad_us: float
    speedup: float
    xtriad: float
    gbs: float
    rounds: int
    spread: float
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

    @property
    def cache(self) -> int:
        """The bytes of cache that the run counted on."""
        return int(self.facts["cache_bytes"])

    @property
    def on_gpu(self) -> bool:
        """Whether the run was on a GPU."""
        return "gpu" in self.facts

    @property
    def device(self) -> str:
        """What it ran on: the GPU's name, or the CPU's."""
        return self.facts["gpu" if self.on_gpu else "cpu"]


def row(case: Case, threads: int, contenders: Contenders, times: Times) -> Row:
    """A case's row."""
    names = ("ours", "out", "plan", "torch", "bound")
    us = {name: times.medians.get(name, math.nan) * 1e6 for name in names}
    return Row(
        case=case.id,
        operator=case.operator.value,
        shape=spelled(case.shape),
        dtype=case.dtype,
        parameters=case.parameters,
        layout=case.layout.value,
        groups=case.groups,
        threads=threads,
        elements=case.elements,
        bytes=case.bytes,
        contender=contenders.torch,
        bound=contenders.bound,
        t_ours_us=us["ours"],
        t_out_us=us["out"],
        t_plan_us=us["plan"],
        t_torch_us=us["torch"],
        t_triad_us=us["bound"],
        speedup=us["torch"] / us["ours"],
        xtriad=us["out"] / us["bound"],
        gbs=case.bytes / us["out"] / 1e3,
        rounds=times.rounds,
        spread=times.spread,
        path=contenders.path,
    )


def version(package: str) -> str:
    """An installed package's version."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def facts(cpu: str, command: str, cache: int | None = None) -> dict[str, str]:
    """Where and with what a run was made.

    Args:
        cpu: the CPU's name.
        command: what was asked for.
        cache: the bytes of the last cache to count on; None for what the kernels count on, which on
            a virtual machine is less than the L3 of the server it shares.
    """
    machine = this_machine()
    # Who else is running decides about a figure as much as the CPU does.
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "cpu": cpu,
        "cores": str(machine.cores),
        "l2_bytes": str(machine.l2),
        "l3_bytes": str(machine.l3),
        "cache_bytes": str(machine.cache if cache is None else cache),
        "load_before": load,
        "system": f"{platform.system()} {platform.machine()}",
        "normgrad": normgrad.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "numba", "torch")},
    }


def slug(device: str) -> str:
    """A CPU's or GPU's name as part of a file's."""
    plain = re.sub(r"\((R|TM|C)\)", " ", device, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "unknown"


def spelled_threads(count: int) -> str:
    """A number of threads in words: 2 threads."""
    if count == ON_GPU:
        return "GPU"
    return f"{count} thread{'s' if count > 1 else ''}"


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def spelled_bytes(count: float) -> str:
    """Bytes in the largest unit that fits: 480 MiB."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"


def _value(kind: type[Any], cell: str) -> Any:
    return math.nan if kind is float and not cell else kind(cell)


def table_of(facts: Mapping[str, str], rows: Sequence[Any]) -> bytes:
    """Rows of one dataclass as a file: the facts in comments, a header, the rows."""
    text = io.StringIO(newline="")
    for name, value in facts.items():
        text.write(f"# {name}: {' '.join(str(value).split())}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(rows[0]))
    for entry in rows:
        writer.writerow(_cell(value) for value in asdict(entry).values())
    return text.getvalue().encode()


def write(path: Path, content: bytes) -> None:
    """Write a file, all or nothing: what was there stays until all is written.

    Raises:
        OSError: what the system says against it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def read_table(path: Path, kind: type[Any]) -> tuple[dict[str, str], list[Any]]:
    """A file's facts, and its rows as objects of a dataclass.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not such a file.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    found: dict[str, str] = {}
    while lines and lines[0].startswith("#"):
        name, _, value = lines.pop(0).removeprefix("#").partition(":")
        found[name.strip()] = value.strip()
    types = get_type_hints(kind)
    reader = csv.DictReader(lines)
    if list(reader.fieldnames or ()) != list(types):
        raise ValueError(f"columns {reader.fieldnames}; allowed: {', '.join(types)}")
    rows = [{name: _value(types[name], cell) for name, cell in entry.items()} for entry in reader]
    return found, [kind(**entry) for entry in rows]


def read(path: Path) -> Results:
    """A run's file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file.
    """
    found, rows = read_table(path, Row)
    wanted = (*facts("", ""), *(GPU_FACTS if "gpu" in found else ()))
    missing = [name for name in wanted if name not in found]
    if missing or not rows:
        raise ValueError(f"no {', '.join(missing) or 'rows'}")
    for entry in rows:
        _check(entry)
    return Results(found, tuple(rows))


#: The columns that a layer's step leaves empty.
_UNKNOWN_OF_LAYERS = ("t_out_us", "t_plan_us", "t_triad_us", "xtriad", "gbs")


def _check(row: Row) -> None:
    """Raise a ValueError for an unknown operator, or a figure that is missing."""
    allowed = _UNKNOWN_OF_LAYERS if row.part is Part.LAYERS else ()
    for name, value in asdict(row).items():
        if isinstance(value, float) and math.isnan(value) and name not in allowed:
            raise ValueError(f"{row.case}: no {name}")
