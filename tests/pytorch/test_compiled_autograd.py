"""Compiled autograd, which traces the backward pass of eager layers and compiles it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from layer_pairs import LAYERS, data, pair  # noqa: E402

import normgrad.torch as nt  # noqa: E402

# PyTorch itself reads this attribute, of saved tensors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


def compiled(model):
    return torch.compile(model, backend="eager", fullgraph=True)


#: Layers whose autograd nodes are others' with other arguments.
_ALIKE = {
    "BatchNorm1d", "BatchNorm2d, untracked", "LayerNorm, no bias", "RMSNorm, not affine",
    "InstanceNorm1d",
}  # fmt: skip


@pytest.mark.every_case
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name in _ALIKE else ()) for name in LAYERS],
)
def test_layers_have_the_right_gradients(name, training):
    """The second step meets a compiled backward pass, which must not have the first step's data."""
    torch._dynamo.reset()
    theirs, ours = pair(name, training)
    for step in range(2):
        results = []
        for layer in (ours, theirs):
            layer.zero_grad()
            x = data(name, step).requires_grad_()
            loss = (layer(x) ** 3).sum()
            if layer is ours:
                with torch._dynamo.compiled_autograd._enable(compiled):
                    loss.backward()
            else:
                loss.backward()
            results.append([x.grad, *(each.grad for each in layer.parameters()), *layer.buffers()])
        torch.testing.assert_close(*results)


@pytest.mark.every_case
@pytest.mark.parametrize(
    "name", ["native_batch_norm", "native_group_norm", "native_layer_norm", "batch_norm_elemt"]
)
def test_operators_have_the_right_gradients(name):
    torch._dynamo.reset()
    weight, bias, mean, invstd = torch.rand(4, 4, dtype=torch.float64) + 0.5
    arguments = {
        "native_batch_norm": (weight, bias, mean, invstd, True, 0.1, 1e-5),
        "native_group_norm": (weight, bias, 3, 4, 5, 2, 1e-5),
        "native_layer_norm": ([5], None, None, 1e-5),
        "batch_norm_elemt": (weight, bias, mean, invstd, 1e-5),
    }[name]
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
        gradients = []
        for backend in (None, "aot_eager"):
            results = getattr(nt.ops, name)(x, *arguments)
            output = results if isinstance(results, torch.Tensor) else results[0]
            x.grad = None
            if backend is None:
                (output**3).sum().backward()
            else:
                with torch._dynamo.compiled_autograd._enable(
                    lambda model: torch.compile(model, backend="eager")
                ):
                    (output**3).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


def test_a_compiled_step_compiles_its_backward_pass_too():
    torch._dynamo.reset()
    gradients = []
    for layer in pair("BatchNorm2d"):
        x = data("BatchNorm2d").requires_grad_()

        def step(x, layer=layer):
            (layer(x) ** 3).sum().backward()

        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(step, backend="aot_eager")(x)
        gradients.append([x.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()])
    torch.testing.assert_close(*gradients)
