"""A device that is none, and a run that nobody measured."""

import time

import pytest
from measuring.results import ON_GPU, Results, facts

DEVICE_FACTS = {
    **{"gpu": "NVIDIA H200", "compute_capability": "9.0", "multiprocessors": "132"},
    **{"memory_bytes": str(141 << 30), "driver": "570.1", "cuda": "12.8", "cudnn": "91002"},
    "triton": "3.9.0",
}


class FakeDevice:
    """The CPU, under the name that makes tensors there."""

    kind, name = "cuda", "cpu"
    l2 = 64 << 10

    def __init__(self):
        self.facts = {**DEVICE_FACTS, "cache_bytes": str(self.l2)}

    def copies(self, tensor_bytes):
        from measuring import device

        return device.copies(tensor_bytes, self.l2, 1 << 30)

    def seconds(self, call, count):
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count


@pytest.fixture
def fake():
    return FakeDevice


@pytest.fixture
def row(row):
    """A row that was measured on a GPU."""
    return lambda *what, **how: row(*what, threads=ON_GPU, **how)


@pytest.fixture
def results():
    def make(*rows):
        common = facts("Some CPU", "normgrad bench --device cuda", 50 << 20)
        return Results({**common, **DEVICE_FACTS}, rows)

    return make
