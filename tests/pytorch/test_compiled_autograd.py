"""Compiled autograd, which traces the backward pass of eager layers and compiles it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from layer_pairs import LAYERS, data, pair  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "name",
    [
        "BatchNorm2d", "RMSNorm",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("GroupNorm", "LayerNorm")),
    ],
)  # fmt: skip
def test_compilers_see_pytorch_s_operators(name):
    from torch._dynamo.backends.common import aot_autograd

    names = set()

    def collect(module, inputs):
        names.update(str(node.target) for node in module.graph.nodes)
        return module.forward

    torch._dynamo.reset()
    found = []
    for layer in pair(name):
        x = data(name).requires_grad_()
        loss = (layer(x) ** 3).sum()
        backend = aot_autograd(fw_compiler=collect)
        with torch._dynamo.compiled_autograd._enable(
            torch.compile(backend=backend, fullgraph=True)
        ):
            loss.backward()
        found.append([x.grad, *(each.grad for each in layer.parameters())])
    torch.testing.assert_close(*found)
    assert names
    assert not [each for each in names if "normgrad" in each.lower()]


def gradients(module, how, calls):
    """The gradients of a batch norm and a layer norm by a compiled backward pass."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 5, generator=generator, requires_grad=True)
    w, dy = (
        torch.rand(5, generator=generator).requires_grad_(),
        torch.linspace(-1, 2, 60).reshape(3, 4, 5),
    )

    def norms(x):
        y = module.batch_norm(x, None, None, training=True)
        return module.layer_norm(y**3, (5,), w)

    found = []
    for _ in range(calls):
        if how == "hooks":
            with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.double, torch.Tensor.float):
                y = norms(x)
        else:
            y = checkpoint(norms, x, use_reentrant=how == "reentrant")
        x.grad = w.grad = None
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            (y**3 * dy).sum().backward()
        found.append((x.grad, w.grad))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["hooks", "checkpointed", "reentrant"])
def test_hooks_and_checkpoints(how):
    """What hooks pack and unpack, and what is computed again, on the second call too."""
    torch._dynamo.reset()
    (expected,) = gradients(torch.nn.functional, how, 1)
    for found in gradients(nt.functional, how, 2):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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
