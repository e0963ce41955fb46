"""Whatever Numba has for threads, calls from several threads at once are right."""

from __future__ import annotations

import pytest

from .conftest import python

pytestmark = pytest.mark.cpu

#: Four threads that compute at once, and a signal's handler that computes in the middle of them.
CALLS = """
import hashlib, signal, sys, threading, warnings
warnings.simplefilter("always", RuntimeWarning)
warnings.showwarning = lambda message, *rest: print("warning:", message)
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
import numba
print(numba.threading_layer() if len(sys.argv) == 1 else "none")
"""


def said(*arguments, before="", **environment):
    done = python(before + CALLS, *arguments, NUMBA_NUM_THREADS="3", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_work_queue():
    """Numba ends the process where two threads use it at once; here one waits for the other."""
    found = said(NUMBA_THREADING_LAYER="workqueue")
    assert found == ["True 3", "True True", "workqueue"]


def test_openmp_and_tbb_missing():
    """What is left is the work queue."""
    hide = (
        "import sys\n"
        "sys.modules['numba.np.ufunc.omppool'] = None\n"
        "sys.modules['numba.np.ufunc.tbbpool'] = None\n"
    )
    assert said(before=hide) == ["True 3", "True True", "workqueue"]


def test_nothing_to_have_threads_of():
    """Calls use one, and say so once."""
    hide = "import sys; sys.modules['numba.np.ufunc.tbbpool'] = None\n"
    first, *rest = said("none", before=hide, NUMBA_THREADING_LAYER="tbb")
    assert first.startswith("warning: No threading layer could be loaded. ")
    assert first.endswith(" Calls use one thread.")
    assert rest == ["True 1", "True True", "none"]
