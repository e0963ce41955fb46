"""Operators of one's own in the suite, in this process; test_plugin.py has them under pytest."""

from __future__ import annotations

import numpy as np
import own_operators
import pytest
from trials import of, tried, words

from normgrad import testing
from normgrad.testing import Kind, Level, Operator, Subject, Topic, findings, loading

DECLARED = [own_operators.ADD_RMS_NORM, own_operators.SCALE]


def subject(operators):
    return Subject("it", operators, declared=DECLARED)


def test_an_operator_of_one_s_own_has_cases_of_most_topics():
    cases = loading.cases_of(subject(own_operators.Right))[len(testing.cases()) :]
    assert {case.operator for case in cases} == {"add_rms_norm", "scale"}
    own = [case for case in cases if case.operator == "add_rms_norm"]
    assert len({case.name for case in own}) == len(own)
    not_of_them = (Topic.MASKS, Topic.VECTORS, Topic.OUTPUTS, Topic.SHAPES, Topic.SIZES)
    assert {case.topic for case in own} == set(Topic) - set(not_of_them)
    assert {case.dtype for case in own} == {"float64", "float32", "float16", "bfloat16"}
    assert {case.absent for case in own} == {(), ("weight",)}
    quick = loading.cases_of(subject(own_operators.Right), quick=True)
    assert {case.topic for case in quick if case.kind == "scale"} == {
        case.topic for case in cases if case.kind == "scale"
    }


def test_a_right_one_is_met():
    judged = tried(subject(own_operators.Right), quick=False)
    assert {each.case.kind for each in judged} == {"add_rms_norm"}
    assert not [each for each in judged if each.level in (Level.WRONG, Level.BEYOND)]
    accepted = {fault.text.partition(":")[0] for each in judged for fault in each.faults}
    assert accepted <= {"input", "residual", "weight"}  # it looks at one shape alone
    assert {each.level for each in judged if not each.case.is_mistake} == {None}


def test_what_is_wrong_has_a_cause():
    judged = tried(subject(own_operators.Wrong), lambda case: not case.is_mistake, quick=False)
    (found,) = findings(judged)
    assert (found.level, found.what, found.where) == (
        Level.WRONG, "output", "weight is left out",
    )  # fmt: skip


@pytest.mark.parametrize(("factor", "level"), [(1, None), (1.5, Level.WRONG)])
def test_vectors_of_channels_and_rows(factor, level):
    class Mine:
        def scale(self, input, weight):
            wide = input.astype(np.longdouble)
            along = weight.reshape(-1, *[1] * (input.ndim - 2))
            mean = (factor * wide.mean(-1, keepdims=True)).astype(np.float64)
            return (wide * along).astype(input.dtype), mean

    judged = tried(subject(Mine), of(Topic.PLAIN, Topic.VALUES, kind="scale"))
    assert {each.level for each in judged} == {level}
    if factor > 1:
        assert {fault.what for each in judged for fault in each.faults} == {"mean"}


def test_tensors_have_any_names():
    def oracle(x, w):
        squares = (x * x).mean(-1, keepdims=True)
        return {"y": (x * w, abs(x * w)), "squares": (squares, squares)}

    class Mine:
        def product(self, x, w):
            wide = x.astype(np.longdouble)
            squares = (wide * wide).mean(-1, keepdims=True)
            return (wide * w).astype(x.dtype), squares.astype(np.float64)

    tensors = {"x": Kind.DATA, "w": Kind.POSITION}
    declared = Operator("product", tensors, {"y": Kind.DATA, "squares": Kind.ROW}, oracle)
    judged = tried(Subject("it", Mine, declared=[declared]), quick=False)
    assert words([each for each in judged if not each.case.is_mistake]) == {"passed"}


def test_one_operator_lacks_what_another_has():
    """An operator of one's own is tried only if there is a function, and others still are."""
    assert words(tried(subject(own_operators.Right), of(kind="scale"))) == set()
