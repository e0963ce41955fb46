"""The description of a backend's schedule for code that runs it without Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Described(NamedTuple):
    """A schedule that a CPU's driver runs, or the launches of a GPU's kernels.

    Attributes:
        block: the driver's block without the addresses of tensors; empty for launches.
        steps: the driver's steps, or the launches.
        driver, parallel: the driver's address, and whether the schedule wants a team of threads.
        launch: the address of CUDA's function for launches.
        aligned: the lowest bits of the addresses of dy, x and dx that the launches are for.
    """

    block: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    driver: int = 0
    parallel: bool = False
    launch: int = 0
    aligned: int = 0
