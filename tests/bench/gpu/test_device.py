"""What is said where there is no device; the rest needs one."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from measuring import device
from measuring.results import GPU_FACTS


def torch_of(cuda, available=False):
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(is_available=lambda: available),
    )


@pytest.mark.parametrize(
    ("torch", "why"),
    [
        (torch_of(None), "PyTorch 2.13.0 is built without CUDA"),
        (torch_of("12.8"), "PyTorch 2.13.0 (CUDA 12.8) finds no CUDA device"),
        (torch_of("12.8", available=True), None),
    ],
)
def test_missing(monkeypatch, torch, why):
    monkeypatch.setattr(device, "torch", torch)
    assert device.missing() == why


def test_the_driver(monkeypatch):
    def smi(command, **options):
        assert command[0] == "nvidia-smi"
        return SimpleNamespace(stdout="570.172.08\n570.172.08\n")

    monkeypatch.setattr(device.subprocess, "run", smi)
    assert device._driver() == "570.172.08"

    def gone(command, **options):
        raise FileNotFoundError

    monkeypatch.setattr(device.subprocess, "run", gone)
    assert device._driver() == "unknown"


@pytest.fixture
def recorded(monkeypatch):
    """A torch whose CUDA says what was asked of it."""
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait")

        def elapsed_time(self, other):
            return 5.0

    cuda = SimpleNamespace(
        Event=Event,
        current_device=lambda: 0,
        get_device_properties=lambda index: SimpleNamespace(
            name="NVIDIA H200",
            major=9,
            minor=0,
            multi_processor_count=132,
            total_memory=1 << 37,
            L2_cache_size=50 << 20,
        ),
        synchronize=lambda: log.append("synchronize"),
        empty_cache=lambda: log.append("empty"),
        mem_get_info=lambda: (1 << 36, 1 << 37),
    )
    torch = SimpleNamespace(
        cuda=cuda,
        version=SimpleNamespace(cuda="12.8"),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002)),
    )
    monkeypatch.setattr(device, "torch", torch)
    return log


def test_a_device(recorded):
    log = recorded
    found = device.Cuda()
    assert tuple(found.facts) == (*GPU_FACTS, "cache_bytes")
    assert (found.l2, found.facts["compute_capability"]) == (50 << 20, "9.0")
    assert found.copies(1 << 35) == 1  # of four tensors in half of 1 << 36 bytes
    assert log == ["synchronize", "empty"]
    log.clear()
    # 5 ms for two calls.
    assert found.seconds(lambda: log.append("work"), 2) == 2.5e-3
    assert log == ["record", "work", "work", "record", "wait"]


def test_results_are_kept_until_the_end(recorded):
    """Or each call would write where the one before did."""
    alive, most = set(), []

    class Result:
        def __init__(self):
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    device.Cuda().seconds(Result, 4)
    assert max(most) == 4
    assert not alive
