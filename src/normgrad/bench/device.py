"""What is measured on: the CPU or a CUDA device, what a file says of it, and how it is timed."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping

import torch

from . import timing
from .results import version
from .timing import Call

#: Where torch does not say how large L2 is: larger than any has been.
UNKNOWN_L2 = 256 << 20
#: What goes through L2 before a copy of a case's tensors is used again, in terms of L2's size.
TIMES_L2 = 2
#: Tensors so small that this many copies do not exceed L2 take the time of launching kernels.
MOST_COPIES = 256
#: How much of the free memory the copies may take: the rest is for results and temporaries.
MEMORY_SHARE = 0.5
#: The tensors of a copy: dy, x, and an output for ours and for what stands for the memory.
TENSORS = 4


class Cpu:
    """This machine's processor.

    Attributes:
        kind: how its files' names begin.
        name: where torch makes tensors.
        facts: what a file says of it beside the facts of every run.
    """

    kind = name = "cpu"
    facts: Mapping[str, str] = {}

    def copies(self, tensor_bytes: int) -> int:
        """One: what a call finds in the caches, a training finds there too."""
        return 1

    seconds = staticmethod(timing.one_by_one)


class Cuda:
    """The current CUDA device.

    Attributes:
        kind, name, facts: as of the CPU; the facts are :data:`..results.GPU_FACTS`, and the cache.
        l2: its L2, in bytes.
    """

    kind = name = "cuda"

    def __init__(self) -> None:
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
            "cache_bytes": str(self.l2),
        }

    def copies(self, tensor_bytes: int) -> int:
        """How many copies of tensors of this size are gone through, so that no call finds its own
        in L2."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what torch keeps for itself is given back
        return copies(tensor_bytes, self.l2, int(torch.cuda.mem_get_info()[0]))

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


Device = Cpu | Cuda


def missing() -> str | None:
    """Why there is no CUDA device to measure on; None if there is one."""
    installed = f"PyTorch {torch.__version__}"
    if getattr(torch.version, "cuda", None) is None:
        return f"{installed} is built without CUDA"
    if not torch.cuda.is_available():
        return f"{installed} (CUDA {torch.version.cuda}) finds no CUDA device"
    return None


def copies(tensor_bytes: int, l2: int, free: int) -> int:
    """How many copies of a case's tensors go through a cache, and into so much free memory."""
    # Between two uses of a copy there are the others, of which a call reads a tensor at least.
    wanted = 1 + math.ceil(TIMES_L2 * l2 / tensor_bytes)
    fitting = int(free * MEMORY_SHARE) // (TENSORS * tensor_bytes)
    return max(1, min(wanted, MOST_COPIES, fitting))


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"
