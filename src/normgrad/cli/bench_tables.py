"""What ``normgrad bench`` does on any device: what must be there, and what is printed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import show
from .files import InputError
from .outputs import UNCHANGED, reported

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.targets import Target

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


def targets_tables(by_group: Mapping[str, Sequence[Target]], title: str) -> list[Table]:
    """How the targets were met, and the worst of those cases that missed one.

    Args:
        by_group: the targets of each group of cases that are held to them.
        title: what tells the groups apart; empty where there is one alone.
    """
    reached, misses = [], []
    for group, held in by_group.items():
        where = [group] if title else []
        for target in held:
            verdict = {None: "no such case", True: "met", False: "missed"}[target.met]
            if target.misses:
                verdict += f" by {len(target.misses)}"
            value = "–" if target.reached is None else f"{target.reached:.3g}"
            limit = target.limit if target.cases else "–"
            reached.append([target.name, *where, limit, value, str(target.cases), verdict])
            misses += [
                [target.name if index == 0 else "", *where, case, f"{figure:.3g}"]
                for index, (case, figure) in enumerate(target.misses[:MOST_MISSES])
            ]
    groups = [(title, True)] if title else []
    titles = [
        *(("target", False), *groups, ("limit", True)),
        *(("mean or worst", True), ("cases", True), ("", False)),
    ]
    tables = [table(titles, reached)]
    if misses:
        titles = [("worst misses", False), *groups, ("case", False), ("figure", True)]
        tables.append(table(titles, misses))
    return tables
