"""The specification of a tensor: shape, dtype and strides, without data; and an opened tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy.typing as npt

from ..support.values import describe, represent
from . import dtypes
from .dtypes import DType
from .strides import Region, contiguous_strides, divides, extent, used_strides
from .symbolic import SymInt

if TYPE_CHECKING:
    import torch

#: The tensors that operators take, in messages.
KINDS = "NumPy arrays, PyTorch tensors and objects that speak DLPack"


class Tensor(Protocol):
    """The type of tensors that operators take: all of them speak DLPack."""

    def __dlpack_device__(self) -> tuple[Any, Any]: ...

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


#: The type of a call's ``input``, and so of its results. NumPy's arrays are of any shape and dtype,
#: since results may have others than the input. PyTorch's tensor comes first: where PyTorch is not
#: installed, its type is unknown, so that anything passes for one, and only in this order do type
#: checkers still find NumPy's.
TensorT = TypeVar("TensorT", "torch.Tensor", npt.NDArray[Any], Tensor)
#: The other type of a result that a call's options may turn off, so that it is None. It is Any, so
#: that type checkers do not ask whoever knows the options to check for None.
MaybeNone: TypeAlias = Any

#: The maximum size of a tensor in bytes, since kernels compute with 64-bit sizes and offsets.
_MOST_BYTES = 2**62


class ReachError(ValueError):
    """The error for a shape and strides that exceed any memory; the text describes them."""


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """A context that adds the argument's name to a :class:`ReachError`."""
    try:
        yield
    except ReachError as error:
        raise ValueError(f"{argument}: {error}") from None


def _integers(name: str, values: Any) -> tuple[Any, ...]:
    try:
        return tuple([each if type(each) is SymInt else index(each) for each in values])
    except Exception:  # iterating over a caller's object may raise any type of exception
        raise TypeError(f"{name}: {represent(values)} is not a sequence of integers") from None


@dataclass(frozen=True, init=False, repr=False)
class TensorSpec:
    """The shape, dtype and strides of a tensor, from which plans are made.

    Args:
        shape: the size of each axis, none negative.
        dtype: a name ("float32", "float16", "bfloat16", "float64", "int32", "int64"), a NumPy
            dtype or a torch dtype.
        strides: the stride of each axis, in elements; None for row-major order.

    Raises:
        TypeError: an unknown dtype, or sizes that are not integers.
        ValueError: a negative size, not as many strides as sizes, or more than memory can hold.
    """

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...]

    def __init__(self, shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None):
        sizes = _integers("shape", shape)
        if any(size < 0 for size in sizes):
            raise ValueError(f"shape: {sizes} has a negative size; allowed: 0 or more")
        if strides is None:
            steps = contiguous_strides(sizes)
        else:
            steps = _integers("strides", strides)
            if len(steps) != len(sizes):
                raise ValueError(
                    f"strides: {steps} has {len(steps)} entries; allowed: {len(sizes)}, one for "
                    f"each axis of shape {sizes}"
                )
        kind = dtypes.parse(dtype)
        low, high = extent(sizes, steps)
        if max(high - low + 1, *map(abs, (1, *steps)), *sizes) * kind.itemsize >= _MOST_BYTES:
            raise ReachError(
                f"shape {sizes} with strides {steps}: reaches over {_MOST_BYTES} bytes or more; "
                "allowed: what an address can reach"
            )
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", kind)
        object.__setattr__(self, "strides", steps)

    def __repr__(self) -> str:
        return f"TensorSpec({self.shape}, {self.dtype.name!r}, {self.strides})"

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.elements * self.dtype.itemsize

    @property
    def reach(self) -> tuple[int, int]:
        """The offsets of the first byte and of one past the last from the tensor's address."""
        low, high = extent(self.shape, self.strides)
        return low * self.dtype.itemsize, (high + 1) * self.dtype.itemsize

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The strides in bytes."""
        return tuple([step * self.dtype.itemsize for step in self.strides])

    def region(self, address: int) -> Region:
        """The memory of a tensor with this spec at ``address``."""
        return Region(address, self.shape, self.strides, self.dtype.itemsize)


class OpenTensor(NamedTuple):
    """A tensor of any framework and dtype, in the form in which its memory is read and written.

    Attributes:
        tensor: the framework's plain tensor, or another object that keeps the memory alive.
        address: the address of the first element, or the reason why it has none.
        shape, steps: the size of each axis, and its stride in bytes.
        itemsize: the bytes of an element.
        dtype: the dtype, or the name of one that no operator takes.
        read_only: the reason why the tensor must not be written to; None if the framework has none.
        original: the memory of the caller's tensor, if ``tensor`` is a copy.
    """

    tensor: Any
    address: int | str
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    itemsize: int
    dtype: DType | str
    read_only: str | None = None
    original: Region | None = None

    def spec(self, name: str, allowed: Sequence[DType]) -> TensorSpec:
        """The tensor's :class:`TensorSpec`; messages have its name and the allowed dtypes."""
        if isinstance(self.dtype, str):
            raise dtypes.unsupported(name, self.dtype, allowed)
        if not divides(self.itemsize, self.shape, self.steps):
            raise ValueError(
                f"{name}: strides {self.steps} bytes; allowed: multiples of the item size, "
                f"{self.itemsize}"
            )
        return TensorSpec(self.shape, self.dtype, [step // self.itemsize for step in self.steps])

    @property
    def contiguous_bytes(self) -> int | None:
        """The bytes of all elements; None if they are not contiguous."""
        size = math.prod(self.shape) * self.itemsize
        dense = [step * self.itemsize for step in contiguous_strides(self.shape)]
        follow = used_strides(self.shape, self.steps) == used_strides(self.shape, dense)
        return size if follow or not size else None

    def address_for(self, name: str) -> int:
        """The address of the first element; a fake or a batched tensor has none."""
        if isinstance(self.address, int):
            return self.address
        raise TypeError(
            f"{name}: {describe(self.tensor)} without memory of its own ({self.address}); "
            f"allowed: {KINDS}"
        )
