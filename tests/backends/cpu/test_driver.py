"""Several threads are used only where that pays, and not while they wait for cores."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest
from common import make

import normgrad as ng
from normgrad.backends.cpu import teams
from normgrad.backends.cpu.kernels import driver
from normgrad.backends.cpu.schedule import block
from normgrad.backends.cpu.schedule import schedules as schedule

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "several"),
    [
        ((16, 8, 255), "contiguous", "float32", False),
        ((16, 8, 256), "contiguous", "bfloat16", True),
        ((16, 8, 129), "contiguous", "float64", True),
        ((16, 8, 12, 12), "sliced", "float32", True),
    ],
)
def test_brief_work_stays_on_the_calling_thread(shape, layout, dtype, several):
    """About 30 µs on one thread, in any dtype and layout."""
    tensors = make("train", shape, layout=layout, dtype=dtype).tensors
    plan = ng.plan("batch_norm_backward", **tensors, training=True)
    steps = [step.fields() for step in plan._schedule.steps]
    assert any(step[block.THREADS] for step in steps) is several
    assert max(step[block.TASKS] for step in steps) > 1  # tasks, and so the bits, are as before


@pytest.mark.parametrize(("length", "several"), [(1023, False), (1024, True)])
def test_worker_threads_are_for_longer_work(monkeypatch, length, several):
    """About 100 µs; those of PyTorch's are awake already."""
    monkeypatch.setattr(teams, "of_torch", lambda: None)
    monkeypatch.setattr(teams, "_start_workers", lambda count: count)
    x = np.ones((16, 8, length), np.float32)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    found, ready = [], teams.ready

    def record(for_workers):
        found.append(ready(for_workers))
        return teams.ALONE

    monkeypatch.setattr(teams, "ready", record)
    ng.set_num_threads(2)
    try:
        plan.run(x, x)
    finally:
        ng.set_num_threads(None)
    assert found == [teams.Team(0, 2) if several else teams.ALONE]


@pytest.fixture
def team():
    """The table of this thread's team of PyTorch's threads, as after its making."""
    pytest.importorskip("torch")
    x = np.ones((16, 16, 64, 64), np.float32)
    ng.set_num_threads(2)
    try:
        ng.batch_norm_backward(x, x, training=True)  # starts the threads
        found = teams.ready(True)
        if not found.address:
            pytest.skip("no threads of PyTorch's")
        table = np.ctypeslib.as_array(
            (ctypes.c_int64 * block.TEAM_FIELDS).from_address(found.address)
        )
        if table[block.CLOCK] == 0:
            pytest.skip("no clock")
        yield table
    finally:
        ng.set_num_threads(None)


def test_after_a_long_wait_the_calling_thread_works_alone(team, monkeypatch):
    """Patience is set below nothing, as if other programs kept the cores busy all the time."""
    x = np.random.default_rng(0).standard_normal((16, 16, 66, 66), dtype=np.float32)
    team[block.ALONE_UNTIL] = 0
    expected = ng.batch_norm_backward(x, x, training=True)
    monkeypatch.setattr(schedule, "PATIENCE", -(1 << 40))
    y = np.ascontiguousarray(x[:, :, :65])
    ng.batch_norm_backward(y, y, training=True)
    until = team[block.ALONE_UNTIL]
    now = time.clock_gettime_ns(driver.COARSE) // 10**6
    assert now - 1000 < until <= now + 1000 * driver.ALONE_FOR
    monkeypatch.undo()
    team[block.ALONE_UNTIL] = now + 10**6
    alone = ng.batch_norm_backward(x, x, training=True)
    assert team[block.ALONE_UNTIL] == now + 10**6  # no step has started threads
    team[block.ALONE_UNTIL] = 0
    for one, other in zip(alone, expected, strict=True):
        assert one.tobytes() == other.tobytes()
