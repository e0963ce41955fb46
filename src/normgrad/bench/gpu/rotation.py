"""How many copies of a case's tensors are gone through, and how many calls make a sample.

A call that finds its tensors in the GPU's L2, because the call before left them there, is not what
a training does. So each call takes the next of several copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: What goes through L2 before a copy is used again, in terms of L2's size.
TIMES_L2 = 2.0

#: A case so small that this many copies do not exceed L2 spends its time on launching kernels,
#: not on its data: more copies would cost time to make and change nothing.
MOST_COPIES = 1024

#: How much of the device's free memory the copies may take, with what the contenders allocate.
MEMORY_SHARE = 0.6

#: A copy is dy, x and an output; compositions have temporaries, the largest in float32 where the
#: tensors are halves: counted for one call.
_TENSORS, _TEMPORARIES = 3, 6

#: What the calls of a sample take together at least, so that what an event costs does not count.
SAMPLE_SECONDS = 500e-6
#: Calls in a sample at most: a graph has so many times the kernels of one.
MOST_CALLS = 2048


class TooLargeError(Exception):
    """Not even one copy fits the device's memory."""


@dataclass(frozen=True)
class Rotation:
    """Copies of a case's tensors, and how many bytes they move in all when each is used once."""

    copies: int
    bytes: int

    def exceeds(self, l2: int) -> bool:
        """Whether a call finds nothing of what the last one on its copy has left in L2."""
        return self.bytes > TIMES_L2 * l2


def rotation(call_bytes: int, tensor_bytes: int, l2: int, free: int) -> Rotation:
    """The copies for a case.

    Args:
        call_bytes: what one call moves.
        tensor_bytes: of one of its tensors.
        l2: the device's L2, in bytes.
        free: the device's free memory, in bytes.

    Raises:
        TooLargeError: there is not enough memory for one.
    """
    usable = int(free * MEMORY_SHARE) - _TEMPORARIES * tensor_bytes
    fitting = usable // (_TENSORS * tensor_bytes)
    if fitting < 1:
        needed = (_TENSORS + _TEMPORARIES) * tensor_bytes / MEMORY_SHARE
        raise TooLargeError(f"needs {needed / 1e9:.3g} GB of device memory, {free / 1e9:.3g} free")
    # Between two uses of a copy there are the others.
    wanted = 1 + math.ceil(TIMES_L2 * l2 / call_bytes)
    copies = min(wanted, MOST_COPIES, fitting)
    return Rotation(copies, copies * call_bytes)


def calls(seconds: float, copies: int = 1) -> int:
    """Calls in a sample: each copy once, and as many as take :data:`SAMPLE_SECONDS`.

    Args:
        seconds: that one takes.
        copies: that have to be gone through in one sample: a graph begins anew with each.
    """
    wanted = math.ceil(SAMPLE_SECONDS / max(seconds, 1e-9))
    return max(1, copies, min(wanted, MOST_CALLS))


def rounds(enough: float, length: float, least: int, most: int) -> int:
    """How many rounds of a length fit in a time, within limits."""
    return min(max(math.ceil(enough / max(length, 1e-9)), least), most)
