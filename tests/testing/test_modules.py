"""PyTorch's layers under test, forward and backward, and tensors on devices and of DLPack."""

from __future__ import annotations

import array_api_strict as xp
import numpy as np
import pytest
from common import Producer, sampled
from trials import words

import normgrad as ng
from normgrad import testing
from normgrad.testing import Level, Topic, loading

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cpu


def cases(module, quick=True):
    return loading.cases_of(module, quick)


def has_rounded_its_mean(case):
    """PyTorch's norms of float64 are not computed in wider numbers."""
    is_near_it = case.mean > 1 or case.layout == "expanded" or case.change == "constant input"
    return case.dtype == "float64" and is_near_it


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm"])
def test_an_exact_module_meets_the_suite(name):
    module = testing.load(f"tried_modules:Exact{name}")
    found = cases(module)
    topics = {case.topic for case in found}
    assert topics == {*Topic} - {
        *(Topic.MASKS, Topic.ABSENT, Topic.VECTORS, Topic.OUTPUTS, Topic.MISTAKES),
        *(Topic.CONCURRENCY, Topic.MEMORY),
    }
    assert {case.dtype for case in found} == {"float32", "float16", "bfloat16", "float64"}
    judged = [testing.run(case, module) for case in sampled(found, 8, name)]
    for each in judged:
        if not has_rounded_its_mean(each.case):
            whats = {fault.what for fault in each.faults}  # PyTorch wants four axes at most
            is_refused = any(what.startswith("refuses a legal call: ") for what in whats)
            is_undefined = each.level is Level.CONVENTION  # of one element
            assert each.passed or each.absent or is_refused or is_undefined, f"{each.case}: {each}"
    assert "passed" in words(judged)


@pytest.mark.parametrize(
    ("name", "topic", "detail"),
    [
        ("EpsOutsideRMSNorm", Topic.PLAIN, "output: "),
        ("SquaresLayerNorm", Topic.MEAN, "output: "),
        ("DetachedLayerNorm", Topic.PLAIN, "grad_input: "),
        (
            "WideGroupNorm",
            Topic.PLAIN,
            "output: other dtype or shape: float64 of shape (3, 4, 5); all",
        ),
        ("InPlaceRMSNorm", Topic.PLAIN, "input: written to"),
        ("InPlaceOnADeviceRMSNorm", Topic.PLAIN, "input: written to"),
    ],
)
def test_a_module_s_defect_is_found(name, topic, detail):
    module = testing.load(f"tried_modules:{name}")
    found = [testing.run(case, module) for case in cases(module) if case.topic is topic]
    broken = [each for each in found if each.level is Level.WRONG]
    assert broken
    assert all(detail in str(each) for each in broken), broken


def test_a_module_that_returns_no_tensor_is_refused():
    module = testing.load("tried_modules:TupleRMSNorm")
    judged = testing.run(cases(module)[0], module)
    reason = "refuses a legal call: AttributeError: 'tuple' object has no attribute 'backward'"
    assert (judged.level, judged.faults[0].what) == (Level.WRONG, reason)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Scale", "a module named Scale; allowed: a name with BatchNorm, GroupNorm, LayerNorm or "),
        ("NoEpsRMSNorm", "cannot be made: TypeError: NoEpsRMSNorm.__init__() got an unexpected "),
    ],
)
def test_modules_that_cannot_be_tried(name, message):
    with pytest.raises(testing.SubjectError) as caught:
        testing.load(f"tried_modules:{name}")
    assert str(caught.value).startswith(f"tried_modules:{name}: {message}")


# Tensors elsewhere, and of other frameworks


class OnADevice:
    """PyTorch's tensors on what counts as another device than "cpu": they are copied."""

    framework, device = "torch", "cpu:0"

    def batch_norm_elemt(self, input, weight, bias, mean, invstd, *, out=None):
        self.change(input)
        return ng.batch_norm_elemt(input, weight, bias, mean, invstd, out=out)

    def change(self, input):
        assert isinstance(input, torch.Tensor)


class ChangesThere(OnADevice):
    def change(self, input):
        if input.numel():
            input.add_(1)


class Strict:
    """Arrays that NumPy knows nothing of."""

    framework = "dlpack"
    from_dlpack = staticmethod(xp.from_dlpack)

    def batch_norm_stats(self, input, *, eps=1e-5):
        assert type(input) is type(xp.zeros(1))
        return ng.batch_norm_stats(input, eps=eps)


class Producers:
    """Anything that speaks DLPack, as a compiled extension takes and returns it."""

    framework = "dlpack"

    def batch_norm_stats(self, input, *, eps=1e-5):
        try:
            array = np.from_dlpack(input)
        except RuntimeError as error:  # NumPy has no bfloat16
            raise NotImplementedError from error
        return tuple(map(Producer, ng.batch_norm_stats(array, eps=eps)))


def judged(operators, kind, topics):
    every = [case for case in testing.cases(True, (kind,)) if case.topic in topics]
    return [testing.run(case, operators) for case in every]


def test_tensors_on_a_device():
    topics = (Topic.PLAIN, Topic.OUTPUTS, Topic.VECTORS)
    told = judged(OnADevice, "normalise", topics)
    assert words(told) <= {"passed", "not offered"}
    assert any(each.case.out and each.passed for each in told)
    told = judged(ChangesThere, "normalise", (Topic.PLAIN,))
    assert [each.faults[0].what for each in told] == ["input: written to"]


@pytest.mark.parametrize("operators", [Strict, Producers])
def test_tensors_through_dlpack(operators):
    told = judged(operators, "stats", (Topic.PLAIN, Topic.VALUES))
    assert words(told) <= {"passed", "not offered"}, [str(each) for each in told if each.level]
    passed = {each.case.dtype for each in told if each.passed}
    assert passed >= {"float32", "float64"}
    if operators is Strict:  # which has no 16-bit floating-point numbers
        halves = {each.absent for each in told if each.case.dtype in ("float16", "bfloat16")}
        assert halves
        assert all(each.startswith("from_dlpack: ") for each in halves)
