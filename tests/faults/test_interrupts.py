"""Ctrl-C: a KeyboardInterrupt at the next moment that leaves nothing half done."""

from __future__ import annotations

import os

import pytest

from .conftest import python

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals"),
    pytest.mark.cpu,
]

START = """
import os, signal, sys, threading, time
import numpy as np, normgrad as ng
# Whoever runs the tests in the background of a shell has them ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
"""

LONG_CALL = """
x = np.random.default_rng(0).standard_normal((64, 32, 128, 128), dtype=np.float32)
kept, given = x.copy(), np.empty_like(x)
first = [value.copy() for value in ng.batch_norm_backward(x, x, training=True)]
interrupted = 0
for delay in (0.001, 0.003, 0.01, 0.02) * 3:
    timer = threading.Timer(delay, interrupt)
    try:
        timer.start()
        while True:
            ng.batch_norm_backward(x, x, training=True, out=(given, None, None))
    except KeyboardInterrupt:
        interrupted += 1
    timer.join()
print(interrupted, np.array_equal(x, kept))
again = ng.batch_norm_backward(x, x, training=True, out=(given, None, None))
print(all(np.array_equal(a, b) for a, b in zip(again, first)), again[0] is given)
"""


def test_a_long_call():
    done = python(START + LONG_CALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "12 True\nTrue True\n"


#: Interrupted three times in a first call: each attempt comes a little further.
FIRST_CALL = """
x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
interrupts = 0
go = threading.Event()
def three_times():
    go.wait()
    for _ in range(3):
        time.sleep(0.4)
        interrupt()
thread = threading.Thread(target=three_times)
thread.start()
go.set()
while True:
    try:
        mean = ng.batch_norm_stats(x, eps=1e-5).mean
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        break
    except KeyboardInterrupt:
        interrupts += 1
thread.join()
print(interrupts, mean, ng.batch_norm_stats(x, eps=1e-5).mean)
"""


@pytest.mark.full
def test_a_first_call(tmp_path):
    """While kernels are compiled; no interrupt is lost with a complaint."""
    done = python(START + FIRST_CALL, NORMGRAD_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    interrupts, _, means = done.stdout.partition(" ")
    # Two that came during one kernel are one.
    assert 1 <= int(interrupts) <= 3
    assert means == "[ 7.5 11.5 15.5] [ 7.5 11.5 15.5]\n"
