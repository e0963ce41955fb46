"""Every norm, forward and backward, against formulas of this file's own in long double.

Nothing of normgrad.operators.reference or normgrad.operators.precision is used, lest an error there
be ours as well.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from common import FLOATS, HALVES, named

import normgrad as ng

pytestmark = [pytest.mark.cpu, pytest.mark.every_case]

EPS = 1e-5
U = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float32": 2.0**-149, "float64": 2.0**-1074, "float16": 2.0**-24, "bfloat16": 2.0**-133}
#: |mean|/std of the input, whose std is 1. There are no more than 1/u numbers of a type between two
#: deviations at such a mean: beyond the last ratios of halves, all elements become the same few.
RATIOS = {
    **dict.fromkeys(("float32", "float64"), (1.0, 1e3, 1e6)),
    "float16": (1.0, 1e3),
    "bfloat16": (1.0, 1e2),
}
DATA = [(dtype, ratio) for dtype in FLOATS for ratio in RATIOS[dtype]]
CENTRED = ("batch", "group", "instance", "layer")
BY_ROW = ("layer", "rms")

#: Orders of the axes in memory, the last one contiguous: rows, columns, channels-last.
ORDERS = {"rows": (0, 1, 2), "columns": (2, 1, 0), "channels_last": (0, 2, 1)}
#: Rows of ordinary length, short ones and long ones, each in another order.
TENSORS = (
    ((3, 4, 50), "rows"), ((6, 8, 36), "channels_last"), ((40, 6, 5), "columns"),
    ((40, 6, 2), "rows"), ((40, 6, 3), "channels_last"), ((2, 2, 5000), "rows"),
)  # fmt: skip


def tensors(norm, shape, order, dtype, ratio):
    """grad_out, the input, the weight and, but for RMS norm, the bias."""
    rng = np.random.default_rng(0)
    axes = ORDERS[order]
    dy, x = (
        (mean + rng.standard_normal([shape[axis] for axis in axes]))
        .astype(FLOATS[dtype])
        .transpose(np.argsort(axes))
        for mean in (0, ratio)
    )
    size = shape[2] if norm in BY_ROW else shape[1]
    parameters = rng.standard_normal((1 + (norm in CENTRED), size))
    return dy, x, *parameters.astype(np.float64 if dtype == "float64" else np.float32)


def exact(norm, dy, x, w, b=None, given=None, constant=False, widened=True):
    """Outputs by name, each with its scale.

    Args:
        given: the mean and 1/std that are used instead of x's own.
        constant: whether the gradient takes them for constants, as in evaluation.
        widened: whether the scale of x less its own mean is that of a sum.
    """
    n, channels, size = x.shape
    view, over, of_parameters = {
        "batch": (x.shape, (0, 2), (1, channels, 1)),
        "group": ((n, 2, channels // 2, size), (2, 3), (1, 2, channels // 2, 1)),
        "instance": (x.shape, (2,), (1, channels, 1)),
        **dict.fromkeys(BY_ROW, (x.shape, (2,), (1, 1, size))),
    }[norm]
    across = tuple(axis for axis, size in enumerate(of_parameters) if size == 1)
    m = math.prod(view[axis] for axis in over)
    x, dy = (np.ascontiguousarray(each, np.longdouble).reshape(view) for each in (x, dy))
    w = w.astype(np.longdouble).reshape(of_parameters)
    b = np.zeros_like(w) if b is None else b.astype(np.longdouble).reshape(of_parameters)

    def mean_of(terms):
        return terms.sum(over, keepdims=True) / m

    mean, xmu = np.zeros_like(mean_of(x)), x
    if given is not None:
        mean, r = (
            np.asarray(each, np.longdouble).reshape(mean.shape) if np.ndim(each) else each
            for each in given
        )
        xmu = x - mean
    elif norm in CENTRED:
        high = mean_of(x).astype(np.float64)
        low = mean_of(x - high)
        mean, xmu = high + low, x - high - low
    size_of_xmu = abs(xmu)
    if given is None:
        r = 1 / np.sqrt(mean_of(xmu * xmu) + np.longdouble(EPS))
        if norm in CENTRED and widened:
            size_of_xmu = size_of_xmu + mean_of(abs(xmu))

    def formula(xmu, dy, w, b, sign):
        xhat, g = xmu * r, w * dy
        inner = xhat * mean_of(g * xhat) + (mean_of(g) if norm in CENTRED else 0)
        yield "output", w * xhat + b
        yield "grad_input", r * (g if constant else g + sign * inner)
        yield "grad_weight", (dy * xhat).sum(across)
        yield "grad_bias", dy.sum(across)
        yield "sum_dy_xmu", (dy * xmu).sum(across)

    values = dict(formula(xmu, dy, w, b, -1))
    scales = dict(formula(size_of_xmu, abs(dy), abs(w), abs(b), 1))
    found = {name: (values[name], scales[name]) for name in values}
    return {**found, "mean": (mean, mean_of(abs(x))), "invstd": (r, r)}


NAMES = {
    "rstd": "invstd", "sum_dy": "grad_bias",
    "the only one": "output",
}  # fmt: skip


def check(found, expected, arithmetic):
    """Every output is within its bound; ``arithmetic`` is the dtype that it is computed in."""
    worst = {}
    for name, output in found.items():
        if output is None:
            continue
        value, scale = (each.reshape(output.shape) for each in expected[NAMES.get(name, name)])
        dtype = output.dtype.name
        if dtype in HALVES:
            u = 1.05 * U[dtype]
            bound = np.minimum(u * scale, u * abs(value) + 16 * U["float32"] * scale)
        else:
            bound = 16 * max(U[dtype], U[arithmetic]) * scale
        errors = abs(output.astype(np.longdouble) - value) / (bound + SMALLEST[dtype] / 2)
        worst[name] = float(errors.max())
    assert max(worst.values()) <= 1, worst


def arithmetic_of(dtype):
    return "float64" if dtype == "float64" else "float32"


def forward(norm, x, w, b=None):
    """The output and the statistics, by name."""
    if norm == "batch":
        return named(ng.batch_norm(x, w, b, training=True, eps=EPS))
    if norm in ("group", "instance"):
        groups = 2 if norm == "group" else x.shape[1]
        return named(ng.group_norm(x, w, b, num_groups=groups, eps=EPS))
    if norm == "layer":
        return named(ng.layer_norm(x, x.shape[2], w, b, eps=EPS))
    return named(ng.rms_norm(x, x.shape[2], w, eps=EPS))


def backward(norm, dy, x, w, mean, invstd):
    """The gradients by name, of given statistics."""
    if norm == "batch":
        statistics = {"save_mean": mean, "save_invstd": invstd}
        return named(ng.batch_norm_backward(dy, x, w, **statistics, training=True))
    if norm in ("group", "instance"):
        groups = 2 if norm == "group" else x.shape[1]
        return named(ng.group_norm_backward(dy, x, mean, invstd, w, num_groups=groups))
    if norm == "layer":
        return named(ng.layer_norm_backward(dy, x, mean, invstd, w, normalized_shape=x.shape[2]))
    return named(ng.rms_norm_backward(dy, x, invstd, w, normalized_shape=x.shape[2]))


def each_of(norm, dtype, ratio):
    for shape, order in TENSORS:
        yield tensors(norm, shape, order, dtype, ratio)


@pytest.mark.parametrize(("dtype", "ratio"), DATA)
@pytest.mark.parametrize("norm", [*CENTRED, "rms"])
def test_forward_passes(norm, dtype, ratio):
    """The output is that of the exact statistics, however much those that are returned round."""
    for dy, x, *parameters in each_of(norm, dtype, ratio):
        check(forward(norm, x, *parameters), exact(norm, dy, x, *parameters), arithmetic_of(dtype))


@pytest.mark.parametrize(("dtype", "ratio"), DATA)
@pytest.mark.parametrize("norm", [*CENTRED, "rms"])
def test_gradients_of_given_statistics(norm, dtype, ratio):
    for dy, x, w, *b in each_of(norm, dtype, ratio):
        statistics = forward(norm, x, w, *b)
        mean, invstd = (statistics.get(name) for name in ("mean", "rstd"))
        invstd = statistics["invstd"] if invstd is None else invstd
        found = backward(norm, dy, x, w, mean, invstd)
        expected = exact(norm, dy, x, w, given=(0 if mean is None else mean, invstd))
        check(found, expected, arithmetic_of(dtype))


@pytest.mark.parametrize(("dtype", "ratio"), DATA)
def test_batch_norm_s_other_functions(dtype, ratio):
    for dy, x, w, b in each_of("batch", dtype, ratio):
        arithmetic = arithmetic_of(dtype)
        found = ng.batch_norm_backward(dy, x, w, training=True, eps=EPS)
        check(named(found), exact("batch", dy, x, w, widened=False), arithmetic)
        mean, invstd = ng.batch_norm_stats(x, eps=EPS)
        check({"mean": mean, "invstd": invstd}, exact("batch", dy, x, w), arithmetic)

        of_given = exact("batch", dy, x, w, b, given=(mean, invstd))
        check({"output": ng.batch_norm_elemt(x, w, b, mean, invstd)}, of_given, arithmetic)
        sums = ng.batch_norm_backward_reduce(dy, x, mean, invstd, w)
        check(named(sums), of_given, arithmetic)

        var = mean * 0 + 0.75
        spread = 1 / np.sqrt(var.astype(np.longdouble) + np.longdouble(EPS))
        running = {"running_mean": mean, "running_var": var, "training": False, "eps": EPS}
        expected = exact("batch", dy, x, w, b, given=(mean, spread), constant=True)
        check({"output": ng.batch_norm(x, w, b, **running).output}, expected, arithmetic)
        check(named(ng.batch_norm_backward(dy, x, w, **running)), expected, arithmetic)


@pytest.mark.parametrize(("dtype", "ratio"), DATA)
@pytest.mark.parametrize("norm", [*CENTRED, "rms"])
def test_layers(norm, dtype, ratio):
    """A layer's output and gradients are those of the formula of its input."""
    torch = pytest.importorskip("torch")
    from normgrad.testing.framework_tensors import to_array, to_torch
    from normgrad.torch import nn

    for dy, x, *parameters in each_of(norm, dtype, ratio):
        cls, sizes = {
            "batch": (nn.BatchNorm1d, x.shape[1:2]),
            "group": (nn.GroupNorm, (2, x.shape[1])),
            "instance": (nn.InstanceNorm1d, x.shape[1:2]),
            "layer": (nn.LayerNorm, x.shape[2:]),
            "rms": (nn.RMSNorm, x.shape[2:]),
        }[norm]
        affine = {"affine": True} if norm == "instance" else {}
        layer = cls(*sizes, eps=EPS, **affine).to(getattr(torch, dtype))
        parameters = [each.astype(FLOATS[dtype]) for each in parameters]
        with torch.no_grad():
            for own, values in zip(layer.parameters(), parameters, strict=True):
                own.copy_(to_torch(values).tensor)
        data = to_torch(x).tensor.requires_grad_()
        output = layer(data)
        output.backward(to_torch(dy).tensor)
        found = {"output": output.detach(), "grad_input": data.grad}
        names = ("grad_weight", "grad_bias")[: len(parameters)]
        found |= {name: own.grad for name, own in zip(names, layer.parameters(), strict=True)}
        arrays = {name: to_array(tensor) for name, tensor in found.items()}
        check(arrays, exact(norm, dy, x, *parameters), arithmetic_of(dtype))


@pytest.mark.parametrize(
    ("norm", "shape", "order"),
    [("batch", (1, 1, 2_000_000), "rows"), ("batch", (3000, 1, 1000), "rows"),
     ("batch", (500_000, 3, 1), "rows"), ("batch", (1000, 3, 1000), "channels_last"),
     ("group", (2, 4000, 300), "rows"), ("group", (300_000, 2, 2), "rows"),
     ("layer", (300_000, 1, 8), "rows"), ("layer", (1, 1, 1_000_000), "rows"),
     ("layer", (40, 1, 16_000), "rows"), ("layer", (20_000, 1, 100), "rows")],
)  # fmt: skip
def test_long_sums_of_float64(norm, shape, order):
    """Terms that are all alike are rounded one way, but no sum has many additions in turn."""
    axes = ORDERS[order]
    dy, x = (
        np.full([shape[axis] for axis in axes], value).transpose(np.argsort(axes))
        for value in (1 / 3, 0.43)
    )
    mean, r = (
        np.full({"batch": shape[1], "group": (shape[0], 2), "layer": (*shape[:2], 1)}[norm], value)
        for value in (0.2, 0.9)
    )
    w = np.full(shape[2] if norm in BY_ROW else shape[1], 0.7)
    found = backward(norm, dy, x, w, mean, r)
    # NumPy's own sums over samples are not exact enough, but all samples are alike.
    given = [each if norm == "batch" else each[:1] for each in (mean, r)]
    expected = exact(norm, dy[:1], x[:1], w, given=given)
    for name, pair in expected.items():
        expected[name] = tuple(
            np.broadcast_to(each.reshape(1, *shape[1:]), shape)
            if name == "grad_input"
            else each * shape[0]
            for each in pair
        )
    check(found, expected, "float64")
