"""The script that measures the CPU policy's thresholds again."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")

import policy as script
from measuring.suite import Case, Operator

from normgrad.backends.cpu.schedule.policy import Policy


def test_every_threshold_has_other_values():
    for field in dataclasses.fields(Policy):
        values = [value for value, _ in script.alternatives(field.name)]
        chosen = getattr(script.CHOSEN, field.name)
        count = 1 if isinstance(chosen, bool) else len(script.FACTORS)
        assert len({*values, chosen}) == 1 + count


@pytest.mark.cpu
def test_only_cases_whose_plans_differ_are_measured(monkeypatch):
    monkeypatch.setattr(script, "SECONDS", 0)
    small, large = (Case(Operator.TRAIN, shape) for shape in ((2, 4, 8, 8), (4, 16, 32, 32)))
    monkeypatch.setattr(script, "cases", lambda: [small, large])
    found = script.measured("small", 2)
    assert [*found] == [script.CHOSEN.small * factor for factor in script.FACTORS]
    assert [*found[script.CHOSEN.small * 4]] == [large.id]  # not cut then
    assert all(ratio > 0 for ratios in found.values() for ratio in ratios.values())
