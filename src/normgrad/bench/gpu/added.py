"""Runs of parts of the suite put together in one file, as ``--add`` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..results import Results

#: What must be the same for rows of two runs to stand in one file.
SAME = (
    *("gpu", "driver", "cuda", "cudnn", "triton"),
    *("normgrad", "python", "numpy", "torch"),
)


def check_same(there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise a ValueError for runs of different devices or versions."""
    other = [
        f"{name} {there.get(name)} there, {here[name]} here"
        for name in SAME
        if there.get(name) != here[name]
    ]
    if other:
        raise ValueError("; ".join(other))


def added(old: Results, new: Results, order: Sequence[str]) -> Results:
    """An earlier run's cases, with another's in the place of those that it measured again.

    Args:
        old: the earlier one.
        new: the later one; its facts are kept, with both commands.
        order: ids of the cases; others come after them.

    Raises:
        ValueError: the runs are of different devices or versions.
    """
    check_same(old.facts, new.facts)
    rows = {row.case: row for row in (*old.rows, *new.rows)}
    places = {case: index for index, case in enumerate(order)}
    both = sorted(rows.values(), key=lambda row: places.get(row.case, len(places)))
    commands = [*old.facts["command"].split("; "), *new.facts["command"].split("; ")]
    return Results({**new.facts, "command": "; ".join(dict.fromkeys(commands))}, tuple(both))
