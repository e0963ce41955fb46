"""Libraries that speak aclnn: ours passes as each product, and each defect is seen."""

from __future__ import annotations

import shutil

import pytest
from common import sampled
from trials import allowed, apart, compiled, of, tried, unmet, words

from normgrad.dialects.aclnn import products
from normgrad.testing import aclnn_libraries, load
from normgrad.testing.cases import Topic

A2 = {"product": products.A2, "saveInvstd": "invstd"}

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_our_aclnn_meets_its_suite(ours):
    subject = load(str(ours / "libopapi.so"))
    chosen = {case.name for case in sampled(aclnn_libraries.cases(True, subject.facts), 120)}
    assert unmet(tried(subject, lambda case: case.name in chosen)) == {}
    assert (subject.suite, subject.facts["product"]) == ("aclnn", products.A2)
    assert subject.facts["chip"] == "Ascend910B3"


@pytest.mark.parametrize(
    ("chip", "product", "kinds"),
    [
        ("Ascend910A", products.TRAINING_SERIES, {"elemt": 1}),
        ("Ascend950PR", products.ASCEND_950, {"reduce": 1, "elemt": 1, "group_norm": 1}),
        pytest.param(
            *("Ascend310P3", products.INFERENCE_SERIES, dict.fromkeys(("train", "reduce"), 1)),
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_product_has_its_own_cases(ours, monkeypatch, tmp_path, chip, product, kinds):
    monkeypatch.setenv(products.PRODUCT_VARIABLE, chip)
    topics = [f"case(topic='{topic}', dtype='float32')" for topic in ("values", "masks")]
    marks = " or ".join([*topics, *(f"case(kind='{kind}')" for kind in kinds)])
    status, said, rows = apart(ours / "libopapi.so", marks, tmp_path)
    assert status == 0, said
    assert {row["verdict"] for row in rows.values()} == {"passed"}
    found = [name.split("/")[1] for name in rows]
    # That the product has none of it is all there is to try.
    assert {kind: found.count(kind) for kind in kinds} == kinds
    has_formats = any("format=NHWC" in name for name in rows)
    assert has_formats == (product == products.ASCEND_950)


def test_variances_in_place_of_invstd(ours, monkeypatch, tmp_path):
    monkeypatch.setenv(products.SAVE_INVSTD_VARIABLE, "variance")
    topics = ("values", "vectors", "special")
    kinds = [(topic, dtype) for topic in topics for dtype in ("float32", "bfloat16")]
    marks = " or ".join(f"case(topic='{t}', kind='train', dtype='{d}')" for t, d in kinds)
    status, said, rows = apart(ours / "libopapi.so", marks, tmp_path)
    assert status == 0, said
    assert {row["verdict"] for row in rows.values()} == {"passed"}


@pytest.mark.parametrize("product", [each.name for each in products.PRODUCTS])
def test_every_mistake_of_aclnn_is_one(product):
    cases = aclnn_libraries.cases(False, {**A2, "product": product})
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
        if aclnn_libraries._TRANSLATIONS[kind].contract.name in offered:
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


OTHERS = ("aclnnBatchNormReduceBackward", "aclnnBatchNormElemtBackward", "aclnnGroupNormBackward")


def is_of_train(case):
    return (case.topic, case.kind) == (Topic.MISTAKES, "train")


def test_an_executor_that_is_never_used_up(forwarding):
    few = of(Topic.MASKS, Topic.ABSENT)
    subject = load(forwarding)
    judged = tried(subject, lambda case: is_of_train(case) or few(case), quick=False)
    wrong = [(each.case.change, each.faults[0].what) for each in judged if each.level]
    assert wrong == [("executor: used again", "accepts a wrong call")]
    assert subject.facts["operators"] == "aclnnBatchNormBackward"
    assert {(each.case.operator, each.absent) for each in judged if each.absent} == {
        ("aclnnBatchNormBackward", "no aclnnBatchNormElemtBackward"),  # handed an executor
        *((name, f"no {name}GetWorkspaceSize") for name in OTHERS),
    }


def test_an_operator_that_answers_nothing(ours, tmp_path):
    link_others(ours, tmp_path)
    flags = ("-DNEVER_COMPUTES", f'-DREAL="{ours / "libopapi.so"}"')
    judged = tried(compiled("opapi.c", tmp_path / "libopapi.so", *flags), of(kind="train"))
    legal = [each for each in judged if not each.case.is_mistake]
    assert "passed" not in words(legal)
    assert legal[0].case.name == "plain/train/3x4x5/float32/contiguous/more=True"
    refused = "refuses a legal call: ACLNN_ERR_INNER: aclnnBatchNormBackward"
    assert legal[0].faults[0].what.startswith(refused)
    assert "passed" not in words(each for each in judged if each.case.is_mistake)


@pytest.mark.parametrize("variable", [products.PRODUCT_VARIABLE, products.SAVE_INVSTD_VARIABLE])
def test_an_environment_that_means_nothing(ours, monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, "whatever")
    status, said, _ = apart(ours / "libopapi.so", "case", tmp_path)
    assert status == 4
    assert "'whatever'; allowed: " in said
