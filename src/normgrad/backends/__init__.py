"""The backends, each of which turns a :class:`.declarations.problem.Problem` into a schedule."""

from __future__ import annotations

from typing import NamedTuple


class NativeSchedule(NamedTuple):
    """A schedule in the form in which code runs it without Python.

    Attributes:
        block: the block of a CPU's driver, without the addresses of tensors; empty on a GPU.
        steps: the driver's steps, or the launches of a GPU's kernels, one after the other.
        step_count: the number of steps or launches.
        driver, parallel: the driver's address, and whether the schedule wants a team of threads.
        launcher: the address of what launches need, as in the Triton backend's cuda_driver.py.
    """

    block: list[int]
    steps: list[int]
    step_count: int
    driver: int = 0
    parallel: bool = False
    launcher: int = 0
