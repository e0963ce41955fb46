"""``normgrad bench --device cuda``: a device, and what was not measured on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import show
from .bench_tables import keep_run, needs, prepare, show_run, table
from .files import InputError
from .outputs import reported

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.gpu.device import Device
    from ..bench.gpu.run import Unmeasured
    from ..bench.results import Results
    from ..bench.suite import Case


def measure(
    cases: Sequence[Case],
    out: Path,
    repeat: int | None,
    command: str,
    suffix: str,
    compile_: bool,
    add: bool,
) -> None:
    """Measure, write and show.

    Args:
        cases: what is measured.
        out: where the files are written.
        repeat: rounds; None for as many as time allows.
        command: what was asked for, in words.
        suffix: how the files' names end.
        compile_: whether torch.compile competes.
        add: whether the cases that the file already has are kept.

    Raises:
        InputError: there is no device; nothing could be measured; a file cannot be written.
    """
    device = _device(cases)
    prepare(out, "matplotlib")
    from ..bench import results, suite, timing
    from ..bench.gpu import added, run
    from ..bench.run import Effort
    from . import info

    facts = {**results.facts(info.cpu_name(), command, device.l2), **device.facts}
    path = out / f"cuda-{results.slug(facts['gpu'])}{suffix}.csv"
    old = _read(path, facts) if add and path.exists() else None
    seconds = timing.QUICK_SECONDS if suffix == "-quick" else timing.ENOUGH_SECONDS
    measured = []
    with show.progress(len(cases)) as advance:
        advance("", 0)
        for one in run.run(cases, device, Effort(seconds, repeat), compile_):
            measured.append(one)
            advance(one.case)
    missing = run.unmeasured(measured)
    rows = tuple(one.row for one in measured if one.row is not None)
    if not rows:
        show.print_lines(_unmeasured_table(missing))
        raise InputError(
            "bench", f"none of {len(cases)} cases could be measured; nothing was written"
        )
    new = results.Results({**facts, "not_measured": "; ".join(map(str, missing))}, rows)
    order = [case.id for case in suite.on_gpu(suite.suite())]
    written = keep_run(path, new if old is None else added.added(old, new, order))
    show_run(new, written, *([_unmeasured_table(missing)] if missing else []))


def _device(cases: Sequence[Case]) -> Device:
    """The CUDA device.

    Raises:
        InputError: there is none; what is not measured for it has been said.
    """
    needs("torch")
    from ..bench.data import load_torch
    from ..bench.gpu import device, run

    torch = load_torch()
    why = device.missing(torch)
    if why is not None:
        show.print_lines(_unmeasured_table(run.nothing(cases, why)))
        raise InputError(
            "--device",
            f"cuda; {why}, so that nothing was measured or written; allowed: cpu, or cuda where "
            "PyTorch finds an NVIDIA GPU",
        )
    return device.Device(torch)


def _read(path: Path, facts: Mapping[str, str]) -> Results:
    """What is to be added to, before anything is measured."""
    from ..bench import results
    from ..bench.gpu import added

    try:
        with reported(path, "cannot be read"):
            old = results.read(path)
            added.check_same(old.facts, facts)
    except ValueError as error:
        raise InputError(
            path, f"{error}; allowed with --add: a file of the same device and versions"
        ) from None
    return old


def _unmeasured_table(missing: Iterable[Unmeasured]) -> Table:
    titles = [("not measured", False), ("why", False), ("cases", True), ("which", False)]
    cells = [[one.what, one.why, str(len(one.cases)), one.where] for one in missing]
    return table(titles, cells)
