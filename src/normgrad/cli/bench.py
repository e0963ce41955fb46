"""``normgrad bench``: the options, and what is printed; the work is in :mod:`normgrad.bench`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..machine import this_machine
from . import show
from .bench_tables import keep, keep_run, needs, prepare, print_table, show_run
from .files import InputError
from .outputs import reported

if TYPE_CHECKING:
    from ..bench.device import Device
    from ..bench.results import Results
    from ..bench.run import Measured
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
            help="The cache to count on when results are held against the targets; else a core's "
            "L2, as normgrad info shows it.",
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
    """Measure operators, layers and training steps against PyTorch's and the memory's own speed.

    Writes DIR/cpu-NAME.csv, where NAME is the CPU's, and a picture of it as .png and .svg; a part
    of the suite goes to cpu-NAME-quick.csv or cpu-NAME-filtered.csv. What was there stays until all
    is measured; what was measured before an interrupt goes to cpu-NAME-interrupted.csv. The whole
    suite takes some ten minutes for each number of threads.

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
    if report:
        _report(folder or out)
        return
    if startup:
        _startup(out, repeat)
        return
    from ..bench import suite

    cuda = device == "cuda"
    cases = suite.quick() if quick else suite.suite()
    cases = _cases(suite.on_gpu(cases) if cuda else cases, pattern)
    given = (
        ("--threads", threads),
        ("--filter", pattern),
        ("--repeat", repeat),
        ("--cache", cache),
    )
    command = [
        *("normgrad", "bench", *(["--device", "cuda"] if cuda else [])),
        *(["--no-compile"] if cuda and not compile_ else []),
        *(["--add"] if add else []),
        *(["--quick"] if quick else []),
        *(str(word) for name, value in given if value is not None for word in (name, value)),
    ]
    suffix = "" if add else "-filtered" if pattern is not None else "-quick" if quick else ""
    counts = (0,) if cuda else _counts(threads)
    _measure(cases, counts, out, repeat, cache, shlex.join(command), suffix, cuda, compile_, add)


def _check_device(device: str, for_cpu: dict[str, bool], for_cuda: dict[str, bool]) -> None:
    """Raise an InputError for an unknown device, or an option of the other one."""
    others = {"cpu": ("cuda", for_cuda), "cuda": ("cpu", for_cpu)}
    if device not in others:
        raise InputError("--device", f"{device!r}; allowed: {', '.join(others)}")
    other, options = others[device]
    for option, given in options.items():
        if given:
            raise InputError(option, f"with --device {device}; allowed: with --device {other}")


# What is asked for


def _cases(cases: tuple[Case, ...], pattern: str | None) -> tuple[Case, ...]:
    from ..bench import suite

    if pattern is None:
        return cases
    try:
        found = suite.select(cases, pattern)
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
    cuda: bool,
    compile_: bool,
    add: bool,
) -> None:
    """Measure, write and show; what was measured before an interrupt is kept too."""
    needs("torch", *(() if cuda else ("matplotlib",)))
    from ..bench import results, run, timing
    from . import info

    device = _device(cases, cuda)
    prepare(out, "matplotlib")
    facts = results.facts(info.cpu_name(), command, None if cache is None else cache << 20)
    facts |= device.facts
    path = out / f"{device.kind}-{results.slug(facts.get('gpu', facts['cpu']))}{suffix}.csv"
    old = _read(path, facts) if add and path.exists() else None
    seconds = timing.QUICK_SECONDS if suffix == "-quick" else timing.ENOUGH_SECONDS
    found: list[Measured] = []
    interrupted = False
    try:
        with show.progress(len(cases) * len(threads)) as advance:
            advance("", 0)
            for one in run.run(cases, device, threads, seconds, repeat, compile_ and cuda):
                found.append(one)
                advance(one.case)
    except KeyboardInterrupt:
        interrupted = True
        path = path.with_stem(f"{path.stem.removesuffix(suffix)}-interrupted")
    missing = run.unmeasured(found)
    rows = tuple(one.row for one in found if one.row is not None)
    if not rows:
        if interrupted:
            raise KeyboardInterrupt
        print_table(_UNMEASURED, missing)
        raise InputError(
            "bench", f"none of {len(cases)} cases could be measured; nothing was written"
        )
    said = (
        {"not_measured": "; ".join(f"{what}: {why} ({which})" for what, why, _, which in missing)}
        if missing or cuda
        else {}
    )
    new = results.Results({**facts, **said}, rows)
    if old is not None and not interrupted:
        from ..bench import suite

        new = results.added(old, new, suite.on_gpu(suite.suite()))
    written = keep_run(path, new)
    show_run(results.Results(new.facts, rows), written)
    if missing:
        print_table(_UNMEASURED, missing)
    if interrupted:
        raise KeyboardInterrupt


_UNMEASURED = ("not measured", "why", "cases", "which")


def _device(cases: Sequence[Case], cuda: bool) -> Device:
    """The device; where there is none of CUDA's, what is not measured for it is said."""
    from ..bench import device, run

    if not cuda:
        return device.Cpu()
    why = device.missing()
    if why is None:
        return device.Cuda()
    print_table(_UNMEASURED, run.unmeasured(run.nothing(cases, why)))
    raise InputError(
        "--device",
        f"cuda; {why}, so that nothing was measured or written; allowed: cpu, or cuda where "
        "PyTorch finds an NVIDIA GPU",
    )


def _read(path: Path, facts: Mapping[str, str]) -> Results:
    """What is to be added to, before anything is measured."""
    from ..bench import results

    try:
        with reported(path, "cannot be read"):
            old = results.read(path)
            results.check_same(old.facts, facts)
    except ValueError as error:
        raise InputError(
            path, f"{error}; allowed with --add: a file of the same device and versions"
        ) from None
    return old


def _startup(out: Path, repeat: int | None) -> None:
    from . import info

    prepare(out)
    from ..bench import report, results, startup

    cpu = info.cpu_name()
    cold, warm = (repeat, repeat) if repeat else (startup.COLD_RUNS, startup.WARM_RUNS)
    facts = results.facts(
        cpu, "normgrad bench --startup" + (f" --repeat {repeat}" if repeat else "")
    )
    with show.progress(cold + warm) as advance:
        advance("starting processes", 0)
        try:
            starts = startup.measure(cold, warm, lambda: advance("starting processes"))
        except RuntimeError as error:
            raise InputError("bench", str(error)) from None
    path = out / f"startup-{results.slug(cpu)}.csv"
    keep(path, results.table_of(facts, [start.cells for start in starts]))
    print_table(*report.starts(starts), f"written    {path}")


def _report(folder: Path) -> None:
    from ..bench import report

    try:
        with reported(Path.cwd(), "cannot be brought up to date"):
            written = report.write(folder, Path.cwd())
    except report.ReportError as error:
        raise InputError("bench", str(error)) from None
    from rich.text import Text

    show.print_lines(*(Text(f"written    {path.relative_to(Path.cwd())}") for path in written))
