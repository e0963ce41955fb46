"""Entry tables whose plans a function of Python runs: what compiled code does with such a plan."""

from __future__ import annotations

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


def test_what_raises_is_raised_by_python_s_own_way(ran, python_way):
    case = make("train", SHAPE)
    tensors = in_torch(case)
    call(case, tensors)
    ran.append(RuntimeError("no launch"))
    with pytest.raises(RuntimeError, match=r"^no launch$"):
        call(case, tensors)
    assert len(python_way) == 2
    ran.clear()
    call(case, tensors)
    assert len(python_way) == 2


def test_an_interrupt_is_not_lost(ran):
    case = make("train", SHAPE)
    tensors = in_torch(case)
    call(case, tensors)
    ran.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        call(case, tensors)
    ran.clear()
    call(case, tensors)


def test_a_call_on_another_device_is_no_known_one():
    """A table has the device in its signature, and of a workspace too."""
    table = entries.Entry([], [], "cuda:3", {}).table
    assert table[entries.DEVICE] == native.CUDA | 3 << 32
    assert entries.Entry([], [], devices.CPU, {}).table[entries.DEVICE] == native.CPU


class Called:
    """A table for a batch norm's gradients on a GPU that is made up, and its driver.

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
        """The driver's answer for outputs of the caller's at other addresses than their own."""
        addresses = np.zeros(PLACES, np.int64)
        for slot in self.bytes:
            addresses[slot] = (slot + 1) << 12
        for name, address in moved.items():
            addresses[WORKSPACE if name == "WORKSPACE" else Role[name]] = address
        slots = sum(1 << (WORKSPACE if name == "WORKSPACE" else Role[name]) for name in given)
        drive = entries.Drive(int(self.runner.table[entries.DRIVE]))
        return drive(0, 0, 1, slots, slots, addresses.ctypes.data)

    def at(self, name):
        return (Role[name] + 1) << 12


@pytest.fixture
def called(monkeypatch):
    return Called(monkeypatch)


def test_a_workspace_is_allocated_where_none_is_given(called):
    assert called() == 0
    assert called.allocated == [called.size]
    assert called.ran[0][WORKSPACE] == 1 << 20
    assert called(["WORKSPACE"], WORKSPACE=1 << 30) == 0
    assert called.allocated == [called.size]
    assert called.ran[1][WORKSPACE] == 1 << 30


def test_outputs_may_lie_side_by_side_but_not_overlap(called):
    inside = called.at("INPUT")
    end = inside + called.bytes[Role.INPUT]
    taken = called.bytes[Role.GRAD_BIAS]
    for address, status in ((end, 0), (end - 1, 1), (inside - taken, 0), (inside - taken + 1, 1)):
        assert called(["GRAD_BIAS"], GRAD_BIAS=address) == status, address
    # An output of this call's own making is new memory.
    assert called([], GRAD_BIAS=end - 1) == 0


def test_dx_may_be_x_or_dy_and_nothing_else(called):
    assert called(["RESULT"], RESULT=called.at("INPUT")) == 0
    assert called(["RESULT"], RESULT=called.at("GRAD_OUT")) == 0
    assert called(["RESULT"], RESULT=called.at("INPUT") + 4) == 1
    assert called(["RESULT"], RESULT=called.at("WEIGHT")) == 1


def test_a_workspace_overlaps_nothing(called):
    end = called.at("INPUT") + called.bytes[Role.INPUT]
    assert called(["WORKSPACE"], WORKSPACE=end) == 0
    assert called(["WORKSPACE"], WORKSPACE=end - 1) == 1
    taken = used(called.size, ALIGNMENT)
    assert called(["RESULT"], RESULT=1 << 30, WORKSPACE=(1 << 30) - taken) == 0
    assert called(["RESULT"], RESULT=1 << 30, WORKSPACE=(1 << 30) - taken + 1) == 1
    assert len(called.ran) == 2
