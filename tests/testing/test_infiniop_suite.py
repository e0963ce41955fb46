"""Libraries that speak infiniop: ours and another pass, and each defect is seen."""

from __future__ import annotations

import re
import shutil

import pytest
from library_trials import allowed, compiled, defects, of, tried, verdicts

from normgrad import testing
from normgrad.testing import Verdict, infiniop, report
from normgrad.testing.cases import Topic

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_our_infiniop_meets_all_of_its_suite(ours):
    trial = tried(ours / "libinfiniop.so", quick=False)
    assert defects(trial) == {}
    assert (trial.suite, trial.name, trial.strict) == ("infiniop", "libinfiniop.so", False)
    assert trial.facts["library"] == str(ours / "libinfiniop.so")
    assert len(trial.judged) == len(infiniop.cases(False, trial.facts))


def test_a_library_in_this_process(ours):
    subject = testing.load(str(ours / "libinfiniop.so"))
    case = infiniop.cases(True, subject.facts)[0]
    assert testing.run(case, subject).verdict is Verdict.MET


def test_every_mistake_of_infiniop_is_one():
    statuses = {
        case.change: allowed(case).removeprefix("INFINI_STATUS_")
        for case in infiniop.cases(False, {})
        if case.topic is Topic.MISTAKES
    }
    expected = {
        "weight: F64": "BAD_TENSOR_DTYPE",
        "all: I32": "BAD_TENSOR_DTYPE",
        "data: two axes": "BAD_TENSOR_SHAPE",
        "grad_bias: an element short": "BAD_TENSOR_SHAPE",
        "data: gaps between rows": "BAD_TENSOR_STRIDES",
        "running_var: stride 0": "BAD_TENSOR_STRIDES",
        "input: null": "BAD_PARAM",
        "input: null memory": "BAD_PARAM",
        "handle: destroyed": "BAD_PARAM",
        "infiniopDestroyHandle: twice": "BAD_PARAM",
        "workspace: null": "BAD_PARAM",
        "workspace: a byte short": "INSUFFICIENT_WORKSPACE",
        "running_var: null, and weight: F64": "BAD_PARAM",
        "weight: F64, and grad_bias: an element short": "BAD_TENSOR_DTYPE",
        "grad_bias: an element short, and input: gaps between rows": "BAD_TENSOR_SHAPE",
    }
    assert statuses.items() >= expected.items()
    assert set(statuses.values()) == set(expected.values())


# Another's, right and wrong


def test_another_infiniop_meets_it_too(tmp_path):
    trial = tried(compiled("infiniop.c", tmp_path / "libother.so.2"), quick=False)
    assert defects(trial) == {}


def is_short(case):
    return case.topic is Topic.MISTAKES and case.change.startswith("workspace")


@pytest.mark.parametrize(
    ("defect", "wanted", "verdict", "detail"),
    [
        ("IGNORES_STRIDES", of(Topic.VECTORS), Verdict.BROKEN, "of the bound at |written beside"),
        ("TRUNCATES_HALVES", of(Topic.VALUES), Verdict.BROKEN, " of the bound at "),
        ("WRITES_BESIDE", of(Topic.VALUES), Verdict.BROKEN, "grad_bias: written beside"),
        ("OVERRUNS_WORKSPACE", of(Topic.VALUES), Verdict.BROKEN, "workspace: written beside"),
        ("WRITES_TO_INPUTS", of(Topic.VALUES), Verdict.BROKEN, "weight: written to"),
        ("OTHER_BITS_EACH_TIME", of(Topic.DETERMINISM), Verdict.BROKEN, "other bits when it is"),
        ("CRASHES_WHEN_EMPTY", of(Topic.ABSENT), Verdict.CRASHED, "SIGABRT"),
        (
            "TAKES_ANY_DTYPE",
            lambda case: case.change == "all: F64",
            Verdict.ACCEPTED,
            "all: F64: success; allowed: INFINI_STATUS_BAD_TENSOR_DTYPE",
        ),
        (
            "ANOTHER_STATUS",
            lambda case: case.change == "data: negative strides",
            Verdict.BROKEN,
            r"INFINI_STATUS_BAD_TENSOR_SHAPE \(infiniopCreateBatchNormBackwardDescriptor\); "
            "allowed: INFINI_STATUS_BAD_TENSOR_STRIDES",
        ),
        (
            "KEEPS_SUMS",
            of(Topic.DETERMINISM),
            Verdict.BROKEN,
            "grad_bias: (other bits|.* of the bound)",
        ),
        ("NEEDS_NO_WORKSPACE", is_short, Verdict.ABSENT, "it needs no workspace"),
    ],
)
def test_a_defect_is_seen(tmp_path, defect, wanted, verdict, detail):
    library = compiled("infiniop.c", tmp_path / "libinfiniop.so", f"-D{defect}")
    trial = tried(library, wanted, quick=False)
    found = defects(trial)
    assert set(found) == {verdict}
    assert all(re.search(detail, each.detail) for each in found[verdict])
    assert trial.passed == (verdict is Verdict.REFUSED)
    if defect == "TRUNCATES_HALVES":
        # Up to a whole unit, where rounding may cost a half; in a small tensor none may be so far.
        assert {each.case.dtype for each in found[verdict]} == {"float16"}
        assert {(8, 16, 100), (4, 64, 196)} <= {each.case.shape for each in found[verdict]}
        assert all(1 < each.units < 2 for each in found[verdict])
    elif defect == "IGNORES_STRIDES":
        # Every vector that has gaps.
        assert len(found[verdict]) == len(trial.judged)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    ("defect", "change"),
    [("SPREADS_NAN", "NaN in grad_out"), ("SUMS_IN_FLOAT", "long sums of one sign")],
)
def test_a_defect_of_values_is_seen(tmp_path, defect, change, quick):
    library = compiled("infiniop.c", tmp_path / "libinfiniop.so", f"-D{defect}")
    trial = tried(library, of(Topic.SPECIAL), quick)
    found = defects(trial)
    assert set(found) == {Verdict.BROKEN}
    assert change in {each.case.change for each in found[Verdict.BROKEN]}


@pytest.mark.parametrize("defect", ["NEVER_BEGINS", "NEVER_COMPUTES"])
def test_a_library_that_answers_nothing(tmp_path, defect):
    """Its errors for wrong calls, which may be the right ones, are not to its credit."""
    library = compiled("infiniop.c", tmp_path / "libinfiniop.so", f"-D{defect}")
    trial = tried(library)
    assert not trial.passed
    assert Verdict.MET not in verdicts(trial)
    assert Verdict.REFUSED in verdicts(trial)
    function = {"NEVER_BEGINS": "CreateHandle", "NEVER_COMPUTES": "BatchNormBackward"}[defect]
    reason = f"INFINI_STATUS_INTERNAL_ERROR: infiniop{function}"
    assert {name: first.detail for name, first in trial.silent.items()} == {
        "BatchNormBackward": reason
    }
    assert report.claims(trial)[0] == report.Claim(
        "operators",
        "BatchNormBackward answers no legal call; the first was "
        f"plain/train/3x4x5/float32: refused: {reason}",
        False,
    )
    assert report.findings(trial)[0].title == "BatchNormBackward answers no legal call"
