"""``normgrad bench --device cuda``: what is printed; the work is in :mod:`normgrad.bench.gpu`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import show
from .bench_tables import keep, known, needs, noise, prepare, table, targets_tables, us
from .files import InputError
from .outputs import reported

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.gpu.figures import Figures
    from ..bench.gpu.results import Results
    from ..bench.gpu.run import Device
    from ..bench.gpu.unmeasured import Unmeasured
    from ..bench.suite import Case


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        out: where the file is written.
        suffix: how its name ends.
        command: in words.
        repeat: rounds; None for as many as time allows.
        compile: whether torch.compile competes.
        add: whether the cases that the file already has are kept.
    """

    out: Path
    suffix: str
    command: str
    repeat: int | None
    compile: bool
    add: bool


def measure(cases: Sequence[Case], wanted: Wanted) -> None:
    """Measure, write and show.

    Raises:
        InputError: there is no device; nothing could be measured; the file cannot be written.
    """
    device = _device(cases)
    prepare(wanted.out)
    from ..bench import run as effort
    from ..bench.gpu import results, run, suite, timing, unmeasured
    from ..bench.results import slug, table_of
    from . import info

    facts = results.facts(device.facts, info.cpu_name(), wanted.command)
    path = wanted.out / f"cuda-{slug(facts['gpu'])}{wanted.suffix}.csv"
    old = _read(path, facts) if wanted.add and path.exists() else None
    seconds = timing.QUICK_SECONDS if wanted.suffix == "-quick" else timing.ENOUGH_SECONDS
    without = run.without(wanted.compile)
    measured = []
    with show.progress(len(cases)) as advance:
        advance("", 0)
        for one in run.run(cases, device, effort.Effort(seconds, wanted.repeat), without):
            measured.append(one)
            advance(one.case)
    missing = unmeasured.of(measured, run.absent(without))
    rows = tuple(row for one in measured for row in one.rows)
    if not rows:
        show.print_lines(_unmeasured_table(missing))
        raise InputError(
            "bench", f"none of {len(cases)} cases could be measured; nothing was written"
        )
    facts["not_measured"] = "; ".join(map(str, missing))
    found = new = results.Results(facts, rows)
    if old is not None:
        found = results.added(old, new, [case.id for case in suite.suite()])
    # Before anything is printed: what reads it may go away.
    keep(path, table_of(found.facts, found.rows))
    _show(new, path, missing)


def profile(cases: Sequence[Case]) -> None:
    """Make our call once on each case, for a profiler that waits for its marks.

    Raises:
        InputError: there is no device; none of the calls could be made.
    """
    device = _device(cases)
    from rich.text import Text

    from ..bench.gpu import run

    made = list(run.profile(cases, device))
    lines = [
        Text(f"called     {case} once" if not reason else f"not called {case}: {reason}")
        for case, reason in made
    ]
    show.print_lines(*lines)
    if all(reason for _, reason in made):
        raise InputError("bench", f"none of {len(cases)} cases could be called")


def profile_command(case: str) -> str:
    """What profiles our call on a case with Nsight Compute."""
    pattern = f"^{case}$".replace("+", r"\+")
    profiler = "ncu --set full --profile-from-start off --export normgrad-profile --force-overwrite"
    words = ["normgrad", "bench", "--device", "cuda", "--profile", "--filter", pattern]
    return f"{profiler} {shlex.join(words)}"


def _device(cases: Sequence[Case]) -> Device:
    """The CUDA device.

    Raises:
        InputError: there is none; what is not measured for it has been said.
    """
    needs("torch")
    from ..bench.data import load_torch
    from ..bench.gpu import device, unmeasured

    torch = load_torch()
    why = device.missing(torch)
    if why is not None:
        show.print_lines(_unmeasured_table(unmeasured.nothing(cases, why)))
        raise InputError(
            "--device",
            f"cuda; {why}, so that nothing was measured or written; allowed: cpu, or cuda where "
            "PyTorch finds an NVIDIA GPU",
        )
    return device.Device(torch)


def _read(path: Path, facts: Mapping[str, str]) -> Results:
    """What is to be added to, before anything is measured."""
    from ..bench.gpu import results

    try:
        with reported(path, "cannot be read"):
            old = results.read(path)
            results.check_same(old.facts, facts)
    except ValueError as error:
        raise InputError(
            path, f"{error}; allowed with --add: a file of the same device and versions"
        ) from None
    return old


def _unmeasured_table(missing: Iterable[Unmeasured]) -> Table:
    titles = [("not measured", False), ("why", False), ("cases", True), ("which", False)]
    cells = [
        [one.what, one.why, str(len(one.cases)) if one.cases else "all", one.where]
        for one in missing
    ]
    return table(titles, cells)


def _show(found: Results, path: Path, missing: Sequence[Unmeasured]) -> None:
    from rich.text import Text

    from ..bench.gpu import figures, targets

    every = figures.figures(found)
    lines: list[Any] = [
        _cases_table(every),
        *targets_tables({"": targets.evaluate(every)}, ""),
    ]
    if missing:
        lines.append(_unmeasured_table(missing))
    lines.append(Text(f"written    {path}"))
    noisy = noise([row.spread for row in found.rows])
    if noisy:
        lines.append(Text(noisy))
    worst = figures.worst(every)
    if worst is not None:
        lines.append(Text(f"profile    {profile_command(worst.case)}"))
    show.print_lines(*lines)


def _cases_table(found: Sequence[Figures]) -> Table:
    titles = [
        *(("case", False), ("timing", False), ("ours, µs", True), ("out=, µs", True)),
        *(("plan, µs", True), ("best, µs", True), ("best contender", False)),
        *(("best/ours", True), ("TB/s", True), ("copy, TB/s", True), ("of it", True)),
        *(("call, µs", True), ("torch's call, µs", True)),
    ]
    cells = [
        [
            *(one.case, one.timing, us(one.t_ours_us), us(one.t_out_us), us(one.t_plan_us)),
            *(us(one.t_best_us), one.best or "–", known(one.speedup, ".2f")),
            *(known(one.tbs, ".3g"), known(one.copy_tbs, ".3g"), known(one.share, ".0%")),
            *(us(one.events_ours_us), us(one.events_operator_us)),
        ]
        for one in found
    ]
    return table(titles, cells)
