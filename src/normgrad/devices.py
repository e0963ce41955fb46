"""What devices are called, "cpu" and "cuda:0", and which of them can be used here."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from .forks import LOADING

CPU = "cpu"
_CUDA = "cuda:"

_ALL = "allowed: cpu, or cuda where Triton is installed"


def is_cuda(device: str) -> bool:
    """Whether it is a GPU, whose index :func:`index_of` gives."""
    return device.startswith(_CUDA)


def index_of(device: str) -> int:
    """Which of the GPUs "cuda:1" is."""
    return int(device.removeprefix(_CUDA))


@cache
def unusable() -> str | None:
    """Why CUDA tensors cannot be computed here; None if they can."""
    with LOADING:
        from .backends.triton import device
    reason: str | None = device.unusable()
    return reason


def check(name: str, device: str) -> None:
    """Raise a ValueError for a tensor on a device that no backend computes on."""
    if device == CPU:
        return
    if not is_cuda(device):
        raise ValueError(f"{name}: on device {device}; {_ALL}")
    _check_cuda(name, f"on device {device}")


def _check_cuda(name: str, what: str) -> None:
    reason = unusable()
    if reason is not None:
        raise ValueError(f"{name}: {what}, which cannot be used here ({reason}); allowed: cpu")


def check_same(name: str, device: str, expected: str, first: str) -> None:
    """Raise a ValueError for a tensor that is not where the call's ``first`` one is."""
    if device != expected:
        raise ValueError(f"{name}: on device {device}; allowed: {expected}, where {first} is")


def named(device: Any) -> str:
    """The device that a caller names, with its index.

    Raises:
        TypeError: what is no device's name.
        ValueError: a device that there is not, or that no backend computes on.
    """
    torch = sys.modules.get("torch")
    if not isinstance(device, str) and not isinstance(device, getattr(torch, "device", ())):
        raise TypeError(
            f"device: a {type(device).__name__}; allowed: None, a name such as cpu or cuda:0, or a "
            "torch.device"
        )
    shown = str(device)
    kind, colon, number = shown.partition(":")
    if kind == CPU and (not colon or number == "0"):
        return CPU
    if kind != "cuda" or (colon and not (number.isascii() and number.isdecimal())):
        raise ValueError(f"device: {shown!r}; {_ALL}")
    _check_cuda("device", repr(shown))
    import torch.cuda as cuda  # there is no GPU without it

    if not colon:
        return f"{_CUDA}{cuda.current_device()}"
    count = cuda.device_count()
    if int(number) >= count:
        raise ValueError(f"device: {shown!r}; allowed: cuda:0 to cuda:{count - 1}")
    return f"{_CUDA}{int(number)}"
