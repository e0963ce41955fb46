"""Entry tables whose plans a function of Python runs: what compiled code does with such a plan."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import normgrad as ng
from normgrad import devices, entries, native, plans
from normgrad.backends import choice
from normgrad.overlap import used
from normgrad.problem import PLACES, WORKSPACE, Role

from .support import INTERPRETED, bits, make, named

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(INTERPRETED, reason="the runs are the CPU's"),
]

SHAPE = (3, 4, 5, 6)
ALIGNMENT = 256


@pytest.fixture
def ran(monkeypatch):
    """The addresses of each run of a plan, which Python starts; the CPU's kernels compute.

    An exception in place of addresses is raised instead of a run.
    """
    seen = []
    inner = choice._Cpu.runner

    def runner(self, program, inputs, outputs):
        cpu = inner(self, program, inputs, outputs)

        def run(addresses):
            if seen and isinstance(seen[-1], BaseException):
                raise seen[-1]
            seen.append(list(addresses))
            cpu.run(addresses)

        size = program.workspace_size
        return entries.PythonRunner(run, inputs, outputs, devices.CPU, size, self.alignment)

    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(plans, "_ready", {})
    monkeypatch.setattr(choice._Cpu, "runner", runner)
    return seen


@pytest.fixture
def python_way(monkeypatch):
    """How many calls Python handled, since compiled code did not take them."""
    seen = []
    inner = plans.Plan.run_checked

    def watched(self, *arguments):
        seen.append(self.name)
        return inner(self, *arguments)

    monkeypatch.setattr(plans.Plan, "run_checked", watched)
    return seen


def in_torch(case):
    return {
        name: None if value is None else torch.from_numpy(value.copy())
        for name, value in case.tensors.items()
    }


def call(case, tensors, **more):
    return getattr(ng, case.name)(**tensors, **case.options, **more)


def raw(result):
    return {name: np.asarray(value).tobytes() for name, value in named(result).items()}


@pytest.mark.parametrize("kind", ["train", "eval", "group_norm", "reduce", "elemt"])
@pytest.mark.parametrize("to", [in_torch, lambda case: case.tensors])
def test_the_same_results_as_by_the_cpu_s_own_entry(ran, python_way, kind, to):
    case = make(kind, SHAPE, num_groups=2)
    expected = bits(case.call())
    tensors = to(case)
    python_way.clear()
    for _ in range(3):
        assert raw(call(case, tensors)) == expected
    assert len(python_way) == (1 if to is in_torch else 0)  # NumPy's call is that of `expected`
    assert ran


def test_running_statistics_are_updated_in_place(ran, python_way):
    case = make("train", SHAPE)
    x, w = torch.from_numpy(case.tensors["input"].copy()), torch.ones(4)
    found = []
    for _ in range(2):
        mean, var = torch.zeros(4), torch.ones(4)
        ng.batch_norm(x, w, w, mean, var, training=True, out=(None, None, None, mean, var))
        found.append((mean.clone(), var.clone()))
    assert all(map(torch.equal, *found))
    # On the CPU, outputs are probed by Python before they are written.
    assert len(python_way) == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("no launch"), KeyboardInterrupt(), SystemExit(3), TimeoutError("late")]
)
def test_a_run_that_fails_is_not_repeated(ran, python_way, error):
    """It may have written some of its results."""
    case = make("train", SHAPE)
    tensors = in_torch(case)
    call(case, tensors)
    runs = len(ran)
    ran.append(error)
    with pytest.raises(type(error)) as caught:
        call(case, tensors)
    assert caught.value is error
    assert (len(python_way), len(ran)) == (1, runs + 1)
    ran.clear()
    call(case, tensors)
    assert (len(python_way), len(ran)) == (1, 1)


def test_nothing_is_kept_alive(ran):
    case = make("train", SHAPE)
    tensors = in_torch(case)
    call(case, tensors)
    before = [sys.getrefcount(value) for value in (None, False, *tensors.values())]
    for _ in range(100):
        call(case, tensors)
    after = [sys.getrefcount(value) for value in (None, False, *tensors.values())]
    assert all(new - old < 50 for old, new in zip(before, after, strict=True))


def test_a_table_has_the_device():
    """Calls on another device have another signature, and workspaces there are refused."""
    table = entries.Entry([], [], "cuda:3", {}).table
    assert table[entries.DEVICE] == native.CUDA | 3 << 32
    assert entries.Entry([], [], devices.CPU, {}).table[entries.DEVICE] == native.CPU


class Called:
    """A plan of a batch norm's gradients on a GPU that is made up, as compiled code calls it.

    The addresses are made up, too: nothing reads them.
    """

    def __init__(self, monkeypatch):
        self.ran, self.allocated = [], []
        x, w = np.ones(SHAPE, np.float32), np.ones(4, np.float32)
        names = {"grad_out": x, "input": x, "weight": w}
        plan = ng.plan("batch_norm_backward", **names, training=True)
        self.size = 1000
        monkeypatch.setattr(entries, "scratch", self.scratch)
        self.runner = entries.PythonRunner(
            self.ran.append, plan._inputs, plan._outputs, "cuda:1", self.size, ALIGNMENT
        )
        self.bytes = {place.slot: place.high for place in (*plan._inputs, *plan._outputs) if place}

    def scratch(self, size, alignment, workspace, device):
        assert (alignment, workspace, device) == (ALIGNMENT, None, "cuda:1")
        self.allocated.append(size)
        return 1 << 20, "its owner"

    def __call__(self, given=(), **moved):
        """The answer for outputs of the caller's, at other addresses than their own."""
        addresses = np.zeros(PLACES, np.int64)
        for slot in self.bytes:
            addresses[slot] = (slot + 1) << 12
        for name, address in moved.items():
            addresses[WORKSPACE if name == "WORKSPACE" else Role[name]] = address
        slots = sum(1 << (WORKSPACE if name == "WORKSPACE" else Role[name]) for name in given)
        return self.runner.answer(addresses.ctypes.data, slots, slots)

    def at(self, name):
        return (Role[name] + 1) << 12


@pytest.fixture
def called(monkeypatch):
    return Called(monkeypatch)


def test_a_workspace_is_allocated_where_none_is_given(called):
    assert called() is None
    assert called.allocated == [called.size]
    assert called.ran[0][WORKSPACE] == 1 << 20
    assert called(["WORKSPACE"], WORKSPACE=1 << 30) is None
    assert called.allocated == [called.size]
    assert called.ran[1][WORKSPACE] == 1 << 30


def test_outputs_may_lie_side_by_side_but_not_overlap(called):
    inside = called.at("INPUT")
    end = inside + called.bytes[Role.INPUT]
    taken = called.bytes[Role.GRAD_BIAS]
    for address, answer in (
        (end, None),
        (end - 4, False),
        (inside - taken, None),
        (inside - taken + 4, False),
    ):
        assert called(["GRAD_BIAS"], GRAD_BIAS=address) is answer, address
    # An output of this call's own making is new memory.
    assert called([], GRAD_BIAS=end - 4) is None


def test_dx_may_be_x_or_dy_and_nothing_else(called):
    assert called(["RESULT"], RESULT=called.at("INPUT")) is None
    assert called(["RESULT"], RESULT=called.at("GRAD_OUT")) is None
    assert called(["RESULT"], RESULT=called.at("INPUT") + 4) is False
    assert called(["RESULT"], RESULT=called.at("WEIGHT")) is False


def test_a_workspace_overlaps_nothing(called):
    end = called.at("INPUT") + called.bytes[Role.INPUT]
    assert called(["WORKSPACE"], WORKSPACE=end) is None
    assert called(["WORKSPACE"], WORKSPACE=end - 1) is False
    taken = used(called.size, ALIGNMENT)
    assert called(["RESULT"], RESULT=1 << 30, WORKSPACE=(1 << 30) - taken) is None
    assert called(["RESULT"], RESULT=1 << 30, WORKSPACE=(1 << 30) - taken + 1) is False
    assert len(called.ran) == 2


@pytest.mark.parametrize("name", ["INPUT", "WEIGHT", "RESULT"])
@pytest.mark.parametrize("address", [0, (1 << 20) + 2])
def test_what_has_no_memory_or_lies_askew_is_refused(called, name, address):
    """An access to either would end all work on a GPU."""
    assert called([], **{name: address}) is False
    assert called.ran == []
