"""Launches through CUDA's driver, without Triton's launcher.

Triton's launcher converts all arguments from Python objects at every launch. Here they are stored
in the form that the driver reads. A call writes only the stream, and the addresses, which all
launches of a program share.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from ...problem import OTHERS
from .launches import Launch

#: The values of the two parameters for scratch memory that Triton adds to every kernel.
_NO_SCRATCH = (0, 0)


class _Config(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


@cache
def launcher() -> Callable[..., int] | None:
    """The launch function of CUDA's driver library; None if there is none."""
    try:
        function: Any = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p,) * 4
    return function  # type: ignore[no-any-return]


def flat(arguments: Any) -> Iterator[int]:
    """The arguments of nested tuples, one by one."""
    for value in arguments:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield value


def suits(kernel: Any, launch: Launch) -> bool:
    """Whether a kernel can be launched with a :class:`Block`, and needs nothing else to run.

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
    taken = [*flat(launch.arguments), *_NO_SCRATCH]
    return (
        all(isinstance(word, int) for word in words)
        and not any(needs)
        and len(parameters) == len(taken)
        and {*parameters} <= {"u64", "b64", "s64"}
    )


class _Launch:
    """One launch in the form that the driver takes; it points to the addresses of a block."""

    def __init__(self, launch: Launch, kernel: Any, addresses: Any) -> None:
        words = [*flat(launch.arguments[1:]), *_NO_SCRATCH]
        constants = (ctypes.c_int64 * len(words))(*words)
        metadata = kernel.metadata
        self.config = _Config((launch.programs, 1, 1), (32 * metadata.num_warps, 1, 1))
        self.config.shared = metadata.shared
        where = [
            ctypes.addressof(array) + 8 * index
            for array in (addresses, constants)
            for index in range(len(array))
        ]
        parameters = (ctypes.c_void_p * len(where))(*where)
        self.asked = ctypes.addressof(self.config), kernel.function, ctypes.addressof(parameters)
        # The driver gets pointers to these arrays, so they must be kept alive.
        self._kept = constants, parameters, addresses


class Block:
    """The memory for the parameters of a program's launches, in use by one call at a time."""

    def __init__(self, launches: Sequence[tuple[Launch, Any]]) -> None:
        # The addresses are a kernel's first parameters: one per role, and the workspace's.
        self.addresses: Any = (ctypes.c_int64 * OTHERS)()
        self.launches = [_Launch(launch, kernel, self.addresses) for launch, kernel in launches]
