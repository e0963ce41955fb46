"""Plans that are bound to their tensors, and repeated runs of plans on PyTorch's tensors."""

from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest

import normgrad as ng

SHAPE = (3, 6, 5)
NAMES = ("grad_out", "input", "weight", "save_mean", "save_invstd")


def arrays():
    random = np.random.default_rng(3)
    values = [random.standard_normal(SHAPE) for _ in range(2)]
    values += [random.standard_normal(6) for _ in range(2)]
    return [value.astype("f4") for value in (*values, np.abs(values[-1]) + 0.5)]


def made_plan(tensors):
    return ng.plan("batch_norm_backward", **dict(zip(NAMES, tensors, strict=True)), training=True)


def expected(tensors):
    results = ng.batch_norm_backward(
        **dict(zip(NAMES, map(np.asarray, tensors), strict=True)), training=True
    )
    return [np.array(each) for each in results]


def check(results, tensors):
    for found, right in zip(results, expected(tensors), strict=True):
        np.testing.assert_array_equal(np.asarray(found), right)


def bind(plan, tensors, **more):
    return plan.bind(**dict(zip(NAMES, tensors, strict=True)), **more)


def test_a_call_computes_from_what_the_inputs_hold():
    tensors = arrays()
    bound = bind(made_plan(tensors), tensors)
    results = bound()
    check(results, tensors)
    tensors[0] *= 3
    tensors[2][:] = 7
    assert all(new is old for new, old in zip(bound(), results, strict=True))
    check(results, tensors)


def test_the_callers_results_and_workspace_are_used():
    tensors = arrays()
    plan = made_plan(tensors)
    out = [np.full(SHAPE, np.nan, "f4"), *np.full((2, 6), np.nan, "f4")]
    workspace = np.zeros(plan.workspace_size, np.uint8)
    bound = bind(plan, tensors, out=out, workspace=workspace)
    assert np.isnan(out[0]).all()  # nothing is computed yet
    results = bound()
    assert all(new is given for new, given in zip(results, out, strict=True))
    check(out, tensors)
    assert workspace.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": np.zeros((3, 6, 4), "f4")}, r"input: .*\(3, 6, 4\).*as in the plan"),
        ({"weight": None}, "weight: None; allowed: float32"),
        ({"workspace": np.zeros(3, np.uint8)}, "workspace: 3 bytes; allowed: at least"),
        ({"out": (None,)}, "out: 1 entries; allowed: a tuple of 3"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_call(change, message):
    tensors = arrays()
    with pytest.raises(ValueError, match=message):
        made_plan(tensors).bind(**{**dict(zip(NAMES, tensors, strict=True)), **change})


def test_an_input_that_is_read_as_a_copy_is_refused():
    tensors = arrays()
    records = np.zeros(SHAPE, np.dtype([("x", "f4"), ("tail", "u1")]))
    plan = made_plan(tensors)
    message = "input: a tensor that is read as a copy; allowed: plain memory, whose contents later"
    with pytest.raises(ValueError, match=message):
        bind(plan, [tensors[0], records["x"], *tensors[2:]])


def test_results_may_be_masked_off():
    tensors = arrays()[:2] + arrays()[3:]
    names = ("grad_out", "input", "save_mean", "save_invstd")
    inputs = dict(zip(names, tensors, strict=True))
    plan = ng.plan("batch_norm_backward", **inputs, training=True, output_mask=(False, True, False))
    nothing, grad_weight, nothing_else = plan.bind(**inputs)()
    assert nothing is None
    assert nothing_else is None
    x = ng.batch_norm_backward(**inputs, training=True, output_mask=(False, True, False))
    np.testing.assert_array_equal(grad_weight, x[1])


def test_bound_memory_lives_and_stays_in_place():
    tensors = arrays()
    bound = bind(made_plan(tensors), tensors)
    seen = weakref.ref(tensors[0])
    with pytest.raises(ValueError, match="resize"):
        tensors[0].resize(1000, refcheck=False)
    right = expected(tensors)
    del tensors
    gc.collect()
    assert seen() is not None
    for found, each in zip(bound(), right, strict=True):
        np.testing.assert_array_equal(found, each)
    del bound, found
    gc.collect()
    assert seen() is None


def tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    return torch, [torch.from_numpy(each).clone() for each in arrays()]


def test_tensors_of_pytorch():
    _, tensors = tensors_of_pytorch()
    bound = bind(made_plan(tensors), tensors)
    results = bound()
    versions = [each._version for each in results]
    check(results, tensors)
    tensors[1].mul_(2)
    bound()
    check(results, tensors)
    assert all(each._version > old for each, old in zip(results, versions, strict=True))


@pytest.mark.parametrize("name", ["input", "out[0] (grad_input)", "workspace"])
def test_memory_that_was_moved_is_refused(name):
    torch, tensors = tensors_of_pytorch()
    plan = made_plan(tensors)
    out = [torch.empty(SHAPE), torch.empty(6), torch.empty(6)]
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8)
    bound = bind(plan, tensors, out=out, workspace=workspace)
    bound()
    moved = {"input": tensors[1], "workspace": workspace}.get(name, out[0])
    moved.untyped_storage().resize_(1 << 20)
    message = f"{name}: its memory was moved; allowed: that which was bound"
    with pytest.raises(ValueError, match=re.escape(message)):
        bound()


def test_tensors_that_require_gradients_are_refused():
    torch, tensors = tensors_of_pytorch()
    plan = made_plan(tensors)
    tensors[2].requires_grad_()
    with pytest.raises(ValueError, match="weight: requires a gradient, which would be lost"):
        bind(plan, tensors)
    with torch.no_grad():
        bind(plan, tensors)()


def test_repeated_runs_check_and_compute_as_the_first():
    torch, tensors = tensors_of_pytorch()
    plan = made_plan(tensors)
    named = dict(zip(NAMES, tensors, strict=True))
    first = plan.run(**named)
    for _ in range(2):
        results = plan.run(**named)
        assert all(new is not old for new, old in zip(results, first, strict=True))
        check(results, tensors)
    with pytest.raises(ValueError, match=r"input: .*\(3, 6, 4\).*as in the plan"):
        plan.run(**{**named, "input": torch.zeros(3, 6, 4)})
    with pytest.raises(ValueError, match="weight: requires a gradient, which would be lost"):
        plan.run(**{**named, "weight": tensors[2].clone().requires_grad_()})
    with torch.no_grad():
        check(plan.run(**{**named, "weight": tensors[2].clone().requires_grad_()}), tensors)
    short = tensors[1].clone()
    short.untyped_storage().resize_(4)
    with pytest.raises(ValueError, match=r"input: .*4 bytes"):
        plan.run(**{**named, "input": short})


def test_a_plan_with_specs_of_results_makes_such_results():
    torch, tensors = tensors_of_pytorch()
    transposed = ng.TensorSpec(SHAPE, "float32", (1, 3, 18))
    vectors = [ng.TensorSpec((6,), "float64")] * 2
    plan = ng.plan(
        "batch_norm_backward", **dict(zip(NAMES, tensors, strict=True)), training=True,
        out=(transposed, *vectors),
    )  # fmt: skip
    for _ in range(3):
        dx, *gradients = plan.run(**dict(zip(NAMES, tensors, strict=True)))
        assert dx.stride() == (1, 3, 18)
        assert [each.dtype for each in gradients] == [torch.float64] * 2
    np.testing.assert_array_equal(np.asarray(dx), expected(tensors)[0])
