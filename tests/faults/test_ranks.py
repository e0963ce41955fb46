"""Ranks of a synchronised batch norm that are killed in a step, or come late."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

from ranks import Ranks  # noqa: E402 - it needs torch

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="gloo on loopback"),
    pytest.mark.cpu,
]

#: The group's; everything else may take as long as a busy machine makes it.
TIMEOUT = 30.0


@pytest.mark.full
def test_a_rank_that_is_killed():
    """The others do not hang: each gets an error that names what it was doing, and with whom."""
    group = Ranks(3, TIMEOUT)
    try:
        group.run("still_works")
        start = time.monotonic()
        group.start("fail", [{"how": how} for how in ("wait", "killed", "wait")], when="forward")
        for rank in (0, 2):
            done, (kind, text, _) = group.answer(rank, within=4 * TIMEOUT)
            assert (done, kind) == (False, "RuntimeError")
            assert text.startswith(
                "sync_batch_norm: statistics: all-gather of 9 float64 values failed on rank "
                f"{rank} of the 3 in group '0': "
            )
        assert time.monotonic() - start < 4 * TIMEOUT
        group.processes[1].join(TIMEOUT)
        assert group.processes[1].exitcode == -9
    finally:
        for process in group.processes:
            process.kill()
        group.close()


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_rank_that_is_late(late, when):
    """The others wait for it, and the results are what they are without it being late."""
    each = [{"how": "wait"}, {"how": "late", "seconds": 2.0}]
    expected = late.run("fail", how="wait", when=when)
    assert all(np.abs(gradient).max() > 0.01 for gradient in expected)
    start = time.monotonic()
    found = late.run("fail", each, when=when)
    assert time.monotonic() - start >= 2.0  # so they did wait
    for rank in range(2):
        np.testing.assert_array_equal(found[rank], expected[rank])


@pytest.fixture(scope="module")
def late():
    group = Ranks(2)
    yield group
    group.close()
