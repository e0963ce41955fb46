"""Made-up benchmark rows, and fixtures that run the command on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import measure
import pytest
from measuring.results import KNOWN, Results, Row, facts, table_of
from measuring.suite import Case, Layout, Operator
from typer.testing import CliRunner

MIB = 1 << 20


def make_row(
    operator: Operator = Operator.TRAIN,
    shape: tuple[int, ...] = (32, 64, 56, 56),
    *,
    layout: Layout = Layout.CONTIGUOUS,
    dtype: str = "float32",
    parameters: str = "float32",
    threads: int = 1,
    speedup: float = 4.0,
    xtriad: float = 1.0,
    ours: float = 100.0,
    plan: float | None = None,
    python: float | None = None,
) -> Row:
    groups = 2 if operator.value.endswith("group-norm") else 0
    case = Case(operator, shape, dtype, parameters, layout, groups)
    plan = ours if plan is None else plan
    torch = ours * speedup
    times = {"ours": ours, "plan": plan, "numpy": ours, "torch": torch, "bound": plan / xtriad}
    us = {name: times[name] for name in KNOWN[case.part]}
    us |= {} if python is None else {"python": python}
    names = ("aten::a, b", *(("triad", "rows sums apply") if "bound" in us else ("", "")))
    return Row(case, threads, us, 5, 0.01, *names)


def make_results(*rows: Row, cache: int = 16 * MIB) -> Results:
    return Results(facts("Some CPU (R) 9000", "normgrad bench", cache), rows)


def table(found: Results) -> bytes:
    return table_of(found.facts, [row.cells for row in found.rows])


@pytest.fixture
def content() -> Callable[[Results], bytes]:
    """A function that encodes a run's file."""
    return table


@pytest.fixture
def row() -> Callable[..., Row]:
    return make_row


@pytest.fixture
def results() -> Callable[..., Results]:
    return make_results


@pytest.fixture
def cli() -> Callable[..., Any]:
    """A function that runs ``benchmarks/measure.py`` with these arguments in this process."""

    def invoke(*arguments: Any) -> Any:
        return CliRunner().invoke(measure.app, [*map(str, arguments)], catch_exceptions=False)

    return invoke
