"""The names of devices, "cpu" and "cuda:0", and whether they can be used."""

from __future__ import annotations

import sys
from typing import Any

from ..support.forks import loading
from ..support.values import describe

CPU = "cpu"
_CUDA = "cuda:"

_ALL = "allowed: cpu, or cuda where Triton is installed"


def is_cuda(device: str) -> bool:
    """Whether a device's name is that of a GPU."""
    return device.startswith(_CUDA)


def index_of(device: str) -> int:
    """The index of the GPU with a name such as "cuda:1"."""
    return int(device.removeprefix(_CUDA))


#: The results of :func:`unusable`, by index.
_reasons: dict[int | None, str | None] = {}


def unusable(index: int | None = None) -> str | None:
    """The reason why tensors on GPUs, or on one of them, are not supported; None if they are."""
    if index in _reasons:
        return _reasons[index]
    with loading():
        from ..backends.triton import device
    torch = sys.modules.get("torch")
    reason: str | None = device.unusable()
    if reason is None and index is not None:
        count = torch.cuda.device_count() if torch is not None else 0
        last = f"cuda:{count - 1}"
        reason = device.unusable(index) if index < count else f"PyTorch sees cuda:0 to {last}"
    if torch is not None:  # before PyTorch is loaded the answer may still change
        _reasons[index] = reason
    return reason


def check(name: str, device: str) -> None:
    """Raise a ValueError for a tensor on a device that no backend computes on."""
    if device == CPU:
        return
    if not is_cuda(device):
        raise ValueError(f"{name}: on device {device}; {_ALL}")
    _check_cuda(name, f"on device {device}", index_of(device))


def _check_cuda(name: str, description: str, index: int | None) -> None:
    reason = unusable(index)
    if reason is not None:
        others = "" if unusable() else ", or another GPU"
        raise ValueError(
            f"{name}: {description}, which cannot be used here: {reason}; allowed: cpu{others}"
        )


def check_same(name: str, device: str, expected: str, first: str) -> None:
    """Raise a ValueError for a tensor that is not on the device of the call's ``first`` tensor."""
    if device != expected:
        raise ValueError(f"{name}: on device {device}; allowed: {expected}, where {first} is")


def full_name(device: Any) -> str:
    """The full name, with an index, of a device that a caller names in any form."""
    torch = sys.modules.get("torch")
    if not isinstance(device, str) and not isinstance(device, getattr(torch, "device", ())):
        raise TypeError(
            f"device: {describe(device)}; allowed: None, a name such as cpu or cuda:0, or a "
            "torch.device"
        )
    name = str(device)
    kind, colon, number = name.partition(":")
    if kind == CPU and (not colon or number == "0"):
        return CPU
    if kind != "cuda" or (colon and not (number.isascii() and number.isdecimal())):
        raise ValueError(f"device: {name!r}; {_ALL}")
    _check_cuda("device", repr(name), int(number) if colon else None)
    if colon:
        return f"{_CUDA}{int(number)}"
    from torch import cuda  # GPUs are used only with PyTorch

    index: int = cuda.current_device()
    _check_cuda("device", repr(name), index)
    return f"{_CUDA}{index}"
