"""Batch norm's statistics beside test_suite.py's cases: hard sums, threads, outputs, errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from common import FLOATS, lay_out

import normgrad as ng
from normgrad.operators import precision, reference
from normgrad.tensors import dtypes

#: Large means, small deviations: what sums that are not centred get wrong.
RATIOS = [0.0, 1.0, 1e3, 1e5]


def data(shape, dtype="float32", ratio=1.0, layout="contiguous", seed=0):
    rng = np.random.default_rng(seed)
    return lay_out((ratio + rng.standard_normal(shape)).astype(FLOATS[dtype]), layout)


def check(x, result, normal=False, **options):
    exact = reference.batch_norm_stats(x, **options)
    arithmetic = dtypes.arithmetic(dtypes.parse(x.dtype))
    for name, value in result._asdict().items():
        units = precision.error(np.asarray(value), exact[name], arithmetic, normal)
        assert units.shape == exact[name].value.shape
        assert units.max(initial=0) <= 1, (name, units.max())


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_squares_that_each_addition_loses(layout):
    """Squares just below half a unit of the last place of their sum, about a mean of 0."""
    if np.finfo(np.longdouble).eps == np.finfo(np.float64).eps:
        pytest.skip("the oracle has no wider type")
    i = np.arange(1012)
    sign = np.where(i % 2 == 0, 1.0, -1.0)
    small = np.sqrt(0.99 * 2.0**-53)
    channels = [
        np.where((i < ones) & (i % 32 < lanes), 1.0, small) * sign
        for ones, lanes in itertools.product((16, 32, 64, 128), (32, 14, 10, 4))
    ]
    x = lay_out(np.stack(channels)[None], layout)
    check(x, ng.batch_norm_stats(x, eps=0.0), eps=0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_mean_far_larger_than_the_deviation(ratio, dtype):
    x = data((16, 5, 300), dtype, ratio, seed=2)
    check(x, ng.batch_norm_stats(x), normal=True)
    # Not only within the bound, whose scale is the mean: the deviation itself is right.
    exact = reference.batch_norm_stats(x)["invstd"].value
    found = ng.batch_norm_stats(x).invstd
    np.testing.assert_allclose(found, exact.astype(found.dtype), rtol=4 * np.finfo(x.dtype).eps)


def test_numpy_and_torch_agree_to_the_bit():
    torch = pytest.importorskip("torch")
    x = data((4, 6, 5, 7), seed=3)
    ours, theirs = ng.batch_norm_stats(x), ng.batch_norm_stats(torch.from_numpy(x))
    for a, b in zip(ours, theirs, strict=True):
        assert a.tobytes() == b.numpy().tobytes()
    half = torch.from_numpy(x).bfloat16()
    assert {value.dtype for value in ng.batch_norm_stats(half)} == {torch.float32}
    mean = half.double().mean((0, 2, 3))
    torch.testing.assert_close(ng.batch_norm_stats(half).mean.double(), mean, rtol=1e-6, atol=1e-6)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_same_bits_for_any_number_of_threads(dtype):
    x = data((32, 24, 40, 40), dtype, seed=4)
    try:
        results = []
        for threads in (1, 2, 3):
            ng.set_num_threads(threads)
            results.append([value.tobytes() for value in ng.batch_norm_stats(x)])
    finally:
        ng.set_num_threads(None)
    assert results[0] == results[1] == results[2]


def test_constants_and_what_is_not_finite_stay_in_their_channel():
    x = data((4, 6, 9), seed=5)
    x[:, 0], x[2, 1, 3], x[1, 2, 0], x[:, 3, 0] = 7, np.nan, np.inf, [np.inf, -np.inf, 1, 1]
    mean, invstd = ng.batch_norm_stats(x, eps=0.0)
    assert (mean[0], invstd[0]) == (7, np.inf)
    assert np.isnan([mean[1], invstd[1], invstd[2], mean[3], invstd[3]]).all()
    assert mean[2] == np.inf
    check(x[:, 4:], ng.BatchNormStatistics(mean[4:], invstd[4:]), eps=0.0)


@pytest.mark.parametrize("dtypes_", [*itertools.product(FLOATS, FLOATS)])
def test_outputs_of_the_caller_s(dtypes_):
    x = data((4, 6, 9), seed=6)
    mean, invstd = (np.full((6, 3), np.nan, FLOATS[name]) for name in dtypes_)
    out = (mean[:, 1], invstd[::-1, 2])
    result = ng.batch_norm_stats(x, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    check(x, result)
    assert np.isnan(mean[:, [0, 2]].astype(np.float64)).all()
    assert np.isnan(invstd[:, :2].astype(np.float64)).all()


def test_a_plan():
    x = data((4, 6, 9), seed=7)
    plan = ng.plan("batch_norm_stats", input=ng.TensorSpec((4, 6, 9), "float32"), eps=0.5)
    assert plan.output_specs == (ng.TensorSpec((6,), "float32"),) * 2
    assert plan.reads_input
    result = plan.run(x, workspace=np.empty(plan.workspace_size, np.uint8))
    check(x, result, eps=0.5)
    assert [v.tobytes() for v in result] == [v.tobytes() for v in ng.batch_norm_stats(x, eps=0.5)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"input": np.zeros(3, np.float32)},
            ValueError,
            "input: 1 axes, shape (3,); allowed: 2 to 8",
        ),
        ({"input": np.zeros((2, 3), np.int32)}, TypeError, "input: dtype int32; allowed: float32"),
        ({"input": None}, TypeError, "input: None; allowed: a tensor"),
        ({"eps": "1"}, TypeError, "eps: '1'; allowed: a real number"),
        ({"channel_axis": 5}, ValueError, "channel_axis: 5; allowed: -3 to 2 for 3 axes"),
        ({"out": (None,)}, ValueError, "out: 1 entries; allowed: a tuple of 2 tensors or Nones"),
        (
            {"out": (np.empty(4, np.float32), None)},
            ValueError,
            "out[0] (mean): shape (4,); allowed: (3,), the channels of input",
        ),
    ],
)
def test_wrong_arguments(change, error, message):
    arguments = {"input": np.zeros((2, 3, 4), np.float32), **change}
    with pytest.raises(error) as caught:
        ng.batch_norm_stats(**arguments)
    assert message in str(caught.value)


def test_an_output_may_not_be_the_input_s_memory():
    x = data((4, 6, 9), seed=8)
    before = x.copy()
    with pytest.raises(ValueError, match=r"out\[1\] \(invstd\): shares memory with input"):
        ng.batch_norm_stats(x, out=(None, x[0, :, 0]))
    np.testing.assert_array_equal(x, before)
