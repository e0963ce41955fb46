"""The suite: what is in it, and that ours meets it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import normgrad as ng
from normgrad import testing
from normgrad.operators.by_name import FUNCTIONS, PLANNED
from normgrad.testing import changes, suite
from normgrad.testing.cases import Topic
from normgrad.testing.outcomes import Verdict
from normgrad.testing.suites import SUITES

ROOT = Path(__file__).parents[2]


def test_every_operator_dtype_layout_mask_and_topic_is_there():
    cases = testing.cases()
    assert {case.call().name for case in cases} == set(FUNCTIONS)
    for dtype, layout, kind in itertools.product(suite.DTYPES, testing.LAYOUTS, suite.KINDS):
        assert any((case.dtype, case.layout, case.kind) == (dtype, layout, kind) for case in cases)
    for kind in testing.GRADIENTS:
        if kind != "elemt":
            assert len({case.mask for case in cases if case.kind == kind and case.mask}) == 8
    assert {case.topic for case in cases} == set(Topic)
    assert {case.mean for case in cases if case.topic is Topic.MEAN} == set(suite.RATIOS)


def test_a_quick_run_has_every_kind_dtype_layout_and_topic():
    whole, quick = testing.cases(), testing.cases(quick=True)
    assert set(quick) < set(whole)
    assert len(quick) < len(whole) / 4
    for attribute in ("topic", "kind", "dtype", "data_layout"):
        assert {getattr(case, attribute) for case in quick} == {
            getattr(case, attribute) for case in whole
        }


def test_documents_say_how_many_there_are():
    numbers = [f"{len(testing.cases(quick)):,} " for quick in (False, True)]
    verify = (ROOT / "docs" / "verify.md").read_text("utf-8")
    assert f"# all {numbers[0].strip()}\n" in verify
    assert f"# {numbers[1]}cases\n" in verify
    a2 = {"product": "Atlas A2", "saveInvstd": "invstd"}
    assert f"# {len(SUITES['infiniop'].cases(False, {})):,} cases\n" in verify
    assert f"# {len(SUITES['aclnn'].cases(False, a2)):,} cases on the Atlas A2\n" in verify
    for name in ("README.md", "README.zh-CN.md"):
        assert numbers[0] in (ROOT / name).read_text("utf-8")


def test_names_tell_cases_apart_and_calls_are_the_same_each_time():
    cases = testing.cases()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases[::97]:
        first, second = case.call(), case.call()
        for name, value in first.tensors.items():
            other = second.tensors[name]
            assert (value is None) == (other is None)
            if value is not None:
                assert value.tobytes() == other.tobytes()
                assert value.strides == other.strides


def test_every_twist_and_mistake_is_tried():
    cases = testing.cases()
    assert {case.change for case in cases if case.topic is Topic.SPECIAL} == set(changes.TWISTS)
    tried = {case.change for case in cases if case.topic is Topic.MISTAKES}
    for operator in PLANNED.values():
        for parameter in operator.parameters:
            assert any(change.startswith(f"{parameter.name}: ") for change in tried)


@pytest.mark.parametrize("topic", Topic)
def test_ours_meets_it(topic):
    """A quick run's cases; ``normgrad verify`` runs all."""
    ours = testing.load("normgrad")
    for case in testing.cases(quick=True):
        if case.topic is topic:
            judged = testing.check(case, ours)
            assert judged.verdict is Verdict.MET, f"{case}: {judged.detail}"


def test_an_object_is_checked_in_this_process():
    class Mine:
        def batch_norm_stats(self, input, *, eps):
            return input.mean((0, 2)), np.ones(input.shape[1], np.float32)

    case = testing.Case(Topic.VALUES, "stats", (4, 3, 50))
    judged = testing.check(case, Mine)
    assert judged.verdict is Verdict.BROKEN
    assert judged.detail.startswith("invstd: ")
    assert judged.units > 1
    assert testing.check(case, ng).verdict is Verdict.MET


def test_layouts_have_the_values_they_are_given():
    values = np.arange(24.0).reshape(2, 3, 4)
    for layout in testing.LAYOUTS:
        if layout != "expanded":
            assert (testing.lay_out(values, layout) == values).all()
    with pytest.raises(ValueError, match="layout: 'diagonal'; allowed: contiguous, channels_last"):
        testing.lay_out(values, "diagonal")
