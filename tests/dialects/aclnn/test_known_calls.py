"""Phase 1 of calls that are known: what is not checked again, and what is refused all the same."""

from __future__ import annotations

import numpy as np
import pytest
from aclnn_spec import A2, A3, BN, HAS, INVALID, NULL, OK, T, X, arguments, phase_1, status_of

from normgrad.dialects import aclnn
from normgrad.dialects.aclnn import phases
from normgrad.plans import cache


def checks_of(monkeypatch, module):
    """Every contract that is checked from now on, by its name."""
    checks = []
    right = module.check

    def check(call, *rest):
        checks.append(call.contract.name)
        right(call, *rest)

    monkeypatch.setattr(module, "check", check)
    return checks


@pytest.mark.parametrize("operator", HAS)
def test_a_known_call_is_not_checked_again(operator, monkeypatch):
    phases._cache.clear()
    checks = checks_of(monkeypatch, phases)
    for _ in range(3):
        phase_1(operator, arguments(operator))
    assert checks == [operator]
    with aclnn.product(A3):  # a call is known for a product
        phase_1(operator, arguments(operator))
    assert checks == [operator] * 2
    phase_1(operator, arguments(operator))
    assert checks == [operator] * 2


def view(dims, strides, elements, offset=0, data_type=aclnn.ACL_FLOAT):
    """An aclTensor over memory of so many float32."""
    data = np.zeros(elements, np.float32)
    return aclnn.aclCreateTensor(dims, data_type, strides, offset, 2, None, data)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("name", "wrong", "status"),
    [
        ("gradOut", None, NULL),
        ("gradInput", None, NULL),
        ("outputMask", None, NULL),
        ("input", T(X, "float16"), INVALID),
        ("weight", T((3,), "int32"), INVALID),
        ("weight", T((4,)), INVALID),
        ("input", T(X, format="NHWC"), INVALID),
        ("input", view(X, None, 119), INVALID),
        ("input", view(X, None, 120, 1), INVALID),
        ("gradInput", view(X, (60, 20, 5, 0), 120), INVALID),
        ("gradWeight", view((3,), (0,), 3), INVALID),
        ("weight", aclnn.aclCreateTensor((3,), aclnn.ACL_FLOAT, None, 0, 2, None, None), INVALID),
        ("weight", 3, INVALID),
        ("weight", [1.0] * 3, INVALID),
        ("training", 1, INVALID),
        ("training", view((3,), None, 3), INVALID),
        ("eps", True, INVALID),
        ("outputMask", (1.0, True, True), INVALID),
        ("outputMask", [True, True], INVALID),
        ("outputMask", 1, INVALID),
    ],
    ids=str,
)
def test_what_a_known_call_may_not_be(name, wrong, status, monkeypatch):
    """What is wrong is refused each time, in the same words, and is not known for that."""
    phase_1(BN, arguments(BN))
    checks = checks_of(monkeypatch, phases)
    answers = {status_of(BN, A2, {name: wrong}) for _ in range(3)}
    assert len(answers) == 1
    assert [answer[:2] for answer in answers] == [(status, name)]
    assert checks == [BN] * 3
    phase_1(BN, arguments(BN))
    assert checks == [BN] * 3


def test_known_calls_are_told_apart_by_what_is_planned(monkeypatch):
    """A scalar, a mask, strides and an absent tensor are another call."""
    checks = checks_of(monkeypatch, phases)
    phases._cache.clear()
    for count, changes in enumerate(
        (
            {},
            {"training": False},
            {"eps": 1e-3},
            {"outputMask": [True, True, False]},
            {"weight": None},
            {"input": view(X, (60, 20, 1, 4), 120)},
            {
                "input": T(X, format="NCHW"),
                "gradOut": T(X, format="NCHW"),
                "gradInput": T(X, format="NCHW"),
            },
        ),
        1,
    ):
        for _ in range(2):
            assert status_of(BN, A2, changes)[0] == OK
            assert len(checks) == count


def test_another_spelling_of_a_known_call_is_known(monkeypatch):
    phase_1(BN, arguments(BN))
    checks = checks_of(monkeypatch, phases)
    for mask in ((True,) * 3, [1, 1, 1], np.ones(3, bool), aclnn.aclCreateBoolArray([1, 1, 1])):
        phase_1(BN, arguments(BN, {"outputMask": mask, "training": np.True_}))
    assert not checks


def test_few_calls_are_known_at_a_time(monkeypatch):
    monkeypatch.setattr(cache, "SIZE", 3)
    for count in range(1, 7):
        phase_1(
            BN, arguments(BN, {name: T((count, 3)) for name in ("gradOut", "input", "gradInput")})
        )
        assert len(phases._cache) <= 3
