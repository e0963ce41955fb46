"""Memory for results, and the probes that tell what memory cannot be used."""

from __future__ import annotations

import ctypes
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest
from support import make

import normgrad as ng
from normgrad import memory

PAGE = mmap.PAGESIZE
#: Few enough pages for each to be probed, and so many that the middle is only asked to be mapped.
SMALL, LARGE = 3, memory.FEW_PAGES + 3

linux = pytest.mark.skipif(memory.probe_addresses() == (0, 0), reason="no probes on this system")


@pytest.fixture
def pages():
    """Makes mappings of so many pages, and what changes one of their pages."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    made = set()

    def mapping(count):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = library.mmap(None, count * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        made.update(start + page * PAGE for page in range(count))

        def change(what, page):
            protection = {"munmap": (), "read-only": (mmap.PROT_READ,)}[what]
            call = library.mprotect if protection else library.munmap
            assert call(start + page * PAGE, PAGE, *protection) == 0
            if not protection:
                made.remove(start + page * PAGE)  # others may have it from now on

        return start, change

    yield mapping
    for start in made:
        library.munmap(start, PAGE)


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


@linux
def test_memory_is_back_when_results_are_gone():
    """What a large result lay in is the system's again at once."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    case = make("elemt", (8, 64, 128, 128))
    case.call()
    before = resident()
    results = [case.call() for _ in range(4)]
    size = sum(result.nbytes for result in results)
    assert size > 100 << 20
    assert resident() - before > size // 2
    results.clear()
    assert resident() - before < size // 4


@linux
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("page", [0, 1, -1])
def test_holes_are_seen(pages, count, page):
    start, change = pages(count)
    end = start + count * PAGE
    assert memory.unreadable(start, end) is memory.unwritable(start, end) is None
    change("munmap", page % count)
    reason = f"no memory at {start:#x} (Cannot allocate memory); allowed: memory"
    assert memory.unreadable(start, end) == memory.unwritable(start, end) == reason
    assert memory.unreadable(start, start) is None


@linux
@pytest.mark.parametrize(("count", "page"), [(SMALL, 1), (LARGE, 0), (LARGE, LARGE - 1)])
def test_read_only_pages_are_seen(pages, count, page):
    start, change = pages(count)
    change("read-only", page)
    assert memory.unreadable(start, start + count * PAGE) is None
    assert memory.unwritable(start, start + count * PAGE) == (
        "read-only memory (Invalid argument); allowed: memory that can be written"
    )


@linux
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("count", "what", "reason"),
    [
        (SMALL, "read-only", "read-only memory"),
        (SMALL, "munmap", "no memory"),
        (LARGE, "munmap", "no memory"),
    ],
)
def test_outputs_with_such_pages_are_refused(pages, count, what, reason):
    start, change = pages(count)
    x = np.ones((count, PAGE // 4), np.float32)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=False)
    out = memory.array_at(start, x.shape, (x.shape[1], 1), x.dtype, None)
    assert plan.run(x, x, out=(out, None, None)).grad_input is out
    change(what, 1)
    with pytest.raises(ValueError, match=rf"^out\[0\] \(grad_input\): {reason}"):
        plan.run(x, x, out=(out, None, None))
