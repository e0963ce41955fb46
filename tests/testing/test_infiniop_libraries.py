"""Libraries that speak infiniop: ours and another pass, and each defect is seen."""

from __future__ import annotations

import re
import shutil

import pytest
from common import FULL
from trials import allowed, apart, compiled, of, tried, unmet, words

from normgrad import testing
from normgrad.testing import Level, Topic, infiniop_libraries

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_our_infiniop_meets_all_of_its_suite(ours):
    subject = testing.load(str(ours / "libinfiniop.so"))
    judged = tried(subject, quick=not FULL)
    assert unmet(judged) == {}
    assert (subject.suite, subject.name, subject.strict) == ("infiniop", "libinfiniop.so", False)
    assert subject.facts["library"] == str(ours / "libinfiniop.so")
    assert len(judged) == len(infiniop_libraries.cases(not FULL, subject.facts))


def test_every_mistake_of_infiniop_is_one():
    statuses = {
        case.change: allowed(case).removeprefix("INFINI_STATUS_")
        for case in infiniop_libraries.cases(False, {})
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
    assert unmet(tried(compiled("infiniop.c", tmp_path / "libother.so.2"), quick=not FULL)) == {}


WRONG, BEYOND, CONVENTION = Level


@pytest.mark.parametrize(
    ("defect", "wanted", "level", "said"),
    [
        ("IGNORES_STRIDES", of(Topic.VECTORS), WRONG, "times the bound|written outside"),
        ("TRUNCATES_HALVES", of(Topic.VALUES), BEYOND, "times the bound"),
        ("WRITES_BESIDE", of(Topic.VALUES), WRONG, "grad_bias: written outside its elements"),
        ("OVERRUNS_WORKSPACE", of(Topic.VALUES), WRONG, "workspace: written outside its elements"),
        ("WRITES_TO_INPUTS", of(Topic.VALUES), WRONG, "weight: written to"),
        ("OTHER_BITS_EACH_TIME", of(Topic.DETERMINISM), CONVENTION, "other bits again: grad_"),
        ("TAKES_ANY_DTYPE", of(change="all: F64"), WRONG,
         "accepts a wrong call: all: F64: success; allowed: INFINI_STATUS_BAD_TENSOR_DTYPE"),
        ("ANOTHER_STATUS", of(change="data: negative strides"), WRONG,
         r"another error: data: negative strides: INFINI_STATUS_BAD_TENSOR_SHAPE"),
        # By the memory's address, which a case of another dtype would have again.
        ("KEEPS_SUMS", of(Topic.DETERMINISM, dtype="float32"), WRONG, "grad_bias"),
        ("SPREADS_NAN", of(change="NaN in grad_out"), WRONG, "inf times the bound"),
        ("SUMS_IN_FLOAT", of(change="long sums of one sign", dtype="float32"), BEYOND, "times the"),
    ],
)  # fmt: skip
def test_a_defect_is_seen(tmp_path, defect, wanted, level, said):
    library = compiled("infiniop.c", tmp_path / "libinfiniop.so", f"-D{defect}")
    judged = tried(library, wanted, quick=False)
    found = [each for each in judged if not each.passed]
    assert {each.level for each in found} == {level}
    assert all(re.search(said, str(each)) for each in found), [*map(str, found)]
    if defect == "TRUNCATES_HALVES":
        # Up to a whole unit, where rounding may cost a half; in a small tensor none may be so far.
        assert {each.case.dtype for each in found} == {"float16"}
        assert {(8, 16, 100), (4, 64, 196)} <= {each.case.shape for each in found}
        assert all(1 < each.units < 2 for each in found)
    elif defect == "IGNORES_STRIDES":
        # Every vector that has gaps.
        assert len(found) == len(judged)


def test_a_library_that_needs_no_workspace(tmp_path):
    library = compiled("infiniop.c", tmp_path / "libinfiniop.so", "-DNEEDS_NO_WORKSPACE")
    judged = tried(library, lambda case: case.change.startswith("workspace"), quick=False)
    assert {each.absent for each in judged} == {"it needs no workspace"}


@pytest.mark.full
def test_a_library_that_ends_the_process(tmp_path):
    library = compiled("infiniop.c", tmp_path / "libinfiniop.so", "-DCRASHES_WHEN_EMPTY")
    marks = "case(topic='absent', dtype='float32') or case(topic='plain')"
    status, said, rows = apart(library, marks, tmp_path, "-n", "1", "--quick")
    assert status == 1, said
    verdicts = {row["what"] for row in rows.values()}
    assert verdicts == {"", "the process ends or hangs"}


@pytest.mark.parametrize("defect", ["NEVER_BEGINS", "NEVER_COMPUTES"])
def test_a_library_that_answers_nothing(tmp_path, defect):
    """Its errors for wrong calls, which may be the right ones, are not to its credit."""
    library = compiled("infiniop.c", tmp_path / "libinfiniop.so", f"-D{defect}")
    judged = tried(library)
    legal = [each for each in judged if not each.case.is_mistake]
    function = {"NEVER_BEGINS": "CreateHandle", "NEVER_COMPUTES": "BatchNormBackward"}[defect]
    reason = f"refuses a legal call: INFINI_STATUS_INTERNAL_ERROR: infiniop{function}"
    assert {fault.what for each in legal for fault in each.faults} == {reason}
    assert words(legal) == {"wrong"}
    assert "passed" not in words(judged)
