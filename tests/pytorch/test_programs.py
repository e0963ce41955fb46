"""Programs made of layers hold PyTorch's operators alone, and run where normgrad is not."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")


def network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4), torch.nn.InstanceNorm2d(4, affine=True),
        torch.nn.LayerNorm(6), torch.nn.RMSNorm(6),
    )  # fmt: skip
    return nt.convert(model), torch.randn(3, 4, 5, 6)


def targets(graph):
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}


def check(graph):
    """The operators of a graph: norms of PyTorch's, and nothing of normgrad's."""
    found = targets(graph)
    assert any("norm" in name for name in found), found
    assert not any("normgrad" in name for name in found), found


@pytest.mark.parametrize("training", [True, False])
def test_make_fx(training):
    """With the backward pass."""
    model, x = network()
    model.train(training)

    def step(x):
        y = model(x)
        return y, *torch.autograd.grad(y.square().sum(), tuple(model.parameters()))

    for mode in ("real", "fake"):
        step(x)
        graph = torch.fx.experimental.proxy_tensor.make_fx(
            step, tracing_mode=mode, _allow_non_fake_inputs=True
        )(x)
        check(graph.graph)


def test_compiled_graphs():
    """Those of Dynamo and of AOT autograd, forwards and backwards."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    model, x = network()
    graphs = []

    def keep(module, example):
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    compiled = torch.compile(
        model, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep)
    )
    model(x)
    compiled(x).sum().backward()
    assert len(graphs) == 2
    for graph in graphs:
        check(graph)


def test_instance_norm_leaves_no_trace_of_its_own():
    """Neither in modes nor in classes of parameters: they see PyTorch's function alone."""

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    class Weight(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    x, plain = torch.randn(2, 3, 4), torch.nn.Parameter(torch.ones(3))
    for weight, mode in ((plain, Seen), (Weight(torch.ones(3)), contextlib.nullcontext)):
        seen = []
        for module in (torch.nn.functional, nt.functional):
            names = []
            with mode():
                module.instance_norm(x, weight=weight)
            seen.append(names)
        assert "instance_norm" in seen[0]
        assert seen[1] == seen[0]
