"""The CUDA device: what it is called, how much memory there is, its events and graphs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..compositions import Call

#: Where torch does not say how large L2 is: larger than any has been.
UNKNOWN_L2 = 256 << 20

#: A tensor to copy, in terms of L2: nothing of it is found there the next time.
COPY_TIMES_L2, LEAST_COPY = 4, 512 << 20

#: Where the driver says which it is, if nvidia-smi is not there.
_VERSION = Path("/proc/driver/nvidia/version")


def missing(torch: Any) -> str | None:
    """Why there is no CUDA device to measure on; None if there is one."""
    version = torch.__version__
    if getattr(torch.version, "cuda", None) is None:
        return f"PyTorch {version} is built without CUDA"
    if not torch.cuda.is_available():
        return f"PyTorch {version} (CUDA {torch.version.cuda}) finds no CUDA device"
    return None


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        pass
    try:
        found = re.search(r"Kernel Module\D.*?\s(\d[\d.]+)\s", _VERSION.read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"


class Device:
    """The current CUDA device, which is also the stopwatch of :mod:`.timing`."""

    name: str = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pool = torch.cuda.graph_pool_handle()
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.l2: int = getattr(properties, "L2_cache_size", 0) or UNKNOWN_L2
        self.facts: Mapping[str, str] = {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": str(properties.multi_processor_count),
            "memory_bytes": str(properties.total_memory),
            "l2_bytes": str(self.l2),
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version() or "not there"),
        }

    def free(self) -> int:
        """Bytes of memory that can still be had; what torch keeps for itself is given back.

        Graphs from here on share new memory: that of graphs which are gone must not be used again.
        """
        self._pool = self._torch.cuda.graph_pool_handle()
        self._torch.cuda.synchronize()
        self._torch.cuda.empty_cache()
        return int(self._torch.cuda.mem_get_info()[0])

    def copy(self) -> tuple[Call, int]:
        """What copies a tensor larger than L2, and the bytes that it reads and writes."""
        size = max(COPY_TIMES_L2 * self.l2, LEAST_COPY)
        source = self._torch.ones(size, dtype=self._torch.uint8, device=self.name)
        target = self._torch.empty_like(source)
        return lambda: target.copy_(source), 2 * size

    def seconds(self, work: Callable[[], object]) -> float:
        """The time between an event before the work and one after it."""
        begin, end = self._events
        self._torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """A CUDA graph of the work; what that allocates lies in memory that all graphs share.

        They never run at the same time, and nobody reads their results.
        """
        cuda = self._torch.cuda
        # As CUDA graphs want it: on a stream of its own, after a first time there.
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            work()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        try:
            with cuda.graph(graph, pool=self._pool, stream=stream):
                work()
        except BaseException:
            # It may be left as in a capture.
            self._pool = cuda.graph_pool_handle()
            raise
        replay: Callable[[], object] = graph.replay
        return replay

    def profiled(self, call: Call) -> None:
        """Make a call between the marks that profilers look for."""
        self._torch.cuda.synchronize()
        self._torch.cuda.profiler.start()
        call()
        self._torch.cuda.synchronize()
        self._torch.cuda.profiler.stop()
