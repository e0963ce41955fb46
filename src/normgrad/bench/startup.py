"""What a process pays before its first gradient: import, reading or compiling the kernels."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..backends.cpu import packaged

#: How often each is measured; compiling takes seconds.
COLD_RUNS, WARM_RUNS = 3, 7

#: Run in a fresh process. Large enough that the driver with threads is in it, small enough that the
#: work itself is nothing; NumPy alone, since torch takes longer to import than all the rest.
_CHILD = """
import json, time
start = time.perf_counter()
import numpy as np
numpy = time.perf_counter()
import normgrad
imported = time.perf_counter()
x = np.ones((8, 64, 16, 16), np.dtype({dtype!r}))
w = np.ones(64, np.float32)
ready = time.perf_counter()
normgrad.batch_norm_backward(x, x, w, None, None, w, w, training=True)
first = time.perf_counter()
normgrad.batch_norm_backward(x, x, w, None, None, w, w, training=True)
second = time.perf_counter()
print(json.dumps({{
    "numpy_ms": 1e3 * (numpy - start),
    "import_ms": 1e3 * (imported - numpy),
    "first_call_ms": 1e3 * (first - ready),
    "second_call_ms": 1e3 * (second - first),
}}))
"""


@dataclass(frozen=True)
class Start:
    """How a process starts; the fields are the file's columns.

    Attributes:
        kernels: "compiled", into an empty folder, "from disk", or "packaged".
        operator, dtype: of the first call.
        runs: processes; all times are medians over them, in milliseconds.
        process_ms: from starting Python to its end.
        numpy_ms: ``import numpy``.
        import_ms: ``import normgrad`` after it.
        first_call_ms: the first call, with importing Numba in it.
        second_call_ms: the next.
    """

    kernels: str
    operator: str
    dtype: str
    runs: int
    process_ms: float
    numpy_ms: float
    import_ms: float
    first_call_ms: float
    second_call_ms: float


def _start(cache: Path, dtype: str) -> dict[str, float]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(dtype=dtype)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    whole = (time.perf_counter() - start) * 1e3
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RuntimeError(f"a process that was to be measured failed: {last}")
    found: dict[str, float] = json.loads(done.stdout)
    return {"process_ms": whole, **found}


def _medians(kernels: str, dtype: str, runs: Sequence[dict[str, float]]) -> Start:
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return Start(kernels, "batch_norm_backward", dtype, len(runs), **medians)


def measure(
    cold: int = COLD_RUNS,
    warm: int = WARM_RUNS,
    dtype: str = "float32",
    tick: Callable[[], object] = lambda: None,
) -> list[Start]:
    """Start processes: with an empty folder for kernels each, then with a full one.

    Where the package brings kernels, nothing is compiled, but for what starts Numba's threads.

    Args:
        cold, warm: how many of each; at least one.
        dtype: of the tensors.
        tick: called after each.

    Raises:
        RuntimeError: one failed.
    """
    brought = packaged.library() is not None
    compiled, loaded = [], []
    with tempfile.TemporaryDirectory(prefix="normgrad-bench-") as folder:
        for index in range(0 if brought else cold):
            compiled.append(_start(Path(folder, str(index)), dtype))
            tick()
        for _ in range(warm):
            loaded.append(_start(Path(folder, "0"), dtype))
            tick()
    if brought:
        return [_medians("packaged", dtype, loaded)]
    return [_medians("compiled", dtype, compiled), _medians("from disk", dtype, loaded)]
