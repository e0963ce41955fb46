"""Calls with the signature of an earlier one, which skip checks, and those that only look so."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
from common import INTERPRETED, OPERATORS, bits, make, named

import normgrad as ng
from normgrad.operators.by_name import PLANNED
from normgrad.plans import calls
from normgrad.plans import plan as plans
from normgrad.plans.cache import Cache
from normgrad.tensors import frameworks
from normgrad.testing import FORWARD

torch = pytest.importorskip("torch")
import normgrad.torch  # noqa: E402

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(INTERPRETED, reason="the runs are the CPU's"),
]

KINDS = (*OPERATORS, *FORWARD)
SHAPE = (3, 4, 5, 6)
X = torch.arange(24.0).reshape(2, 3, 4)
PAGE = mmap.PAGESIZE


def as_torch(tensors):
    return {name: None if v is None else torch.from_numpy(v) for name, v in tensors.items()}


def call(case, tensors, **more):
    return getattr(ng, case.name)(**tensors, **case.options, **more)


def raw(result):
    return [np.asarray(v).tobytes() for v in flat(result)]


def flat(result):
    return [v for v in named(result).values() if v is not None]


@pytest.fixture(autouse=True)
def by_python(monkeypatch):
    """C++ has plans of its own."""
    monkeypatch.setattr(frameworks, "compute_in_cpp", None)


@pytest.fixture
def known(monkeypatch):
    """Of each call whether its signature was known, so that most checks were skipped."""
    said = []
    monkeypatch.setattr(calls, "_plans", Cache())
    inner = plans.Plan.run_checked

    def watched(plan, call, *arguments):
        said.append(call.open_tensors is None)
        return inner(plan, call, *arguments)

    monkeypatch.setattr(plans.Plan, "run_checked", watched)
    return said


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_call_of_a_kind(known, kind, framework):
    case = make(kind, SHAPE, num_groups=2)
    tensors = as_torch(case.tensors) if framework == "torch" else case.tensors
    first = raw(call(case, tensors))
    assert known == [False]
    again = call(case, tensors)
    assert known == [False, True]
    assert raw(again) == first
    # With results of the caller's: all of them, as they were returned or listed; the first alone.
    ways = [again]
    if len(named(again)) > 1:
        ways += [list(again), (again[0], *[None] * (len(again) - 1))]
    for given in ways:
        del known[:]
        for _ in range(2):
            flat(again)[0][...] = 7
            found = call(case, tensors, out=given)
            assert flat(found)[0] is flat(again)[0]
            assert raw(found) == first
        assert known[-1] is True


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_s_second_run(known, kind):
    case = make(kind, SHAPE, num_groups=2)
    plan = ng.plan(case.name, **case.tensors, **case.options)
    frameworks.of_torch()  # as any call with tensors does
    expected = bits(plan.run(**case.tensors))
    size = max(plan.workspace_size, 2)
    for make_workspace in (np.zeros, lambda n, dtype: torch.zeros(n, dtype=torch.uint8)):
        workspace = make_workspace(size + 1, np.uint8)
        for offset in (0, 1):
            assert bits(plan.run(**case.tensors, workspace=workspace[offset:])) == expected
    assert known == [False, True, True, True, True]


def test_arguments_that_are_no_tensors_tell_calls_apart():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    stats = np.zeros(3, np.float32), np.ones(3, np.float32)

    def results():
        for training in (True, False):
            for mask in ((True, True, True), (True, False, True)):
                for eps in (1e-5, 0.5, 2):
                    found = ng.batch_norm_backward(
                        x, x, None, *stats, training=training, eps=eps, output_mask=mask
                    )
                    yield bits(found)

    first = list(results())
    assert list(results()) == first
    assert len({str(each) for each in first}) == 12
    with pytest.raises(TypeError, match=r"^training: 1; allowed: True or False"):
        ng.batch_norm_backward(x, x, None, *stats, training=1)
    with pytest.raises(TypeError, match=r"^channel_axis: True; allowed: an integer"):
        ng.batch_norm_backward(x, x, None, *stats, training=True, channel_axis=True)


def other_strides(x):
    return x.flip(0)[:1].expand(2, -1, -1)


def shrunk(x):
    x = x.clone()
    x.untyped_storage().resize_(x.nbytes - 1)
    return x


#: What looks like a tensor of an earlier call, and is not, and what is said of it.
UNLIKE = {
    "another class": (lambda x: x.as_subclass(type("Mine", (torch.Tensor,), {})), None),
    "negated": (torch._neg_view, None),
    "another dtype": (lambda x: x.double(), None),
    "other strides": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), None),
    "another shape": (lambda x: x[:1], None),
    "gradients": (
        lambda x: x.clone().requires_grad_(),
        (ValueError, "input: requires a gradient, which would be lost"),
    ),
    "a parameter": (torch.nn.Parameter, (ValueError, "input: requires a gradient, which would")),
    "a frozen parameter": (lambda x: torch.nn.Parameter(x, requires_grad=False), None),
    "sparse": (lambda x: x.to_sparse(), (TypeError, "input: a tensor with layout torch.sparse")),
    "complex": (lambda x: x.to(torch.complex64), (TypeError, "input: dtype complex64; allowed: ")),
    "meta": (lambda x: x.to("meta"), (ValueError, "input: on device meta")),
    "nested": (
        lambda x: torch.nested.nested_tensor(list(x)),
        (TypeError, "input: a nested tensor; allowed"),
    ),
    "shrunk": (shrunk, (ValueError, "input: a storage of 95 bytes from the first element on")),
    "freed": (
        lambda x: (y := x.clone(), y.untyped_storage().resize_(0))[0],
        (ValueError, "input: a storage of 0 bytes"),
    ),
    "number": (lambda x: 1.0, (TypeError, "input: a float; allowed: ")),
    "NumPy's": (lambda x: x.numpy(), (TypeError, "input: a NumPy array among PyTorch tensors")),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("what", UNLIKE)
def test_what_is_not_known(what):
    change, wrong = UNLIKE[what]
    x = torch.arange(24.0).reshape(2, 3, 4)
    for _ in range(2):
        ng.batch_norm_backward(x, x, training=True)
    other = change(x)
    if wrong is None:
        y = x[:1] if what == "another shape" else x
        dense = other.detach().as_subclass(torch.Tensor).resolve_neg().clone()
        expected = ng.batch_norm_backward(y.numpy(), dense.numpy(), training=True)
        for _ in range(3):
            found = ng.batch_norm_backward(y, other, training=True)
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine.numpy(), theirs)
        return
    error, message = wrong
    out = torch.full((2, 3, 4), 7.0)
    for _ in range(3):
        with pytest.raises(error) as raised:
            ng.batch_norm_backward(x, other, training=True, out=(out, None, None))
        assert str(raised.value).startswith(message)
    assert (out == 7).all()


def test_batched_tensors():
    """They are of PyTorch's own class, and have no memory of their own."""
    x = torch.randn(2, 2, 3, 4)
    ng.batch_norm_backward(x[0], x[0], training=True)

    def inside(part):
        with pytest.raises(TypeError, match=r"^grad_out: a Tensor without memory of its own"):
            ng.batch_norm_backward(part, part, training=True)
        return part

    torch.func.vmap(inside)(x)


def test_results_that_cannot_be_written():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    out = np.zeros_like(x)
    for _ in range(2):
        ng.batch_norm_backward(x, x + 1, training=True, out=(out, None, None))
    out[...] = 7
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out\[0\] \(grad_input\): a read-only array"):
        ng.batch_norm_backward(x, x + 1, training=True, out=(out, None, None))
    assert (out == 7).all()


def test_a_workspace_of_objects_is_refused_in_every_call():
    x = np.random.default_rng(0).random((8, 4, 300), np.float32)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    assert plan.workspace_size > 0
    message = "workspace: a buffer of Python objects; allowed: one of plain bytes"
    for make_workspace in (np.zeros, np.empty, np.empty):
        scratch = make_workspace(plan.workspace_size, np.uint8)
        plan.run(x, x, workspace=scratch)
        with pytest.raises(TypeError, match=f"^{message}$"):
            plan.run(x, x, workspace=scratch.astype(object))


def test_results_that_share_memory():
    memory = np.zeros(60, np.float32)
    x, out = memory[:24].reshape(2, 3, 4), memory[24:48].reshape(2, 3, 4)
    for _ in range(2):
        ng.batch_norm_backward(x, x, training=True, out=(out, None, None))
    memory[...] = 7
    shifted = memory[20:44].reshape(2, 3, 4)
    with pytest.raises(ValueError, match=r"^out\[0\] \(grad_input\): shares memory with grad_out"):
        ng.batch_norm_backward(x, x, training=True, out=(shifted, None, None))
    # Between each other's elements, which takes an exact look.
    pairs = memory[:48].reshape(2, 3, 4, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    even[...] = np.arange(24).reshape(2, 3, 4)
    expected = ng.batch_norm_backward(even.copy(), even.copy(), training=True).grad_input
    for _ in range(3):
        ng.batch_norm_backward(even, even, training=True, out=(odd, None, None))
        np.testing.assert_array_equal(odd, expected)


def test_a_mode_sees_results_that_are_made():
    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
            seen.append(function)
            return function(*arguments, **(keywords or {}))

    seen = []
    ng.batch_norm_backward(X, X, training=True)
    with Watching():
        ng.batch_norm_backward(X, X, training=True)
    assert torch.ops.aten.empty_like.default in seen


def test_writes_are_counted():
    """Tensors made in inference mode have no count."""
    with torch.inference_mode():
        inference = torch.empty_like(X)
    gradient = torch.empty(3)
    for _ in range(3):
        before = gradient._version
        ng.batch_norm_backward(X, X, torch.ones(3), training=True, out=(inference, gradient, None))
        assert gradient._version > before


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("mode", ["dispatch", "before", "function", "transform", "tracer"])
def test_what_must_see_a_layer(mode):
    """A mode, a transform and a tracer get PyTorch's operators, also those in place."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    layer, seen, leaf = normgrad.torch.nn.BatchNorm1d(3), [], X.clone().requires_grad_()
    for _ in range(2):
        layer(leaf).sum().backward()

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, arguments=(), options=None):
            seen.append(function.name())
            return function(*arguments, **(options or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, function, kinds, arguments=(), options=None):
            seen.append(function.__name__)
            return function(*arguments, **(options or {}))

    if mode == "dispatch":
        with Dispatch():
            layer(leaf).sum().backward()
        assert "aten::native_batch_norm" in seen
        assert "aten::native_batch_norm_backward" in seen
        assert "aten::add_.Tensor" in seen
    elif mode == "before":  # autograd
        layer.eval()
        graph = make_fx(lambda value: layer(value), pre_dispatch=True)(X).graph
        assert "aten.batch_norm" in str(graph)
    elif mode == "function":
        with Function():
            layer(X)
        assert "batch_norm" in seen
        assert "add_" in seen
    elif mode == "transform":
        layer.eval()
        each = torch.func.vmap(layer)(X[:, None])
        torch.testing.assert_close(each[:, 0], layer(X))
    else:
        traced = torch.jit.trace(layer, X, check_trace=False)
        assert "aten::batch_norm" in str(traced.inlined_graph)
        assert "aten::add_" in str(traced.inlined_graph)


def test_every_operator_is_tried_here():
    assert {make(kind, SHAPE, num_groups=2).name for kind in KINDS} <= set(PLANNED)


def test_a_parameter_has_the_signature_of_a_tensor(known):
    case = make("train", SHAPE)
    tensors = as_torch(case.tensors)
    parameter = {**tensors, "weight": torch.nn.Parameter(tensors["weight"])}
    expected = raw(call(case, tensors))
    known.clear()
    with torch.no_grad():
        for each in (parameter, tensors, parameter):
            assert raw(call(case, each)) == expected
    assert known == [True, True, True]


def test_an_input_that_is_replaced_while_results_are_made():
    """The garbage collector may run any code then, also code that frees the memory of an input."""
    x, dy = torch.rand(SHAPE), torch.rand(SHAPE)
    old, new = x.clone(), torch.rand(SHAPE)

    def call():
        return raw(ng.batch_norm_backward(dy, x, training=True))

    def expected(values):
        return raw(ng.batch_norm_backward(dy, values, training=True))

    allowed = [expected(old), expected(new)]
    thresholds = gc.get_threshold()
    for turn in range(1, 20):
        x.data, collections = old.clone(), 0

        def replace(phase, _, turn=turn):
            nonlocal collections
            collections += phase == "start"
            if collections == turn:
                x.data = new

        gc.callbacks.append(replace)
        gc.set_threshold(1, 1000, 1000)
        try:
            found = call()
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(replace)
        assert found in allowed
