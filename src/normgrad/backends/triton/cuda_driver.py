"""Launches in the form that CUDA's driver reads."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...problem import OTHERS
from .launches import Launch

# A launch: the driver's CUlaunchConfig, of which the first fields are the launch's and
# CONFIG_STREAM is the call's; the kernel's handle; and the parameters after the addresses.
CONFIG_STREAM, CONFIG_FIELDS = 4, 7
KERNEL, CONSTANT_COUNT, CONSTANTS = range(CONFIG_STREAM, CONFIG_STREAM + 3)
PARAMETERS_MAX = 160
LAUNCH_FIELDS = CONSTANTS + PARAMETERS_MAX
#: The number of the lowest bits of dy's, x's and dx's addresses that kernels are compiled for.
ALIGNED_BITS = 4

#: The values of the two parameters for scratch memory that Triton adds to every kernel.
_NO_SCRATCH = (0, 0)


@cache
def function() -> int | None:
    """The address of CUDA's function that launches a kernel; None where there is none."""
    try:
        library: Any = ctypes.CDLL("libcuda.so.1")
        return ctypes.cast(library.cuLaunchKernelEx, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def flat(arguments: Any) -> Iterator[int]:
    """The arguments of nested tuples, one by one."""
    for value in arguments:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield value


def suits(kernel: Any, launch: Launch) -> bool:
    """Whether a kernel can be launched with :func:`steps`, and needs nothing else to run.

    The answer is False if another version of Triton describes its kernels in another way.
    """
    try:
        metadata = kernel.metadata
        needs = (
            metadata.global_scratch_size,
            metadata.profile_scratch_size,
            metadata.launch_cooperative_grid,
            metadata.launch_pdl,
            metadata.num_ctas != 1,
        )
        _, _, ptx = kernel.asm["ptx"].partition(".entry")
        words = kernel.function, metadata.shared, metadata.num_warps
    except (AttributeError, KeyError):
        return False
    parameters = re.findall(r"\.param\s+\.(\w+)", ptx.partition(")")[0])
    arguments = [*flat(launch.arguments), *_NO_SCRATCH]
    return (
        all(isinstance(word, int) for word in words)
        and not any(needs)
        and len(parameters) == len(arguments) <= PARAMETERS_MAX
        and {*parameters} <= {"u64", "b64", "s64"}
    )


def steps(launches: Sequence[tuple[Launch, Any]]) -> npt.NDArray[np.int64]:
    """The launches of kernels that suit, as rows of the fields above."""
    rows = np.zeros((len(launches), LAUNCH_FIELDS), np.int64)
    for row, (launch, kernel) in zip(rows, launches, strict=True):
        metadata = kernel.metadata
        config = row[:CONFIG_STREAM].view(np.uint32)
        config[:7] = launch.programs, 1, 1, 32 * metadata.num_warps, 1, 1, metadata.shared
        # The addresses come first, as the driver's parameters.
        constants = [*flat(launch.arguments), *_NO_SCRATCH][OTHERS:]
        row[KERNEL], row[CONSTANT_COUNT] = kernel.function, len(constants)
        row[CONSTANTS : CONSTANTS + len(constants)] = constants
    return rows
