"""What is kept of calls: plans, which are small, and nothing of the size of a caller's tensors."""

from __future__ import annotations

import pytest

from .conftest import python

pytestmark = pytest.mark.cpu

#: Prints how many bytes more a process has after many calls, each on tensors of another shape, and
#: how many bytes the results of one call have.
_PROGRAM = """
import gc, resource, sys
from pathlib import Path
import numpy as np
import normgrad as ng
kind, layout, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
base, weight = np.ones((2, 60, 16, 20), np.float32), np.ones(16, np.float32)
if layout == "channels_last":
    base = np.ones((2, 60, 20, 16), np.float32)
if kind == "torch":
    import torch
    base, weight = torch.from_numpy(base), torch.from_numpy(weight)

def call(number):
    # A part of a larger tensor, so that no result is like an input.
    x = base[:, : 35 + number % 25, :, : 20 - number // 25]
    if layout == "channels_last":
        x = base[:, : 35 + number % 25, : 20 - number // 25]
        x = x.permute(0, 3, 1, 2) if kind == "torch" else x.transpose(0, 3, 1, 2)
    else:
        x = x.permute(0, 2, 1, 3) if kind == "torch" else x.swapaxes(1, 2)
    found = ng.batch_norm_backward(x, x, weight, training=True)
    ng.batch_norm(x, weight, weight, training=True)
    return found[0].nbytes

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

most = max(call(number) for number in range(25))
before = resident()
for number in range(25, 25 + count):
    call(number)
    call(number)
print(resident() - before, most)
"""


@pytest.mark.parametrize(
    "layout", ["sliced", pytest.param("channels_last", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_plans_keep_no_results(framework, layout):
    if framework == "torch":
        pytest.importorskip("torch")
    count = 125
    done = python(_PROGRAM, framework, layout, count)
    assert (done.returncode, done.stderr) == (0, "")
    more, size = map(int, done.stdout.split())
    assert size > 140_000
    # Two plans for each shape; a result of each would take as much as this four times.
    assert more < count * size / 2
