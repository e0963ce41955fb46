"""The functions: values within the bound, PyTorch's errors in its words, and what they pass on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from common import FLOATS, Case, check

import normgrad
from normgrad.operators import precision
from normgrad.operators.reference import Exact
from normgrad.tensors import dtypes

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
functional = nt.functional
theirs = torch.nn.functional

LAYOUTS = ("contiguous", "channels last", "sliced")


def as_numpy(value):
    value = value.detach()
    if value.dtype == torch.bfloat16:
        return value.contiguous().view(torch.uint16).numpy().view(FLOATS["bfloat16"])
    return value.numpy()


def lay_out(values, layout):
    if layout == "channels last":
        return values.to(memory_format=torch.channels_last)
    if layout == "sliced":
        return torch.stack([values, values], -1)[..., 0]
    return values


def leaves(dtype, layout="contiguous", shape=(5, 6, 7, 8)):
    """x, w and b; parameters of halves are float32."""
    rng = torch.Generator().manual_seed(1)
    wide = torch.float64 if dtype == "float64" else torch.float32
    x = lay_out((torch.randn(*shape, generator=rng) * 2 + 0.5).to(getattr(torch, dtype)), layout)
    w, b = (torch.randn(shape[1], generator=rng).to(wide) for _ in range(2))
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_()


def check_output(output, x, w, b, mean, invstd):
    """y = (x - μ)·r·w + b, from the statistics that were used."""
    wide = [np.asarray(as_numpy(t), np.longdouble) for t in (x, w, b, mean, invstd)]
    data, weight, bias, mu, r = wide
    vector = (1, -1, *[1] * (x.dim() - 2))
    weight, bias = weight.reshape(vector), bias.reshape(vector)
    term = (data - mu) * r * weight
    exact = Exact(term + bias, abs(term) + abs(bias))
    arithmetic = dtypes.parse(torch.float64 if x.dtype == torch.float64 else torch.float32)
    assert precision.error(as_numpy(output), exact, arithmetic).max() <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training, dtype, layout):
    x, w, b = leaves(dtype, layout)
    mean, var = torch.randn(6).to(w.dtype) / 4, (torch.rand(6) + 0.5).to(w.dtype)
    expected_mean, expected_var = mean.double(), var.double()
    expected_mean, expected_var = expected_mean.clone(), expected_var.clone()
    with torch.no_grad():
        saved = normgrad.batch_norm(x, w, b, training=True)[1:3]
    output = functional.batch_norm(x, mean, var, w, b, training, 0.2)
    assert output.dtype == x.dtype
    assert output.stride() == torch.empty_like(x).stride()
    statistics = saved if training else (mean, (var.double() + 1e-5).rsqrt())
    check_output(output, x, w, b, *[t.reshape(1, 6, 1, 1) for t in statistics])

    dy = torch.randn(x.shape).to(x.dtype)
    names = ("save_mean", "save_invstd") if training else ("running_mean", "running_var")
    tensors = {
        "grad_out": dy, "input": x, "weight": w,
        **dict(zip(names, saved if training else (mean, var), strict=True)),
    }  # fmt: skip
    case = Case(
        "batch_norm_backward",
        {name: as_numpy(value) for name, value in tensors.items()},
        {"training": training},
    )
    gradients = torch.autograd.grad(output, (x, w, b), dy)
    assert [g.dtype for g in gradients] == [x.dtype, w.dtype, b.dtype]
    check(case, dict_of(zip(("grad_input", "grad_weight", "grad_bias"), gradients, strict=True)))

    theirs.batch_norm(x.double(), expected_mean, expected_var, training=training, momentum=0.2)
    torch.testing.assert_close(
        (mean, var), (expected_mean.to(mean.dtype), expected_var.to(var.dtype))
    )


def dict_of(pairs):
    class Result(dict):
        def _asdict(self):
            return self

    return Result((name, as_numpy(value)) for name, value in pairs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_group_norm(dtype, layout):
    x, w, b = leaves(dtype, layout)
    with torch.no_grad():
        _, mean, rstd = normgrad.group_norm(x, w, b, num_groups=3)
    output = functional.group_norm(x, 3, w, b)
    assert output.dtype == x.dtype
    assert output.stride() == torch.empty_like(x).stride()
    check_output(
        output, x, w, b, *[t.repeat_interleave(2, 1).reshape(5, 6, 1, 1) for t in (mean, rstd)]
    )
    dy = torch.randn(x.shape).to(x.dtype)
    tensors = {"grad_out": dy, "input": x, "mean": mean, "rstd": rstd, "weight": w}
    case = Case(
        "group_norm_backward",
        {name: as_numpy(value) for name, value in tensors.items()},
        {"num_groups": 3},
    )
    gradients = torch.autograd.grad(output, (x, w, b), dy)
    check(case, dict_of(zip(("grad_input", "grad_weight", "grad_bias"), gradients, strict=True)))


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that notes what is called."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", FLOATS)
def test_modes_see_pytorch_s_operators(dtype):
    """A call and its backward pass are PyTorch's own there, to the bit."""
    for case in ("train", "evaluate", "group"):
        results = []
        for module in (functional, theirs):
            x, w, b = leaves(dtype)
            mean, var = torch.zeros(6), torch.ones(6)
            seen = []
            w, b, mean, var = ((t.detach().to(x.dtype)).requires_grad_(t.requires_grad)
                               for t in (w, b, mean, var))  # fmt: skip
            with Watching(seen):
                if case == "group":
                    output = module.group_norm(x, 3, w, b)
                else:
                    output = module.batch_norm(x, mean, var, w, b, case == "train")
                gradients = torch.autograd.grad(output, (x, w, b), torch.ones_like(x))
            assert all(name.startswith("aten.") for name in seen)
            results.append((output, mean, var, *gradients))
        assert all(map(torch.equal, *results))


def outcome(function, *arguments, **more):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is
        function(*arguments, **more)
    return caught.type, str(caught.value)


X = torch.randn(4, 6, 5, 5, generator=torch.Generator().manual_seed(2))
V = torch.ones(6)


@pytest.mark.every_case
@pytest.mark.parametrize(
    "arguments",
    [
        (X[:1, :, :1, :1], V, V, V, V, True),
        (X, V[:3], V, V, V, True),
        (X, V, V[:3], V, V, False),
        (X, V, V, V[:3], V, True),
        (X, V, V, V, V[:3], True),
        (X, None, V, V, V, True),
        (X, V, None, V, V, True),
        (X, None, None, V, V, False),
        (X, V, None, V, V, False),
        (X, V, V, V, V, True, None),
        (X, V, V, V, V, True, 0.1, 0.0),
        (X, V, V, V, V, False, 0.1, -1.0),
        (X, V, V, V, V, True, 0.1, "small"),
        (X[0, 0, 0], V, V, V, V, True),
        (X.int(), V, V, V, V, True),
        (X, V.clone().requires_grad_(), V, V, V, True),
        (X, 1.0, V, V, V, True),
        (X.tolist(), V, V, V, V, True),
        (X[:, :0], V[:0], V[:0], V[:0], V[:0], True),
    ],
)
def test_batch_norm_errors_are_pytorch_s(arguments):
    assert outcome(functional.batch_norm, *arguments) == outcome(theirs.batch_norm, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (X, 4, V, V),
        (X, 0, V, V),
        (X, -2, V, V),
        (X, 2.5, V, V),
        (X, 2, V[:3], V),
        (X, 2, V, V[:3]),
        (X, 2, V.reshape(2, 3), V),
        (X[0, 0, 0], 2, V, V),
        (X[:1, :, :1, :1], 6, V, V),
        (X.int(), 2, V, V),
        (X, 2, V, V, "small"),
        (X, 2, 1.0, V),
    ],
)
def test_group_norm_errors_are_pytorch_s(arguments):
    assert outcome(functional.group_norm, *arguments) == outcome(theirs.group_norm, *arguments)


def test_nothing_changes_where_an_error_is_raised():
    mean, var = torch.zeros(6), torch.ones(6)
    with pytest.raises(RuntimeError, match="weight should contain 6 elements not 3"):
        functional.batch_norm(X, mean, var, V[:3], None, True)
    assert torch.equal(mean, torch.zeros(6))
    assert torch.equal(var, torch.ones(6))


@pytest.mark.parametrize(
    "x", [X[:0], X[:, :, :0], X[:1, :, :1, :1].expand(2, 6, 1, 1), X[0, :, 0], X[:, :, 0, 0]]
)
def test_small_inputs(x):
    """Without elements, with one value per group, with two axes: the values are PyTorch's."""
    for function, other, more in (
        (functional.group_norm, theirs.group_norm, (6, V, V * 2)),
        (functional.group_norm, theirs.group_norm, (2, V, V * 2)),
        (functional.batch_norm, theirs.batch_norm, (V * 1, V * 1, V, V * 2, True)),
        (functional.batch_norm, theirs.batch_norm, (V * 1, V * 1, V, V * 2, False)),
    ):
        if x.dim() < 3 and function is functional.group_norm and x.shape[1] % more[0]:
            continue
        if x.shape[1] != 6:
            continue
        again = [value.clone() if isinstance(value, torch.Tensor) else value for value in more]
        torch.testing.assert_close(function(x, *more), other(x, *again), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(more, tuple(again))
    y = functional.group_norm(x.clone().requires_grad_(), 1)
    assert torch.isfinite(torch.autograd.grad(y.sum(), y)[0]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_autocast_is_pytorch_s(dtype):
    """On the CPU autocast leaves both alone."""
    x, w = X.to(dtype), V.to(torch.float64 if dtype == torch.float64 else torch.float32)
    m, n, v = w * 0, w * 0, w * 2
    with torch.autocast("cpu", torch.bfloat16):
        for ours, other in (
            (functional.batch_norm(x, m, v, w, w, True),
             theirs.batch_norm(x, n, v.clone(), w, w, True)),
            (functional.group_norm(x, 2, w, w), theirs.group_norm(x, 2, w, w)),
        ):  # fmt: skip
            assert ours.dtype == other.dtype
            tolerance = (
                {} if dtype in (torch.float32, torch.float64) else {"atol": 2**-5, "rtol": 0}
            )
            torch.testing.assert_close(ours, other, **tolerance)
        conv = torch.nn.Conv2d(6, 6, 3)
        assert nt.nn.BatchNorm2d(6)(conv(X)).dtype == torch.bfloat16


WRONG = [
    *((name, {"normalized_shape": value}) for name in ("layer_norm", "rms_norm")
      for value in (5, torch.tensor([5]), {5: 1}, {5}, "5", None, range(5, 6), iter([5]), (5.0,))),
    *(("batch_norm", {"training": value}) for value in
      (1, 0.0, "yes", None, np.True_, torch.tensor(True))),
    *(("instance_norm", {"use_input_stats": value, **running}) for value in
      (1, 0, "yes", "", None, np.True_, torch.tensor(True))
      for running in ({}, {"running_mean": V * 0, "running_var": V})),
    *(("batch_norm", {"momentum": value}) for value in (None, "a", 1j, V, np.array([0.1]))),
    *(("instance_norm", {"momentum": value}) for value in (None, "a", 1j, V, np.array([0.1]))),
    *(("group_norm", {"num_groups": value}) for value in (2.0, "2", None, V, (2,), True)),
    *((name, {"eps": value}) for name in ("batch_norm", "group_norm", "layer_norm", "rms_norm",
                                          "instance_norm")
      for value in ("1", 1j, V, [1.0], np.array([1.0]), 10**400)),
]  # fmt: skip


def arguments(name, change):
    """A legal call's arguments with this change."""
    made = {
        "batch_norm": {"running_mean": V * 0, "running_var": V * 1, "training": True},
        "instance_norm": {"use_input_stats": not change.get("running_mean") is not None},
        "group_norm": {"num_groups": 2},
    }.get(name, {"normalized_shape": (5,)})
    return {"input": X, **made, **change}


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "change"), WRONG)
def test_what_pytorch_refuses_is_refused_by_its_name(name, change):
    """With PyTorch's error, after legal calls too."""
    given = arguments(name, change)
    for _ in range(2):
        expected, found = (
            outcome(getattr(module, name), **given) for module in (theirs, functional)
        )
        assert found == expected
        legal = arguments(name, {})
        torch.testing.assert_close(getattr(functional, name)(**legal),
                                   getattr(theirs, name)(**arguments(name, {})))  # fmt: skip


TAKEN = [
    *((name, {"normalized_shape": value}) for name in ("layer_norm", "rms_norm")
      for value in ([5], torch.Size([5]), (np.int64(5),), [torch.tensor(5)])),
    *(("group_norm", {"num_groups": value}) for value in
      (np.int64(3), np.uint8(3), torch.tensor(3))),
    *((name, {"momentum": value}) for name in ("batch_norm", "instance_norm") for value in
      (0, 1, True, np.float32(0.1), np.int64(1), torch.tensor(0.1), -1.0, math.nan, math.inf)),
    *((name, {"eps": value}) for name in ("group_norm", "layer_norm", "rms_norm", "instance_norm")
      for value in (-1e-5, -1.0, -math.inf, math.nan, math.inf, 0, -0.0, True, np.float32(1e-5),
                    torch.tensor(1e-5))),
    *(("instance_norm", {"eps": value, "use_input_stats": False, "running_mean": V * 0,
                         "running_var": V}) for value in (-1e-5, -5.0, math.nan, math.inf, 0)),
    *(("batch_norm", {"eps": value, "training": False}) for value in (math.nan, math.inf, 0)),
    *(("batch_norm", {"eps": value}) for value in (math.nan, math.inf, True, np.int64(1))),
]  # fmt: skip


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "change"), TAKEN)
def test_what_pytorch_takes_is_taken(name, change):
    x = X.clone().requires_grad_()
    results = []
    for module in (theirs, functional):
        given = {**arguments(name, change), "input": x}
        y = getattr(module, name)(**given)
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        results.append((y, dx, *(given[each] for each in ("running_mean",) if each in given)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_mixed_dtypes():
    """More than PyTorch takes, unless the input is in float64: that call is PyTorch's."""
    output = functional.batch_norm(X, V.double() * 0, V.double(), V.half(), V.bfloat16(), True)
    torch.testing.assert_close(output, theirs.batch_norm(X, None, None, V, V, True))
    for name, call in (
        ("group_norm", (X.double(), 3, V, V)),
        ("layer_norm", (X.double(), (5,), torch.ones(5))),
        ("batch_norm", (X.double(), V * 0, V * 1, V, V, True)),
    ):
        assert outcome(getattr(functional, name), *call) == outcome(getattr(theirs, name), *call)


def test_subclasses():
    class Mine(torch.Tensor):
        pass

    x = X.as_subclass(Mine)
    assert type(functional.batch_norm(x, None, None, training=True)) is Mine
    assert type(functional.group_norm(x, 2)) is Mine

    class Counting(torch.overrides.TorchFunctionMode):
        names = ()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.names += (function.__name__,)
            return function(*args, **(kwargs or {}))

    with Counting() as mode:
        functional.batch_norm(X, None, None, training=True)
        functional.group_norm(X, 2)
    assert mode.names[0] == "batch_norm"
    assert "group_norm" in mode.names


def test_other_devices_go_to_pytorch():
    x = X.to("meta")
    v = V.to("meta")
    assert functional.batch_norm(x, v, v, v, v, True).is_meta
    assert functional.group_norm(x, 2, v, v).is_meta


def test_running_statistics_change_unnoticed():
    """Their versions are as from before; an evaluation goes by those that it had."""
    mean, var = torch.zeros(6), torch.ones(6)
    before = mean._version
    functional.batch_norm(X, mean, var, training=True)
    assert mean._version == before  # as with PyTorch's function
    x = X.clone().requires_grad_()
    y = functional.batch_norm(x, mean, var, training=False)
    rank = (var + 1e-5).rsqrt()
    functional.batch_norm(X, mean, var, training=True)
    y.sum().backward()
    expected = rank.view(1, -1, *[1] * (x.dim() - 2)).expand_as(x)
    torch.testing.assert_close(x.grad, expected)


def test_gradients_that_are_not_asked_for():
    x, w, b = leaves("float32")
    y = functional.batch_norm(x.detach(), None, None, w, b, True)
    gw, gb = torch.autograd.grad(y.sum(), (w, b))
    assert gw.shape == gb.shape == (6,)
    assert not functional.batch_norm(x.detach(), None, None, training=True).requires_grad
    with torch.no_grad():
        assert not functional.group_norm(x, 2, w, b).requires_grad
    with torch.inference_mode():
        assert functional.group_norm(x, 2, w, b).is_inference()


def test_batched_gradients():
    """autograd's own vmap over the backward pass."""
    x, w, b = leaves("float64")
    v = torch.randn(3, *x.shape, dtype=x.dtype)
    for y in (
        functional.batch_norm(x, None, None, w, b, True),
        functional.group_norm(x, 2, w, b),
    ):
        together = torch.autograd.grad(y, (x, w, b), v, is_grads_batched=True, retain_graph=True)
        each = [torch.autograd.grad(y, (x, w, b), one, retain_graph=True) for one in v]
        for got, *wanted in zip(together, *each, strict=True):
            torch.testing.assert_close(got, torch.stack(wanted))


def test_many_axes_go_to_pytorch():
    x = torch.randn(2, 3, *[1] * 7, 2)
    torch.testing.assert_close(
        functional.batch_norm(x, None, None, training=True),
        theirs.batch_norm(x, None, None, training=True),
    )


def test_booleans_for_numbers():
    """PyTorch's functions take them, so it computes what they mean."""
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    mean, var = torch.zeros(3), torch.ones(3)
    for name in ("eps", "momentum"):
        options = {name: True}
        found, expected = (
            module.batch_norm(x, mean, var, **options) for module in (functional, theirs)
        )
        assert torch.equal(found, expected)
    found, expected = (module.group_norm(x, 1, eps=True) for module in (functional, theirs))
    assert torch.equal(found, expected)
    with pytest.raises(TypeError, match=r"^group_norm\(\): argument 'num_groups' .* not bool$"):
        functional.group_norm(x, True)
