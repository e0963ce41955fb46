"""Calls that compiled code takes at once, and those that it leaves to Python."""

from __future__ import annotations

import ctypes
import gc
import mmap
import subprocess
import sys

import mapped_pages
import numpy as np
import pytest

import normgrad as ng
from normgrad import entries, frameworks, memory, native, pages, plans
from normgrad.backends.cpu import runtime
from normgrad.operators.by_name import PLANNED
from normgrad.testing import FORWARD

from .support import INTERPRETED, OPERATORS, bits, make, named

torch = pytest.importorskip("torch")
import normgrad.torch  # noqa: E402

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(INTERPRETED, reason="it is the CPU's compiled code"),
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


@pytest.fixture
def entered(monkeypatch):
    """How often compiled code took a call, by what it said each time."""
    said = []
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(plans, "_ready", {})

    def watching(function):
        def watched(ready, *arguments):
            found = function(ready, *arguments)
            if ready is not None or function is native.nothing_known:
                said.append(found is not None)
            return found

        return watched

    # A plan's own function, which it gets with its first run.
    enter = property(
        lambda plan: watching(vars(plan)["enter"]),
        lambda plan, value: vars(plan).update(enter=value),
    )
    monkeypatch.setattr(plans.Plan, "_enter", enter, raising=False)
    runtime.take_calls()
    monkeypatch.setattr(native, "answer", watching(native.answer))
    return said


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_call_of_a_kind(entered, kind, framework):
    case = make(kind, SHAPE, num_groups=2)
    tensors = as_torch(case.tensors) if framework == "torch" else case.tensors
    first = raw(call(case, tensors))
    assert entered == [False]
    again = call(case, tensors)
    assert entered == [False, True]
    assert raw(again) == first
    # With results of the caller's: all of them, as they were returned or listed; the first alone.
    ways = [again]
    if len(named(again)) > 1:
        ways += [list(again), (again[0], *[None] * (len(again) - 1))]
    for given in ways:
        del entered[:]
        for _ in range(2):
            flat(again)[0][...] = 7
            found = call(case, tensors, out=given)
            assert flat(found)[0] is flat(again)[0]
            assert raw(found) == first
        assert entered[-1] is True


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_s_second_run(entered, kind):
    case = make(kind, SHAPE, num_groups=2)
    plan = ng.plan(case.name, **case.tensors, **case.options)
    frameworks.of_torch()  # as any call with tensors does
    expected = bits(plan.run(**case.tensors))
    size = max(plan.workspace_size, 2)
    for make_workspace in (np.zeros, lambda n, dtype: torch.zeros(n, dtype=torch.uint8)):
        workspace = make_workspace(size + 1, np.uint8)
        for offset in (0, 1):
            assert bits(plan.run(**case.tensors, workspace=workspace[offset:])) == expected
    assert entered == [False, True, True, True, True]


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


#: What looks like a tensor that compiled code has taken, and is not, and what is said of it.
UNLIKE = {
    "another class": (lambda x: x.as_subclass(type("Mine", (torch.Tensor,), {})), None),
    "negated": (torch._neg_view, None),
    "another dtype": (lambda x: x.double(), None),
    "other strides": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), None),
    "another shape": (lambda x: x[:1], None),
    "gradients": (lambda x: x.clone().requires_grad_(), None),
    "a parameter": (torch.nn.Parameter, None),
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
def test_what_compiled_code_does_not_know(what):
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


@pytest.mark.skipif(pages.probe_addresses()[0] == 0, reason="this system says nothing of pages")
@pytest.mark.parametrize("what", ["another tensor", "the same one elsewhere", "another workspace"])
def test_memory_that_is_new_to_a_plan_is_probed(mapped, what):
    """A tensor that was written to is not probed again; its address alone says nothing."""
    start = mapped(2 * PAGE)
    x = torch.ones(PAGE // 8, 2)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=False)

    def tensor_at(address, dtype):
        count = PAGE // dtype().itemsize
        return torch.from_numpy(memory.array_at(address, (count,), (1,), np.dtype(dtype), None))

    def run():
        plan.run(x, x, out=(out, None, None), workspace=scratch)

    out, scratch, wrong = torch.empty_like(x), None, r"out\[0\] \(grad_input\)"
    if what == "another workspace":
        scratch, wrong = tensor_at(start, np.uint8), "workspace"
        assert 0 < plan.workspace_size <= PAGE
    else:
        out = tensor_at(start, np.float32).view(x.shape)
    for _ in range(3):
        run()
    if what == "the same one elsewhere":
        mapped_pages.protect(start + PAGE, PAGE, mmap.PROT_READ)
        out.data = tensor_at(start + PAGE, np.float32).view(x.shape)
    else:
        mapped_pages.protect(start, PAGE, mmap.PROT_READ)
        if scratch is None:
            del out
            out = tensor_at(start, np.float32).view(x.shape)
        else:
            scratch = tensor_at(start, np.uint8)
    with pytest.raises(ValueError, match=rf"^{wrong}: read-only memory at 0x\w+; "):
        run()


def test_memory_that_layers_of_one_shape_write_by_turns_is_probed_once():
    from normgrad.backends.cpu.enter import seat_of

    x, probed = torch.ones(3, 4, 5), []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    def madvise(address, size, advice):
        probed.append(address)
        return 0

    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=False)
    plan.run(x, x)
    entry = plan.ready[3]
    entry.table[entries.MADVISE] = ctypes.cast(madvise, ctypes.c_void_p).value
    # One tensor for each seat: those that share a seat would displace each other.
    many = [torch.empty_like(x) for _ in range(64)]
    outs = list({seat_of.py_func(0, id(out)): out for out in many}.values())
    assert len(outs) > 4
    for _ in range(3):
        for out in outs:
            plan.run(x, x, out=(out, None, None))
    assert probed == [out.data_ptr() // PAGE * PAGE for out in outs]


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


@pytest.fixture
def made_by_python():
    """Python's functions make all tensors, as where PyTorch lacks the functions that do."""
    ng.batch_norm_backward(X, X, training=True)  # a first call finds them
    found, native.known[native.WRAP] = int(native.known[native.WRAP]), 0
    assert found
    yield
    native.known[native.WRAP] = found


RESULTS = [
    (torch.float32, "contiguous"), (torch.bfloat16, "contiguous"), (torch.float16, "transposed"),
    (torch.float64, "channels_last"), (torch.float32, "empty"), (torch.float32, "one"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "layout"), RESULTS)
def test_compiled_code_makes_results_as_python_does(dtype, layout, entered, request):
    x = torch.arange(24.0).reshape(2, 3, 4, 1).to(dtype)
    x = {
        "contiguous": x,
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(0, 2),
        "empty": x[:, :, :0],
        "one": x[:1, :, 1:2],
    }[layout]

    def results():
        for _ in range(2):
            found = flat(ng.batch_norm_backward(x, x, training=True))
        assert entered[-1]
        with torch.inference_mode():
            found += flat(ng.batch_norm_backward(x, x, training=True))
        return [
            (
                type(each), each.dtype, each.shape, each.stride(), each.device, each._version
                if not each.is_inference() else None, each.is_inference(), each.requires_grad,
                each.untyped_storage().nbytes(), each._use_count(), sys.getrefcount(each),
                bytes(each.contiguous().view(torch.uint8).numpy()),
            )
            for each in found
        ]  # fmt: skip

    by_compiled_code = results()
    request.getfixturevalue("made_by_python")
    assert results() == by_compiled_code


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("maker", ["compiled code", "Python"])
def test_copies_of_vectors(dtype, maker, request):
    ng.batch_norm_backward(X, X, training=True)  # a first call brings the compiled code
    if maker == "Python":
        request.getfixturevalue("made_by_python")
    vectors = torch.arange(5, dtype=dtype), torch.arange(4.0)[1:], torch.arange(1.0)
    before = [vector.clone() for vector in vectors]
    found = native.copies(vectors, torch.empty_like)
    for vector in vectors:
        vector.zero_()
    assert all(map(torch.equal, found, before))
    assert [each.dtype for each in found] == [each.dtype for each in before]


@pytest.mark.parametrize(
    "what",
    ["with gaps", "parameter", "two axes", "none", "array", "negated", "no storage", "subclass"],
)
def test_what_compiled_code_does_not_copy(what):
    ng.batch_norm_backward(X, X, training=True)
    vector, resized = torch.arange(4.0), torch.arange(4.0)
    resized.untyped_storage().resize_(4)
    value = {
        "with gaps": vector[::2],
        "parameter": torch.nn.Parameter(vector),
        "two axes": vector.reshape(2, 2),
        "none": None,
        "array": vector.numpy(),
        "negated": torch._neg_view(vector),
        "no storage": resized,
        "subclass": vector.as_subclass(type("Other", (torch.Tensor,), {})),
    }[what]
    assert native.copies((torch.ones(3), value), torch.empty_like) is None


def test_a_batch_is_counted():
    ng.batch_norm_backward(X, X, training=True)
    batches = torch.tensor([3, 5])[1]
    version = batches._version
    assert native.add_one(batches) is True
    assert (int(batches), batches._version) == (6, version + 1)


def test_writes_that_python_counts():
    """Tensors made in inference mode have no count; an interrupt meanwhile is raised."""
    with torch.inference_mode():
        inference = torch.empty_like(X)
    gradient = torch.empty(3)
    for _ in range(2):
        before = gradient._version
        ng.batch_norm_backward(X, X, torch.ones(3), training=True, out=(inference, gradient, None))
        assert gradient._version > before

    def interrupted(values):
        raise KeyboardInterrupt

    written = native.known[native.WRITTEN]
    native.known[native.WRITTEN] = id(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            ng.batch_norm_backward(
                X, X, torch.ones(3), training=True, out=(inference, gradient, None)
            )
    finally:
        native.known[native.WRITTEN] = written
    assert gc.isenabled()


def test_small_plans_are_brief():
    """A single row of layer norm is one task, however long it is."""
    for shape, brief in (((3, 4), 1), ((1, 1 << 16), 0)):
        x = torch.zeros(shape)
        plan = ng.plan("layer_norm", input=x, normalized_shape=shape[1:])
        plan.run(x)
        assert plan._runner.table[entries.BRIEF] == brief
        assert plan._runner.table[entries.PARALLEL] == 0


@pytest.mark.parametrize(
    "what",
    [
        "axis",
        "int32",
        "uint8",
        "float64",
        "none",
        "integer",
        "inference",
        "inference's data",
        "no storage",
    ],
)
def test_what_compiled_code_does_not_count(what):
    ng.batch_norm_backward(X, X, training=True)
    resized = torch.tensor(1)
    resized.untyped_storage().resize_(0)
    with torch.inference_mode():
        inference, replaced = torch.tensor(1), torch.tensor(2)
    replaced.data = torch.tensor(1)  # it looks like a plain tensor, but has no count of writes
    value = {
        "inference's data": replaced,
        "axis": torch.tensor([1]),
        "none": None,
        "integer": 1,
        "inference": inference,
        "no storage": resized,
    }
    value |= {name: torch.tensor(1, dtype=getattr(torch, name)) for name in ("int32", "uint8")}
    value["float64"] = torch.tensor(1.0, dtype=torch.float64)
    assert native.add_one(value[what]) is None
    assert what == "no storage" or value[what] is None or value[what] == 1


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("mode", ["dispatch", "before", "function", "transform", "tracer"])
def test_what_must_see_a_layer(mode):
    """A mode, a transform and a tracer get all its operators, also those in place."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    layer, seen, leaf = normgrad.torch.nn.BatchNorm1d(3), [], X.clone().requires_grad_()
    for _ in range(2):
        layer(leaf).sum().backward()
    assert native.add_one(layer.num_batches_tracked) is True

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
        assert "normgrad::native_batch_norm" in seen
        assert "normgrad::native_batch_norm_backward" in seen
        assert "aten::add_.Tensor" in seen
    elif mode == "before":  # autograd
        layer.eval()
        graph = make_fx(lambda value: layer(value), pre_dispatch=True)(X).graph
        assert "normgrad.native_batch_norm" in str(graph)
    elif mode == "function":
        with Function():
            layer(X)
        assert "batch_norm" in seen
        assert "add_" in seen
    elif mode == "transform":
        batches = layer.num_batches_tracked
        torch.func.vmap(lambda value: (seen.append(native.add_one(batches)), value)[1])(X)
        assert seen == [None]
        layer.eval()
        each = torch.func.vmap(layer)(X[:, None])
        assert torch.equal(each[:, 0], layer(X))
    else:
        traced = torch.jit.trace(layer, X, check_trace=False)
        assert "normgrad::batch_norm" in str(traced.inlined_graph)
        assert "aten::add_" in str(traced.inlined_graph)


def test_copies_that_cannot_be_made(made_by_python):

    def fail(vector):
        raise MemoryError

    for maker in (fail, torch.Tensor.double, lambda vector: vector[1:], id):
        assert native.copies((torch.ones(3),), maker) is None


def test_nothing_is_kept_or_lost():
    """References are as before, whether a call was taken or not."""
    x = torch.arange(24.0).reshape(2, 3, 4)
    a = x.numpy()
    held = [x, a, a.dtype, torch.Tensor, np.ndarray, type(None)]
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    scratch = torch.zeros(plan.workspace_size, dtype=torch.uint8)
    negated = torch._neg_view(x)

    sparse, vector = negated.to_sparse(), torch.arange(3.0)

    def taken():
        ng.batch_norm_backward(x, x, training=True)
        ng.batch_norm_backward(a, a, training=True)
        plan.run(x, x, workspace=scratch)
        native.answer({}, (x, sparse, None), None, (True, 1.5, 3, (False,)))
        native.answer(None, (x,), (x, None), (True, 1.5, 3, (False,)))
        native.answer({}, [x], None, ())
        native.copies((vector, vector), torch.empty_like)
        native.copies((vector, x), torch.empty_like)

    def left():
        ng.batch_norm_backward(x, negated, training=True)

    for _ in range(20):
        taken()
        left()
    gc.collect()
    before = [sys.getrefcount(each) for each in held]
    blocks = sys.getallocatedblocks()
    for _ in range(1000):
        taken()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 20
    for _ in range(1000):
        left()
    gc.collect()
    after = [sys.getrefcount(each) for each in held]
    # What other tests have left may be freed meanwhile, which classes were counted for.
    assert all(abs(now - then) < 500 for now, then in zip(after, before, strict=True))
    assert after[:3] == before[:3]


def test_a_plan_that_is_forgotten(monkeypatch):
    """What compiled code reads of a plan outlives it."""
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(plans, "_ready", {})
    case = make("train", SHAPE)
    expected = bits(case.call())
    plans._plans.clear()
    gc.collect()
    rubbish = [np.full(1 << n, -1, np.int64) for n in range(4, 12) for _ in range(50)]
    assert bits(case.call()) == expected
    assert not plans._plans
    del rubbish


def test_under_python_s_debug_allocator():
    """Nothing is written beyond its memory, or released twice."""
    code = (
        "import gc, torch, numpy as np, normgrad as ng\n"
        "x = torch.randn(2, 3, 4, 5)\n"
        "for n in range(300):\n"
        "    y = x if n % 3 else x.numpy()\n"
        "    out = (y.clone(), None, None) if n % 7 == 1 and n % 3 else None\n"
        "    ng.batch_norm_backward(y, y, training=True, out=out)\n"
        "    ng.batch_norm_backward(x[:, :, n % 4:], x[:, :, n % 4:], training=True)\n"
        "    try: ng.batch_norm_backward(x, x.to_sparse(), training=True)\n"
        "    except TypeError: pass\n"
        "    gc.collect() if n % 100 == 0 else None\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("missing", [native.TENSOR, native.NDARRAY])
def test_without_what_it_takes_to_read_them(entered, monkeypatch, missing):
    """A PyTorch without the exchange API, or a Python with other objects."""
    without = native.known.copy()
    without[missing] = 0
    if missing == native.TENSOR:
        without[native.PARAMETER] = 0
    case = make("train", SHAPE)
    tensors = as_torch(case.tensors) if missing == native.TENSOR else case.tensors
    expected = raw(call(case, tensors))
    before = native.known.copy()
    native.known[:] = without
    try:
        del entered[:]
        for _ in range(3):
            found = call(case, tensors)
            assert raw(found) == expected
        assert True not in entered
    finally:
        native.known[:] = before


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "uint8", "int64"])
def test_a_plain_tensor_is_read_as_by_dlpack(entered, dtype):
    dense = torch.arange(120).reshape(2, 3, 4, 5).to(getattr(torch, dtype))
    tensors = [dense, dense.to(memory_format=torch.channels_last), dense.transpose(0, 3)]
    tensors += [dense[:, 1:, ::2], dense[0, 0, 0], dense[:, :1].expand(2, 3, 4, 5)]
    tensors += [dense[0, 0, 0, 0], dense[:0]]
    if dense.is_floating_point():
        tensors += [torch.nn.Parameter(dense), dense.clone().requires_grad_()]

    def told():
        keys = [native.answer(None, (tensor,), None, ()) for tensor in tensors]
        return keys, raw(ng.batch_norm_backward(X, X, training=True))

    told()  # the first call
    plainly, plain = told(), int(native.known[native.PLAIN])
    native.known[native.PLAIN] = 0
    try:
        assert told() == plainly
    finally:
        native.known[native.PLAIN] = plain
    assert None not in plainly[0]
    assert entered == [False, True, True]


def test_every_operator_is_tried_here():
    assert {make(kind, SHAPE, num_groups=2).name for kind in KINDS} <= set(PLANNED)


def test_a_parameter_has_the_signature_of_a_tensor(entered):
    case = make("train", SHAPE)
    tensors = as_torch(case.tensors)
    parameter = {**tensors, "weight": torch.nn.Parameter(tensors["weight"])}
    expected = raw(call(case, tensors))
    entered.clear()
    for each in (parameter, tensors, parameter):
        assert raw(call(case, each)) == expected
    assert entered == [True, True, True]


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
