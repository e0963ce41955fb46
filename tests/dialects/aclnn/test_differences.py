"""What devices do otherwise: a call of each difference is recognised, and the documents have it."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes  # noqa: F401 - names bfloat16
import numpy as np
import pytest

from normgrad.dialects import aclnn
from normgrad.dialects.aclnn import differences

DOCS = Path(__file__).parents[3] / "docs"
NULLS = dict.fromkeys(
    ("weight", "runningMean", "runningVar", "saveMean", "saveInvstd", "gradWeight", "gradBias")
)


def tensor(*shape, format="ND", dtype="float32", value=None):
    array = np.zeros(shape, dtype) if value is None else np.asarray(value, dtype)
    return aclnn.tensor(array, aclnn.aclFormat[f"ACL_FORMAT_{format}"])


def batch_norm(data, **more):
    both = {"gradOut": data, "input": data, "gradInput": data}
    return {**NULLS, **both, "training": False, "eps": 0.0, **more}


def values(variance):
    x = np.array([[1.0, 5.0], [3.0, 9.0]]) * np.sqrt(variance)  # of variances 1 and 4, times that
    return {"input": tensor(value=x), "saveMean": tensor(2), "training": True}


CASES = {
    "four axes": (
        differences.BATCH_NORM,
        batch_norm(tensor(2, 3, 4, 5)),
        ("gradOut", "input", "gradInput"),
    ),
    "declared": (differences.BATCH_NORM, batch_norm(tensor(2, 3, 4, 5, format="NCHW")), ()),
    "five axes": (
        differences.BATCH_NORM,
        batch_norm(tensor(2, 3, 1, 1, 1)),
        ("gradOut", "input", "gradInput"),
    ),
    "null statistics": (
        differences.BATCH_NORM,
        batch_norm(tensor(2, 3), training=True),
        ("saveMean", "saveInvstd"),
    ),
    "variances": (
        differences.BATCH_NORM,
        {**batch_norm(tensor(2, 2)), **values(9), "saveInvstd": tensor(value=[9.0, 36.0])},
        ("saveInvstd",),
    ),
    "standard deviations": (
        differences.BATCH_NORM,
        {**batch_norm(tensor(2, 2)), **values(9), "saveInvstd": tensor(value=[1 / 3, 1 / 6])},
        (),
    ),
    "variances of 1": (
        differences.BATCH_NORM,
        {**batch_norm(tensor(2, 2)), **values(1), "saveInvstd": tensor(value=[1.0, 0.5])},
        (),
    ),
    "no weight": (differences.REDUCE, {"input": tensor(2, 3), "weight": None}, ("weight",)),
    "empty": (
        differences.BATCH_NORM,
        batch_norm(tensor(0, 3), gradWeight=tensor(3)),
        ("gradWeight",),
    ),
    "two halves": (
        differences.RMS_NORM,
        {"x": tensor(2, 3, dtype="float16"), "gamma": tensor(3, dtype="bfloat16")},
        ("gamma",),
    ),
    "float32 and a half": (
        differences.RMS_NORM,
        {"x": tensor(2, 3, dtype="float16"), "gamma": tensor(3)},
        (),
    ),
}


@pytest.mark.parametrize(("operator", "arguments", "names"), CASES.values(), ids=CASES)
def test_what_a_call_has_to_do_with_devices(operator, arguments, names):
    remarks = differences.remarks(operator, arguments)
    assert tuple(each.partition(":")[0] for each in remarks) == names


def test_every_difference_is_met():
    met = [
        each
        for each in differences.DIFFERENCES
        if any([*each.remarks(operator, arguments)] for operator, arguments, _ in CASES.values())
    ]
    assert met == [*differences.DIFFERENCES]


@pytest.mark.parametrize("page", ["capi/behaviour.md", "zh/capi/behaviour.md"])
def test_the_documents_have_the_sources(page):
    text = " ".join((DOCS / page).read_text("utf-8").split())
    for each in differences.DIFFERENCES:
        if "zh" in page:
            names = re.findall(r"[A-Z]\w*[A-Z]\w*|op-plugin|\d{4}", f"{each.topic} {each.source}")
            assert [name for name in names if name not in text] == []
        else:
            assert each.source in text, each.topic
            assert each.topic in text
