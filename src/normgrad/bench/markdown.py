"""Tables, figures and verdicts as they stand in the documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from .results import Row
from .suite import Operator
from .targets import Target, geometric_mean


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Names to the left, and numbers to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: float | None) -> str:
    """A figure; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def verdict(target: Target) -> str:
    """Whether a target was met, and by how many cases it was missed."""
    if target.met is None:
        return "no such case"
    if target.met:
        return "met"
    if target.misses:
        return f"**missed** by {len(target.misses)} of {target.cases}"
    return "**missed**"


def missed(target: Target, most: int, where: str) -> str:
    """A line of a list: the cases that are off a target, the worst first.

    Args:
        target: that was missed.
        most: cases to be named.
        where: what stands after the limit.
    """
    worst = [f"`{case}` {shown(value)}" for case, value in target.misses[:most]]
    more = len(target.misses) - len(worst)
    return (
        f"- {target.name} ({target.limit}), {where}: {len(target.misses)} of "
        f"{target.cases}: {', '.join(worst)}{f', and {more} more' if more else ''}"
    )


def means(
    rows: Sequence[Row],
    title: str,
    group: Callable[[Row], str],
    figure: Callable[[Row], float],
    order: Sequence[str],
) -> str:
    """Geometric means of a figure, a line for each operator and a column for each group."""
    present = {group(row) for row in rows}
    groups = [name for name in order if name in present]

    def mean(mine: Sequence[Row]) -> str:
        return shown(geometric_mean(figure(row) for row in mine))

    lines = []
    for operator in Operator:
        mine = [row for row in rows if row.operator == operator.value]
        if mine:
            by_group = [[row for row in mine if group(row) == name] for name in groups]
            lines.append([operator.value, *map(mean, by_group), mean(mine)])
    return table([title, *groups, "all"], lines)
