"""Layer norm: rows and positions of several axes, in any layout, statistics of both passes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from common import (
    FLOATS,
    HALVES,
    INTERPRETED,
    LAYOUTS,
    Case,
    bits,
    cut_finely,
    lay_out,
    run,
    sampled,
    shared_by_threads,
)

import normgrad as ng

#: Shapes, and how many of their last axes are normalised.
SHAPES = (
    ((6, 40), 1),
    ((7,), 1),
    ((5, 1), 1),
    ((3, 4, 50), 1),
    ((3, 4, 5, 6), 2),
    ((3, 4, 5, 6), 3),
    ((70, 30, 1), 2),
    ((3, 4, 5, 6, 2), 2),
    # What takes an interpreter long.
    *(() if INTERPRETED else (((2, 3, 2, 3, 2, 3, 2, 3), 4),)),
    *(() if INTERPRETED else (((300, 768), 1), ((35, 4096), 1), ((3, 9000), 1), ((1200, 33), 1))),
)


def make(shape, count, *, dtype="float32", layout="contiguous", dy_layout=None, vectors=None,
         mean=0.3, affine=True, seed=0):  # fmt: skip
    """A forward call, and one for gradients from the statistics that it gives."""
    rng = np.random.default_rng(seed)
    kept = FLOATS["float32" if dtype in HALVES else dtype]
    row = shape[-count:]
    x = lay_out((mean + rng.standard_normal(shape)).astype(FLOATS[dtype]), layout)
    dy = lay_out(rng.standard_normal(shape).astype(FLOATS[dtype]), dy_layout or layout)

    def vector(values):
        return lay_out(values.astype(kept), vectors or "contiguous")

    w, b = (vector(rng.standard_normal(row)) if affine else None for _ in range(2))
    tensors = {"input": x, "weight": w, "bias": b}
    forward = Case("layer_norm", tensors, {"normalized_shape": row, "eps": 1e-3})
    exact = forward.exact()
    statistics = {name: vector(exact[name].value) for name in ("mean", "rstd")}
    tensors = {"grad_out": dy, "input": x, **statistics, "weight": w}
    return forward, Case("layer_norm_backward", tensors, {"normalized_shape": row})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_dtypes(layout, dtype):
    for shape, count in sampled(SHAPES, 4 if INTERPRETED else len(SHAPES), f"{layout} {dtype}"):
        if len(shape) == 1 and layout == "channels_last":
            continue
        others = ("contiguous", "transposed", "sliced")
        for other in sampled(others, 1, f"{shape} {layout} {dtype}"):
            forward, backward = make(shape, count, dtype=dtype, layout=layout, dy_layout=other)
            run(forward, normal=layout != "expanded" and dtype != "float64")
            run(backward, normal=layout != "expanded")


@pytest.mark.parametrize("vectors", ["sliced", "transposed", "negative"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
def test_vectors_of_several_axes_in_any_layout(layout, vectors):
    """Rows and positions that no strides make one axis of."""
    for shape, count in sampled(SHAPES, 3 if INTERPRETED else len(SHAPES), vectors):
        if len(shape) == 1 and layout == "channels_last":
            continue
        dense = make(shape, count, layout=layout)
        for case, same in zip(make(shape, count, layout=layout, vectors=vectors), dense,
                              strict=True):  # fmt: skip
            result = run(case)
            run(same)
            out = tuple(
                lay_out(np.full_like(value, np.nan), layout if value.shape == shape else vectors)
                for value in result
            )
            run(case, out=out)


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((5, 70), "float32")]
    if INTERPRETED
    else [((40, 300), "float32"), ((40, 300), "bfloat16"), ((300, 40), "float32"),
          ((50, 3000), "float32")],
)  # fmt: skip
def test_masks(shape, dtype, mask):
    _, case = make(shape, 1, dtype=dtype)
    whole = bits(case.call())
    case.options["output_mask"] = mask
    result = run(case)
    assert [value is not None for value in result] == list(mask)
    for name, value in bits(result).items():
        assert INTERPRETED or value is None or value == whole[name]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("shape", "dtype", "steps"),
    [((3, 20000), "float32", "gradients along outputs"),
     ((19, 4500), "bfloat16", "gradients along outputs"),
     ((2, 19, 1030), "float16", "gradients along outputs"),
     ((9, 4500), "float64", "gradients along outputs"),
     ((3, 40000), "float32", "sums along combine+coefficients apply along+parameters along"),
     ((1, 90001), "bfloat16", "sums along combine+coefficients apply along+parameters along"),
     ((2, 20000), "float64", "sums along combine+coefficients apply along+parameters along"),
     ((2, 19, 40001), "bfloat16", "parameters along sums along+coefficients+apply along")],
)  # fmt: skip
def test_gradients_of_long_rows(shape, dtype, steps):
    """By several threads and masks the bits are the same, and in place: rows are summed first."""
    _, case = make(shape, 1, dtype=dtype)
    tensors = {name: value for name, value in case.tensors.items() if value is not None}
    path = ng.plan("layer_norm_backward", **tensors, **case.options).path
    assert path.endswith(steps)
    whole = bits(run(case))
    with shared_by_threads():
        for threads in (1, 3):
            ng.set_num_threads(threads)
            assert bits(case.call()) == whole
    ng.set_num_threads(None)
    case.options["output_mask"] = (False, True, False)
    assert bits(run(case))["grad_weight"] == whole["grad_weight"]
    case.options["output_mask"] = (True, False, False)
    assert bits(run(case))["grad_input"] == whole["grad_input"]
    case.options["output_mask"] = (True, True, True)
    out = case.tensors["grad_out"]
    assert bits(case.call(out=(out, None, None))) == whole


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mean", [1e3, 1e6])
def test_a_mean_far_larger_than_the_deviation(mean, dtype):
    forward, backward = make((20, 300), 1, dtype=dtype, mean=mean)
    run(backward)
    result = run(forward)
    exact = forward.exact()["rstd"].value.astype(FLOATS[dtype])
    np.testing.assert_allclose(result.rstd, exact, rtol=4 * np.finfo(FLOATS[dtype]).eps)


@pytest.mark.parametrize("count", [20, 20000])
def test_rows_of_one_number_but_for_its_neighbour(count):
    """The mean's rounding error is all that the other elements differ from it by."""
    forward, _ = make((3, count), 1)
    x = forward.tensors["input"]
    x[:] = 1e8
    x[:, 5] = np.nextafter(x[0, 5], np.float32(np.inf))
    run(forward)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1000, 70), (70, 2000), (6, 20000), (30, 5, 400)])
def test_the_same_bits_for_any_number_of_threads(shape, dtype):
    for case in make(shape, 1, dtype=dtype, dy_layout="transposed"):
        found = set()
        with shared_by_threads():
            for threads in (1, 2, 3):
                ng.set_num_threads(threads)
                found.add(tuple(bits(case.call()).items()))
        ng.set_num_threads(None)
        assert len(found) == 1
        with cut_finely():
            run(case)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("shape", "count"),
    [((0, 5), 1), ((3, 0), 1), ((0, 3, 4), 1), ((2, 0, 4), 2), ((2, 3, 0), 1), ((0,), 1)],
)
def test_without_elements(shape, count):
    x, row = np.zeros(shape, np.float32), shape[-count:]
    of_rows = (*shape[:-count], *[1] * count)
    forward = ng.layer_norm(x, row)
    assert [value.shape for value in forward] == [shape, of_rows, of_rows]
    assert not forward.mean.any()
    assert not forward.rstd.any()
    found = ng.layer_norm_backward(x, x, forward.mean, forward.rstd, normalized_shape=row)
    assert [value.shape for value in found] == [shape, row, row]
    assert not found.grad_weight.any()
    assert not found.grad_bias.any()


def test_a_size_stands_for_the_last_axis():
    forward, _ = make((6, 40), 1)
    x, w = forward.tensors["input"], forward.tensors["weight"]
    expected = bits(ng.layer_norm(x, (40,), w))
    for same in (40, [40], np.int64(40)):
        assert bits(ng.layer_norm(x, same, w)) == expected


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "normalized_shape: (7,); allowed: the last axes of input's shape (6, 40)",
         {"normalized_shape": 7}),
        (ValueError, "normalized_shape: (1, 6, 40); allowed: the last axes of input's shape",
         {"normalized_shape": (1, 6, 40)}),
        (ValueError, "normalized_shape: (); allowed: an integer, or a tuple of one or more",
         {"normalized_shape": ()}),
        *((TypeError, f"normalized_shape: {each!r}; allowed: an integer, or a tuple of one or more",
           {"normalized_shape": each}) for each in ("x", {40: 1}, np.array([6, 40]), 40.0, True)),
        (TypeError, "normalized_shape[0]: 40.0; allowed: an integer",
         {"normalized_shape": (40.0,)}),
        (ValueError, "mean: shape (6,); allowed: (6, 1), the rows of input",
         {"mean": np.zeros(6, np.float32)}),
        (ValueError, "weight: shape (6, 1); allowed: (40,), normalized_shape",
         {"weight": np.zeros((6, 1), np.float32)}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(error, message, change):
    _, case = make((6, 40), 1)
    with pytest.raises(error) as raised:
        ng.layer_norm_backward(**{**case.tensors, **case.options, **change})
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm_has_an_eps_of_its_own(dtype):
    """The machine epsilon of the arithmetic's type, which shows where the data are as small.

    The dtypes of the weight and of the output decide nothing.
    """
    rng = np.random.default_rng(3)
    eps = 2.0**-52 if dtype == "float64" else 2.0**-23
    x = (eps**0.5 * rng.standard_normal((6, 40))).astype(FLOATS[dtype])
    weights = [None, *(np.ones(40, FLOATS[other]) for other in FLOATS)]
    for weight, given in itertools.product(weights, (None, np.float32, np.float64)):
        case = Case("rms_norm", {"input": x, "weight": weight}, {"normalized_shape": 40})
        if given is not None:
            case.options["out"] = (np.empty(x.shape, given), None)
        result = run(case)
        told = ng.rms_norm(x, 40, weight, eps=eps)
        np.testing.assert_array_equal(told.rstd, result.rstd)
        assert 0.4 < result.rstd.mean() * eps**0.5 < 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rms_norm_is_layer_norm_without_a_mean(layout):
    """Rows and positions of several axes, in both passes."""
    forward, backward = make((3, 4, 5, 6), 2, layout=layout, dy_layout="sliced")
    for case in (forward, backward):
        tensors = {k: v for k, v in case.tensors.items() if k not in ("bias", "mean")}
        run(Case(case.name.replace("layer", "rms"), tensors, case.options))


@pytest.mark.parametrize("count", [5, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_infinite_element_leaves_its_row_no_deviation(count, dtype):
    """RMS norm divides by an infinite root, so that only the element itself has no value."""
    x = np.random.default_rng(0).standard_normal((3, count)).astype(dtype)
    x[1, 2] = np.inf
    y, rstd = ng.rms_norm(x, (count,))
    assert rstd[1, 0] == 0
    assert np.isnan(y[1, 2])
    assert np.isfinite(y).sum() == 3 * count - 1
    assert not np.delete(y[1], 2).any()
