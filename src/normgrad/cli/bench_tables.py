"""What ``normgrad bench`` needs, writes and prints."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import show
from .files import InputError
from .outputs import UNCHANGED, reported

if TYPE_CHECKING:
    from ..bench.results import Results

#: Misses printed of each target; the file has every case.
MOST_MISSES = 10

#: Interquartile range over median from which a figure says more about what else the machine did.
NOISY = 0.2

#: Columns that hold words; others hold numbers.
WORDS = ("case", "path", "not measured", "why", "which", "target", "kernels, in ms")


def prepare(out: Path, *names: str) -> None:
    """Find out before the work what would be in the way after it."""
    needs(*names)
    with reported(out, "cannot be written to"):
        out.mkdir(parents=True, exist_ok=True)


def needs(*names: str) -> None:
    """Raise an InputError for a package that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            extra = "torch" if name == "torch" else "cli"
            raise InputError("bench", f"needs {name}: pip install 'normgrad[{extra}]'")


def keep(path: Path, content: bytes) -> None:
    """Write one of a run's files, all or nothing."""
    from ..bench import results

    with reported(path, UNCHANGED):
        results.write(path, content)


def keep_run(path: Path, found: Results) -> str:
    """Write a run's file and its pictures; the names of what was written, to be printed."""
    from ..bench import picture, results

    pictures = picture.draw(found)
    keep(path, results.table_of(found.facts, [row.cells for row in found.rows]))
    for ending in picture.ENDINGS:
        shown = path.with_suffix(ending)
        if ending in pictures:
            keep(shown, pictures[ending])
        else:  # what is there shows another run
            with reported(shown, "cannot be removed"):
                shown.unlink(missing_ok=True)
    return ", ".join((str(path), *pictures))


def show_run(found: Results, written: str) -> None:
    """Print a run's cases, how the targets were met, and what was written.

    Everything is written before: what reads the output may go away.
    """
    from ..bench import report, results

    columns = [
        *(("ours, µs", "ours"), ("plan, µs", "plan"), ("NumPy, µs", "numpy")),
        *(("torch, µs", "torch"), ("triad, µs", "bound")),
    ]
    ratios = [*report.FIGURES, ("GB/s", "", "")]
    header = [
        "case",
        "threads",
        *(title for title, _ in columns),
        *(one[0] for one in ratios),
        "path",
    ]
    lines = []
    for row in found.rows:
        times = [report.shown(row.time(name)) for _, name in columns]
        figures = [report.shown(row.over(one, other)) for _, one, other in report.FIGURES]
        speed = report.shown(row.cells["gbs"])
        count = "–" if row.threads == results.ON_GPU else str(row.threads)
        lines.append([row.case.id, count, *times, *figures, speed, row.path])
    held = report.held(found)
    print_table(header, lines)
    print_table(held.header, [[cell.replace("*", "") for cell in line] for line in held.lines])
    noisy = sum(row.spread > NOISY for row in found.rows)
    notes = [*report.misses(found, MOST_MISSES), f"written    {written}"]
    if noisy:
        notes.append(
            f"noise      {noisy} of {len(found.rows)} measurements spread by more than "
            f"{NOISY:.0%}: the machine was doing something else"
        )
    print_table((), (), *notes)


def print_table(header: Sequence[str], lines: Iterable[Sequence[str]], *notes: str) -> None:
    """Print a table, if it has columns, and lines after it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in header:
        show.column(made, title, right=title not in WORDS)
    for line in lines:
        made.add_row(*map(Text, line))
    show.print_lines(*([made] if header else []), *map(Text, notes))
