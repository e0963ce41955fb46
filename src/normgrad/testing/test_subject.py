"""Pytest's tests of an implementation: ``pytest --pyargs normgrad.testing --subject SPEC``."""

from __future__ import annotations

import pytest

from .cases import Case
from .loading import run
from .outcomes import Level
from .plugin import cases_on, subjects_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each case on each device."""
    params = []
    for device, cases in cases_on(metafunc.config).items():
        for name, case in cases.items():
            facts = {key: getattr(case, key) for key in ("kind", "operator", "dtype", "layout")}
            mark = pytest.mark.case(topic=case.topic.word, device=device, **facts)
            params.append(pytest.param(device, case.dtype, case, id=name, marks=mark))
    metafunc.parametrize(("device", "dtype", "case"), params)


def test_case(device: str, dtype: str, case: Case, request: pytest.FixtureRequest) -> None:
    """No fault is wrong by any standard; what the implementation does not offer is skipped."""
    subject = subjects_of(request.config)[device]
    judged = run(case, subject)
    faults = [(each.level.name, each.what, each.text) for each in judged.faults]
    request.node.user_properties += [
        ("verdict", judged.word),
        ("error / bound", judged.units),
        ("error / plain code", judged.plain),
        ("faults", faults),
    ]
    if judged.absent:
        pytest.skip(judged.absent)
    bound: float | None = request.config.getoption("bound")
    if judged.level is Level.WRONG or (bound is not None and judged.beyond(bound)):
        pytest.fail(f"{subject.name}: {judged}", pytrace=False)
