"""The maintainers' benchmark on this machine, and the documents' tables of its results.

    python benchmarks/measure.py run [--quick] [--threads 1,2] [--filter TEXT] [--device cuda]
    python benchmarks/measure.py startup
    python benchmarks/measure.py report

Needs the package with its extra ``cli``, PyTorch and matplotlib.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from measuring import picture, report, results, startup, suite
from measuring.results import Measured, Results
from measuring.suite import Case

from normgrad import cli
from normgrad.bench import timing
from normgrad.cli import info, lack, show
from normgrad.cli.archives import UNCHANGED, InputError, blaming, blaming_file, one_of
from normgrad.support.machine import this_machine

if TYPE_CHECKING:
    from measuring.device import Device

RESULTS = Path("benchmarks", "results")
#: How results name the command that made them.
COMMAND = "benchmarks/measure.py"


app = typer.Typer(
    cls=show.Commands, add_completion=False, pretty_exceptions_enable=False,
    help="Measure normgrad, PyTorch and other peers, case by case.",
)  # fmt: skip

#: The option that names the folder of results.
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the results are written.")]


@app.command("run")
def run_suite(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A fixed small part of the suite; under a minute on a CPU."),
    ] = False,
    threads: Annotated[
        str | None,
        typer.Option(metavar="COUNTS", help="Numbers of threads, such as 1,2; default: 1 and all."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="TEXT",
            help="Only cases whose id has this text, or matches this regex.",
        ),
    ] = None,
    out: Out = RESULTS,
    repeat: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Rounds; default: 5 or more, as time allows."),
    ] = None,
    cache: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=1,
            help="The size of the cache when results are compared with the targets; default: a "
            "core's L2, which normgrad info shows.",
        ),
    ] = None,
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
) -> None:
    """Measure operators, layers and training steps against PyTorch's and the memory bandwidth.

    Writes DIR/cpu-NAME.csv, where NAME is the CPU's, and a picture of it as .png and .svg; a part
    of the suite goes to cpu-NAME-quick.csv or cpu-NAME-filtered.csv. An earlier file stays until
    all cases are measured; after an interrupt the measurements so far go to
    cpu-NAME-interrupted.csv. The suite takes some ten minutes for each number of threads.

    With --device cuda it measures them on the current GPU against the fastest of PyTorch's own,
    cuDNN's and torch.compile's, and writes DIR/cuda-NAME.csv and its picture. At the end it lists
    the cases that were not measured, with the reason.
    """
    options = {
        "--device": None if device == "cpu" else device,
        **{"--no-compile": not compile_, "--add": add, "--quick": quick, "--threads": threads},
        **{"--filter": pattern, "--repeat": repeat, "--cache": cache},
    }
    given = {name: value for name, value in options.items() if value not in (None, False)}
    _check_device(device, given)
    words = [[name] if value is True else [name, str(value)] for name, value in given.items()]
    command = shlex.join([COMMAND, "run", *itertools.chain(*words)])
    cuda = device == "cuda"
    cases = suite.quick() if quick else suite.suite()
    cases = _cases(suite.on_gpu(cases) if cuda else cases, pattern)
    counts = (results.ON_GPU,) if cuda else _counts(threads)
    measured_on = _device(cuda, cases)
    _prepare(out)
    facts = results.facts(info.cpu_name(), command, None if cache is None else cache << 20)
    facts |= measured_on.facts
    suffix = "" if add else "-filtered" if pattern is not None else "-quick" if quick else ""
    stem = f"{device}-{results.slug(facts.get('gpu', facts['cpu']))}"
    path = out / f"{stem}{suffix}.csv"
    old = None
    if add and path.exists():  # read before anything is measured
        allowed = "allowed with --add: a file of the same device and versions"
        with blaming(path, ValueError, allowed=allowed), blaming_file(path, "cannot be read"):
            old = results.read(path)
            results.check_same(old.facts, facts)
    seconds = timing.QUICK_SECONDS if suffix == "-quick" else timing.ENOUGH_SECONDS
    from measuring import run

    found: list[Measured] = []
    try:
        with show.progress(len(cases) * len(counts), "cases") as advance:
            advance("", 0)
            for one in run.run(cases, measured_on, counts, seconds, repeat, compile_ and cuda):
                found.append(one)
                advance(one.case)
    except KeyboardInterrupt:
        if any(one.row for one in found):  # keep what was measured before
            _finish(out / f"{stem}-interrupted.csv", facts, found, None)
        raise
    _finish(path, facts, found, old)


#: The options that each device has alone.
_DEVICES = {"cpu": ("--threads", "--cache"), "cuda": ("--no-compile", "--add")}


def _check_device(device: str, given: Container[str]) -> None:
    """Check that the device is known, and that no option of another device is given."""
    one_of("--device", device, _DEVICES)
    for other in _DEVICES.keys() - {device}:
        for option in _DEVICES[other]:
            if option in given:
                raise InputError(option, f"with --device {device}; allowed: with --device {other}")


# Options


def _cases(cases: tuple[Case, ...], pattern: str | None) -> tuple[Case, ...]:
    if pattern is None:
        return cases
    allowed = "allowed: a regular expression"
    with blaming(f"--filter: {pattern!r}", re.error, allowed=allowed):
        found = suite.select(cases, pattern)
    if not found:
        raise InputError(
            "--filter",
            f"{pattern!r} is in no case's id; allowed: such as 'train/32x64x56x56' or 'cropped$'",
        )
    return found


def _counts(threads: str | None) -> tuple[int, ...]:
    most = this_machine().cores
    if threads is None:
        return tuple(dict.fromkeys((1, most)))
    words = [word.strip() for word in threads.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= most for word in words):
        raise InputError("--threads", f"{threads!r}; allowed: numbers from 1 to {most}, as in 1,2")
    return tuple(dict.fromkeys(map(int, words)))


# The runs


def _device(cuda: bool, cases: Sequence[Case]) -> Device:
    """The device to measure on, when all is there that measuring and the pictures need."""
    if needs := lack("torch", extra="torch"):
        raise InputError("run", needs)
    from measuring import device

    if cuda and (why := device.missing()):
        _print_table(_UNMEASURED, results.unmeasured(results.nothing(cases, why)))
        raise InputError(
            "--device",
            f"cuda; {why}, so that nothing was measured or written; allowed: cpu, or cuda where "
            "PyTorch finds an NVIDIA GPU",
        )
    if needs := lack("matplotlib"):
        raise InputError("run", needs)
    return device.Cuda() if cuda else device.Cpu()


def _finish(
    path: Path, facts: dict[str, str], found: Sequence[Measured], old: Results | None
) -> None:
    """Write and show what was measured, together with an earlier run."""
    left_out = results.unmeasured(found)
    rows = tuple(one.row for one in found if one.row is not None)
    if not rows:
        _print_table(_UNMEASURED, left_out)
        cases = len({one.case for one in found})
        raise InputError("run", f"none of {cases} cases could be measured; nothing was written")
    new = Results(facts, rows)
    if left_out or new.on_gpu:
        reasons = (f"{what}: {why} ({which})" for what, why, _, which in left_out)
        facts["not_measured"] = "; ".join(reasons)
    if old is not None:
        new = results.added(old, new, suite.on_gpu(suite.suite()))
    written = _keep_run(path, new)
    _show_run(Results(new.facts, rows), written)
    if left_out:
        _print_table(_UNMEASURED, left_out)


_UNMEASURED = ("not measured", "why", "cases", "which")


@app.command("startup")
def measure_startup(
    out: Out = RESULTS,
    repeat: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The number of processes of each kind.")
    ] = None,
) -> None:
    """Time a process from its start to its first gradient, with and without kernels on disk."""
    _prepare(out)
    cpu = info.cpu_name()
    cold, warm = (repeat, repeat) if repeat else (startup.COLD_RUNS, startup.WARM_RUNS)
    with show.progress(cold + warm) as advance, blaming("startup", RuntimeError):
        advance("starting processes", 0)
        starts = startup.measure(cold, warm, lambda: advance("starting processes"))
    path = out / f"startup-{results.slug(cpu)}.csv"
    command = shlex.join(
        [COMMAND, "startup", *([] if repeat is None else ["--repeat", str(repeat)])]
    )
    _keep(path, results.table_of(results.facts(cpu, command), starts))
    _print_table(*report.starts(starts), f"written    {path}")


@app.command("report")
def bring_up_to_date(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results.")] = RESULTS,
) -> None:
    """Update the tables of the documents in this directory from the results."""
    here = Path.cwd()
    with blaming("report", report.ReportError), blaming_file(here, "cannot be brought up to date"):
        written = report.write(folder, here)
    show.print_lines(*(f"written    {path.relative_to(here)}" for path in written))


# Output


#: Columns that hold words; others hold numbers.
WORDS = ("case", "path", "not measured", "why", "which", "target", "kernels, in ms")


def _prepare(out: Path) -> None:
    """Make the folder before the work, so that an error shows early."""
    with blaming_file(out, "cannot be written to"):
        out.mkdir(parents=True, exist_ok=True)


def _keep(path: Path, content: bytes) -> None:
    """Replace one of a run's files atomically."""
    with blaming_file(path, UNCHANGED):
        results.write(path, content)


def _keep_run(path: Path, found: Results) -> str:
    """Write a run's file and its pictures, and return their names for printing."""
    pictures = picture.draw(found)
    _keep(path, results.table_of(found.facts, [row.cells for row in found.rows]))
    for ending in picture.ENDINGS:
        shown = path.with_suffix(ending)
        if ending in pictures:
            _keep(shown, pictures[ending])
        else:  # an existing picture shows another run
            with blaming_file(shown, "cannot be removed"):
                shown.unlink(missing_ok=True)
    return ", ".join((str(path), *pictures))


def _show_run(found: Results, written: str) -> None:
    """Print a run's cases, how the targets were met, and what was written.

    All files must be written before, since the reader of the output may close it.
    """
    times = {f"{title}, µs": (name,) for name, title in report.TITLES.items()}
    figures: dict[str, tuple[str, ...]] = {**times, **report.FIGURES}
    header = ["case", "threads", *figures, "GB/s", "path"]
    lines = []
    for row in found.rows:
        count = "–" if row.threads == results.ON_GPU else str(row.threads)
        cells = [report.shown(row.figure(*figure)) for figure in figures.values()]
        lines.append([row.case.id, count, *cells, report.shown(row.cells["gbs"]), row.path])
    held = report.held(found)
    _print_table(header, lines)
    _print_table(held.header, [[cell.replace("*", "") for cell in line] for line in held.lines])
    noisy = sum(row.spread > timing.NOISY for row in found.rows)
    notes = [*report.misses(found), f"written    {written}"]
    if noisy:
        notes.append(
            f"noise      {noisy} of {len(found.rows)} measurements spread by more than "
            f"{timing.NOISY:.0%}: the machine was doing something else"
        )
    show.print_lines(*notes)


def _print_table(header: Sequence[str], lines: Iterable[Sequence[str]], *notes: str) -> None:
    """Print a table, and notes below it."""
    show.columns(header, lines, *notes, right=set(header).difference(WORDS))


def main() -> None:
    """The script's entry point."""
    cli.main(lambda: app(prog_name="measure.py"))


if __name__ == "__main__":
    main()
