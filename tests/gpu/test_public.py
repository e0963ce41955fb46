"""What callers see on a real GPU: functions, plans, layers, streams, graphs and errors."""

from __future__ import annotations

import copy
import itertools
import re

import numpy as np
import pytest
from common import FLOATS, HALVES, OPERATORS, Case, lay_out, make, named
from gpu_tensors import GPU, compute, only_on_a_gpu, same, tensors_of, to_cpu, to_gpu
from triton_programs import calls_of_ranks

import normgrad as ng
from normgrad import testing

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

from normgrad.torch import collectives, synchronised  # noqa: E402

pytestmark = only_on_a_gpu

#: PyTorch has no negative strides.
LAYOUTS = ("contiguous", "channels_last", "sliced", "transposed", "expanded", "odd")


def forward(kind, shape, dtype="float32", layout="contiguous", groups=1, seed=0):
    """A forward pass on normally distributed tensors."""
    rng = np.random.default_rng(seed)
    kept = FLOATS["float32" if dtype in HALVES else dtype]
    x = lay_out((0.3 + rng.standard_normal(shape)).astype(FLOATS[dtype]), layout)
    w, b, mean, spread = (rng.standard_normal(shape[1]).astype(kept) for _ in range(4))
    spread = abs(spread) + kept.type(0.5)
    if kind == "group_norm":
        return Case("group_norm", {"input": x, "weight": w, "bias": b}, {"num_groups": groups})
    if kind == "stats":
        return Case("batch_norm_stats", {"input": x}, {"eps": 1e-3})
    if kind == "elemt":
        tensors = {"input": x, "weight": w, "bias": b, "mean": mean, "invstd": spread}
        return Case("batch_norm_elemt", tensors)
    if kind == "gather":
        ranks = 5
        tensors = {
            "input": x,
            "mean": rng.standard_normal((ranks, shape[1])).astype(kept),
            "invstd": (0.5 + rng.random((ranks, shape[1]))).astype(kept),
            "running_mean": mean,
            "running_var": spread,
            "counts": np.array([3, 0, 1, 100, 7], np.float32),
        }
        return Case("batch_norm_gather_stats_with_counts", tensors, {"momentum": 0.3, "eps": 1e-3})
    tensors = {"input": x, "weight": w, "bias": b, "running_mean": mean, "running_var": spread}
    options = {"training": kind == "train", "eps": 1e-3, "momentum": 0.3}
    return Case("batch_norm", tensors, options)


FORWARD = ("train", "eval", "elemt", "group_norm", "stats", "gather")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", OPERATORS)
def test_gradients(kind, layout, dtype):
    case = make(kind, (4, 6, 5, 7), dtype=dtype, layout=layout, num_groups=3)
    result = compute(case)
    if isinstance(result, tuple) and hasattr(result, "grad_input"):
        like = torch.empty_like(to_gpu(case.tensors["input"]))
        if layout in ("contiguous", "channels_last"):
            assert result.grad_input.stride() == like.stride()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", FORWARD)
def test_forward(kind, layout, dtype):
    compute(forward(kind, (4, 6, 5, 7), dtype, layout, groups=3))


@pytest.mark.parametrize(
    "shape", [(2, 1), (64, 12), (5, 42, 3), (3, 6, 70, 70), (2, 6, 40000), (2,) * 8, (300, 6, 7)]
)
@pytest.mark.parametrize("kind", OPERATORS)
def test_shapes(kind, shape):
    compute(make(kind, shape, num_groups=1))


@pytest.mark.every_case
@pytest.mark.parametrize("kind", [*OPERATORS, *testing.FORWARD])
def test_other_ranks_after_each_other(kind):
    """Rows of one, two and three axes, and counts of one and two, by kernels of the same kind."""
    for case in calls_of_ranks(kind):
        compute(case)


def test_mixtures_of_dtypes():
    for dtype, x_dtype in itertools.product(FLOATS, FLOATS):
        compute(make("train", (3, 4, 5), dtype=dtype, x_dtype=x_dtype))


def test_empty():
    for shape in ((0, 4, 5), (3, 0, 5), (3, 4, 0)):
        compute(make("train_without_statistics", shape))


def test_the_same_every_time():
    for kind in OPERATORS:
        case = make(kind, (8, 32, 30, 30), num_groups=4)
        tensors = tensors_of(case)
        first = getattr(ng, case.name)(**tensors, **case.options)
        for _ in range(3):
            same(getattr(ng, case.name)(**tensors, **case.options), first)


def test_out_and_in_place():
    case = make("train", (3, 4, 5, 6))
    expected = compute(case)
    tensors = tensors_of(case)
    out = torch.full((3, 4, 5, 6), torch.nan, device=GPU), None, torch.empty(4, device=GPU)
    versions = [tensor._version for tensor in out[::2]]
    result = ng.batch_norm_backward(**tensors, training=True, out=out)
    assert result.grad_input is out[0]
    assert result.grad_bias is out[2]
    assert [tensor._version for tensor in out[::2]] == [version + 1 for version in versions]
    same(result, expected)
    for name in ("grad_out", "input"):
        tensors = tensors_of(case)
        result = ng.batch_norm_backward(**tensors, training=True, out=(tensors[name], None, None))
        same(result, expected)


def test_autograd_is_not_touched():
    x = torch.randn(3, 4, 5, device=GPU, requires_grad=True)
    dy = torch.randn(3, 4, 5, device=GPU)
    with pytest.raises(ValueError, match=r"^input: requires a gradient, which would be lost"):
        ng.batch_norm_backward(dy, x, training=True)
    with torch.no_grad():
        result = ng.batch_norm_backward(dy, x, training=True)
    assert not any(value.requires_grad for value in result)


@pytest.mark.parametrize("kind", OPERATORS)
def test_plans_with_a_workspace(kind):
    case = make(kind, (3, 4, 5, 6), num_groups=2)
    tensors = tensors_of(case)
    expected = compute(case)
    plan = ng.plan(case.name, **tensors, **case.options)
    assert plan.device == GPU
    size = plan.workspace_size
    for offset in (0, 1, 33):
        memory = torch.full((size + 300,), 0xFF, dtype=torch.uint8, device=GPU)
        same(plan.run(**tensors, workspace=memory[offset : offset + size]), expected)
        assert bool((memory[:offset] == 0xFF).all())
        assert bool((memory[offset + size :] == 0xFF).all())
    same(plan.run(**tensors), expected)
    specs = {
        name: None
        if value is None
        else ng.TensorSpec(value.shape, value.dtype, [s // value.itemsize for s in value.strides])
        for name, value in case.tensors.items()
    }
    for device in ("cuda", GPU, torch.device("cuda")):
        again = ng.plan(case.name, **specs, **case.options, device=device)
        assert (again.device, again.workspace_size) == (GPU, size)
        same(again.run(**tensors), expected)


def test_nothing_is_waited_for():
    case = make("train", (3, 4, 5, 6))
    tensors = tensors_of(case)
    layer = nt.nn.BatchNorm2d(4, device=GPU)
    x = tensors["input"].clone().requires_grad_()

    def step():
        result = ng.batch_norm_backward(**tensors, training=True)
        ng.batch_norm_backward(**tensors, training=True, out=result)
        layer(x).backward(tensors["grad_out"])

    step()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def test_streams():
    """What is launched comes after what the current stream has before it."""
    case = make("train", (64, 64, 28, 28))
    tensors = tensors_of(case)
    expected = ng.batch_norm_backward(**tensors, training=True)
    late = torch.zeros_like(tensors["grad_out"])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(tensors["grad_out"])
        result = ng.batch_norm_backward(**{**tensors, "grad_out": late}, training=True)
    stream.synchronize()
    same(result, expected)


def test_graphs():
    """Captured once, replayed on other data; and with results that the graph allocates."""
    case = make("train", (8, 16, 9, 9))
    tensors = tensors_of(case)
    held = {name: None if value is None else value.clone() for name, value in tensors.items()}
    out = tuple(ng.batch_norm_backward(**held, training=True))
    # What is compiled is compiled before.
    ng.batch_norm_backward(**held, training=True, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ng.batch_norm_backward(**held, training=True, out=out)
        made = ng.batch_norm_backward(**held, training=True)
    for factor in (1, -2):
        held["grad_out"].copy_(tensors["grad_out"] * factor)
        graph.replay()
        expected = ng.batch_norm_backward(**held, training=True)
        same(made, expected)
        same(type(made)(*out), expected)


def test_a_layer_s_training_step_in_a_graph():
    layer = nt.nn.BatchNorm2d(6, device=GPU)
    reference = torch.nn.BatchNorm2d(6, device=GPU)
    x = torch.randn(5, 6, 7, 8, device=GPU, requires_grad=True)
    dy = torch.randn(5, 6, 7, 8, device=GPU)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(layer(x), (x, *layer.parameters()), dy)
    torch.cuda.current_stream().wait_stream(side)
    layer.load_state_dict(reference.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
        found = torch.autograd.grad(y, (x, *layer.parameters()), dy)
    for _ in range(2):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        expected_y = reference(x)
        expected = torch.autograd.grad(expected_y, (x, *reference.parameters()), dy)
        for ours, theirs in zip((y, *found), (expected_y, *expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(layer.running_var, reference.running_var)
        assert torch.equal(layer.num_batches_tracked, reference.num_batches_tracked)


# Errors


def refuse(exception, message, action):
    with pytest.raises(exception, match=f"^{re.escape(message)}$"):
        action()


def test_one_device_for_all():
    x, v = torch.zeros(3, 4, 5, device=GPU), torch.zeros(4)
    call = ng.batch_norm_backward
    refuse(ValueError, f"weight: on device cpu; allowed: {GPU}, where grad_out is",
           lambda: call(x, x, v, training=True))  # fmt: skip
    refuse(ValueError, f"input: on device {GPU}; allowed: cpu, where grad_out is",
           lambda: call(x.cpu(), x, training=True))  # fmt: skip
    refuse(ValueError, f"out[1] (grad_weight): on device cpu; allowed: {GPU}, where grad_out is",
           lambda: call(x, x, training=True, out=(None, v, None)))  # fmt: skip
    refuse(ValueError, f"input: on device meta; allowed: {GPU}, where grad_out is",
           lambda: call(x, x.to("meta"), training=True))  # fmt: skip
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    refuse(ValueError, f"grad_out: on device cpu; allowed: {GPU}, as in the plan",
           lambda: plan.run(x.cpu(), x.cpu()))  # fmt: skip
    refuse(ValueError, f"workspace: on device cpu; allowed: {GPU}, as in the plan",
           lambda: plan.run(x, x, workspace=torch.zeros(plan.workspace_size)))  # fmt: skip
    size = plan.workspace_size
    short = torch.zeros(size - 1, dtype=torch.uint8, device=GPU)
    refuse(ValueError, f"workspace: {size - 1} bytes; allowed: at least {size}",
           lambda: plan.run(x, x, workspace=short))  # fmt: skip
    count = torch.cuda.device_count()
    refuse(ValueError, f"device: 'cuda:{count}', which cannot be used here: PyTorch sees cuda:0 to "
           f"cuda:{count - 1}; allowed: cpu, or another GPU",
           lambda: ng.plan("batch_norm_backward", grad_out=x, input=x, training=True,
                           device=f"cuda:{count}"))  # fmt: skip


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_several_gpus():
    case = make("train", (3, 4, 5, 6))
    expected = compute(case)
    there = tensors_of(case, "cuda:1")
    result = ng.batch_norm_backward(**there, training=True)
    assert {value.device for value in result} == {torch.device("cuda:1")}
    same(result, expected)
    assert torch.cuda.current_device() == 0
    x = tensors_of(case)["input"]
    refuse(ValueError, f"input: on device {GPU}; allowed: cuda:1, where grad_out is",
           lambda: ng.batch_norm_backward(there["grad_out"], x, training=True))  # fmt: skip


def test_memory():
    memory = torch.zeros(100, device=GPU)
    x, shifted = memory[:60].view(3, 4, 5), memory[4:64].view(3, 4, 5)
    refuse(
        ValueError,
        "out[0] (grad_input): shares memory with input; allowed: memory of its own, or all of "
        "grad_out or input with the same strides and dtype",
        lambda: ng.batch_norm_backward(x.clone(), x, training=True, out=(shifted, None, None)),
    )
    shrunk = torch.empty(3, 4, 5, device=GPU)
    shrunk.untyped_storage().resize_(0)
    refuse(
        ValueError,
        "input: a storage of 0 bytes from the first element on; allowed: at least 240, for its "
        "shape and strides",
        lambda: ng.batch_norm_backward(x, shrunk, training=True),
    )


def test_dialects_are_the_cpu_s():
    from normgrad.dialects import aclnn

    x = torch.zeros(3, 4, device=GPU)
    refuse(ValueError, f"array: on device {GPU}; allowed: cpu", lambda: aclnn.tensor(x))
    plan = ng.plan("batch_norm_backward", grad_out=x.cpu(), input=x.cpu(), training=True)
    refuse(ValueError, f"workspace: on device {GPU}; allowed: cpu",
           lambda: plan.run(x.cpu(), x.cpu(), workspace=x))  # fmt: skip


# normgrad.torch


LAYERS = {
    "batch norm": lambda nn, **more: nn.BatchNorm2d(6, **more),
    "without statistics": lambda nn, **more: nn.BatchNorm2d(
        6, track_running_stats=False, affine=False, **more
    ),
    "group norm": lambda nn, **more: nn.GroupNorm(3, 6, **more),
}


def step(layer, x, dy):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    gradients = torch.autograd.grad(y, (x, *layer.parameters()), dy)
    return y, *gradients, *layer.buffers()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, training, dtype, channels_last):
    kind = getattr(torch, dtype)
    ours = LAYERS[name](nt.nn, device=GPU).train(training)
    if dtype == "float64":
        ours = ours.double()
    for value in ours.parameters():
        torch.nn.init.uniform_(value, 0.5, 2)
    exact = nt.revert(copy.deepcopy(ours)).double().train(training)
    x = (torch.randn(5, 6, 7, 8, device=GPU) * 2 + 0.5).to(kind)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    dy = torch.randn_like(x)
    found, expected = step(ours, x, dy), step(exact, x.double(), dy.double())
    tolerance = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 3e-2}[dtype]
    assert found[0].dtype == found[1].dtype == kind
    assert found[0].stride() == x.stride()
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def test_second_derivatives():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, dtype=torch.float64, device=GPU, requires_grad=True)
    w, b = (torch.rand(3, dtype=torch.float64, device=GPU, requires_grad=True) for _ in range(2))

    def function(x, w, b):
        return nt.functional.batch_norm(x, None, None, w, b, True)

    assert torch.autograd.gradcheck(function, (x, w, b), nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(function, (x, w, b), nondet_tol=1e-12)


def test_autocast():
    """As PyTorch's: group norm in float32, batch norm in what it is given."""
    x, v = torch.randn(4, 6, 5, device=GPU), torch.ones(6, device=GPU)
    both = nt.functional, torch.nn.functional
    for kind in (torch.float16, torch.bfloat16):
        half = x.to(kind)
        with torch.autocast("cuda", dtype=kind):
            a, b = (nn.group_norm(half, 3, v, v) for nn in both)
            assert a.dtype == b.dtype == torch.float32
            torch.testing.assert_close(a, b)
            a, b = (nn.batch_norm(half, None, None, v, v, True) for nn in both)
            assert a.dtype == b.dtype == kind


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compile():
    torch._dynamo.reset()
    layers = nt.convert(
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
            torch.nn.GroupNorm(2, 4),
        )
    ).to(GPU)  # fmt: skip
    compiled = torch.compile(copy.deepcopy(layers), fullgraph=True)
    x = torch.randn(4, 3, 7, 6, device=GPU)
    dy = torch.randn(4, 4, 5, 4, device=GPU)
    for got, wanted in zip(step(compiled, x, dy), step(layers, x, dy), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_nccl_available()),
    reason="no NCCL",
)
def test_synchronised(tmp_path):
    """In a group of one, through the collectives: what batch norm gives."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        x, dy = (torch.randn(5, 6, 7, device=GPU) for _ in range(2))
        w, b, mean, var = (torch.rand(6, device=GPU) + 0.5 for _ in range(4))
        found = []
        for group in (collectives.default_group(), None):
            leaves = [each.clone().requires_grad_() for each in (x, w, b)]
            running = mean.clone(), var.clone()
            if group is None:
                y = nt.functional.batch_norm(leaves[0], *running, *leaves[1:], training=True)
            else:
                y = synchronised.batch_norm(
                    leaves[0], *running, *leaves[1:], 0.1, 1e-5, group, 12345
                )
            found.append((y, *torch.autograd.grad(y, leaves, dy), *running))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    finally:
        torch.distributed.destroy_process_group()


# DLPack


class Speaker:
    """A producer without a namespace, over a PyTorch tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self.tensor.__dlpack__(**arguments)


class Namespace:
    uint8 = torch.uint8

    def empty(self, size, dtype, device):
        return torch.empty(size, dtype=dtype, device=device)

    def from_dlpack(self, value):
        return WithNamespace(torch.from_dlpack(value))


class WithNamespace(Speaker):
    @property
    def device(self):
        return self.tensor.device

    def __array_namespace__(self):
        return Namespace()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", OPERATORS)
def test_dlpack(kind, dtype):
    case = make(kind, (3, 4, 5), dtype=dtype, num_groups=2)
    expected = compute(case)
    for wrap in (Speaker, WithNamespace):
        tensors = {n: None if v is None else wrap(v) for n, v in tensors_of(case).items()}
        result = getattr(ng, case.name)(**tensors, **case.options)
        for name, value in named(result).items():
            assert isinstance(value, torch.Tensor if wrap is Speaker else WithNamespace)
            value = value if wrap is Speaker else value.tensor
            assert value.device == torch.device(GPU)
            assert to_cpu(value).tobytes() == to_cpu(named(expected)[name]).tobytes()


def test_dlpack_on_a_side_stream():
    case = make("train", (64, 64, 28, 28))
    tensors = tensors_of(case)
    expected = ng.batch_norm_backward(**tensors, training=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        wrapped = {n: None if v is None else WithNamespace(v) for n, v in tensors.items()}
        result = ng.batch_norm_backward(**wrapped, training=True)
        values = [value.tensor.clone() for value in result]
    torch.cuda.synchronize()
    same(type(expected)(*values), expected)


@pytest.mark.parametrize("kind", OPERATORS)
def test_cupy(kind):
    cupy = pytest.importorskip("cupy")
    case = make(kind, (3, 4, 5), num_groups=2)
    expected = compute(case)
    tensors = {n: None if v is None else cupy.asarray(v) for n, v in case.tensors.items()}
    result = getattr(ng, case.name)(**tensors, **case.options)
    speaks = hasattr(tensors["input"], "__array_namespace__")
    for name, value in named(result).items():
        assert isinstance(value, cupy.ndarray if speaks else torch.Tensor)
        assert bytes(cupy.asnumpy(cupy.asarray(value))) == to_cpu(named(expected)[name]).tobytes()
