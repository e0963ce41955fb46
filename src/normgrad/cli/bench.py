"""``normgrad bench``: the options, and what is printed; the work is in :mod:`normgrad.bench`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..machine import this_machine
from . import bench_cuda, show
from .bench_tables import keep, keep_run, prepare, show_run, table
from .files import InputError
from .outputs import reported

if TYPE_CHECKING:
    from ..bench.results import Row
    from ..bench.startup import Start
    from ..bench.suite import Case

RESULTS = Path("benchmarks", "results")


def bench(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="With --report: in the place of --out.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A fixed small part; under a minute on a CPU.")
    ] = False,
    threads: Annotated[
        str | None,
        typer.Option(metavar="COUNTS", help="Numbers of threads, such as 1,2; else 1 and all."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--filter", metavar="TEXT", help="Cases with this in their id, or a regex."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the results are written.")
    ] = RESULTS,
    repeat: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Rounds; else as time allows, 5 or more.")
    ] = None,
    cache: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=1,
            help="The cache to count on when results are held against the targets; else what the "
            "kernels count on (normgrad info shows the L3 that the machine reports).",
        ),
    ] = None,
    startup: Annotated[
        bool,
        typer.Option("--startup", help="Measure how a process starts, instead."),
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="What to measure on: cpu, or cuda.")
    ] = "cpu",
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="With --device cuda: whether torch.compile competes, which takes seconds a case.",
        ),
    ] = True,
    add: Annotated[
        bool,
        typer.Option(
            "--add",
            help="With --device cuda: keep the other cases of the device's file, so that the suite "
            "can be measured in parts.",
        ),
    ] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Measure nothing: bring the tables of README.md and docs/performance.md, in this "
            "directory, up to date with the results.",
        ),
    ] = False,
) -> None:
    """Measure gradients, forward passes and layers against PyTorch's and the memory's own speed.

    Writes DIR/cpu-NAME.csv, where NAME is the CPU's, and a picture of it as .png and .svg; a part
    of the suite goes to cpu-NAME-quick.csv or cpu-NAME-filtered.csv. What was there stays until all
    is measured. The whole suite takes some twenty minutes for each number of threads.

    With --device cuda it measures them on the current GPU against the fastest of PyTorch's own,
    cuDNN's and torch.compile's, and writes DIR/cuda-NAME.csv and its picture. What was not measured
    is said at the end, with the reason.
    """
    if folder is not None and not report:
        raise InputError(
            "DIR", f"{folder}; allowed: with --report alone; --out says where to write"
        )
    _check_device(
        device,
        {"--threads": threads is not None, "--cache": cache is not None, "--startup": startup},
        {"--no-compile": not compile_, "--add": add},
    )
    from ..bench import suite

    suffix = "-filtered" if pattern is not None else "-quick" if quick else ""
    if report:
        _report(folder or out)
    elif startup:
        _startup(out, repeat)
    elif device == "cuda":
        cases = _cases(suite.on_gpu(suite.quick() if quick else suite.suite()), pattern)
        flags = [flag for flag, on in (("--no-compile", not compile_), ("--add", add)) if on]
        command = _command(["--device", "cuda", *flags], quick, pattern, repeat)
        ending = "" if add else suffix
        bench_cuda.measure(cases, out, repeat, command, ending, compile_, add)
    else:
        cases = _cases(suite.quick() if quick else suite.suite(), pattern)
        command = _command([], quick, pattern, repeat, threads, cache)
        bytes_ = None if cache is None else cache << 20
        _measure(cases, _counts(threads), out, repeat, bytes_, command, suffix)


def _check_device(device: str, for_cpu: dict[str, bool], for_cuda: dict[str, bool]) -> None:
    """Raise an InputError for an unknown device, or an option of the other one."""
    others = {"cpu": ("cuda", for_cuda), "cuda": ("cpu", for_cpu)}
    if device not in others:
        raise InputError("--device", f"{device!r}; allowed: {', '.join(others)}")
    other, options = others[device]
    for option, given in options.items():
        if given:
            raise InputError(option, f"with --device {device}; allowed: with --device {other}")


def _command(
    device: Sequence[str],
    quick: bool,
    pattern: str | None,
    repeat: int | None,
    threads: str | None = None,
    cache: int | None = None,
) -> str:
    """What was asked for, without where it was to be written."""
    words = ["normgrad", "bench", *device, *(["--quick"] if quick else [])]
    for name, value in (
        *(("--threads", threads), ("--filter", pattern)),
        *(("--repeat", repeat), ("--cache", cache)),
    ):
        words += [] if value is None else [name, str(value)]
    return shlex.join(words)


# What is asked for


def _cases(cases: tuple[Case, ...], pattern: str | None) -> tuple[Case, ...]:
    from ..bench import run

    if pattern is None:
        return cases
    try:
        found = run.select(cases, pattern)
    except re.error as error:
        raise InputError(
            "--filter", f"{pattern!r}: {error}; allowed: a regular expression"
        ) from None
    if not found:
        raise InputError(
            "--filter",
            f"{pattern!r} is in no case's id; allowed: such as 'train/32x64x56x56' or 'cropped$'",
        )
    return found


def _counts(threads: str | None) -> tuple[int, ...]:
    import numba

    most = min(this_machine().cores, numba.config.NUMBA_NUM_THREADS)
    if threads is None:
        return tuple(dict.fromkeys((1, most)))
    words = [word.strip() for word in threads.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= most for word in words):
        raise InputError("--threads", f"{threads!r}; allowed: numbers from 1 to {most}, as in 1,2")
    return tuple(dict.fromkeys(map(int, words)))


# The runs


def _measure(
    cases: Sequence[Case],
    threads: Sequence[int],
    out: Path,
    repeat: int | None,
    cache: int | None,
    command: str,
    suffix: str,
) -> None:
    from . import info

    prepare(out, "torch", "matplotlib")
    from ..bench import results, run, timing

    cpu = info.cpu_name()
    facts = results.facts(cpu, command, cache)
    seconds = timing.QUICK_SECONDS if suffix == "-quick" else timing.ENOUGH_SECONDS
    rows: list[Row] = []
    with show.progress(len(cases) * len(threads)) as advance:
        advance("", 0)
        for row in run.run(cases, threads, run.Effort(seconds, repeat)):
            rows.append(row)
            advance(row.case)
    found = results.Results(facts, tuple(rows))
    written = keep_run(out / f"cpu-{results.slug(cpu)}{suffix}.csv", found)
    show_run(found, written)


def _startup(out: Path, repeat: int | None) -> None:
    from . import info

    prepare(out)
    from ..bench import results, startup

    cpu = info.cpu_name()
    cold, warm = (repeat, repeat) if repeat else (startup.COLD_RUNS, startup.WARM_RUNS)
    command = shlex.join(
        ["normgrad", "bench", "--startup", *(["--repeat", str(repeat)] if repeat else [])]
    )
    facts = results.facts(cpu, command)
    with show.progress(cold + warm) as advance:
        advance("starting processes", 0)
        try:
            starts = startup.measure(cold, warm, tick=lambda: advance("starting processes"))
        except RuntimeError as error:
            raise InputError("bench", str(error)) from None
    path = out / f"startup-{results.slug(cpu)}.csv"
    keep(path, results.table_of(facts, starts))
    _show_starts(starts, path)


def _report(folder: Path) -> None:
    from ..bench import report

    try:
        with reported(Path.cwd(), "cannot be brought up to date"):
            written = report.write(folder, Path.cwd())
    except report.ReportError as error:
        raise InputError("bench", str(error)) from None
    from rich.text import Text

    show.print_lines(*(Text(f"written    {path.relative_to(Path.cwd())}") for path in written))


def _show_starts(starts: Sequence[Start], path: Path) -> None:
    from rich.text import Text

    titles = [("kernels", False), ("processes", True), ("whole process", True)]
    titles += [("import numpy", True), ("import normgrad", True)]
    titles += [("first call", True), ("second call, ms", True)]
    cells = [
        [
            *(start.kernels, str(start.runs)),
            *(f"{start.process_ms:,.0f}", f"{start.numpy_ms:.0f}", f"{start.import_ms:.1f}"),
            *(f"{start.first_call_ms:,.0f}", f"{start.second_call_ms:.3f}"),
        ]
        for start in starts
    ]
    show.print_lines(table(titles, cells), Text(f"written    {path}"))
