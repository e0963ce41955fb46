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
        assert got.stride() == wanted.stride()


BACKENDS = ["aot_eager", "inductor"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_graphs(backend):
    """Training and evaluation, forwards and backwards, both layouts, the average of all batches."""
    if backend == "inductor" and COMPILER is None:
        pytest.skip("no C++ compiler")
    torch._dynamo.reset()
    for momentum in (0.1, None):
        eager = model(momentum)
        compiled = torch.compile(copy.deepcopy(eager), backend=backend, fullgraph=True)
        for channels_last in (False, True):
            compare(eager, compiled, data(channels_last=channels_last))
        eager.eval(), compiled.eval()
        compare(eager, compiled, data())
        if backend == "inductor":
            break  # the graph has no code of ours that depends on the momentum


def test_dynamic_shapes_compile_once():
    torch._dynamo.reset()
    eager = model()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(eager), backend=counter, fullgraph=True, dynamic=True)
    for samples, size in ((4, 7), (5, 8), (9, 12)):
        compare(eager, compiled, data(samples, size))
    assert counter.frame_count == 1
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
    x = data(9).detach()
    torch.testing.assert_close(traced(x), layers(x))


def test_make_fx():
    from torch.fx.experimental.proxy_tensor import make_fx

    layers = model().eval()
    graph = make_fx(torch.func.grad(lambda x: layers(x).pow(2).sum()), tracing_mode="symbolic")
    x = data().detach()
    traced = graph(x)
    names = {str(node.target) for node in traced.graph.nodes}
    assert "normgrad.native_group_norm_backward.default" in names
    torch.testing.assert_close(
        traced(x), torch.func.grad(lambda x: layers(x).pow(2).sum())(x), rtol=1e-4, atol=1e-4
    )
