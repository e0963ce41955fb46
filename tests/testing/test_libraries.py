"""Shared libraries that speak a dialect: ours and another pass, and each defect is seen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from normgrad import testing
from normgrad.aclnn import products
from normgrad.capi import build
from normgrad.testing import SubjectError, Verdict, aclnn_suite, infiniop_suite, report
from normgrad.testing.aclnn_library import OPERATORS
from normgrad.testing.cases import Topic
from normgrad.testing.outcomes import Outcome

SOURCES = Path(__file__).parent / "libraries"
A2 = {"product": products.A2, "saveInvstd": "invstd"}

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in (products.PRODUCT_VARIABLE, products.SAVE_INVSTD_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """The folder of our own libraries."""
    out = tmp_path_factory.mktemp("libraries")
    build.build(out)
    return out / "lib"


def compiled(source, target, *flags):
    warnings = ("-Wall", "-Wextra", "-Werror")
    command = ["cc", "-std=c11", *warnings, "-O1", "-shared", "-fPIC", SOURCES / source]
    subprocess.run([*command, *flags, "-lm", "-ldl", "-o", target], check=True)
    return str(target)


def tried(library, wanted=lambda case: True, quick=True):
    return testing.try_cases(str(library), quick, wanted)


def verdicts(trial):
    return {each.verdict for each in trial.judged}


def defects(trial):
    """The cases that were not met, by what was found."""
    found = {}
    for each in trial.judged:
        if each.verdict is not Verdict.MET:
            found.setdefault(each.verdict, []).append(each)
    return found


def of(*topics):
    return lambda case: case.topic in topics


# Our own


def test_our_infiniop_meets_all_of_its_suite(ours):
    trial = tried(ours / "libinfiniop.so", quick=False)
    assert defects(trial) == {}
    assert (trial.suite, trial.name, trial.strict) == ("infiniop", "libinfiniop.so", False)
    assert trial.facts["library"] == str(ours / "libinfiniop.so")
    assert len(trial.judged) == len(infiniop_suite.cases(False, trial.facts))


def test_our_aclnn_meets_its_suite(ours):
    trial = tried(ours / "libopapi.so")
    assert defects(trial) == {}
    assert (trial.suite, trial.facts["product"]) == ("aclnn", products.A2)
    assert trial.facts["chip"] == "Ascend910B3"


@pytest.mark.parametrize(
    ("chip", "product", "kinds"),
    [
        ("Ascend910A", products.TRAINING_SERIES, {"elemt": 1}),
        ("Ascend950PR", products.ASCEND_950, {"reduce": 1, "elemt": 1, "group_norm": 1}),
        ("Ascend310P3", products.INFERENCE_SERIES, dict.fromkeys(("train", "reduce"), 1)),
    ],
)
def test_a_product_has_its_own_cases(ours, monkeypatch, chip, product, kinds):
    monkeypatch.setenv(products.PRODUCT_VARIABLE, chip)
    few = of(Topic.VALUES, Topic.MASKS)
    library = ours / "libopapi.so"
    trial = tried(library, lambda case: case.kind in kinds or few(case), quick=False)
    assert defects(trial) == {}
    assert trial.facts["product"] == product
    counts = {kind: sum(each.case.kind == kind for each in trial.judged) for kind in kinds}
    assert counts == kinds  # that the product has none of it is all there is to try
    formats = {each.case.format for each in trial.judged}
    assert ("NHWC" in formats) == (product == products.ASCEND_950)


def test_variances_in_place_of_invstd(ours, monkeypatch):
    monkeypatch.setenv(products.SAVE_INVSTD_VARIABLE, "variance")
    topics = of(Topic.VALUES, Topic.VECTORS, Topic.SPECIAL)
    trial = tried(ours / "libopapi.so", lambda case: topics(case) and case.kind == "train", False)
    assert defects(trial) == {}
    assert trial.facts["saveInvstd"] == "variance"


def test_a_library_in_this_process(ours):
    subject = testing.load(str(ours / "libinfiniop.so"))
    case = infiniop_suite.cases(True, subject.facts)[0]
    assert testing.check(case, subject).verdict is Verdict.MET


# What is tried


@pytest.mark.parametrize("suite", [aclnn_suite, infiniop_suite])
def test_suites_have_every_topic_and_so_do_quick_ones(suite):
    whole, quick = suite.cases(False, A2), suite.cases(True, A2)
    assert len({case.name for case in whole}) == len(whole)
    assert {case.name for case in quick} < {case.name for case in whole}
    assert len(quick) < len(whole) / 4
    expected = set(Topic) - ({Topic.MASKS} if suite is infiniop_suite else set())
    for cases in (whole, quick):
        assert {case.topic for case in cases} == expected
        assert {case.dtype for case in cases} == {"float32", "float16", "bfloat16"}
    for attribute in ("kind", "data_layout"):
        assert {getattr(case, attribute) for case in quick} == {
            getattr(case, attribute) for case in whole
        }


def allowed(case, suite):
    """The status that a mistake must give."""
    judged = suite.judge(case, Outcome())
    assert judged.verdict is Verdict.ACCEPTED
    return judged.detail.rpartition("success; allowed: ")[2]


def test_every_mistake_of_infiniop_is_one():
    statuses = {
        case.change: allowed(case, infiniop_suite).removeprefix("INFINI_STATUS_")
        for case in infiniop_suite.cases(False, {})
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


@pytest.mark.parametrize("product", [each.name for each in products.PRODUCTS])
def test_every_mistake_of_aclnn_is_one(product):
    cases = aclnn_suite.cases(False, {**A2, "product": product})
    mistakes = [case for case in cases if case.topic is Topic.MISTAKES]
    statuses = {
        (case.kind, case.change): allowed(case, aclnn_suite).removeprefix("ACLNN_ERR_")
        for case in mistakes
    }
    kinds = ("train", "reduce", "elemt", "group_norm")
    expected = {
        "input: null": "PARAM_NULLPTR",
        "gradOut: float64, and input: null": "PARAM_NULLPTR",
        "workspaceSize: no place for it": "PARAM_NULLPTR",
        "executor: null": "PARAM_NULLPTR",
        "workspace: null": "PARAM_NULLPTR",
        "gradOut: float64": "PARAM_INVALID",
        "input: NC1HWC0": "PARAM_INVALID",
        "data: nine axes": "PARAM_INVALID",
        "workspace: a byte short": "PARAM_INVALID",
        "executor: used again": "PARAM_INVALID",
        "input: destroyed": "PARAM_INVALID",
    }
    offered = products.find(product).operators
    for kind, operator in zip(kinds, OPERATORS, strict=True):
        if operator in offered:
            assert {k: statuses[kind, k] for k in expected} == expected
        else:
            of_kind = {change: each for (of, change), each in statuses.items() if of == kind}
            assert of_kind == {f"on {product}": "INNER_FIND_KERNEL_ERROR"}


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


@pytest.fixture
def forwarding(ours, tmp_path):
    """A libopapi with one operator, and with ours beside it."""
    for name in ("libascendcl.so", "libnnopbase.so", "libnormgrad_capi.so"):
        (tmp_path / name).symlink_to(ours / name)
    return compiled("opapi.c", tmp_path / "libopapi.so", f'-DREAL="{ours / "libopapi.so"}"')


def is_of_train(case):
    return (case.topic, case.kind) == (Topic.MISTAKES, "train")


def test_an_executor_that_is_never_used_up(forwarding):
    few = of(Topic.MASKS, Topic.ABSENT)
    trial = tried(forwarding, lambda case: is_of_train(case) or few(case), quick=False)
    found = defects(trial)
    assert set(found) == {Verdict.ACCEPTED, Verdict.ABSENT}
    assert [each.case.change for each in found[Verdict.ACCEPTED]] == ["executor: used again"]
    assert trial.facts["operators"] == "aclnnBatchNormBackward"
    absent = {(each.case.kind, each.detail) for each in found[Verdict.ABSENT]}
    assert absent == {
        ("train", "no aclnnBatchNormElemtBackward"),  # whose phase 2 is handed an executor
        ("reduce", "no aclnnBatchNormReduceBackwardGetWorkspaceSize"),
        ("elemt", "no aclnnBatchNormElemtBackwardGetWorkspaceSize"),
        ("group_norm", "no aclnnGroupNormBackwardGetWorkspaceSize"),
    }


def test_an_operator_that_answers_nothing(ours, tmp_path):
    for name in ("libascendcl.so", "libnnopbase.so", "libnormgrad_capi.so"):
        (tmp_path / name).symlink_to(ours / name)
    flags = ("-DNEVER_COMPUTES", f'-DREAL="{ours / "libopapi.so"}"')
    trial = tried(compiled("opapi.c", tmp_path / "libopapi.so", *flags))
    assert not trial.passed
    assert list(trial.silent) == ["aclnnBatchNormBackward"]
    first = trial.silent["aclnnBatchNormBackward"]
    assert first.case.name == "plain/train/3x4x5/float32/contiguous/more=True"
    assert first.detail.startswith("ACLNN_ERR_INNER: aclnnBatchNormBackward")
    wrong = [each for each in trial.judged if each.case.topic is Topic.MISTAKES]
    assert Verdict.MET not in {each.verdict for each in wrong}


def test_companions_on_the_loaders_path(ours, tmp_path, monkeypatch):
    flags = (f'-DREAL="{ours / "libopapi.so"}"', f"-L{ours}", "-lnnopbase")
    library = compiled("opapi.c", tmp_path / "libopapi.so", *flags)
    with pytest.raises(SubjectError, match=r"cannot be loaded: libnnopbase\.so: "):
        tried(library)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(ours))
    trial = tried(library, lambda case: case.topic is Topic.MASKS and case.kind == "train")
    assert verdicts(trial) == {Verdict.MET}


# What cannot be loaded


def refused(path):
    with pytest.raises(SubjectError) as caught:
        testing.load(str(path))
    return str(caught.value)


def test_no_such_file(tmp_path):
    for name in ("libinfiniop.so", "libopapi.so.2.1"):
        path = tmp_path / name
        assert refused(path) == f"{path}: no such file; allowed: a shared library"
    with pytest.raises(SubjectError, match="no such file"):
        tried(tmp_path / "libinfiniop.so")


def test_no_library(tmp_path):
    path = tmp_path / "libinfiniop"
    path.write_text("not a library, though it is a file")
    assert refused(path).startswith(f"{path}: cannot be loaded: ")


def test_a_library_that_speaks_neither(ours):
    path = ours / "libnormgrad_capi.so"
    assert refused(path) == (
        f"{path}: neither dialect's functions; allowed: a library with "
        "infiniopCreateBatchNormBackwardDescriptor or aclnnBatchNormBackwardGetWorkspaceSize"
    )


def test_a_library_without_its_companions(tmp_path):
    source = tmp_path / "part.c"
    source.write_text("int infiniopCreateBatchNormBackwardDescriptor(void) { return 0; }\n")
    path = compiled(source, tmp_path / "libpart.so")
    assert refused(path) == (
        f"{path}: no infiniopCreateHandle; allowed: a library that has it, itself or in "
        "libinfinirt.so in its folder or on the loader's path"
    )


@pytest.mark.parametrize("variable", [products.PRODUCT_VARIABLE, products.SAVE_INVSTD_VARIABLE])
def test_an_environment_that_means_nothing(ours, monkeypatch, variable):
    monkeypatch.setenv(variable, "whatever")
    with pytest.raises(SubjectError, match="'whatever'; allowed: "):
        tried(ours / "libopapi.so")
