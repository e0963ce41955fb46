"""Statistics that batch norm's gradients find themselves: exact, and used unrounded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from common import FLOATS, INTERPRETED, Case, check, cut_finely, lay_out, make, run, sampled

import normgrad as ng

#: How tensors lie for rows, columns and tiles.
ACCESS = {
    "rows": ("contiguous", "contiguous"),
    "columns": ("channels_last", "channels_last"),
    "tiles": ("contiguous", "channels_last"),
}
SHAPE = (3, 4, 5, 6) if INTERPRETED else (6, 4, 7, 11)
#: Which statistics are missing.
MISSING = {"both": (), "mean": ("save_invstd",), "invstd": ("save_mean",)}


def training(dy, x, *, given=(), eps=1e-5, weight=None):
    """A call without statistics, but for those that are given, as float32 has them."""
    others = tuple(axis for axis in range(x.ndim) if axis != 1)
    wide = x.astype(np.longdouble)
    mean = wide.mean(others)
    statistics = {"save_mean": mean, "save_invstd": 1 / np.sqrt(wide.var(others) + eps)}
    tensors = {name: statistics[name].astype(np.float32) for name in given}
    data = {"grad_out": dy, "input": x, "weight": weight, **tensors}
    return Case("batch_norm_backward", data, {"training": True, "eps": eps})


def test_the_readme_s_first_example_at_a_mean_of_a_million_deviations():
    rng = np.random.default_rng(0)
    shape = (4, 8, 14, 14) if INTERPRETED else (32, 64, 56, 56)
    x = 1e6 + rng.standard_normal(shape, dtype=np.float32)
    dy = rng.standard_normal(shape, dtype=np.float32)
    run(training(dy, x, weight=np.ones(shape[1], np.float32)), normal=True)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize(
    ("dtype", "ratio"),
    [
        ("float32", 1e6), ("float64", 1e6), ("float32", 0), ("float64", 0), ("float16", 1e2),
        ("bfloat16", 1e2),
    ],
)  # fmt: skip
def test_a_mean_far_from_zero(dtype, ratio, access, missing):
    rng = np.random.default_rng(1)
    x, dy = (
        lay_out((far + rng.standard_normal(SHAPE)).astype(FLOATS[dtype]), to)
        for far, to in zip((ratio, 0), ACCESS[access], strict=True)
    )
    for weight in (None, rng.standard_normal(4).astype(np.float32)):
        case = training(dy, x, given=MISSING[missing], weight=weight)
        # Given statistics are rounded, and far from x's own.
        run(case, normal=missing == "both")
        if not INTERPRETED:  # which takes seconds for it
            with cut_finely():
                run(case, normal=missing == "both")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("access", ACCESS)
def test_elements_that_are_the_mean_s_neighbours(access, dtype):
    """x is 1 or the next number, and the mean in the middle: a neighbour of both.

    And dy is what each addition loses: see test_terms_that_each_addition_loses.
    """
    roundoff = float(np.finfo(dtype).eps) / 2
    i = np.arange(1024)
    patterns = itertools.product((512, 1024), (32, 64), (32, 9))
    dy = np.stack(
        [
            np.where((i % period < ones) & (i % 32 < lanes), 1, 0.99 * roundoff)
            for period, ones, lanes in patterns
        ]
    )[None]
    next_ones = (i % 2 == 1, i >= 512, i < 512)
    for next_one in sampled(next_ones, 1 if INTERPRETED else 3, f"{access} {dtype}"):
        x = np.broadcast_to(1 + 2 * roundoff * next_one, dy.shape)
        for some in (dy, np.where(next_one, dy, 0)):
            tensors = [
                lay_out(values.astype(dtype), to)
                for values, to in zip((some, x), ACCESS[access], strict=True)
            ]
            run(training(*tensors, eps=0.0))


@pytest.mark.parametrize("access", ACCESS)
def test_squares_that_each_addition_loses(access):
    """In float64 arithmetic 1/std enters three times, with the error of its moments."""
    if np.finfo(np.longdouble).eps == np.finfo(np.float64).eps:
        pytest.skip("the oracle has no wider type")
    patterns = ((16, 128), (32, 4)) if INTERPRETED else ((16, 32, 64, 128), (32, 14, 10, 4))
    i = np.arange(1012)
    sign = np.where(i % 2 == 0, 1.0, -1.0)
    small = np.sqrt(0.99 * 2.0**-53)
    x = np.stack(
        [
            np.where((i < ones) & (i % 32 < lanes), 1.0, small) * sign
            for ones, lanes in itertools.product(*patterns)
        ]
    )[None]
    for dy in (x, np.ones_like(x), np.where(abs(x) < 0.5, -x, x)):
        tensors = [lay_out(values, to) for values, to in zip((dy, x), ACCESS[access], strict=True)]
        run(training(*tensors, eps=0.0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("access", ACCESS)
def test_a_gradient_of_the_element_nearest_to_the_mean_alone(access, dtype):
    """Its x − μ is the difference of numbers that are nearly the same, and all there is."""
    for positions in (5, 100, 300) if INTERPRETED else (5, 16, 100, 300, 1000, 10000):
        x = np.random.default_rng(positions).standard_normal((1, 3, positions)).astype(dtype)
        nearest = abs(x - x.mean(2, keepdims=True)).argmin(2)[0]
        dy = np.zeros_like(x)
        dy[0, range(3), nearest] = 1
        run(training(*(lay_out(v, to) for v, to in zip((dy, x), ACCESS[access], strict=True))))


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["grad_out", "input"])
def test_what_is_not_finite_stays_in_its_channel(special, where):
    case = make("train_without_statistics", (3, 4, 50), mean=1e3)
    case.tensors[where][1, 2, 3] = special
    with np.errstate(all="ignore"):
        result = case.call()
        check(case, result)
    assert not np.isfinite(np.delete(result.grad_input, (0, 1, 3), axis=1)).any()
    assert np.isfinite(np.delete(result.grad_input, 2, axis=1)).all()


@pytest.mark.cpu
def test_the_mean_and_the_deviation_take_one_pass():
    """About an element of the channel; in float64 arithmetic the mean has a pass of its own."""
    for dtype, passes in (("float32", 1), ("float64", 2)):
        case = make("train_without_statistics", (3, 4, 50), dtype=dtype)
        specs = {name: value for name, value in case.tensors.items() if value is not None}
        plan = ng.plan("batch_norm_backward", **specs, **case.options)
        assert plan.path.count("moments") == passes
