"""Time a process from its start to the end of a layer's first training step, beside PyTorch's.

    python benchmarks/first_step.py [--limit]

It alternates processes of PyTorch's layer, of normgrad's, and of normgrad's with an empty cache
folder, so that what is not there already is compiled. The time includes imports. With --limit,
which is for packages with compiled kernels, the script fails if the last takes over LIMIT seconds
longer than the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

#: Seconds.
LIMIT = 1.5
#: How many processes of each are timed, and how many that may compile.
RUNS, EMPTY = 7, 3

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


def measured(folder: str, convert: str = _CONVERT) -> float:
    """The seconds of one process, from Python's first line, with this cache folder."""
    done = subprocess.run(
        [sys.executable, "-c", _STEP.format(convert=convert)],
        env={**os.environ, "NORMGRAD_CACHE_DIR": folder},
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(done.stdout)


def measured_in_empty() -> float:
    """The seconds of one process, with an empty cache folder."""
    with tempfile.TemporaryDirectory() as folder:
        return measured(folder)


def main() -> None:
    """Measure, and print all three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", action="store_true")
    limited = parser.parse_args().limit
    theirs, ours, empty = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        measured(folder)  # fills it
        for run in range(RUNS):
            theirs.append(measured(folder, convert=""))
            ours.append(measured(folder))
            if run < EMPTY:
                empty.append(measured_in_empty())
    rows = {
        "PyTorch's layer": theirs,
        "normgrad's layer": ours,
        "normgrad's layer, an empty cache folder": empty,
    }
    for name, seconds in rows.items():
        print(f"{name:40} {statistics.median(seconds):6.2f} s, the median of {len(seconds)}")
    more = statistics.median(empty) - statistics.median(theirs)
    if limited and more > LIMIT:
        sys.exit(f"normgrad's first step takes {more:.2f} s more; allowed: {LIMIT}")


if __name__ == "__main__":
    main()
