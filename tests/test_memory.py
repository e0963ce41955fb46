"""Memory for large results: kept, used again, and given back."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from support import make

import normgrad as ng
from normgrad import memory

SIZE = memory.LARGE + 12345


@pytest.fixture
def pool():
    return memory.Pool(4 * SIZE)


def test_memory_is_used_again_when_its_last_array_is_gone(pool):
    first = pool.take(SIZE)
    where = first.ctypes.data
    assert where % memory.LINE == 0
    view = first[100:].view(np.uint8)
    del first
    gc.collect()
    assert pool.kept == 0  # a view is left
    other = pool.take(SIZE)
    assert other.ctypes.data != where
    del view
    assert pool.kept == SIZE
    assert pool.take(SIZE + 1).ctypes.data != where
    again = pool.take(SIZE)
    assert again.ctypes.data == where
    assert again.nbytes == SIZE
    again[:] = 7
    assert (again == 7).all()


def test_no_more_is_kept_than_the_limit(pool):
    arrays = [pool.take(SIZE) for _ in range(6)]
    last = [array.ctypes.data for array in arrays[2:]]
    while arrays:
        arrays.pop(0)
    assert pool.kept == 4 * SIZE
    assert {pool.take(SIZE).ctypes.data for _ in range(1)} <= set(last)
    pool.release()
    assert pool.kept == 0
    assert pool.take(5 * SIZE).base is not None
    assert pool.kept == 0


def test_what_is_kept_longest_is_the_systems_to_take(pool, monkeypatch):
    monkeypatch.setattr(memory, "HOT", 2 * SIZE)
    blocks = [pool.take(SIZE) for _ in range(3)]
    while blocks:
        blocks.pop(0)
    free = [block.is_free for block in pool._blocks]
    assert free == [memory._madvise() is not None, False, False]
    again = [pool.take(SIZE) for _ in range(3)]
    for array in again:
        array[:] = 3
    assert all((array == 3).all() for array in again)


def test_threads_never_share_memory(pool):
    seen, failed = set(), []

    def work(number: int) -> None:
        for _ in range(200):
            array = pool.take(SIZE)
            address = array.ctypes.data
            array[:8] = number
            if address in seen:
                failed.append(address)
            seen.add(address)
            if not (array[:8] == number).all():
                failed.append(number)
            seen.discard(address)
            del array

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_results_outlive_later_calls():
    case = make("train", (4, 8, 200, 200))
    first = case.call()
    copy = np.array(first[0])
    second = case.call()
    assert not np.shares_memory(first[0], second[0])
    np.testing.assert_array_equal(first[0], copy)
    ng.release_memory()
    np.testing.assert_array_equal(second[0], copy)


@pytest.mark.parametrize(("setting", "kept"), [("0", False), ("100", True)])
def test_the_limit_comes_from_the_environment(setting, kept, monkeypatch, pool):
    monkeypatch.setenv(memory.KEPT_VARIABLE, setting)
    limited = memory.Pool(memory._limit())
    del pool
    limited.take(SIZE)
    assert (limited.kept == SIZE) is kept


def test_a_wrong_limit_is_named(monkeypatch):
    monkeypatch.setenv(memory.KEPT_VARIABLE, "much")
    with pytest.raises(ValueError, match=r"NORMGRAD_KEPT_MEMORY: 'much'; allowed: a number of MiB"):
        memory._limit()


def test_nothing_is_said_at_the_interpreters_end():
    code = "import numpy, normgrad.memory as m; kept = [m.aligned(m.LARGE) for _ in range(3)]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
