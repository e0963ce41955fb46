"""What tests/fuzz has found, each on its own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from common import make, run

import normgrad as ng
from normgrad.operators import reference

F = np.float32


def test_without_channels_and_with_strides_of_0():
    x = np.lib.stride_tricks.as_strided(np.zeros(1, F), (2, 0, 3), (0, 4, 0))
    result = ng.batch_norm_backward(x, x, training=True)
    assert [gradient.shape for gradient in result] == [(2, 0, 3), (0,), (0,)]


def test_an_output_over_an_input_that_is_copied():
    """Its strides are no whole items, so that a copy is read: it would be changed all the same."""
    memory = np.zeros(60, np.uint8)
    x = np.ndarray((2, 5), F, memory, 0, (25, 5))
    over = memory[4:44].view(F).reshape(2, 5)
    dy = np.ones((2, 5), F)
    with pytest.raises(ValueError, match=r"^out\[0\] \(grad_input\): shares memory with input; "):
        ng.batch_norm_backward(dy, x, training=True, out=(over, None, None))
    assert not memory.any()


@pytest.mark.cpu
def test_a_workspace_over_an_input_that_is_copied():
    dy = np.ones((2, 5), F)
    plan = ng.plan("batch_norm_backward", grad_out=dy, input=dy, training=True)
    workspace = np.zeros(plan.workspace_size + 60, np.uint8)
    x = np.ndarray((2, 5), F, workspace, 64, (25, 5))
    with pytest.raises(ValueError, match=r"^workspace: shares memory with input; "):
        plan.run(dy, x, workspace=workspace)
    assert not workspace.any()


def test_an_output_over_a_view_that_negates():
    torch = pytest.importorskip("torch")
    both = torch.zeros((2, 3), dtype=torch.complex64)
    x = both.conj().imag
    assert x.is_neg()
    over = torch.view_as_real(both)[..., 1]
    dy = torch.ones((2, 3))
    with pytest.raises(ValueError, match=r"^out\[0\] \(grad_input\): shares memory with input; "):
        ng.batch_norm_backward(dy, x, training=True, out=(over, None, None))
    assert not torch.view_as_real(both).any()


class Unprintable:
    """Some tensors are."""

    def __repr__(self) -> str:
        raise NotImplementedError

    def __index__(self) -> int:
        raise RuntimeError

    def __iter__(self) -> None:
        raise RuntimeError


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("training", "True or False"),
        ("eps", "a real number"),
        ("channel_axis", "an integer"),
        ("output_mask", "3 booleans"),
    ],
)
def test_arguments_that_cannot_be_printed(name, allowed):
    case = make("train", (3, 4, 5))
    case.options[name] = Unprintable()
    with pytest.raises(TypeError, match=f"^{name}: an Unprintable; allowed: {allowed}$"):
        case.call()


def test_specs_of_what_cannot_be_printed():
    with pytest.raises(TypeError, match=r"^shape: an Unprintable is not a sequence of "):
        ng.TensorSpec(Unprintable(), "float32")
    with pytest.raises(TypeError, match=r"^dtype: an Unprintable is not supported; allowed: "):
        ng.TensorSpec((2, 3), Unprintable())


class Failing:
    """Whatever it is asked, it fails."""

    def __getattr__(self, name: str) -> None:
        raise RuntimeError(name)


def test_a_dtype_that_fails_to_say_what_it_is():
    with pytest.raises(TypeError, match=r"^dtype: .*Failing object.* is not supported; allowed: "):
        ng.TensorSpec((2, 3), Failing())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_infinite_count(dtype):
    """The sums come to nothing."""
    case = make("elemt", (3, 4, 5), dtype=dtype)
    case.tensors["count"] = np.array([np.inf, 1], F)
    assert np.isfinite(run(case)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_counts_that_are_nan(dtype):
    """They are no absence of elements, of which running statistics would stay as they were."""
    ones = np.ones((2, 3), dtype)
    result = ng.batch_norm_gather_stats_with_counts(
        np.zeros((2, 3), dtype), ones, ones, ones[0], ones[0], np.array([1, np.nan], F)
    )
    for values in result:
        assert np.isnan(values.astype(F)).all()


@pytest.mark.parametrize("eps", [1e-5, np.inf])
@pytest.mark.parametrize("ranks", [0, 2])
def test_no_elements_on_any_rank(ranks, eps):
    """Running statistics stay as they were, whatever eps is, and the oracle says so too."""
    tensors = (
        np.zeros((2, 3), F),
        np.ones((ranks, 3), F),
        np.ones((ranks, 3), F),
        np.full(3, 0.25, F),
        np.full(3, 4, F),
        np.zeros(ranks, F),
    )
    result = ng.batch_norm_gather_stats_with_counts(*tensors, eps=eps)
    exact = reference.batch_norm_gather_stats_with_counts(*tensors, eps=eps)
    wanted = {"mean": 0, "invstd": 0, "running_mean": 0.25, "running_var": 4}
    for name, value in result._asdict().items():
        assert (value == wanted[name]).all()
        assert (exact[name].value == wanted[name]).all()
        assert (exact[name].scale == wanted[name]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(3, 40), (200, 40), (4, 8, 50), (4, 8, 200), (2, 8, 5, 5)])
def test_equal_elements_whose_sum_overflows(dtype, shape):
    """Their mean is themselves, and nothing is left of them without it."""
    largest = np.array(3e38 if dtype is not np.float16 else 6e4, dtype)
    x, bias = np.full(shape, largest), np.full(shape[1], 0.5, dtype)
    made = [ng.batch_norm(x, None, bias, training=True)]
    if len(shape) > 2:
        made.append(ng.group_norm(x, np.ones_like(bias), bias, num_groups=2))
    for output, mean, invstd, *_ in made:
        assert (output == bias[0]).all()
        assert (mean == largest).all()
        np.testing.assert_allclose(invstd.astype(F), 1e-5**-0.5, rtol=5e-3)
    assert not ng.layer_norm(x, shape[1:])[0].any()
