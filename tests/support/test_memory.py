"""Memory for results, and what is left of it when they are gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from common import make

import normgrad as ng
from normgrad.support import memory


def test_large_results_start_at_a_cache_line():
    first = make("train", (4, 8, 200, 200)).call()[0]
    assert first.nbytes >= memory.ALIGNED
    assert first.ctypes.data % memory.LINE == 0


def test_results_keep_their_values_while_others_come_and_go():
    failed = []

    def work(number):
        case = make("elemt", (2, 64 + number, 32, 40), seed=number)
        first = case.call()
        copy = np.array(first)
        for _ in range(50):
            again = case.call()
            if np.shares_memory(first, again) or not (again == copy).all():
                failed.append(number)
        if not (first == copy).all():
            failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("shape", [(4, 8, 4), (4, 64, 40, 40), (8, 64, 64, 64)])
def test_torch_results_are_torchs_own(shape):
    """Their storages can be resized, whatever their size."""
    torch = pytest.importorskip("torch")
    data = torch.randn(shape)
    result = ng.batch_norm_backward(data, data, training=True).grad_input
    result.untyped_storage().resize_(2 * result.nbytes)
    result.resize_(2, *shape)
    assert result.shape == (2, *shape)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc/self/statm")
def test_memory_is_back_when_results_are_gone():
    """What a large result lay in is the system's again at once.

    In a process of its own, since another's heap may have room for large results.
    """
    subprocess.run([sys.executable, "-c", MEMORY_PROGRAM], check=True, timeout=120)


MEMORY_PROGRAM = """
import mmap
from pathlib import Path

import numpy as np
import normgrad

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

x = np.ones((8, 64, 128, 128), np.float32)
vector = np.ones(64, np.float32)

def call():
    return normgrad.batch_norm_elemt(x, vector, vector, vector, vector)

call()
before = resident()
results = [call() for _ in range(4)]
size = sum(result.nbytes for result in results)
assert size > 100 << 20
assert resident() - before > size // 2, (resident(), before)
results.clear()
assert resident() - before < size // 4, (resident(), before)
"""
