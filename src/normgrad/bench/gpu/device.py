"""The CUDA device: what it is called, how much memory there is, its events."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from ..compositions import Call
from ..results import version

#: Where torch does not say how large L2 is: larger than any has been.
UNKNOWN_L2 = 256 << 20


def missing(torch: Any) -> str | None:
    """Why there is no CUDA device to measure on; None if there is one."""
    installed = f"PyTorch {torch.__version__}"
    if getattr(torch.version, "cuda", None) is None:
        return f"{installed} is built without CUDA"
    if not torch.cuda.is_available():
        return f"{installed} (CUDA {torch.version.cuda}) finds no CUDA device"
    return None


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


class Device:
    """The current CUDA device.

    Attributes:
        name: where torch makes tensors.
        l2: its L2, in bytes.
        facts: what a file says of it, by name: :data:`..results.GPU_FACTS`.
    """

    name: str = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.l2: int = getattr(properties, "L2_cache_size", 0) or UNKNOWN_L2
        self.facts: Mapping[str, str] = {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": str(properties.multi_processor_count),
            "memory_bytes": str(properties.total_memory),
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version() or "not there"),
            "triton": version("triton"),
        }

    def free(self) -> int:
        """Bytes of memory that can still be had; what torch keeps for itself is given back."""
        self._torch.cuda.synchronize()
        self._torch.cuda.empty_cache()
        return int(self._torch.cuda.mem_get_info()[0])

    def seconds(self, call: Call, count: int) -> float:
        """Seconds for one call, over so many in a row, between two CUDA events.

        The device may still be busy with an earlier call: then the launching of these is hidden
        behind it, as it is in a training.
        """
        begin, end = self._events
        begin.record()
        # Results stay until the end, so that each call writes to other memory than the one before.
        results = [call() for _ in range(count)]
        end.record()
        end.synchronize()
        results.clear()
        return float(begin.elapsed_time(end)) / 1e3 / count
