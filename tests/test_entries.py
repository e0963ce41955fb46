"""Entry tables whose plans a function of Python runs: what compiled code does with such a plan."""

from __future__ import annotations

import sys
from functools import cache

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
    from normgrad.backends.cpu import runtime

    seen = []
    inner = choice._Cpu.runner

    def runner(self, program, inputs, outputs):
        cpu = inner(self, program, inputs, outputs)

        class Runner(entries.PythonRunner):
            def run(self, addresses, done=0):
                start(addresses)

        def start(addresses):
            if seen and isinstance(seen[-1], BaseException):
                raise seen[-1]
            seen.append(list(addresses))
            cpu.run(addresses)

        size = program.workspace_size
        return Runner(inputs, outputs, devices.CPU, size, self.alignment, runtime.launch())

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
    assert len(python_way) == 1


@pytest.mark.parametrize("to", [in_torch, lambda case: case.tensors])
def test_a_workspace_is_made_where_none_is_given(ran, python_way, to):
    case = make("group_norm", (4, 64, 5, 6), num_groups=2)
    tensors = to(case)
    plan = ng.plan(case.name, **tensors, **case.options)
    assert plan.workspace_size > 0
    own = np.zeros(plan.workspace_size, np.uint8)
    expected = raw(plan.run(**tensors))
    for workspace in (None, own, None):
        assert raw(plan.run(**tensors, workspace=workspace)) == expected
        place = ran[-1][WORKSPACE]
        assert place > 0
        assert place % 64 == 0
        assert (own.ctypes.data <= place < own.ctypes.data + own.nbytes) == (workspace is own)
    # The workspace is probed for read-only pages when it is first seen.
    assert len(python_way) == 1


def test_without_a_compiled_function_python_handles_all_calls(ran, python_way, monkeypatch):
    monkeypatch.setattr("normgrad.backends.cpu.runtime.launch", lambda: 0)
    case = make("train", SHAPE)
    first = raw(case.call())
    for calls in (2, 3):
        assert raw(case.call()) == first
        assert len(python_way) == calls


def test_without_memory_for_a_workspace(ran, python_way, monkeypatch):
    """Python makes another attempt, and raises the error."""
    case = make("group_norm", (4, 64, 5, 6), num_groups=2)

    def full(like):
        raise MemoryError("full")

    monkeypatch.setattr(entries, "model", lambda size, device: (full, None))
    for calls in (1, 2):
        assert raw(case.call()) == raw(case.call())
        assert len(python_way) == 2 * calls


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

    def device(name):
        return entries.Entry([], [], name, 0, 1, {}).table[entries.DEVICE]

    assert device("cuda:3") == native.CUDA | 3 << 32
    assert device(devices.CPU) == native.CPU


@cache
def checked():
    """The compiled alias check as a function of Python's."""
    import numba

    from normgrad.backends.cpu.alias_check import passes
    from normgrad.backends.cpu.intrinsics import integers_at

    return numba.njit(
        lambda plan, given, unprobed, places: passes(plan, given, unprobed, integers_at(places))
    )


class Called:
    """A plan of a batch norm's gradients on a GPU that is made up, as compiled code checks it.

    The addresses are made up, too: nothing reads them.
    """

    def __init__(self):
        x, w = np.ones(SHAPE, np.float32), np.ones(4, np.float32)
        names = {"grad_out": x, "input": x, "weight": w}
        plan = ng.plan("batch_norm_backward", **names, training=True)
        self.size = 1000
        self.table = entries.Entry(
            plan._inputs, plan._outputs, "cuda:1", self.size, ALIGNMENT, {}
        ).table
        self.bytes = {place.slot: place.high for place in (*plan._inputs, *plan._outputs) if place}

    def __call__(self, given=(), **moved):
        """Whether the plan may run, with outputs of the caller's at other addresses."""
        addresses = np.zeros(PLACES, np.int64)
        for slot in self.bytes:
            addresses[slot] = (slot + 1) << 12
        for name, address in moved.items():
            addresses[WORKSPACE if name == "WORKSPACE" else Role[name]] = address
        slots = sum(1 << (WORKSPACE if name == "WORKSPACE" else Role[name]) for name in given)
        return checked()(self.table.ctypes.data, slots, slots, addresses.ctypes.data)

    def at(self, name):
        return (Role[name] + 1) << 12


@pytest.fixture
def called():
    return Called()


def test_outputs_may_lie_side_by_side_but_not_overlap(called):
    inside = called.at("INPUT")
    end = inside + called.bytes[Role.INPUT]
    taken = called.bytes[Role.GRAD_BIAS]
    for address, answer in (
        (end, True),
        (end - 4, False),
        (inside - taken, True),
        (inside - taken + 4, False),
    ):
        assert called(["GRAD_BIAS"], GRAD_BIAS=address) is answer, address
    # An output of this call's own making is new memory.
    assert called([], GRAD_BIAS=end - 4)


def test_dx_may_be_x_or_dy_and_nothing_else(called):
    assert called(["RESULT"], RESULT=called.at("INPUT"))
    assert called(["RESULT"], RESULT=called.at("GRAD_OUT"))
    assert not called(["RESULT"], RESULT=called.at("INPUT") + 4)
    assert not called(["RESULT"], RESULT=called.at("WEIGHT"))


def test_a_workspace_overlaps_nothing(called):
    end = called.at("INPUT") + called.bytes[Role.INPUT]
    assert called(["WORKSPACE"], WORKSPACE=end)
    assert not called(["WORKSPACE"], WORKSPACE=end - 1)
    taken = used(called.size, ALIGNMENT)
    assert called(["RESULT"], RESULT=1 << 30, WORKSPACE=(1 << 30) - taken)
    assert not called(["RESULT"], RESULT=1 << 30, WORKSPACE=(1 << 30) - taken + 1)


@pytest.mark.parametrize("name", ["INPUT", "WEIGHT", "RESULT"])
@pytest.mark.parametrize("address", [0, (1 << 20) + 2])
def test_what_has_no_memory_or_lies_askew_is_refused(called, name, address):
    """An access to either would end all work on a GPU."""
    assert not called([], **{name: address})
