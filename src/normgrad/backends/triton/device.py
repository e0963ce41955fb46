"""The description of a GPU that plans are made for."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

#: The lowest compute capability that is supported: the first with bfloat16 in hardware.
LEAST_CAPABILITY = (8, 0)
#: The compute capabilities of GPUs for data centres whose float64 arithmetic is fast.
FAST_FLOAT64 = {(8, 0), (9, 0), (10, 0)}
#: The lowest version of Triton that the kernels are tested with.
LEAST_TRITON = "3.6"


@dataclass(frozen=True)
class Device:
    """A GPU, or a stand-in for one.

    Attributes:
        name: the model's name.
        processors: the number of streaming multiprocessors.
        threads: the number of threads of a program that loops over a tensor in tiles.
        programs_each: the wanted number of programs per processor where positions are divided into
            parts, so that some run while others start and end. An estimate: not measured.
        fast_float64: whether float64 arithmetic has a quarter of float32's rate or more; elsewhere
            it has a 32nd or less, and sums of float32 terms are pairs of float32.
        persistent: the number of elements of dy (and of x) that a program can hold in registers, in
            float32 arithmetic; a quarter of it in float64. With twice as many, each of 512 threads
            spilled 56 to 184 bytes.
    """

    name: str = "NVIDIA H200"
    processors: int = 132
    threads: int = 256
    programs_each: int = 8
    persistent: int = 1 << 13
    fast_float64: bool = True


#: The stand-in for Triton's interpreter; it is so small that even small tensors need two passes.
INTERPRETED = Device(
    "Triton's interpreter", processors=2, threads=32, programs_each=1, persistent=1 << 8
)


@cache
def of(index: int) -> Device:
    """The GPU with this index in PyTorch."""
    import torch

    properties: Any = torch.cuda.get_device_properties(index)
    return Device(
        name=properties.name,
        processors=properties.multi_processor_count,
        fast_float64=(properties.major, properties.minor) in FAST_FLOAT64,
    )


def unusable(index: int | None = None) -> str | None:
    """The reason why CUDA tensors, or those on one device, are not supported; None if they are.

    This does not import PyTorch: if it is not loaded, there is no tensor on a GPU.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return "PyTorch is not imported, which Triton needs to find the GPU"
    if torch.version.hip is not None:
        return "PyTorch was built for ROCm; normgrad's kernels are tested only for CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    if importlib.util.find_spec("triton") is None:
        return f"Triton is not installed (normgrad needs {LEAST_TRITON} or later on a GPU)"
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < tuple(map(int, LEAST_TRITON.split("."))):
        return f"Triton {triton.__version__} is too old (normgrad needs {LEAST_TRITON} or later)"
    if index is None:
        return None
    capability = torch.cuda.get_device_capability(index)
    if capability < LEAST_CAPABILITY:
        major, minor = LEAST_CAPABILITY
        return (
            f"its compute capability is {capability[0]}.{capability[1]}; normgrad needs "
            f"{major}.{minor} or later"
        )
    return None
