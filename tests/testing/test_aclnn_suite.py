"""Libraries that speak aclnn: ours passes as each product, and each defect is seen."""

from __future__ import annotations

import shutil

import pytest
from library_trials import allowed, compiled, defects, of, tried
from support import FULL, sampled

from normgrad.aclnn import products
from normgrad.testing import SubjectError, Verdict, aclnn
from normgrad.testing.cases import Topic

A2 = {"product": products.A2, "saveInvstd": "invstd"}

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


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
    trial = tried(
        library,
        lambda case: case.kind in kinds or (few(case) and (FULL or case.dtype == "float32")),
        quick=False,
    )
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


@pytest.mark.parametrize("product", [each.name for each in products.PRODUCTS])
def test_every_mistake_of_aclnn_is_one(product):
    cases = aclnn.cases(False, {**A2, "product": product})
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
    mistakes = [case for case in cases if case.topic is Topic.MISTAKES]
    listed = [case for case in mistakes if case.change in {*expected, f"on {product}"}]
    statuses = {
        (case.kind, case.change): allowed(case).removeprefix("ACLNN_ERR_")
        for case in (*listed, *sampled(mistakes, 60, product))
    }
    for kind in kinds:
        if aclnn._TRANSLATIONS[kind].contract.name in offered:
            assert {k: statuses[kind, k] for k in expected} == expected
        else:
            of_kind = {change: each for (of, change), each in statuses.items() if of == kind}
            assert of_kind == {f"on {product}": "INNER_FIND_KERNEL_ERROR"}


def link_others(ours, folder):
    """Link all of our libraries into a folder but libopapi."""
    for path in ours.glob("lib*.so"):
        if "opapi" not in path.name:
            (folder / path.name).symlink_to(path)


@pytest.fixture
def forwarding(ours, tmp_path):
    """A libopapi with one operator, and with ours beside it."""
    link_others(ours, tmp_path)
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
    link_others(ours, tmp_path)
    flags = ("-DNEVER_COMPUTES", f'-DREAL="{ours / "libopapi.so"}"')
    trial = tried(compiled("opapi.c", tmp_path / "libopapi.so", *flags))
    assert not trial.passed
    assert list(trial.silent) == ["aclnnBatchNormBackward"]
    first = trial.silent["aclnnBatchNormBackward"]
    assert first.case.name == "plain/train/3x4x5/float32/contiguous/more=True"
    assert first.detail.startswith("ACLNN_ERR_INNER: aclnnBatchNormBackward")
    wrong = [each for each in trial.judged if each.case.topic is Topic.MISTAKES]
    assert Verdict.MET not in {each.verdict for each in wrong}


@pytest.mark.parametrize("variable", [products.PRODUCT_VARIABLE, products.SAVE_INVSTD_VARIABLE])
def test_an_environment_that_means_nothing(ours, monkeypatch, variable):
    monkeypatch.setenv(variable, "whatever")
    with pytest.raises(SubjectError, match="'whatever'; allowed: "):
        tried(ours / "libopapi.so")
