"""Time a process from its start to the end of a layer's first training step, beside PyTorch's.

    python benchmarks/first_step.py

It alternates processes of both, each with an empty folder for compiled kernels. The time includes
imports. The script fails if normgrad's process takes more than LIMIT longer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

#: Seconds.
LIMIT = 1.5
RUNS = 7

_STEP = """
import time
start = time.perf_counter()
import torch
layer = torch.nn.BatchNorm2d(64)
{convert}
x = torch.randn(16, 64, 28, 28, requires_grad=True)
layer(x).sum().backward()
print(time.perf_counter() - start)
"""
_CONVERT = "import normgrad.torch; layer = normgrad.torch.convert(layer)"


def measured(convert: str) -> float:
    """The seconds of one process, from Python's first line."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _STEP.format(convert=convert)],
            env={**os.environ, "NORMGRAD_CACHE_DIR": folder},
            stdout=subprocess.PIPE,
            check=True,
        )
    return float(done.stdout)


def main() -> None:
    """Measure, and print both."""
    ours, theirs = [], []
    for _ in range(RUNS):
        theirs.append(measured(""))
        ours.append(measured(_CONVERT))
    for name, seconds in (("PyTorch's layer", theirs), ("normgrad's", ours)):
        first, median = seconds[0], statistics.median(seconds)
        print(
            f"{name:16} {first:6.3f} s in the first process, {median:6.3f} s the median of {RUNS}"
        )
    more = statistics.median(ours) - statistics.median(theirs)
    if more > LIMIT:
        sys.exit(f"normgrad's first step takes {more:.2f} s more; allowed: {LIMIT}")


if __name__ == "__main__":
    main()
