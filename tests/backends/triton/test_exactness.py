"""Results at any |mean|/std by the formulas themselves, of a GPU's kernels in the interpreter.

Statistics that a call computes, and float64 ones that it is given, are not rounded to float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common import FLOATS, INTERPRETED, lay_out, named, on_device
from exact_formulas import Array, Exact, Norm, batch, group, row, units
from triton_programs import PASSES

import normgrad as ng
from normgrad.tensors import dtypes

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="kernels are not interpreted"),
]

EPS = 1e-5
RATIOS = (1.0, 1e3, 1e6)
#: Devices that read small tensors once or twice, and one whose float64 arithmetic is slow.
DEVICES = {**PASSES, "slow": replace(PASSES["two passes"], fast_float64=False)}
WAYS = [*(("float32", name) for name in DEVICES), ("float16", "two passes"), ("bfloat16", "slow")]
#: Tensors of each norm: channels with many positions, and with few, which are read as lines.
SHAPES = {
    "batch_norm": [((4, 3, 5, 4), "contiguous"), ((4, 3, 5, 4), "channels_last")],
    "group_norm": [
        ((2, 6, 5, 4), "contiguous"), ((2, 6, 5, 4), "channels_last"), ((7, 6, 3), "contiguous"),
        ((7, 6, 3), "channels_last"), ((20, 6), "contiguous"),
    ],
    "layer_norm": [((19, 40), "contiguous"), ((19, 40), "sliced")],
    "rms_norm": [((19, 40), "contiguous")],
}  # fmt: skip
#: The shape of batch norm's tensors.
SHAPE = SHAPES["batch_norm"][0][0]
TENSORS = [(kind, shape, layout) for kind, each in SHAPES.items() for shape, layout in each]


def norm_of(kind: str, shape: tuple[int, ...]) -> Norm:
    """The formulas of a norm; group norm has two groups."""
    if kind == "batch_norm":
        return batch(shape)
    return group(shape, 2) if kind == "group_norm" else row(shape, kind == "layer_norm")


def options_of(kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """The options that a norm's functions need."""
    if kind == "batch_norm":
        return {}
    return {"num_groups": 2} if kind == "group_norm" else {"normalized_shape": shape[1:]}


def tensor(shape: tuple[int, ...], ratio: float, dtype: str, layout: str) -> Array:
    """Normally distributed numbers whose mean is ``ratio`` deviations, if the dtype can tell them.

    Far from zero halves are so coarse that all would be the same, so some are their next numbers.
    """
    rng = np.random.default_rng(0)
    std = min(1, 3e4 / ratio)
    x = (std * (ratio + rng.standard_normal(shape))).astype(FLOATS[dtype]).astype(float)
    x.ravel()[::7] *= 1 + 2 * dtypes.BY_NAME[dtype].unit_roundoff
    return lay_out(x.astype(FLOATS[dtype]), layout)


def parameters_of(kind: str, norm: Norm) -> dict[str, Array]:
    """A weight and a bias by their names."""
    names = ("weight", "bias")
    rng = np.random.default_rng(1)
    size = int(np.prod(norm.parameters))
    return {
        name: rng.standard_normal(size).astype(np.float32) for name in names[: 1 + norm.centred]
    }


def check(result: Any, exact: dict[str, Exact], *where: object) -> None:
    """Check that every output that a formula is known for is within its bound."""
    found = named(result)
    for name in found.keys() & exact.keys():
        error = units(found[name], exact[name])
        assert error <= 1, f"{name}: {error:.3g} of the bound, {where}"


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(("kind", "shape", "layout"), TENSORS)
def test_forward_passes(kind, shape, layout, ratio):
    norm = norm_of(kind, shape)
    parameters = parameters_of(kind, norm)
    options = {"eps": EPS, **options_of(kind, shape)}
    if kind == "batch_norm":
        options["training"] = True
    for dtype, device in WAYS:
        x = tensor(shape, ratio, dtype, layout)
        mean, r = norm.statistics(x, EPS)
        exact = {"output": norm.forward(x, mean, r, *parameters.values(), computed=True)}
        with on_device(DEVICES[device]):
            result = getattr(ng, kind)(x, **parameters, **options)
        check(result, exact, dtype, device)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(("kind", "shape", "layout"), TENSORS)
def test_statistics_that_are_written_in_float64(kind, shape, layout, ratio):
    norm = norm_of(kind, shape)
    options = {"eps": EPS, **options_of(kind, shape)}
    if kind == "batch_norm":
        options["training"] = True
    x = tensor(shape, ratio, "float32", layout)
    mean, r = norm.statistics(x, EPS)
    shapes = [value.shape for value in getattr(ng, kind)(x, **options)[1:] if value is not None]
    out = [None, *(np.full(each, np.nan) for each in shapes)]
    if kind == "batch_norm":
        out += [None, None]
    result = getattr(ng, kind)(x, **options, out=tuple(out))
    for exact, found in zip([mean, r] if norm.centred else [r], result[1:], strict=False):
        np.testing.assert_allclose(found.ravel(), exact.ravel().astype(float), rtol=2.0**-50)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_forward_passes_with_float64_statistics(layout, ratio):
    norm = batch(SHAPE)
    parameters = parameters_of("batch_norm", norm)
    for dtype, device in WAYS:
        x = tensor(SHAPE, ratio, dtype, layout)
        mean, r = norm.statistics(x, EPS)
        exact = {"output": norm.forward(x, mean, r, *parameters.values(), computed=False)}
        vectors = [each.ravel().astype(float) for each in (mean, r, 1 / r**2 - EPS)]
        with on_device(DEVICES[device]):
            y = ng.batch_norm_elemt(x, *parameters.values(), *vectors[:2])
            result = ng.batch_norm(
                x, **parameters, running_mean=vectors[0], running_var=vectors[2], training=False,
                eps=EPS,
            )  # fmt: skip
        check(result, exact, dtype, device)
        check(result._replace(output=y), exact, dtype, device, "batch_norm_elemt")


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_gradients_of_batch_norm_with_float64_statistics(layout, ratio):
    norm = batch(SHAPE)
    w = parameters_of("batch_norm", norm)["weight"]
    for dtype, device in WAYS:
        x, dy = tensor(SHAPE, ratio, dtype, layout), tensor(SHAPE, 0.5, dtype, "contiguous")
        mean, r = norm.statistics(x, EPS)
        exact = norm.backward(dy, x, mean, r, w)
        constant = norm.backward(dy, x, mean, r, w, constant=True)
        m64, r64, var64 = (each.ravel().astype(float) for each in (mean, r, 1 / r**2 - EPS))
        sums = [exact[name].value.astype(float) for name in ("sum_dy", "sum_dy_xmu")]
        count = np.array([x.size // x.shape[1]], np.int32)
        with on_device(DEVICES[device]):
            for given in ({"save_invstd": r64}, {}):
                result = ng.batch_norm_backward(
                    dy, x, w, save_mean=m64, **given, training=True, eps=EPS
                )
                check(result, exact, dtype, device, "training", *given)
            result = ng.batch_norm_backward(
                dy, x, w, running_mean=m64, running_var=var64, training=False, eps=EPS
            )
            check(result, constant, dtype, device, "evaluation")
            result = ng.batch_norm_backward_reduce(dy, x, m64, r64, w)
            check(result, exact, dtype, device, "reduce")
            dx = ng.batch_norm_backward_elemt(dy, x, m64, r64, w, *sums, count)
        assert units(dx, exact["grad_input"]) <= 1, (dtype, device)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(
    ("kind", "shape", "layout"), [each for each in TENSORS if each[0] != "batch_norm"]
)
def test_gradients_with_float64_statistics(kind, shape, layout, ratio):
    norm = norm_of(kind, shape)
    ((weight, w), *_) = parameters_of(kind, norm).items()
    for dtype, device in WAYS:
        x, dy = tensor(shape, ratio, dtype, layout), tensor(shape, 0.5, dtype, "contiguous")
        mean, r = norm.statistics(x, EPS)
        exact = norm.backward(dy, x, mean, r, w)
        of_group = norm.view[:2] if kind == "group_norm" else (norm.view[0], 1)
        statistics = [each.astype(float).reshape(of_group) for each in (mean, r)]
        given = statistics if norm.centred else statistics[1:]
        with on_device(DEVICES[device]):
            result = getattr(ng, f"{kind}_backward")(
                dy, x, *given, **{weight: w}, **options_of(kind, shape)
            )
        check(result, exact, dtype, device)


def test_an_infinite_weight():
    """The mean's rounding error times such a weight is no number, and not added."""
    x = tensor(SHAPE, 1e3, "float32", "contiguous")
    mean, _ = batch(SHAPE).statistics(x, EPS)
    w = np.array([np.inf, 1, -np.inf], np.float32)
    y = ng.batch_norm(x, w, training=True).output
    sign = np.sign(x - mean.reshape(1, 3, 1, 1))
    assert (y[:, 0] == sign[:, 0] * np.inf).all()
    assert np.isfinite(y[:, 1]).all()
    assert (y[:, 2] == -sign[:, 2] * np.inf).all()
