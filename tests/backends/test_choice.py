"""What the CPU's kernels need of Numba."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu

MESSAGE = (
    "this processor (generic) has none of the levels that the package has kernels for, and Numba, "
    "which compiles kernels, is not installed; allowed: `pip install 'normgrad[compile]'`"
)

FIRST_CALL = """
import sys
sys.modules["numba"] = None
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


def test_a_first_call_without_a_compiler():
    """Nothing is written."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_CALL],
        env={**os.environ, "NUMBA_CPU_NAME": "generic"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*[MESSAGE] * 3, "True"]
