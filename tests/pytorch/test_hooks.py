"""Hooks on the tensors of layers: each runs once in a backward pass, differentiated or not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from layer_pairs import data, pair  # noqa: E402


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", ["BatchNorm2d", "GroupNorm", "LayerNorm", "RMSNorm"])
def test_hooks_run_once(name, create_graph):
    found, counts = [], []
    for layer in pair(name):
        x, seen = data(name).requires_grad_(), []
        for tensor in (x, *layer.parameters()):
            tensor.register_hook(lambda gradient, seen=seen: seen.append(1) or gradient * 2)
        y = x.sin()
        y.register_hook(lambda gradient, seen=seen: seen.append(1) or gradient * 3)
        y.retain_grad()
        (layer(y) ** 3).sum().backward(create_graph=create_graph)
        found.append([x.grad, y.grad, *(each.grad for each in layer.parameters())])
        counts.append(len(seen))
    torch.testing.assert_close(*found)
    assert counts[0] == counts[1]
