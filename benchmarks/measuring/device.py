"""The measured device, the CPU or a CUDA device: its facts for a file, and how calls are timed."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Mapping
from contextlib import suppress

import torch

from normgrad.bench import timing
from normgrad.bench.timing import Call

from .results import version

#: L2's size in bytes if torch does not report it: larger than that of any GPU so far.
UNKNOWN_L2 = 256 << 20
#: Traffic through L2 before a copy of a case's tensors is used again, in multiples of L2's size.
TIMES_L2 = 2
#: If this many copies do not exceed L2, the tensors are so small that launching kernels dominates.
MOST_COPIES = 256
#: The share of free memory that the copies may take; the rest is for results and temporaries.
MEMORY_SHARE = 0.5
#: glibc's names for mallopt(3), and the largest size that it takes from memory that was freed.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_KEPT = 32 << 20
#: The tensors of a copy: dy, x, and an output each for normgrad and the memory-bound call.
TENSORS = 4


class Cpu:
    """This machine's processor.

    Its name is torch's; its kind is the start of its files' names; its facts are properties for a
    file, in addition to the facts of every run.
    """

    kind = name = "cpu"
    facts: Mapping[str, str] = {}

    def __init__(self) -> None:
        """Have glibc keep the memory that calls free, up to the size that it can keep.

        Otherwise it returns some of it to the system, and a call's time includes page faults that
        depend on what the calls before it freed.
        """
        with suppress(OSError, AttributeError):  # another C library
            library = ctypes.CDLL(None)
            library.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
            library.mallopt(TRIM_THRESHOLD, -1)

    def copies(self, tensor_bytes: int) -> int:
        """One copy: what a call finds in the caches, training finds there too."""
        return 1

    seconds = staticmethod(timing.one_by_one)


class Cuda:
    """The current CUDA device; its facts are :data:`..results.GPU_FACTS` and the cache, its L2."""

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
        """The number of copies of tensors of this size to cycle through, so that no call finds its
        copy in L2."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # so that torch's cached memory counts as free
        return copies(tensor_bytes, self.l2, int(torch.cuda.mem_get_info()[0]))

    def seconds(self, call: Call, count: int) -> float:
        """Seconds per call, over this many in a row, between two CUDA events.

        The device may still be busy with an earlier call. Then the launches of these calls overlap
        with it, as in training.
        """
        begin, end = self._events
        begin.record()
        # Keep the results until the end, so that each call writes to new memory.
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
    """The number of copies of a case's tensors that exceeds the cache but fits the free memory."""
    # Between two uses of a copy, the calls on all others read at least one tensor each.
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
