"""What the CPU's kernels need of Numba."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu

MESSAGE = "NUMBA_DISABLE_JIT: {}, with which Numba compiles no kernels; allowed: 0, or not set"

FIRST_CALL = """
import numpy as np, normgrad
x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
out = np.full_like(x, np.nan), None, None
plan = normgrad.plan("batch_norm_backward", grad_out=x, input=x, training=True, out=out)
calls = (
    lambda: normgrad.batch_norm_backward(x, x, training=True, out=out),
    lambda: plan.run(x, x, out=out),
    lambda: normgrad.batch_norm_stats(x),
)
for call in calls:
    try:
        call()
    except RuntimeError as error:
        print(error)
print(np.isnan(out[0]).all())
"""


@pytest.mark.parametrize("setting", ["1", "2"])
def test_a_first_call_without_a_compiler(setting):
    """Nothing is written."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_CALL],
        env={**os.environ, "NUMBA_DISABLE_JIT": setting},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*[MESSAGE.format(setting)] * 3, "True"]
