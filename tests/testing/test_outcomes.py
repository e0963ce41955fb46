"""What a call's outcome is worth."""

from __future__ import annotations

import numpy as np

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
