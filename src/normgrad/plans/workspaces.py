"""Workspaces: the scratch memory of runs, which callers provide or which is allocated."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..support import memory
from ..tensors import blocks, devices, frameworks
from ..tensors.strides import Region, round_up

#: The bytes of workspaces that runs on the CPU leave to the next, of this plan or of another. Pages
#: that are never written take no memory.
SPARE_BYTES = 2 << 20
#: The largest alignment of a backend.
_ALIGNMENT = 256


class Scratch(NamedTuple):
    """The scratch memory of a run.

    Attributes:
        start: the address of the first byte that is used, a multiple of the backend's alignment.
        owner: what keeps the memory alive.
        used: the bytes that are used, if the memory is the caller's.
    """

    start: int = 0
    owner: Any = None
    used: Region | None = None


def given(size: int, alignment: int, workspace: Any, device: str) -> Scratch:
    """The part of a caller's workspace that is used.

    Raises:
        TypeError, ValueError: it is too small, or cannot be used.
    """
    if device == devices.CPU:
        block = blocks.memory_of("workspace", workspace, writing=True)
    else:
        block = blocks.memory_on(device, "workspace", workspace)
    if block.nbytes < size:
        raise ValueError(f"workspace: {block.nbytes} bytes; allowed: at least {size}")
    start = round_up(block.address, alignment)
    return Scratch(start, block.owner, Region(start, (usable_size(size, alignment),), (1,), 1))


def new(size: int, alignment: int, device: str) -> Scratch:
    """New memory on a device.

    Raises:
        MemoryError: there is too little.
    """
    if device == devices.CPU:
        with memory.allocating("workspace", size):
            owner = np.empty(size, np.uint8)
    else:
        # It may be freed before the kernels end, since PyTorch's allocator reuses it only for later
        # work on the same stream.
        owner = frameworks.of_torch().bytes_on(device, size)
    return Scratch(round_up(frameworks.address_of(owner), alignment), owner)


def usable_size(workspace_size: int, alignment: int) -> int:
    """The number of bytes of a workspace that are used, from the first aligned byte on."""
    return max(0, workspace_size - alignment + 1)


#: Workspaces that no run has at the moment: to make one takes a tenth of a small call.
_spare: list[Scratch] = []


def borrow() -> Scratch:
    """A workspace of ``SPARE_BYTES`` on the CPU, which :func:`give_back` leaves to the next run."""
    try:
        return _spare.pop()
    except IndexError:
        return new(SPARE_BYTES + _ALIGNMENT, _ALIGNMENT, devices.CPU)


give_back = _spare.append
