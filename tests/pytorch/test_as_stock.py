"""What layers do to parameters and buffers, and what may be done to these, as with PyTorch's."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

from torch.utils.checkpoint import (  # noqa: E402 - torch may be absent
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

CHANNELS = 4
SHAPES = {
    "BatchNorm1d": (3, CHANNELS, 5),
    "BatchNorm2d": (3, CHANNELS, 5, 2),
    "BatchNorm3d": (3, CHANNELS, 2, 5, 2),
    "SyncBatchNorm": (3, CHANNELS, 5, 2),
    "InstanceNorm1d": (3, CHANNELS, 5),
    "InstanceNorm2d": (3, CHANNELS, 5, 2),
    "InstanceNorm3d": (3, CHANNELS, 2, 5, 2),
    "GroupNorm": (3, CHANNELS, 5, 2),
    "LayerNorm": (3, CHANNELS, 5, 2),
    "RMSNorm": (3, CHANNELS, 5, 2),
}
TRACKING = [name for name in SHAPES if name.startswith(("Batch", "Sync", "Instance"))]


class Case(NamedTuple):
    """A layer, its mode, and whether the gradient of its input is wanted."""

    name: str
    training: bool
    affine: bool
    tracked: bool
    for_input: bool

    def layer(self, module, momentum=0.1):
        """The layer of a module, torch.nn or normgrad's, in float64."""
        cls = getattr(module, self.name)
        if self.name in TRACKING:
            made = cls(
                CHANNELS, momentum=momentum, affine=self.affine, track_running_stats=self.tracked
            )
        elif self.name == "GroupNorm":
            made = cls(2, CHANNELS, affine=self.affine)
        else:
            made = cls(SHAPES[self.name][2:], elementwise_affine=self.affine)
        return made.double().train(self.training)

    def input(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(SHAPES[self.name], dtype=torch.float64, generator=generator)
        return x.requires_grad_(self.for_input)


def state(layer):
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}


def versions(layer):
    return {name: value._version for name, value in state(layer).items()}


def gradients(loss, leaves):
    """The gradients of leaves that want one, or the beginning of the error's message."""
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    try:
        return torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        return str(error).partition(":")[0]


def weighted(y):
    return (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()


CASES = [
    Case(name, training, affine, tracked, for_input)
    for name, training, affine, tracked, for_input in product(SHAPES, *[(True, False)] * 4)
    if not (tracked and name not in TRACKING)
]


def shown(case):
    facts = zip(case._fields[1:], case[1:], strict=True)
    return " ".join([case.name, *[name if fact else f"not-{name}" for name, fact in facts]])


@pytest.mark.parametrize("case", CASES, ids=shown)
def test_versions_and_changes_in_place(case):
    """Versions after each pass; and the gradients or the error, after each tensor's change.

    A graph that saved the running statistics before the call does not notice it.
    """
    found = []
    for module in (torch.nn, nt.nn):
        layer, x = case.layer(module), case.input()
        facts = {}
        factor = torch.ones(CHANNELS, dtype=torch.float64, requires_grad=True)
        before = (factor * layer.running_mean * layer.running_var).sum() if case.tracked else None
        y = layer(x * 1)
        facts["forward"] = versions(layer), y._version
        if y.requires_grad:
            facts["gradients"] = gradients(weighted(y), [x, *layer.parameters()])
            facts["backward"] = versions(layer)
        if before is not None:
            facts["saved before"] = gradients(before, [factor])
        for name in ("input", "output", *state(layer)):
            layer, x = case.layer(module), case.input()
            given = x * 1
            y = layer(given)
            if not y.requires_grad:
                continue
            loss = weighted(y)
            with torch.no_grad():
                {"input": given, "output": y, **state(layer)}[name].add_(1)
            facts[f"changed {name}"] = gradients(loss, [x, *layer.parameters()])
        found.append(facts)
    theirs, ours = found
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if "ward" in name or isinstance(expected, str):
            assert ours[name] == expected, name
        else:
            torch.testing.assert_close(ours[name], expected, msg=lambda text: f"{name}: {text}")  # noqa: B023


def _keep_convolutions(ctx, op, *args, **kwargs):
    kept = op is torch.ops.aten.convolution.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS = {
    "reentrant": {"use_reentrant": True},
    "not reentrant": {"use_reentrant": False},
    "not reentrant, to the end": {"use_reentrant": False, "early_stop": False},
    "selective": {
        "use_reentrant": False,
        "context_fn": partial(create_selective_checkpoint_contexts, _keep_convolutions),
    },
}


@pytest.mark.parametrize("momentum", [0.2, None])
@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("name", TRACKING)
def test_checkpointing_updates_buffers_as_often(name, kind, momentum):
    """A checkpoint may end the call that it repeats where autograd saves tensors."""
    found = []
    for module in (torch.nn, nt.nn):
        case = Case(name, True, True, True, True)
        layer = case.layer(module, momentum)
        for seed in range(3):
            x = case.input(seed)
            y = checkpoint(layer, x, **CHECKPOINTS[kind])
            weighted(y).backward()
        found.append([*layer.buffers(), x.grad, *[each.grad for each in layer.parameters()]])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", [name for name in TRACKING if not name.startswith("Inst")])
def test_a_batch_that_raises_an_error_counts(name):
    """But not one of a shape that the layer checks."""
    for shape in ((1, CHANNELS + 1, *SHAPES[name][2:]), (1,) * 9):
        found = []
        for module in (torch.nn, nt.nn):
            layer = Case(name, True, True, True, False).layer(module)
            with pytest.raises((ValueError, RuntimeError)) as error:
                layer(torch.zeros(shape, dtype=torch.float64))
            found.append((int(layer.num_batches_tracked), str(error.value)))
        assert found[0] == found[1]


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_of_an_evaluation_are_those_of_its_time(affine):
    """Training updates the running statistics unseen by autograd, so an evaluation copies them."""
    case = Case("BatchNorm2d", False, affine, True, True)
    layer, x = case.layer(nt.nn), case.input()
    y = layer(x)
    expected = gradients(weighted(y), [x, *layer.parameters()])
    layer.train()(case.input(1))
    torch.testing.assert_close(gradients(weighted(y), [x, *layer.parameters()]), expected)


def test_statistics_made_in_inference_mode():
    """They have no versions."""
    for momentum in (0.1, None):
        found = []
        for module in (torch.nn, nt.nn):
            with torch.inference_mode():
                layer = Case("BatchNorm2d", True, False, True, False).layer(module, momentum)
                layer(Case("BatchNorm2d", True, False, True, False).input())
            found.append([*layer.buffers()])
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changed", ["input", "weight"])
def test_rms_norm_saves_a_copy_of_its_input_where_pytorch_does(dtype, changed):
    """In 16 bits, which PyTorch computes in float32."""
    outcomes = []
    for module in (torch.nn, nt.nn):
        found = []
        for change in (0, 1):
            layer = module.RMSNorm(5, dtype=dtype)
            x = torch.linspace(-1, 2, 30).reshape(6, 5).to(dtype).requires_grad_()
            given = x * 1
            loss = weighted(layer(given))
            if change:
                with torch.no_grad():
                    {"input": given, "weight": layer.weight}[changed].add_(1)
            found.append(gradients(loss, [x, layer.weight]))
        outcomes.append(found)
    (_, theirs), (expected, ours) = outcomes
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        assert all(map(torch.equal, ours, expected))
