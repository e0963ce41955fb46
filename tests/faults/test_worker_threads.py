"""The threads of a process without PyTorch: calls from several threads at once are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import python

pytestmark = pytest.mark.cpu

#: Four threads that compute at once, and a signal's handler that computes in the middle of them.
CALLS = """
import hashlib, signal, sys, threading
import numpy as np, normgrad as ng
x = np.random.default_rng(0).standard_normal((8, 16, 64, 64), dtype=np.float32)
def digest():
    parts = ng.batch_norm_backward(x, x, training=True)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
ng.set_num_threads(1)
alone = digest()
ng.set_num_threads(None)
print(digest() == alone, ng.get_num_threads())
found = []
def work():
    for _ in range(40):
        found.append(digest() == alone)
def handle(*_):
    found.append(digest() == alone)
    # Only now: a handler that is slower than its timer would interrupt itself without end.
    signal.setitimer(signal.ITIMER_REAL, 0.01)
if hasattr(signal, "SIGALRM"):
    signal.signal(signal.SIGALRM, handle)
    signal.raise_signal(signal.SIGALRM)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
work()
for thread in threads: thread.join()
if hasattr(signal, "SIGALRM"):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
print(all(found), len(found) >= 200)
print(sum(thread.name.startswith("normgrad-") for thread in threading.enumerate()))
"""


def said(before="", after=""):
    done = python(before + CALLS + after, NORMGRAD_NUM_THREADS="3")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_calls_share_workers():
    assert said() == ["True 3", "True True", "2"]


def test_threads_that_never_come():
    """A call waits for none that has taken no tasks."""
    idle = """
import threading
start = threading.Thread.start
def never(thread):
    if not thread.name.startswith("normgrad-"):
        start(thread)
threading.Thread.start = never
"""
    assert said(before=idle) == ["True 3", "True True", "0"]


def test_threads_of_which_some_cannot_be_started():
    """Calls use those that could."""
    limit = """
import threading
start, started = threading.Thread.start, []
def one_worker(thread):
    if thread.name.startswith("normgrad-"):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
    start(thread)
threading.Thread.start = one_worker
"""
    assert said(before=limit) == ["True 3", "True True", "1"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads Linux's list of threads")
def test_workers_do_not_spin():
    """Between calls they use no processor time."""
    after = """
import os, time
def used():
    times = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/stat") as file:
                times += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return times
before = used()
time.sleep(0.5)
print(used() - before <= 1)
"""
    assert said(after=after)[-1] == "True"


def test_the_process_ends_while_workers_wait():
    done = python(CALLS + "sys.exit(3)", NORMGRAD_NUM_THREADS="3")
    assert (done.returncode, done.stderr) == (3, "")
