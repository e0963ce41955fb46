"""Launches in the form that CUDA's driver reads, and the functions of the driver that make them.

A launch makes the device's context the thread's current one while it lasts. So it does not matter
whether the thread has a context, or that of another device.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...declarations.problem import OTHERS
from ...support.forks import KernelError
from .launches import Launch

# A launch in words of 64 bits: the driver's CUlaunchConfig, of which the call adds the stream; the
# kernel's handle; the number of parameters, and the parameters, of which the call adds the
# addresses, which come first. plans.cpp has the same. The gradient of layer norm over 8 axes has up
# to 175 parameters.
STREAM, KERNEL, COUNT, PARAMETERS = 4, 7, 8, 9
PARAMETERS_MAX = 192
LAUNCH_FIELDS = PARAMETERS + PARAMETERS_MAX
#: The number of the lowest bits of dy's, x's and dx's addresses that kernels are compiled for.
ALIGNED_BITS = 4

Rows = npt.NDArray[np.int64]

#: What a kernel's metadata must say, since a launch provides nothing else.
_PLAIN: dict[str, Any] = {
    "global_scratch_size": 0, "profile_scratch_size": 0, "launch_cooperative_grid": False,
    "launch_pdl": False, "num_ctas": 1,
}  # fmt: skip
#: The values of the two parameters for scratch memory that Triton adds to every kernel.
_NO_SCRATCH = (0, 0)


class Launcher(ctypes.Structure):
    """What launches on a device need; plans.h has the same.

    The functions are CUDA's cuLaunchKernelEx, cuCtxPushCurrent, cuCtxPopCurrent and
    cuGetErrorString, and PyTorch's for the current stream of a device, or 0 if it has none.
    """

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("launch", "push", "pop", "describe", "stream_of")),
        ("context", ctypes.c_void_p),
        ("device", ctypes.c_int64),
    ]


@cache
def _driver() -> Any:
    """CUDA's driver, which PyTorch has loaded."""
    return ctypes.CDLL("libcuda.so.1")


def _stream_function() -> Any:
    """PyTorch's C function for the current stream of a device; None if it has none."""
    try:
        return ctypes.CDLL("libtorch_cuda.so").aoti_torch_get_current_cuda_stream
    except (OSError, AttributeError):
        return None


@cache
def launcher(device: int) -> Launcher:
    """What launches on a device need; it lives as long as the process."""
    driver, context = _driver(), ctypes.c_void_p()
    _check(device, driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    functions = (
        driver.cuLaunchKernelEx, driver.cuCtxPushCurrent_v2, driver.cuCtxPopCurrent_v2,
        driver.cuGetErrorString, _stream_function(),
    )  # fmt: skip
    addresses = (each and ctypes.cast(each, ctypes.c_void_p) for each in functions)
    return Launcher(*addresses, context, device)


def _check(device: int, status: int) -> None:
    """Raise a KernelError if CUDA refused what it was asked to do on a device."""
    if status != 0:
        words = ctypes.c_char_p(b"unknown error")
        _driver().cuGetErrorString(status, ctypes.byref(words))
        raise KernelError(f"cuda:{device}: CUDA refused a launch: {(words.value or b'').decode()}")


def launch(device: int, rows: Rows, addresses: Sequence[int], stream: int) -> None:
    """Make launches on a device's stream, without waiting for them."""
    driver, rows = _driver(), rows.copy()
    rows[:, STREAM] = stream
    rows[:, PARAMETERS : PARAMETERS + OTHERS] = addresses[:OTHERS]
    places = rows.ctypes.data + rows.itemsize * np.arange(rows.size).reshape(rows.shape)
    _check(device, driver.cuCtxPushCurrent_v2(ctypes.c_void_p(launcher(device).context)))
    try:
        for words, at in zip(rows, places, strict=True):
            values = words.ctypes.data, int(words[KERNEL]), at[PARAMETERS:].ctypes.data
            _check(device, driver.cuLaunchKernelEx(*map(ctypes.c_void_p, values), None))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def flat(arguments: Any) -> Iterator[int]:
    """The arguments of nested tuples, one by one."""
    for value in arguments:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield value


def row(launch: Launch, kernel: Any, function: int) -> Rows:
    """The words of a launch of a compiled kernel, which is loaded as ``function``.

    Raises:
        KernelError: the kernel needs something else, as one of another version of Triton may.
    """
    parameters = [*flat(launch.arguments), *_NO_SCRATCH]
    needs: dict[str, Any] = {name: getattr(kernel.metadata, name, None) for name in _PLAIN}
    _, _, ptx = kernel.asm["ptx"].partition(".entry")
    sizes = re.findall(r"\.param\s+\.[a-z](\d+)", ptx.partition(")")[0])
    needs["sizes of parameters"] = dict(Counter(sizes))
    allowed = _PLAIN | {"sizes of parameters": {"64": len(parameters)}}
    if needs != allowed:
        raise KernelError(f"{launch.kernel}: a kernel that needs {needs}; allowed: {allowed}")
    words = np.zeros(LAUNCH_FIELDS, np.int64)
    threads, shared = 32 * kernel.metadata.num_warps, kernel.metadata.shared
    words[:STREAM].view(np.uint32)[:7] = launch.programs, 1, 1, threads, 1, 1, shared
    words[KERNEL], words[COUNT] = function, len(parameters)
    words[PARAMETERS : PARAMETERS + len(parameters)] = parameters
    return words
