"""What estimate reports: which calls it times, what it keeps, and what it makes of figures."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
from normgrad.torch import estimating  # noqa: E402
from normgrad.torch.estimating import Estimate, Gain  # noqa: E402


@pytest.fixture(autouse=True)
def _shortly(monkeypatch):
    """Fewest rounds: what the figures are is not asked here."""
    monkeypatch.setattr(estimating, "STEP_SECONDS", 0)
    monkeypatch.setattr(estimating, "LAYER_SECONDS", 0)


def network():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), norm, torch.nn.ReLU(), norm, torch.nn.GroupNorm(2, 4)
    )


IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("converted", [True, False])
def test_the_calls_of_a_step_are_timed(training, converted):
    model = network().train(training)
    if converted:
        nt.convert(model)
    found = nt.estimate(model, IMAGES)
    calls = {name: gain.calls for name, gain in found.layers.items()}
    assert calls == {"torch.nn.BatchNorm2d": 2, "torch.nn.GroupNorm": 1}
    assert min(found.stock, found.converted, *(gain.stock for gain in found.layers.values())) > 0
    assert (min(found.saved) > 0) == training
    assert "convolutions" in found.shares
    assert found.conversion.layers == {"torch.nn.BatchNorm2d": 1, "torch.nn.GroupNorm": 1}


def test_the_model_stays_as_it_is():
    model = network()
    kinds, state = [type(layer) for layer in model.modules()], copy.deepcopy(model.state_dict())
    seed = torch.get_rng_state()
    nt.estimate(model, IMAGES)
    assert [type(layer) for layer in model.modules()] == kinds
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), seed)


def test_what_is_kept_is_counted_once_and_without_parameters():
    x = torch.ones(10, 6, requires_grad=True)
    weight = torch.nn.Parameter(torch.ones(6))

    def step():
        y = x * 2
        (y * y * weight).sum().backward()

    # y twice, y * y, and neither weight nor x; multiplying by a number keeps nothing.
    assert estimating._saved_bytes(step) == 2 * 10 * 6 * 4


def made(stock=10.0, layers=None, shares=None, spread=0.0, left=None):
    conversion = nt.Conversion({}, left or {})
    return Estimate(stock, 8.0, layers or {}, (1 << 21, 1 << 20), shares or {}, conversion, spread)


def test_what_is_printed():
    found = made(layers={"torch.nn.RMSNorm": Gain(3, 3.0, 0.00525)}, shares={"convolutions": 0.5})
    assert (
        str(found)
        == """\
step       10000 ms → 8000 ms: 1.25 times as fast
norms      30% of the step
           3 torch.nn.RMSNorm: 3000 ms → 5.25 ms: 571.43 times as fast
memory     2.0 MiB → 1.0 MiB kept for the backward pass
verdict    30% of the step saved, by the norms' times"""
    )


@pytest.mark.parametrize(
    ("layers", "shares", "verdict"),
    [
        ({}, {}, "the step calls no norm that normgrad can convert"),
        (
            {"A": Gain(1, 0.2, 0.1)},
            {"convolutions": 0.97, "attention": 0.01},
            "97% of the step is convolutions",
        ),
        ({"A": Gain(1, 5.0, 4.9)}, {"convolutions": 0.3}, "the norms take as long in PyTorch"),
    ],
)
def test_no_gain_is_an_answer(layers, shares, verdict):
    text = str(made(layers=layers, shares=shares))
    assert text.endswith(f"verdict    no gain expected: {verdict}")


def test_norms_that_take_longer_than_their_step_give_no_verdict():
    """As when another program takes the cores while they are timed."""
    busy = {"torch.nn.BatchNorm2d": Gain(4, 12.0, 3.0)}
    verdict = "none: the norms alone took longer than a step; measure on an idle machine"
    assert str(made(layers=busy)).endswith(f"verdict    {verdict}")


def test_noise_and_what_is_left_are_said():
    text = str(made(spread=0.5, left={"a": "mine.GRN: why"}))
    assert "converted  normgrad's: none; left: 1 mine.GRN: why\n" in text
    assert "noise      the steps' times spread by 50%" in text


def test_errors():
    with pytest.raises(TypeError, match=r"^module: an int; allowed: a torch.nn.Module$"):
        nt.estimate(3)
    with pytest.raises(ValueError, match=r"^module: no result requires gradients; allowed in tr"):
        nt.estimate(torch.nn.BatchNorm1d(4, affine=False), torch.ones(3, 4))
