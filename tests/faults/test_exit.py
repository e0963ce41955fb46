"""A process that ends while daemon threads compute."""

from __future__ import annotations

import pytest

from .conftest import STRESSED, python

pytestmark = pytest.mark.cpu

#: The main thread ends at some moment of the others' calls.
ENDING = """
import atexit, sys, threading, time
{imports}
import numpy as np, normgrad as ng
x = np.random.default_rng(0).standard_normal((8, 16, 64, 64), dtype=np.float32)
started = threading.Barrier(5)
def work():
    ng.batch_norm_backward(x, x, training=True)
    started.wait()
    while True:
        ng.batch_norm_backward(x, x, training=True)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
atexit.register(lambda: print(ng.batch_norm_backward(x, x, training=True).grad_bias.shape))
started.wait()
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("imports", "times"), [("", 10 if STRESSED else 2), ("import torch", 10 if STRESSED else 1)]
)
def test_daemon_threads(imports, times):
    """Arrays, beside PyTorch too. (Its own tensors end such a process by themselves.)"""
    if imports:
        pytest.importorskip("torch")
    for moment in range(times):
        done = python(ENDING.format(imports=imports), 0.003 * moment)
        assert (done.returncode, done.stdout, done.stderr) == (0, "(16,)\n", ""), moment
