"""How many copies are gone through, and how many calls make a sample."""

import pytest

from normgrad.bench.gpu import rotation

MIB = 1 << 20
L2 = 50 * MIB


@pytest.mark.parametrize(
    ("call_bytes", "copies"),
    [(2400 * MIB, 2), (100 * MIB, 2), (99 * MIB, 3), (10 * MIB, 11), (96 << 10, 1024)],
)
def test_between_two_uses_of_a_copy_goes_twice_l2(call_bytes, copies):
    found = rotation.rotation(call_bytes, call_bytes // 3, L2, 100 << 30)
    assert (found.copies, found.bytes) == (copies, copies * call_bytes)
    assert found.exceeds(L2) == (found.bytes > 2 * L2)
    if copies < rotation.MOST_COPIES:
        assert (copies - 1) * call_bytes >= 2 * L2


def test_no_more_copies_than_fit():
    tensor = 10 * MIB
    free = int((6 + 3 * 2) * tensor / rotation.MEMORY_SHARE) + 1
    assert rotation.rotation(3 * tensor, tensor, L2, free).copies == 2
    free = int((6 + 3) * tensor / rotation.MEMORY_SHARE) + 1
    assert rotation.rotation(3 * tensor, tensor, L2, free).copies == 1
    with pytest.raises(rotation.TooLargeError, match=r"needs 0\.157 GB of device memory, 0\.1"):
        rotation.rotation(3 * tensor, tensor, L2, free - (1 << 20))


@pytest.mark.parametrize(
    ("seconds", "copies", "calls"),
    [(1e-3, 1, 1), (1e-3, 2, 2), (100e-6, 2, 5), (10e-6, 11, 50), (1e-6, 1024, 1024), (0, 1, 2048)],
)
def test_calls(seconds, copies, calls):
    assert rotation.calls(seconds, copies) == calls


@pytest.mark.parametrize(("length", "rounds"), [(1.0, 5), (0.05, 10), (1e-6, 101), (0.0, 101)])
def test_rounds(length, rounds):
    assert rotation.rounds(0.5, length, 5, 101) == rounds
