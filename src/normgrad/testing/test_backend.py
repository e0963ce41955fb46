"""Pytest's tests of an implementation: ``pytest --pyargs normgrad.testing --backend SPEC``."""

from __future__ import annotations

import pytest

from .cases import Case
from .outcomes import Verdict
from .plugin import cases_for, runner_of
from .suites import run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each case, and one for each operator."""
    cases = cases_for(metafunc.config)
    if "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", dict.fromkeys(case.operator for case in cases))
        return
    params = []
    for case in cases:
        facts = {name: getattr(case, name) for name in ("kind", "operator", "dtype", "layout")}
        mark = pytest.mark.case(topic=case.topic.name.lower(), **facts)
        params.append(pytest.param(case, id=case.name, marks=mark))
    metafunc.parametrize("case", params)


def test_answers(operator: str, pytestconfig: pytest.Config) -> None:
    """The operator answers at least one legal call."""
    runner, first = runner_of(pytestconfig), ""
    for case in cases_for(pytestconfig):
        if case.operator == operator and not case.is_mistake:
            judged = run(case, runner)
            if judged.is_answer:
                return
            first = first or f"the first was {case}: {judged}"
            if judged.verdict in (Verdict.CRASHED, Verdict.HUNG):
                break
    pytest.fail(f"{runner.name}: {operator} answers no legal call; {first}", pytrace=False)


def test_case(case: Case, request: pytest.FixtureRequest) -> None:
    """The case is met; it is skipped if the implementation does not offer it or refuses it."""
    runner = runner_of(request.config)
    judged = run(case, runner)
    if judged.units is not None:
        request.node.user_properties.append(("error / bound", judged.units))
    is_refusal = judged.verdict is Verdict.REFUSED and not runner.strict
    if judged.verdict is Verdict.ABSENT or is_refusal:
        pytest.skip(str(judged))
    if judged.verdict is not Verdict.MET:
        pytest.fail(f"{runner.name}: {judged}", pytrace=False)
