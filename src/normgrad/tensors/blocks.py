"""Blocks of memory that callers provide: arrays, tensors and buffers, of any dtype, as bytes."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..support import memory
from ..support.values import describe
from . import devices, frameworks


class Memory(NamedTuple):
    """A block of memory, and the object that keeps it alive."""

    address: int
    nbytes: int
    owner: Any
    writeable: bool

    def loss(self) -> str | None:
        """The reason why the memory is no longer usable; None if it is usable."""
        owner = self.owner
        moved = False
        if isinstance(owner, np.ndarray):
            # Only an array that owns its memory can have been resized.
            moved = owner.flags.owndata and (
                owner.ctypes.data != self.address or owner.nbytes != self.nbytes
            )
        elif (torch := sys.modules.get("torch")) and isinstance(owner, torch.Tensor):
            moved = (owner.data_ptr(), owner.nbytes) != self[:2]
            moved = moved or frameworks.of_torch().shortage(owner) is not None
        return "its memory was moved" if moved else None

    def bytes(self) -> npt.NDArray[np.uint8]:
        """An array over the memory, which compiled code can read."""
        dtype = np.dtype(np.uint8)
        return memory.array_at(
            self.address, (self.nbytes,), (1,), dtype, self.owner, self.writeable
        )


def memory_on(device: str, name: str, value: Any) -> Memory:
    """The memory of a contiguous, writable tensor of any dtype on a GPU.

    Raises:
        TypeError: not a tensor.
        ValueError: a tensor that is not contiguous, is read-only, or is on another device.
    """
    allowed = f"a writable, contiguous tensor on {device}"
    framework = None
    with suppress(TypeError):
        framework = frameworks.of(name, value)
    if framework is None or isinstance(value, np.ndarray):
        raise TypeError(f"{name}: {describe(value)}; allowed: {allowed}")
    where = framework.device(name, value)
    if where != device:
        raise ValueError(f"{name}: on device {where}; allowed: {device}, as in the plan")
    opened = framework.open(name, value, writing=True)
    size = opened.contiguous_bytes
    if size is None:
        raise ValueError(f"{name}: not contiguous; allowed: {allowed}")
    address = opened.address_for(name)
    if opened.read_only is not None:
        raise ValueError(f"{name}: {opened.read_only}")
    framework.keep_derivatives(name, opened.tensor)
    return Memory(address, size, opened.tensor, True)


def memory_of(name: str, value: Any, writing: bool) -> Memory:
    """The memory of a contiguous NumPy array, PyTorch CPU tensor or buffer, of any dtype.

    Raises:
        TypeError: an object of another type.
        ValueError: memory that is not contiguous, not on the CPU, or read-only if ``writing``.
    """
    if type(value) is Memory:
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        framework = frameworks.of_torch()
        seen = framework.look((value,), 0)
        if seen is not None and value.is_cpu and value.is_contiguous():
            address, size = seen.addresses[0], value.nbytes
            if seen.rooms[0] >= size:
                return Memory(address, size, value, True)
        device = framework.device(name, value)
        if device != devices.CPU:
            raise ValueError(f"{name}: on device {device}; allowed: cpu")
        try:
            opened = framework.open(name, value, writing=True)
            size = opened.contiguous_bytes
        except TypeError:
            size = None
        if size is None:
            raise ValueError(f"{name}: not a contiguous CPU tensor; allowed: a contiguous one")
        framework.keep_derivatives(name, opened.tensor)
        return Memory(opened.address_for(name), size, opened.tensor, True)
    try:
        if isinstance(value, np.ndarray):  # arrays of some dtypes have no memoryview
            array = np.asarray(value)
            holds_objects, writeable = array.dtype.hasobject, array.flags.writeable
            contiguous = array.flags.c_contiguous
        else:
            view = memoryview(value)
            holds_objects, writeable = "O" in view.format, not view.readonly
            contiguous = view.c_contiguous
    except (TypeError, ValueError):
        allowed = "a writable buffer" if writing else "a buffer"
        raise TypeError(f"{name}: {describe(value)}; allowed: {allowed}") from None
    if holds_objects:
        raise TypeError(f"{name}: a buffer of Python objects; allowed: one of plain bytes")
    if not contiguous or (writing and not writeable):
        allowed = "a writable, contiguous buffer" if writing else "a contiguous buffer"
        raise ValueError(
            f"{name}: {'read-only' if contiguous else 'not contiguous'}; allowed: {allowed}"
        )
    if not isinstance(value, np.ndarray):
        array = np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)
    return Memory(frameworks.address_of(array), array.nbytes, array, writeable)
