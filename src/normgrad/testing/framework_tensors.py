"""Tensors of the frameworks that implementations take, made from NumPy arrays, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..operators.reference import Array
from ..support import memory
from ..tensors import dlpack, dtypes, frameworks
from ..tensors.strides import extent

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class NotOfferedError(Exception):
    """An implementation does not offer what a call needs, which is no fault."""


class Counterpart(NamedTuple):
    """An array's tensor in an implementation's framework.

    Attributes:
        tensor: the tensor, over the array's own memory where the framework and device allow.
        fetch: copies what the tensor's memory has now to the array's, if they are two.
    """

    tensor: Any
    fetch: Callable[[], object] = lambda: None


def to_torch(value: Array, device: str = "cpu") -> Counterpart:
    """A PyTorch tensor with the array's values and strides on a device of PyTorch's."""
    import torch

    if any(stride < 0 for stride in value.strides):
        raise NotOfferedError("PyTorch has no negative strides")
    half = value.dtype == _BFLOAT16
    tensor = torch.from_numpy(value.view(np.uint16) if half else value)
    tensor = tensor.view(torch.bfloat16) if half else tensor
    if device == "cpu":
        return Counterpart(tensor)
    # Copy all memory that the tensor spans, to keep its strides on the device.
    _, last = extent(tensor.shape, tensor.stride())
    flat = tensor.as_strided((last + 1,), (1,))
    there = flat.to(device, copy=True)
    view = there.as_strided(tensor.shape, tensor.stride())
    return Counterpart(view, lambda: flat.copy_(there))


def to_dlpack(value: Array, from_dlpack: Callable[[Any], Any]) -> Counterpart:
    """What a framework's ``from_dlpack`` makes of the array's memory, which it may copy."""
    try:
        return Counterpart(from_dlpack(dlpack.producer_of(value)))
    except Exception as error:
        raise NotOfferedError(f"from_dlpack: {first_line(error)}") from None


def to_array(value: Any) -> Array:
    """The array of a tensor: NumPy's, PyTorch's on any device, or of anything that speaks DLPack.

    It is a view of memory on the CPU, and a copy of that of another device.

    Raises:
        TypeError: something else.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        half = tensor.dtype == torch.bfloat16
        array = tensor.view(torch.uint16).numpy().view(_BFLOAT16) if half else tensor.numpy()
        return np.asarray(array)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError(f"dtype {array.dtype}; allowed: floating-point types")
        return array
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"{type(value).__name__}; allowed: an array or a tensor")
    if dlpack.device_of("the result", value) != "cpu":
        from torch import from_dlpack

        return to_array(from_dlpack(value))
    opened = frameworks.of("the result", value).open("the result", value, writing=False)
    spec = opened.spec("the result", dtypes.FLOATS)
    assert isinstance(opened.address, int)  # that of a tensor which can be read
    kind = spec.dtype.numpy
    return memory.array_at(opened.address, spec.shape, spec.strides, kind, opened.tensor)


def first_line(error: Exception) -> str:
    """The first line of an exception's text."""
    return str(error).partition("\n")[0]
