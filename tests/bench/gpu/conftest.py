"""A device that is none, and rows that nobody measured."""

import time

import pytest

from normgrad.bench.gpu.results import Results, Row, facts
from normgrad.bench.gpu.timing import EVENTS, GRAPH
from normgrad.bench.suite import Case, Layout, Operator, spelled

DEVICE_FACTS = {
    **{"gpu": "NVIDIA H200", "compute_capability": "9.0", "multiprocessors": "132"},
    **{"memory_bytes": str(141 << 30), "l2_bytes": str(50 << 20), "driver": "570.1"},
    **{"cuda": "12.8", "cudnn": "91002"},
}


class FakeDevice:
    """The CPU, under the name that makes tensors there; "graphs" are the calls themselves."""

    name = "cpu"
    l2 = 64 << 10

    def __init__(self, torch=None, free=1 << 30, captures=True):
        self.facts = {**DEVICE_FACTS, "l2_bytes": str(self.l2)}
        self._torch, self._free, self._captures = torch, free, captures
        self.profiles = 0

    def free(self):
        return self._free

    def copy(self):
        source = self._torch.ones(1 << 20, dtype=self._torch.uint8)
        target = self._torch.empty_like(source)
        return lambda: target.copy_(source), 2 << 20

    def seconds(self, work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def capture(self, work):
        if not self._captures:
            raise RuntimeError("not while a stream is captured\nmore words")
        work()
        return work

    def profiled(self, call):
        self.profiles += 1
        call()


def make_rows(
    operator=Operator.TRAIN,
    shape=(256, 256, 56, 56),
    *,
    dtype="float32",
    layout=Layout.CONTIGUOUS,
    ours=100.0,
    others=None,
    copy=80.0,
    events=None,
    timings=(EVENTS, GRAPH),
):
    """A case's rows: ours takes so many µs, others (by name) as long as they say; the copy moves
    the same bytes. ``events`` are ours and torch's with their launching."""
    groups = 4 if operator.value.endswith("group-norm") else 0
    case = Case(operator, shape, dtype, "float32", layout, groups)
    others = {"aten::a, b": 2 * ours} if others is None else others
    times = {"ours": ours, **others, "copy": copy}
    if not operator.value.startswith("layer"):
        times |= {"out": ours, "plan": ours}
    return [
        Row(
            case=case.id,
            operator=operator.value,
            shape=spelled(shape),
            dtype=dtype,
            parameters="float32",
            layout=layout.value,
            groups=groups,
            elements=case.elements,
            contender=name,
            timing=timing,
            t_us=(events or {}).get(name, us) if timing == EVENTS else us,
            spread=0.01,
            rounds=5,
            calls=10,
            copies=2,
            rotated_bytes=2 * case.bytes,
            bytes=case.bytes,
            path="rows" if name in ("ours", "out", "plan") else "",
        )
        for name, us in times.items()
        for timing in timings
    ]


def make_results(*cases):
    rows = tuple(row for case in cases for row in case)
    return Results(facts(DEVICE_FACTS, "Some CPU", "normgrad bench --device cuda"), rows)


@pytest.fixture
def rows():
    return make_rows


@pytest.fixture
def results():
    return make_results


@pytest.fixture
def fake():
    return FakeDevice
