"""Measure a process's time to its first gradient: imports, and loading or compiling kernels."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normgrad.support import cache

#: The numbers of processes without and with kernels on disk; compiling takes seconds.
COLD_RUNS, WARM_RUNS = 3, 7

#: The program that each process runs. Its call is large enough to use threads, but small enough
#: that the computation takes no time. It uses NumPy alone, since importing torch takes longer than
#: all the rest.
_CHILD = """
import json, time
start = time.perf_counter()
import numpy as np
numpy = time.perf_counter()
import normgrad
imported = time.perf_counter()
x = np.ones((8, 64, 16, 16), np.float32)
w = np.ones(64, np.float32)
times = [time.perf_counter()]
for _ in range(2):
    normgrad.batch_norm_backward(x, x, w, None, None, w, w, training=True)
    times.append(time.perf_counter())
spans = zip((start, numpy, *times[:2]), (numpy, imported, *times[1:]))
print(json.dumps([1e3 * (end - begin) for begin, end in spans]))
"""
#: The columns, in milliseconds, medians over the processes: from Python's start to its end,
#: ``import numpy``, ``import normgrad`` after it, the first call, which loads or compiles
#: kernels, and the second call.
TIMES = ("process_ms", "numpy_ms", "import_ms", "first_call_ms", "second_call_ms")


def _start(folder: Path) -> dict[str, float]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        env={**os.environ, cache.VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    whole = (time.perf_counter() - start) * 1e3
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RuntimeError(f"a process that was to be measured failed: {last}")
    return dict(zip(TIMES, (whole, *json.loads(done.stdout)), strict=True))


def measure(cold: int, warm: int, tick: Callable[[], object]) -> list[dict[str, Any]]:
    """Time ``cold`` processes, each with an empty kernel folder, then ``warm`` with a full one.

    If the package contains kernels, nothing is compiled.
    ``tick`` is called after each process.

    Returns:
        The file's rows: for kernels that are "compiled" (into an empty folder), "from disk" or
        "packaged", the number of processes and the medians of :data:`TIMES`.

    Raises:
        RuntimeError: a process failed.
    """
    from normgrad.backends.cpu.objects import store

    brought = store.level() is not None
    starts = [("packaged" if brought else "from disk", "0")] * warm
    if not brought:
        starts = [*(("compiled", str(index)) for index in range(cold)), *starts]
    runs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="normgrad-bench-") as whole:
        for kernels, folder in starts:
            runs.setdefault(kernels, []).append(_start(Path(whole, folder)))
            tick()
    call = {"operator": "batch_norm_backward", "dtype": "float32"}
    return [
        {
            **{"kernels": kernels, **call, "runs": len(mine)},
            **{name: statistics.median(run[name] for run in mine) for name in TIMES},
        }
        for kernels, mine in runs.items()
    ]
