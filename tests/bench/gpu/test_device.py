"""What is said where there is no device; the rest needs one."""

from types import SimpleNamespace

import pytest

from normgrad.bench.gpu import device


def torch_of(cuda, available=False):
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(is_available=lambda: available),
    )


def test_missing():
    assert device.missing(torch_of(None)) == "PyTorch 2.13.0 is built without CUDA"
    assert device.missing(torch_of("12.8")) == "PyTorch 2.13.0 (CUDA 12.8) finds no CUDA device"
    assert device.missing(torch_of("12.8", available=True)) is None


def test_the_driver(monkeypatch, tmp_path):
    def smi(command, **options):
        assert command[0] == "nvidia-smi"
        return SimpleNamespace(stdout="570.172.08\n570.172.08\n")

    monkeypatch.setattr(device.subprocess, "run", smi)
    assert device._driver() == "570.172.08"

    def gone(command, **options):
        raise FileNotFoundError

    monkeypatch.setattr(device.subprocess, "run", gone)
    version = tmp_path / "version"
    monkeypatch.setattr(device, "_VERSION", version)
    assert device._driver() == "unknown"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri\nGCC 12\n")
    assert device._driver() == "550.90.07"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1.2  Sat\n")
    assert device._driver() == "580.1.2"


@pytest.fixture
def recorded():
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
            return 2.5

    def stream():
        return SimpleNamespace(wait_stream=lambda other: log.append("after"))

    class Within:
        def __init__(self, what):
            self.what = what

        def __enter__(self):
            log.append(self.what)

        def __exit__(self, *error):
            log.append(f"end {self.what}")

    cuda = SimpleNamespace(
        graph_pool_handle=lambda: "pool",
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
        Stream=stream,
        current_stream=stream,
        stream=lambda stream: Within("stream"),
        graph=lambda graph, pool, stream: Within(f"graph in {pool}"),
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: log.append("replay")),
        profiler=SimpleNamespace(
            start=lambda: log.append("start"), stop=lambda: log.append("stop")
        ),
    )
    torch = SimpleNamespace(
        cuda=cuda,
        version=SimpleNamespace(cuda="12.8"),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002)),
    )
    return torch, log


def test_a_device(recorded):
    from normgrad.bench.gpu.results import DEVICE_FACTS

    torch, log = recorded
    found = device.Device(torch)
    assert tuple(found.facts) == DEVICE_FACTS
    assert (found.l2, found.facts["compute_capability"]) == (50 << 20, "9.0")
    assert found.free() == 1 << 36
    log.clear()
    assert found.seconds(lambda: log.append("work")) == 2.5e-3
    assert log == ["synchronize", "record", "work", "record", "wait"]
    log.clear()
    replay = found.capture(lambda: log.append("work"))
    # Once outside, on the same stream, where what compiles may compile.
    assert log == [
        *("after", "stream", "work", "end stream", "after"),
        *("graph in pool", "work", "end graph in pool"),
    ]
    log.clear()

    def fail():
        if log[-1].startswith("graph"):
            raise RuntimeError("not permitted")

    torch.cuda.graph_pool_handle = lambda: "another pool"
    with pytest.raises(RuntimeError, match="not permitted"):
        found.capture(fail)
    found.capture(lambda: None)
    assert log[-1] == "end graph in another pool"
    log.clear()
    replay()
    found.profiled(lambda: log.append("work"))
    assert log == ["replay", "synchronize", "start", "work", "synchronize", "stop"]
