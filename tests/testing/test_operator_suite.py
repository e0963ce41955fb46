"""The suite: what is in it, and that ours meets it."""

from __future__ import annotations

import itertools
from operator import attrgetter
from pathlib import Path

import exact_operators
import numpy as np
import pytest
from common import sampled

from normgrad import testing
from normgrad.operators.by_name import FUNCTIONS, PLANNED
from normgrad.tensors import dtypes
from normgrad.testing import Level, changes, operator_suite
from normgrad.testing.cases import Topic

ROOT = Path(__file__).parents[2]


def test_every_operator_dtype_layout_mask_and_topic_is_there():
    cases = testing.cases()
    assert {case.operator for case in cases} == set(FUNCTIONS)
    there = {(case.dtype, case.layout, case.kind) for case in cases}
    assert there >= {
        *itertools.product(operator_suite.DTYPES, testing.LAYOUTS[:-1], operator_suite.KINDS)
    }
    assert there >= {*itertools.product(operator_suite.DTYPES, ("constant",), testing.GRADIENTS)}
    for kind in testing.GRADIENTS:
        if kind != "elemt":
            masks = {case.mask for case in cases if case.kind == kind and case.mask}
            assert len(masks) == 2 ** len(min(masks))
    assert {case.topic for case in cases} == set(Topic)
    assert {case.mean for case in cases if case.topic is Topic.MEAN} == set(
        operator_suite.RATIOS["float32"]
    )


def test_a_quick_run_has_every_kind_dtype_layout_and_topic():
    whole, quick = testing.cases(), testing.cases(quick=True)
    assert set(quick) < set(whole)
    assert round(len(whole) / len(quick)) == 4
    for fields in (("topic",), ("kind",), ("dtype",), ("layout", "x_layout")):
        values = attrgetter(*fields)
        assert set(map(values, quick)) == set(map(values, whole))


def test_kinds_may_be_any_sequence():
    stats = testing.cases(kinds=["stats"])
    assert {case.kind for case in stats} == {"stats"}
    assert stats == testing.cases(kinds=("stats",))
    with pytest.raises(ValueError, match=r"^kinds: 'zzz'; allowed: train, "):
        testing.cases(kinds=["zzz"])


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
        for parameter in operator.inputs:
            assert any(change.startswith(f"{parameter.name}: ") for change in tried)


def quick(kind, change):
    """A quick run's cases of a kind with such changes; a full run has them too."""
    return [case for case in testing.cases(quick=True) if case.kind == kind and change(case.change)]


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(("word", "is_special"), [("NaN", np.isnan), ("inf", np.isinf)])
@pytest.mark.parametrize("kind", operator_suite.KINDS)
def test_what_spreads_from_an_input_s_channel_is_found(kind, word, is_special, everywhere):
    call = testing.Case(Topic.SPECIAL, kind, (3, 4, 40)).call()
    names = [name for name, value in call.tensors.items() if value is not None]
    names = [name for name in names if name not in ("count", "counts")]
    if kind == "gather":
        names.remove("input")  # of which no value is read
    assert names
    for name in names:
        cases = quick(kind, lambda change, name=name: change == f"{word} in {name}")
        assert {case.layout for case in cases} == {"contiguous", "channels_last"}
        spreading = exact_operators.Spreads(name, is_special, everywhere)
        for case in cases:
            assert testing.run(case, spreading).level is Level.WRONG, case


SUMS = {
    **dict.fromkeys(("train", "eval", "reduce"), ("dy", "dy_xmu")),
    "train_without_statistics": ("dy", "dy_xmu", "mean", "squares"),
    "group_norm": ("group", "group_xhat", "weight", "bias"),
    **dict.fromkeys(("forward", "stats", "forward_group_norm"), ("mean", "squares")),
}


@pytest.mark.parametrize("lanes", [1, 8, 64])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in SUMS for name in SUMS[kind]])
def test_a_sum_in_float32_is_found(kind, name, lanes):
    """One term after another, in one sum or in many side by side."""
    cases = quick(kind, lambda change: change == changes.LONG_SUMS)
    wrong = exact_operators.Sequential(name, lanes)
    cases = [case for case in cases if case.dtype == "float32"]
    assert any(testing.run(case, wrong).level is not None for case in cases)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in SUMS for name in SUMS[kind]])
def test_a_sum_of_halves_in_their_own_type_is_found(kind, name, dtype):
    cases = quick(kind, lambda change: change == changes.LONG_SUMS)
    wrong = exact_operators.Sequential(name, lanes=64, dtype=dtypes.BY_NAME[dtype].numpy)
    found = [testing.run(case, wrong) for case in cases if case.dtype == dtype]
    # Where rows are as short as two elements, there is no long sum over a group.
    assert any(each.level is not None for each in found)


def has_lost_its_mean(case):
    """Whether statistics are computed of data that are far from 0."""
    return case.kind == "train_without_statistics" and case.mean >= 1e3


@pytest.mark.parametrize("topic", Topic)
def test_an_exact_implementation_meets_it(topic):
    """In arithmetic and in an order of its own."""
    told = []
    of_topic = [case for case in testing.cases() if case.topic is topic]
    for case in sampled(of_topic, 16, topic.value):
        if not has_lost_its_mean(case):
            judged = testing.run(case, exact_operators.Exact)
            told.append(judged.word)
            assert judged.passed or judged.absent, f"{case}: {judged}"
    # What it has no parameter for is not tried.
    assert ("passed" in told) == (topic is not Topic.OUTPUTS)


def test_statistics_that_are_used_unrounded_meet_it():
    """However far from 0 the data are: the oracle's are exact too."""
    cases = [case for case in testing.cases() if has_lost_its_mean(case)]
    assert {case.dtype for case in cases} == {"float32", "float64"}
    for case in cases:
        judged = testing.run(case, exact_operators.Exact)
        assert judged.passed, f"{case}: {judged}"
