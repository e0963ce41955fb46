"""What a call's outcome is worth."""

from __future__ import annotations

import numpy as np
import pytest
from support import Producer

import normgrad as ng
from normgrad import testing
from normgrad.testing.cases import Topic
from normgrad.testing.outcomes import Verdict


def test_a_wrong_call_is_checked_beside_the_right_one():
    class Refuses:
        def batch_norm_stats(self, input, *, eps):
            raise TypeError("input: no")

    cases = [case for case in testing.cases() if case.kind == "stats"]
    wrong = next(case for case in cases if case.change == "input: int32")
    assert testing.run(wrong, ng).verdict is Verdict.MET
    judged = testing.run(wrong, Refuses)
    assert (judged.verdict, judged.detail) == (
        Verdict.ABSENT,
        "without its mistake the call is refused too: TypeError: input: no",
    )


def test_an_object_is_checked_in_this_process():
    class Mine:
        def batch_norm_stats(self, input, *, eps):
            return input.mean((0, 2)), np.ones(input.shape[1], np.float32)

    case = testing.Case(Topic.VALUES, "stats", (4, 3, 50))
    judged = testing.run(case, Mine)
    assert judged.verdict is Verdict.BROKEN
    assert judged.detail.startswith("invstd: ")
    assert judged.units > 1
    assert testing.run(case, ng).verdict is Verdict.MET


# What a function returned


def of_torch(result):
    torch = pytest.importorskip("torch")
    return tuple(map(torch.from_numpy, result))


def a_case_and_its_result():
    case = next(iter(testing.cases(kinds=("stats",))))
    call = case.call()
    return case, ng.batch_norm_stats(**call.tensors, **call.options)


@pytest.mark.parametrize("change", [tuple, lambda found: list(map(Producer, found)), of_torch])
def test_a_result_is_judged_by_itself(change):
    case, found = a_case_and_its_result()
    assert str(testing.check(case, change(found))) == "met"
    wrong = testing.check(case, change((found.mean, found.invstd * 2)))
    assert wrong.verdict is Verdict.BROKEN
    assert str(wrong).startswith("wrong: invstd: ")
    assert str(testing.check(case, change((found.mean,)))) == "wrong: invstd: not there"


def test_what_is_no_tensor_is_named():
    case, found = a_case_and_its_result()
    with pytest.raises(TypeError, match=r"^float; allowed: an array or a tensor$"):
        testing.check(case, (found.mean, 1.0))


def test_an_error_may_be_the_result():
    refusal = ValueError("input: no")
    case, found = a_case_and_its_result()
    assert str(testing.check(case, refusal)) == "refused: ValueError: input: no"
    cases = testing.cases(kinds=("stats",))
    mistake = next(case for case in cases if case.change == "input: int32")
    assert str(testing.check(mistake, refusal)) == "met: ValueError: input: no"
    assert str(testing.check(mistake, found)) == "accepted: input: int32: nothing was said"
