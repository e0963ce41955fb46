"""What ``normgrad bench`` does on any device: what must be there, is written and is printed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import show
from .files import InputError
from .outputs import UNCHANGED, reported

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.results import Results

#: Misses printed of each target; the file has every case.
MOST_MISSES = 10

#: Interquartile range over median from which a figure says more about what else the machine did.
NOISY = 0.2

Titled = tuple[str, bool]  # a column's title, and whether it holds numbers


def prepare(out: Path, *names: str) -> None:
    """Find out before the work what would be in the way after it."""
    needs(*names)
    with reported(out, "cannot be written to"):
        out.mkdir(parents=True, exist_ok=True)


def keep(path: Path, content: bytes) -> None:
    """Write one of a run's files, all or nothing."""
    from ..bench import results

    with reported(path, UNCHANGED):
        results.write(path, content)


def keep_run(path: Path, found: Results) -> str:
    """Write a run's file and its pictures; the names of what was written, to be printed."""
    from ..bench import picture, results

    pictures = picture.draw(found)
    keep(path, results.table_of(found.facts, found.rows))
    for ending in picture.ENDINGS:
        shown = path.with_suffix(ending)
        if ending in pictures:
            keep(shown, pictures[ending])
        else:  # what is there shows another run
            with reported(shown, "cannot be removed"):
                shown.unlink(missing_ok=True)
    return ", ".join((str(path), *pictures))


def show_run(found: Results, written: str, *more: Table) -> None:
    """Print a run's cases, how the targets were met, and what was written.

    Everything is written before: what reads the output may go away.
    """
    from rich.text import Text

    lines: list[Any] = [_cases_table(found), *_targets_tables(found), *more]
    lines.append(Text(f"written    {written}"))
    noisy = noise([row.spread for row in found.rows])
    if noisy:
        lines.append(Text(noisy))
    show.print_lines(*lines)


def _cases_table(found: Results) -> Table:
    titles = [
        *(("case", False), ("threads", True), ("ours, µs", True), ("out=, µs", True)),
        *(("plan, µs", True), ("torch, µs", True), ("triad, µs", True)),
        *(("torch/ours", True), ("×triad", True), ("GB/s", True), ("path", False)),
    ]
    cells = [
        [
            *(row.case, _threads(row.threads)),
            *map(us, (row.t_ours_us, row.t_out_us, row.t_plan_us)),
            *map(us, (row.t_torch_us, row.t_triad_us)),
            *(known(row.speedup, ".2f"), known(row.xtriad, ".2f"), known(row.gbs, ".1f")),
            row.path,
        ]
        for row in found.rows
    ]
    return table(titles, cells)


def _threads(count: int) -> str:
    """A number of threads; a dash on a GPU."""
    return str(count or "–")


def needs(*names: str) -> None:
    """Raise an InputError for a package that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            extra = "torch" if name == "torch" else "cli"
            raise InputError("bench", f"needs {name}: pip install 'normgrad[{extra}]'")


def table(columns: Sequence[Titled], rows: Iterable[Sequence[str]]) -> Table:
    """A table with these columns."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, number in columns:
        show.column(made, title, right=number)
    for row in rows:
        made.add_row(*row)
    return made


def us(value: float) -> str:
    """Microseconds."""
    return f"{value:,.0f}" if value >= 100 else known(value, ".3g")


def known(value: float, form: str) -> str:
    """A figure; a dash where there is none."""
    return "–" if math.isnan(value) else format(value, form)


def noise(spreads: Sequence[float]) -> str | None:
    """A line on how many measurements were disturbed; None if none was."""
    noisy = sum(spread > NOISY for spread in spreads)
    if not noisy:
        return None
    return (
        f"noise      {noisy} of {len(spreads)} measurements spread by more than "
        f"{NOISY:.0%}: the machine was doing something else"
    )


def _targets_tables(found: Results) -> list[Table]:
    """How the targets were met, and the worst of those cases that missed one."""
    from ..bench import targets

    reached, misses = [], []
    for count, held in targets.by_threads(found).items():
        threads = _threads(count)
        for target in held:
            verdict = {None: "no such case", True: "met", False: "missed"}[target.met]
            if target.misses:
                verdict += f" by {len(target.misses)}"
            value = "–" if target.reached is None else f"{target.reached:.3g}"
            limit = target.limit if target.cases else "–"
            reached.append([target.name, threads, limit, value, str(target.cases), verdict])
            misses += [
                [target.name if index == 0 else "", threads, case, f"{figure:.3g}"]
                for index, (case, figure) in enumerate(target.misses[:MOST_MISSES])
            ]
    titles = [
        *(("target", False), ("threads", True), ("limit", True)),
        *(("mean or worst", True), ("cases", True), ("", False)),
    ]
    tables = [table(titles, reached)]
    if misses:
        titles = [("worst misses", False), ("threads", True), ("case", False), ("figure", True)]
        tables.append(table(titles, misses))
    return tables
