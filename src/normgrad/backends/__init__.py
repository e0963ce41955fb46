"""The backends, each of which turns a :class:`~normgrad.problem.Problem` into a schedule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class NativeSchedule(NamedTuple):
    """A schedule in the form in which code runs it without Python.

    Attributes:
        block: the block of a CPU's driver, without the addresses of tensors; empty on a GPU.
        steps: the driver's steps, or the launches of a GPU's kernels.
        driver, parallel: the driver's address, and whether the schedule wants a team of threads.
        launch: the address of CUDA's function for launches.
    """

    block: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    driver: int = 0
    parallel: bool = False
    launch: int = 0
