"""normgrad.torch.warmup: everything compiled, nothing changed."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

from normgrad.backends import choice  # noqa: E402
from normgrad.backends.cpu.objects import units  # noqa: E402
from normgrad.plans import calls  # noqa: E402
from normgrad.plans.cache import Cache  # noqa: E402

pytestmark = pytest.mark.cpu


def network():
    torch.manual_seed(0)
    return nt.convert(
        torch.nn.Sequential(
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.Dropout(),
            torch.nn.GroupNorm(2, 8),
        )
    )


def images(size=9):
    x = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(1))
    return x.to(memory_format=torch.channels_last)


@pytest.fixture
def compiled(monkeypatch):
    """The names of what is compiled from now on, or taken as it is."""
    names = set()
    kind = type(choice.of("cpu"))
    make = kind.runner

    def runner(self, program, *arguments):
        names.update(units.needed(program))
        return make(self, program, *arguments)

    monkeypatch.setattr(kind, "runner", runner)
    monkeypatch.setattr(calls, "_plans", Cache())
    return names


def train(model, x):
    y = model(x)
    torch.nn.functional.mse_loss(y, torch.zeros_like(y)).backward()


# Sizes of their own, since plans of one size are kept.
@pytest.mark.parametrize(
    ("size", "step"), [(9, train), (10, lambda model, x: model(x).pow(2).sum().backward())]
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_training_and_evaluation_find_everything_compiled(compiled, layout, size, step):
    model, x = network(), images(size).contiguous(memory_format=layout)
    assert nt.warmup(model, x) is None
    before = set(compiled)
    assert len(before) > 5
    calls._plans.clear()
    step(model, x)
    with torch.no_grad():
        model.eval()(x)
    assert compiled == before


def state(model, x):
    return [
        *(value.clone() for value in model.state_dict().values()),
        *(parameter.grad.clone() for parameter in model.parameters()),
        torch.get_rng_state(),
        x.clone(),
    ]


@pytest.mark.parametrize("outside", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_changes(training, outside):
    model, x = network(), images()
    train(model, x.clone())
    model.train(training)
    model[2].eval()
    modes = [layer.training for layer in model.modules()]
    before = state(model, x)
    with outside():
        nt.warmup(model, x)
    assert all(map(torch.equal, before, state(model, x)))
    assert x.grad is None
    assert [layer.training for layer in model.modules()] == modes


def test_layers_in_evaluation_are_trained_so(compiled):
    layer = nt.nn.BatchNorm2d(8)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), layer)
    layer.eval()
    nt.warmup(model, images())
    assert not [name for name in compiled if "sums" in name or "apply" in name]
    assert [name for name in compiled if "evaluate" in name]


class Several(torch.nn.Module):
    """Takes and gives tensors in other things."""

    def __init__(self):
        super().__init__()
        self.norm = nt.nn.BatchNorm1d(4)

    def forward(self, pair, *, scale):
        first, second = pair
        return {"sum": (self.norm(first) + second["x"]) * scale, "count": 3, "flag": first > 0}


def test_tensors_in_other_things(compiled):
    y = 2 * torch.randn(6, 4, requires_grad=True)
    nt.warmup(Several(), (torch.randn(6, 4), {"x": y}), scale=torch.tensor(2.0))
    assert [name for name in compiled if "sums" in name]
    assert y.grad_fn is not None


def test_an_input_s_strides_are_kept(compiled):
    layer, x = nt.nn.BatchNorm2d(40), torch.randn(2, 40, 1, 50).expand(2, 40, 30, 50)[..., ::2]
    nt.warmup(layer, x)
    before = set(compiled)
    assert "tasks in tiles" in before
    calls._plans.clear()
    train(layer, x)
    assert compiled == before


def test_a_model_that_is_frozen():
    model = network().requires_grad_(False)
    nt.warmup(model, images())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_used():
    with pytest.raises(TypeError, match=r"^module: a list; allowed"):
        nt.warmup([], images())
    model = network()
    model[2].lock = threading.Lock()
    with pytest.raises(TypeError, match=r"^module: 2 cannot be copied: cannot pickle '_thread"):
        nt.warmup(model, images())
    silent = network()
    silent.append(torch.nn.Identity())
    silent[-1].forward = lambda x: x.detach()
    with pytest.raises(ValueError, match=r"^module: its result, a Tensor, depends on no param"):
        nt.warmup(silent, images())
    with pytest.raises(RuntimeError, match="expected input"):
        nt.warmup(network(), torch.randn(4, 5, 9, 9))
