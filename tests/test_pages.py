"""What the system says of memory, in every way that systems offer."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
from pathlib import Path

import mapped_pages
import numpy as np
import pytest

import normgrad as ng
from normgrad import memory, pages
from normgrad.pages import fault

PAGE = mmap.PAGESIZE
SMALL, LARGE = 5 * PAGE, pages._LARGE + 3 * PAGE
pytestmark = pytest.mark.skipif(pages._library() is None, reason="Linux is asked, no other system")


def old_kernel(monkeypatch):
    def fail(*_):
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(pages._library(), "madvise", fail)
    no_query(monkeypatch)


def no_query(monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOTTY, "no such ioctl")

    monkeypatch.setattr(fcntl, "ioctl", fail)


SYSTEMS = {"this one": lambda monkeypatch: None, "Linux 5.14": no_query, "older": old_kernel}


@pytest.fixture(params=SYSTEMS)
def system(request, monkeypatch):
    SYSTEMS[request.param](monkeypatch)
    return request.param


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("offset", [0, 5], ids=["aligned", "odd"])
def test_ranges(system, mapped, size, offset):
    start = mapped(size)
    first, end = start + offset, start + size - offset
    wrong = start + 2 * PAGE
    assert [fault(first, end, writing) for writing in (False, True)] == [None, None]
    for allowed, faults in (
        (mmap.PROT_READ, [None, wrong]),
        (0, [wrong, wrong]),
        (mmap.PROT_READ | mmap.PROT_WRITE, [None, None]),
    ):
        mapped_pages.protect(wrong, PAGE, allowed)
        assert [fault(first, end, writing) for writing in (False, True)] == faults
        assert fault(first, wrong, True) is None
        assert fault(wrong + PAGE, end, True) is None
        assert fault(wrong + 1, end, True) == (faults[1] and wrong + 1)
    mapped_pages.unmap(wrong)
    assert [fault(first, end, writing) for writing in (False, True)] == [wrong, wrong]
    assert fault(first, wrong, True) is None


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_the_end_of_a_file(system, mapped, tmp_path, size):
    """A page that is mapped and past it cannot be used; before Linux 5.14 nothing says so."""
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(size - 2 * PAGE)
        start = mapped(size, file.fileno())
    end = start + size
    wrong = None if system == "older" else end - 2 * PAGE
    assert [fault(start, end, writing) for writing in (False, True)] == [wrong, wrong]
    assert fault(start, end - 2 * PAGE, True) is None


#: Advice to madvise(2), since Linux 6.13: pages of which every access faults, in a mapping that
#: allows it. Recent C libraries protect the ends of threads' stacks so.
_GUARD_INSTALL = 102


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_guard_pages(mapped, size):
    """Only the pages themselves can tell, not their mapping."""
    start = mapped(size)
    wrong = start + 2 * PAGE
    if pages._library().madvise(wrong, PAGE, _GUARD_INSTALL) != 0:
        pytest.skip("no guard pages before Linux 6.13")
    assert [fault(start, start + size, writing) for writing in (False, True)] == [wrong, wrong]
    assert fault(start, wrong, True) is None
    assert fault(wrong + PAGE, start + size, True) is None


def test_the_kernels_variables():
    """Some pages of [vvar] fault although their mapping can be read, so all are refused."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(word, 16) for word in line.split()[0].split("-"))
        if "[vvar" in line:
            assert [fault(at, at + 8, False) for at in range(low, high, PAGE)] == [
                *range(low, high, PAGE)
            ]
            assert fault(low - 8, high, False) in (low - 8, low)
        elif "[vdso]" in line:
            assert fault(low, high, False) is None
            assert fault(low, high, True) == low


def test_no_range(system):
    assert fault(16, 16, True) is None
    assert fault(16, 17, False) == 16
    top = (1 << 64) - 4
    for count in (1, 8, 1 << 30, (1 << 64) - 1):
        assert fault(top, top + count, False) == top
        assert fault(16, 16 + count, True) == 16


def test_what_is_beyond_all_addresses_is_not_there(system, mapped):
    start = mapped(SMALL)
    found = fault(start, start + (1 << 64) - 1, False)
    assert found is not None
    assert found >= start + SMALL


def test_nothing_is_known_without_a_listing(monkeypatch):
    old_kernel(monkeypatch)
    monkeypatch.setattr(pages, "_MAPS", "/nowhere/maps")
    assert fault(16, 17, True) is None


def test_what_is_looked_at_stays_as_it_is(mapped):
    start = mapped(LARGE)
    ctypes.memset(start, 7, LARGE)
    assert fault(start, start + LARGE, True) is None
    assert ctypes.string_at(start, LARGE) == b"\7" * LARGE


def test_reasons(mapped):
    start = mapped(SMALL)
    end, wrong = start + SMALL, start + PAGE
    assert pages.unreadable(start, end) is pages.unwritable(start, end) is None
    mapped_pages.protect(wrong, PAGE, mmap.PROT_READ)
    assert pages.unreadable(start, end) is None
    reason = f"read-only memory at {wrong:#x}; allowed: memory that can be written"
    assert pages.unwritable(start, end) == reason
    mapped_pages.unmap(wrong)
    reason = f"no memory at {wrong:#x}; allowed: memory"
    assert pages.unreadable(start, end) == pages.unwritable(start, end) == reason


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("count", "what", "reason"),
    [
        (16, "read-only", "read-only memory"),
        (16, "munmap", "no memory"),
        (19, "munmap", "no memory"),
    ],
)
def test_outputs_with_such_pages_are_refused(mapped, count, what, reason):
    start = mapped(count * PAGE)
    x = np.ones((count, PAGE // 4), np.float32)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=False)
    out = memory.array_at(start, x.shape, (x.shape[1], 1), x.dtype, None)
    assert plan.run(x, x, out=(out, None, None)).grad_input is out
    if what == "munmap":
        mapped_pages.unmap(start + PAGE)
    else:
        mapped_pages.protect(start + PAGE, PAGE, mmap.PROT_READ)
    with pytest.raises(ValueError, match=rf"^out\[0\] \(grad_input\): {reason}"):
        plan.run(x, x, out=(out, None, None))
