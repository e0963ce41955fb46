"""What estimate reports: which calls it times, what it keeps, and what it makes of figures."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
from normgrad.torch.conversion import gain  # noqa: E402
from normgrad.torch.conversion.gain import Estimate, Gain  # noqa: E402


@pytest.fixture(autouse=True)
def _shortly(monkeypatch):
    """Fewest rounds: what the figures are is not asked here."""
    monkeypatch.setattr(gain, "STEP_SECONDS", 0)
    monkeypatch.setattr(gain, "LAYER_SECONDS", 0)


def network():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), norm, torch.nn.ReLU(), norm, torch.nn.GroupNorm(2, 4)
    )


IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def test_the_profiler_says_nothing():
    program = (
        "import os, torch, normgrad.torch as nt\n"
        "from normgrad.torch.conversion import gain\n"
        "gain.STEP_SECONDS = gain.LAYER_SECONDS = 0\n"
        "nt.estimate(torch.nn.LayerNorm(4), torch.ones(3, 4))\n"
        "assert 'KINETO_LOG_LEVEL' not in os.environ\n"
    )
    environment = {**os.environ, "NORMGRAD_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
    assert gain._saved_bytes(step) == 2 * 10 * 6 * 4


def made(stock=10.0, layers=None, shares=None, left=None, converted=8.0, spread=0.0, **more):
    conversion = nt.Conversion({}, left or {})
    saved = (1 << 21, 1 << 20)
    return Estimate(stock, converted, layers or {}, saved, shares or {}, conversion, spread, **more)


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
    verdict = "none: the norms took longer than a whole step; measure on an idle machine"
    assert f"verdict    {verdict}" in str(made(layers=busy))


@pytest.mark.parametrize(
    ("threads", "advice"), [(1, ""), (2, ", or after torch.set_num_threads(1)")]
)
def test_times_that_differ_give_no_verdict(threads, advice):
    """As of threads that wait for each other; whether they seem to gain or not."""
    noise = "the steps' times spread by 0%, the norms' by {}%: the machine had other work"
    verdict = f"none: the norms' times differ too much; measure on an idle machine{advice}"
    for gain_, spread in ((Gain(5, 1.2, 0.02, 1.3), 108), (Gain(5, 1.0, 0.995, 5.0), 500)):
        text = str(made(layers={"torch.nn.LayerNorm": gain_}, threads=threads))
        assert text.splitlines()[-2:] == [
            f"noise      {noise.format(spread)}", f"verdict    {verdict}"
        ]  # fmt: skip


def test_waiting_for_other_programs_gives_no_verdict():
    text = str(made(layers={"A": Gain(1, 5.0, 0.1)}, threads=2, waited=0.21))
    assert text.splitlines()[-1] == (
        "verdict    none: other programs had the cores for 21% of the time; measure on an idle "
        "machine, or after torch.set_num_threads(1)"
    )


def test_noise_and_what_is_left_are_said():
    text = str(made(spread=0.5, left={"a": "mine.GRN: why"}))
    assert "converted  normgrad's: none; left: 1 mine.GRN: why\n" in text
    assert "noise      the steps' times spread by 50%" in text


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        # The norms' times and the steps' own contradict each other.
        (
            {"layers": {"A": Gain(1, 2.0, 1.0)}, "converted": 11.0},
            "none: 10% of the step saved by the norms' times, but 10% of the step lost by the "
            "steps' times",
        ),
        # The steps' difference is within their noise.
        (
            {"layers": {"A": Gain(1, 2.0, 1.0)}, "converted": 10.1, "spread": 0.15},
            "10% of the step saved, by the norms' times",
        ),
        (
            {"layers": {"A": Gain(1, 2.0, 1.0)}, "spread": 0.3},
            "none: the steps' times differ too much; measure on an idle machine",
        ),
        ({"layers": {"A": Gain(1, 1.0, 2.0)}, "converted": 11.0}, "10% of the step lost"),
    ],
)
def test_a_verdict_is_none_of_noise_and_contradicts_no_step(found, verdict):
    assert str(made(**found)).splitlines()[-1].startswith(f"verdict    {verdict}")


def test_an_axis_that_no_tensor_has():
    with pytest.raises(ValueError, match=r"varying_axis: 4; allowed: .* \(4 axes\)"):
        nt.estimate(network(), IMAGES, varying_axis=4)


def test_sizes_that_vary():
    """Each step has a size of its own along the axis, and the same for both models."""
    sizes = []

    class Noting(torch.nn.BatchNorm1d):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    nt.estimate(Noting(3), torch.ones(40, 3) + torch.arange(40.0)[:, None], varying_axis=0)
    assert len({*sizes}) > 5
    assert max(sizes) == 40
    assert min(sizes) > 20


def test_cpu_time_counts_where_a_core_is_busy(monkeypatch):
    """Other processes have the cores for most of a call's time, as sleeping does here."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    stopwatch = gain._Stopwatch()
    assert stopwatch(lambda: time.sleep(0.05) or sum(range(100_000)), 3) < 0.05
    assert stopwatch(lambda: sum(range(100_000)), 3) > 0
    assert stopwatch.waited == 0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert stopwatch(lambda: time.sleep(0.05) or sum(range(100_000)), 3) > 0.05
    assert 0.5 < stopwatch.waited < 1


def test_a_busy_machine_gives_no_wrong_verdict():
    """With a process more than cores: whatever is said follows from both figures."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range((os.cpu_count() or 1) + 1)
    ]
    try:
        found = nt.estimate(network(), IMAGES)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    verdict, of_step = str(found).splitlines()[-1], 1 - found.converted / found.stock
    differ = abs(found.gain - of_step) > max(found.spread, gain.LEAST_GAIN)
    assert "none" in verdict or not (differ and found.gain * of_step < 0)


def test_errors():
    with pytest.raises(TypeError, match=r"^module: an int; allowed: a torch.nn.Module$"):
        nt.estimate(3)
    with pytest.raises(ValueError, match=r"^module: no result requires gradients; allowed in tr"):
        nt.estimate(torch.nn.BatchNorm1d(4, affine=False), torch.ones(3, 4))
