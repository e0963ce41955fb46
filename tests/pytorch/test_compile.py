"""torch.compile, torch.export and torch.jit.trace."""

from __future__ import annotations

import copy
import shutil

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

COMPILER = shutil.which("g++") or shutil.which("clang++")


def model(momentum=0.1):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4, momentum=momentum),
        torch.nn.ReLU(inplace=True),
        torch.nn.GroupNorm(2, 4),
        torch.nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    )
    return nt.convert(layers)


def data(samples=4, size=7, channels_last=False):
    torch.manual_seed(samples)
    x = torch.randn(samples, 3, size, 6)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    return x.requires_grad_()


def step(layers, x):
    """The output, its gradients, and the buffers."""
    y = layers(x)
    gradients = torch.autograd.grad((y**3).sum(), (x, *layers.parameters()))
    return y, *gradients, *layers.buffers()


def compare(eager, compiled, x):
    ours, theirs = step(compiled, x), step(eager, x)
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=2e-4)
    assert ours[0].stride() == theirs[0].stride()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_whole_graphs(backend):
    """Training and evaluation, forwards and backwards, both layouts, the average of all batches."""
    if backend == "inductor" and COMPILER is None:
        pytest.skip("no C++ compiler")
    torch._dynamo.reset()
    eager = model()
    compiled = torch.compile(copy.deepcopy(eager), backend=backend, fullgraph=True)
    for channels_last in (False, True):
        compare(eager, compiled, data(channels_last=channels_last))
    eager.eval(), compiled.eval()
    compare(eager, compiled, data())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_inductor_generates_the_norms():
    """So that it fuses them: its code calls no operator of ours."""
    from torch._inductor.utils import run_and_get_code

    if COMPILER is None:
        pytest.skip("no C++ compiler")
    torch._dynamo.reset()
    layers = model()
    compiled = torch.compile(copy.deepcopy(layers), fullgraph=True)
    # What is on disk may be of a version that generated nothing.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        _, code = run_and_get_code(compare, layers, compiled, data())
    assert len(code) == 2
    assert not any("torch.ops.normgrad" in text for text in code)


@pytest.mark.parametrize(
    ("dtype", "last"),
    [
        (torch.float32, False),
        (torch.bfloat16, True),
        *[
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                (torch.float32, True), (torch.float64, False), (torch.float64, True),
                (torch.bfloat16, False),
            )
        ],
    ],
)  # fmt: skip
def test_what_inductor_generates_is_what_the_operators_compute(dtype, last):
    from torch._inductor.decomposition import decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    from normgrad.torch import inductor

    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(4, 6, 5, 3, generator=generator).to(dtype) for _ in range(2))
    if last:
        x, dy = (value.to(memory_format=torch.channels_last) for value in (x, dy))
    w, b, mean = torch.randn(3, 6, generator=generator)
    var = torch.rand(6, generator=generator) + 0.5
    saved = nt.ops.batch_norm_stats(x, 1e-5)
    of_groups = nt.ops.native_group_norm(x, w, b, 4, 6, 15, 2, 1e-5)[1:]
    calls = [
        ("native_batch_norm", (x, w, b, mean, var, True, 0.2, 1e-5)),
        ("native_batch_norm", (x, None, None, None, None, True, 0.2, 1e-5)),
        ("native_batch_norm", (x, w, b, mean, var, False, 0.2, 1e-5)),
        ("native_group_norm", (x, w, b, 4, 6, 15, 2, 1e-5)),
        ("native_group_norm", (x, None, None, 4, 6, 15, 3, 1e-5)),
    ]
    for weight, mask in ((w, [True] * 3), (None, [True, False, True])):
        train = (dy, x, weight, None, None, *saved, True, 1e-5, mask)
        evaluate = (dy, x, weight, mean, var, None, None, False, 1e-5, mask)
        groups = (dy, x, *of_groups, weight, 4, 6, 15, 2, mask)
        calls += [("native_batch_norm_backward", call) for call in (train, evaluate)]
        calls.append(("native_group_norm_backward", groups))
        row = [6, 5, 3]
        wide = weight if weight is None else torch.rand(row, generator=generator)
        _, *of_rows = nt.ops.native_layer_norm(x, row, wide, wide, 1e-5)
        calls.append(("native_layer_norm", (x, row, wide, wide, 1e-5)))
        mask = [True, weight is not None, weight is not None]
        calls.append(("native_layer_norm_backward", (dy, x, row, *of_rows, wide, wide, mask)))
    for name, arguments in calls:
        formula = inductor.DECOMPOSITIONS[name]
        traced = make_fx(lambda: formula(*arguments), decomposition_table=decompositions)()  # noqa: B023
        found = traced()
        expected = getattr(nt.ops, name)(*arguments)
        torch.testing.assert_close(found, expected, check_stride=name.endswith("norm"))


def test_large_layer_norms_are_ours_under_inductor():
    from normgrad.torch import inductor

    found = []
    for rows in (inductor.SMALL // 8 - 1, inductor.SMALL // 8):
        x = torch.zeros(rows, 8)
        found.append(inductor.DECOMPOSITIONS["native_layer_norm"](x, [8], None, None, 1e-5))
    assert found[1] is NotImplemented
    assert found[0][0].shape == (inductor.SMALL // 8 - 1, 8)


def test_the_average_of_all_batches():
    """Counting them does not cut the graph."""
    torch._dynamo.reset()
    eager = model(None)
    compiled = torch.compile(copy.deepcopy(eager), backend="aot_eager", fullgraph=True)
    for samples in (4, 4, 4):
        compare(eager, compiled, data(samples))


def test_dynamic_shapes_compile_once():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    eager = model()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(eager), backend=counter, fullgraph=True, dynamic=True)
    # Sizes unlike any number of channels, which would be taken for it.
    compare(eager, compiled, data(8, 9))
    compilations = counter.frame_count
    for samples, size in ((10, 11), (12, 14)):
        compare(eager, compiled, data(samples, size))
    assert counter.frame_count == compilations
    names = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes}
    assert {"normgrad.native_batch_norm.default", "normgrad.native_group_norm.default"} <= names


@pytest.mark.parametrize("training", [True, False])
def test_export(training):
    layers = model().train(training)
    x = data().detach()
    dynamic = ({0: torch.export.Dim("samples", min=2, max=64), 2: torch.export.Dim.AUTO},)
    program = torch.export.export(layers, (x,), dynamic_shapes=dynamic)
    names = {str(node.target) for node in program.graph.nodes}
    assert {"normgrad.native_batch_norm.default", "normgrad.native_group_norm.default"} <= names
    exported = program.module()
    for samples, size in ((4, 7), (9, 8)):
        x = data(samples, size).detach()
        torch.testing.assert_close(exported(x), layers(x))
    torch.testing.assert_close(list(exported.buffers()), list(layers.buffers()))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_trace():
    layers = model().eval()
    traced = torch.jit.trace(layers, data().detach())
    x = data().detach() + 1
    torch.testing.assert_close(traced(x), layers(x))


def test_make_fx():
    """Gradients by torch.func, traced with symbolic shapes down to the operators."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradient(x, w):
        def loss(x, w):
            y = nt.functional.group_norm(x, 2, w)
            return nt.functional.batch_norm(y, None, None, w, training=True).pow(3).sum()

        return torch.func.grad(loss, (0, 1))(x, w)

    x, w = torch.randn(4, 6, 5), torch.randn(6)
    traced = make_fx(gradient, tracing_mode="symbolic")(x, w)
    names = {str(node.target) for node in traced.graph.nodes}
    assert {
        "normgrad.native_batch_norm_backward.default",
        "normgrad.native_group_norm_backward.default",
    } <= names
    x = torch.randn(5, 6, 7)
    torch.testing.assert_close(traced(x, w), gradient(x, w), rtol=1e-4, atol=1e-4)
