"""The policy of the CPU backend on machines of every size. Nothing is computed here."""

from __future__ import annotations

from unittest import mock

import pytest

import normgrad as ng
from normgrad.backends import choice
from normgrad.backends.cpu.schedule import block
from normgrad.backends.cpu.schedule import schedules as schedule
from normgrad.backends.cpu.schedule.policy import MOST_TASKS, Policy, policy_of
from normgrad.plans import calls
from normgrad.support.machine import Machine

MIB = 1 << 20
#: A laptop, a desktop, a small part of a server, half a server and a whole one.
MACHINES = (
    Machine(2, MIB // 2, 8 * MIB),
    Machine(8, MIB, 32 * MIB),
    Machine(4, 2 * MIB, 480 * MIB),
    Machine(64, MIB, 256 * MIB),
    Machine(128, 2 * MIB, 480 * MIB),
)
SHAPES = ((2, 8, 4, 4), (32, 64, 56, 56), (8, 3, 224, 224), (256, 512, 14, 14), (64, 50257))
KINDS = ("batch_norm_backward", "batch_norm", "group_norm_backward")


def planned(machine: Machine, kind: str, shape: tuple[int, ...], last: bool = False):
    """The schedule of a plan for float32 tensors on a machine."""
    strides = None
    if last and len(shape) == 4:
        _, c, h, w = shape
        strides = (h * w * c, 1, w * c, c)
    tensor = ng.TensorSpec(shape, "float32", strides)
    options = {"num_groups": shape[1]} if kind.startswith("group") else {"training": True}
    tensors = {"input": tensor} | ({"grad_out": tensor} if kind.endswith("backward") else {})
    if kind.startswith("group"):
        statistic = ng.TensorSpec((shape[0], shape[1]), "float32")
        tensors |= {"mean": statistic, "rstd": statistic}
    with (
        mock.patch.object(choice, "this_machine", return_value=machine),
        mock.patch.dict(calls._plans, clear=True),
    ):
        return ng.plan(kind, **tensors, **options)._schedule


#: The block's fields that say how memory is used, rather than what is added to what.
OF_MEMORY = (block.STREAM, block.AHEAD, block.NEXT, block.MOST_THREADS)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_decides_no_order_of_additions(kind, shape, last):
    def order(machine):
        found = planned(machine, kind, shape, last)
        words = [word for field, word in enumerate(found.block()) if field not in OF_MEMORY]
        return words, [step.fields() for step in found.steps]

    first = order(MACHINES[0])
    assert all(order(machine) == first for machine in MACHINES[1:])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
def test_large_tensors_have_tasks_for_all_cores(machine, last):
    found = planned(machine, "batch_norm_backward", (256, 256, 56, 56), last)
    tasks = [step.cut.tasks for step in found.steps if step.sums or step.write]
    assert all(machine.cores <= count <= 2 * MOST_TASKS for count in tasks)


def test_tasks_grow_with_the_elements_up_to_a_limit():
    policy = Policy()
    assert [policy.most_tasks(1 << power) for power in (10, 24, 25, 26, 40)] == [
        *(64, 64, 128, MOST_TASKS, MOST_TASKS)
    ]


@pytest.mark.parametrize(
    ("machine", "kept", "streamed", "near"),
    [
        (MACHINES[0], 8, 4, True),
        (MACHINES[1], 32, 16, True),
        (MACHINES[2], 32, 4 / 3, False),  # these cores' share of the L3, and two thirds of an L2
        (MACHINES[3], 256, 128, True),
        (MACHINES[4], 480, 240, True),
    ],
)
def test_thresholds_of_memory_follow_the_caches(machine, kept, streamed, near):
    policy = policy_of(machine)
    assert (policy.cache, policy.near_l3) == (kept * MIB, near)
    assert policy.streamed == int(streamed * MIB)
    assert policy.fetched == kept * MIB // 2


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("share", [0.9, 1.1, 1.9, 2.1])
def test_threads_that_stream(machine, share):
    """One from the threshold on; all of them from twice as much on, beside an L3 of their own."""
    policy = policy_of(machine)
    channels = 64
    samples = int(share * policy.streamed) // (8 * channels * 32 * 32)
    found = planned(machine, "batch_norm_backward", (max(1, samples), channels, 32, 32))
    read = 8 * found.layout.elements
    whole = read // policy.streamed
    expected = schedule.EVERY_THREAD if policy.near_l3 and whole > 1 else whole
    assert found.block()[block.STREAM] == expected
    if samples > 8:
        assert whole == int(share)


def test_a_policy_has_at_most_twenty_thresholds():
    assert len(Policy.__dataclass_fields__) <= 20
