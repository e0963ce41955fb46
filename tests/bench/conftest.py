"""Rows that nobody measured, and a way to run the command on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from normgrad.bench.results import Results, Row, facts
from normgrad.bench.suite import Case, Layout, Operator, Part, spelled
from normgrad.cli.app import app

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
) -> Row:
    groups = 2 if operator.value.endswith("group-norm") else 0
    layer = operator.part is Part.LAYERS
    case = Case(operator, shape, dtype, parameters, layout, groups)
    return Row(
        case=case.id,
        operator=operator.value,
        shape=spelled(shape),
        dtype=dtype,
        parameters=parameters,
        layout=layout.value,
        groups=groups,
        threads=threads,
        elements=case.elements,
        bytes=case.bytes,
        contender="aten::a, b",
        bound="" if layer else "triad",
        t_ours_us=ours,
        t_out_us=math.nan if layer else ours,
        t_plan_us=math.nan if layer else ours if plan is None else plan,
        t_torch_us=ours * speedup,
        t_triad_us=math.nan if layer else ours / xtriad,
        speedup=speedup,
        xtriad=math.nan if layer else xtriad,
        gbs=math.nan if layer else case.bytes / ours / 1e3,
        rounds=5,
        spread=0.01,
        path="" if layer else "rows sums apply",
    )


def make_results(*rows: Row, cache: int = 16 * MIB) -> Results:
    return Results(facts("Some CPU (R) 9000", "normgrad bench", cache), rows)


@pytest.fixture
def row() -> Callable[..., Row]:
    return make_row


@pytest.fixture
def results() -> Callable[..., Results]:
    return make_results


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Runs ``normgrad bench`` with these arguments in this process."""

    def invoke(*arguments: Any) -> Any:
        words = ["bench", *map(str, arguments)]
        return CliRunner().invoke(app, words, catch_exceptions=False)

    return invoke
