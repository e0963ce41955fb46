"""Measure the thresholds of the CPU backend's policy again, on the machine at hand.

    python benchmarks/policy.py [--only NAME] [--cases COUNT] [--threads COUNT]

For each threshold it tries values below and above the chosen one, on the suite's cases whose plans
then differ, alternating in one process. A row has a threshold, a value, how many cases differ, the
geometric mean of their times over those with the chosen value, then the best and the worst case.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import statistics
from collections.abc import Iterator
from unittest import mock

import torch
from measuring import contenders, data
from measuring.suite import Case, Part, suite

import normgrad
from normgrad.backends.cpu.schedule import schedules as schedule
from normgrad.backends.cpu.schedule.policy import Policy, policy_of
from normgrad.bench import timing
from normgrad.support.machine import this_machine

#: What a threshold is multiplied by.
FACTORS = (0.25, 0.5, 2, 4)
#: The seconds after which a case has no more turns.
SECONDS = 0.5
PARTS = (Part.GRADIENTS, Part.FORWARD, Part.ROWS)
#: The policy of this machine.
CHOSEN = policy_of(this_machine())


def cases() -> list[Case]:
    """The suite's cases with a plan, in an order that mixes operators, shapes and layouts."""
    found = [case for case in suite() if case.part in PARTS]
    random.Random(0).shuffle(found)
    return found


def plan_with(case: Case, given: data.Data, chosen: Policy) -> normgrad.Plan:
    """A case's plan under a policy."""
    with mock.patch.object(schedule, "policy_of", return_value=chosen):
        plan = contenders.planned(case, given)
        plan._schedule.block()  # makes what a plan makes late
    return plan


def decided(plan: normgrad.Plan) -> object:
    """What a policy decides of a plan: its block and its steps."""
    program = plan._schedule
    return program.block(), [step.fields() for step in program.steps], plan.path


def alternatives(name: str) -> Iterator[tuple[float, Policy]]:
    """The other values of a threshold, and the policy with each."""
    value = getattr(CHOSEN, name)
    others = [not value] if isinstance(value, bool) else [int(value * each) for each in FACTORS]
    for other in others:
        yield other, dataclasses.replace(CHOSEN, **{name: other})


def measured(name: str, most: int) -> dict[float, dict[str, float]]:
    """For each other value of a threshold, the ratios of the times of up to ``most`` cases."""
    found: dict[float, dict[str, float]] = {value: {} for value, _ in alternatives(name)}
    for case in cases():
        given = data.make(case)
        chosen = plan_with(case, given, CHOSEN)
        for value, other in alternatives(name):
            tried = plan_with(case, given, other)
            if len(found[value]) < most and decided(tried) != decided(chosen):
                both = {"chosen": chosen, "tried": tried}
                calls = {key: contenders.ours(case, given, both[key])["plan"] for key in both}
                medians = timing.measure(calls, SECONDS).medians
                found[value][case.id] = medians["tried"] / medians["chosen"]
        if all(len(ratios) == most for ratios in found.values()):
            break
    return found


def main() -> None:
    """Measure and print a table in Markdown, threshold by threshold."""
    names = [field.name for field in dataclasses.fields(Policy)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=names, help="measure only this threshold")
    parser.add_argument(
        "--cases", type=int, default=12, help="the largest number of cases for a value"
    )
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    normgrad.set_num_threads(given.threads)
    torch.set_num_threads(given.threads)
    print("| threshold | chosen | tried | cases | time over chosen | best | worst |")
    print("| --- | ---: | ---: | ---: | ---: | --- | --- |")
    for name in [given.only] if given.only else names:
        for value, ratios in measured(name, given.cases).items():
            row = [name, getattr(CHOSEN, name), value, len(ratios)]
            if ratios:
                mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
                ends = (min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__))
                row += [f"{mean:.2f}", *(f"{ratios[end]:.2f} {end}" for end in ends)]
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
