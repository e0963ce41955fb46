"""Statuses and errors, and aclTensor and aclBoolArray: views of memory with dtypes and formats."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...support.memory import array_at
from ...support.values import Invalid, describe, represent
from ...tensors import frameworks
from ...tensors.blocks import Memory
from ...tensors.strides import Region, contiguous_strides, extent, used_strides
from ..errors import DialectError


class Status(IntEnum):
    """The values of aclnnStatus."""

    ACLNN_SUCCESS = 0
    ACLNN_ERR_PARAM_NULLPTR = 161001
    ACLNN_ERR_PARAM_INVALID = 161002
    ACLNN_ERR_RUNTIME_ERROR = 361001
    ACLNN_ERR_INNER = 561000
    ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003
    ACLNN_ERR_INNER_NULLPTR = 561103


class AclnnError(DialectError):
    """The error of a failed call: its ``status``, ``operator``, and ``parameter`` or None."""

    wrong_argument = Status.ACLNN_ERR_PARAM_INVALID
    status: Status

    @property
    def operator(self) -> str:
        """The function's name without ``GetWorkspaceSize``."""
        return self.function


class aclDataType(IntEnum):
    """Element types."""

    ACL_DT_UNDEFINED = -1
    ACL_FLOAT = 0
    ACL_FLOAT16 = 1
    ACL_INT8 = 2
    ACL_INT32 = 3
    ACL_UINT8 = 4
    ACL_INT16 = 6
    ACL_UINT16 = 7
    ACL_UINT32 = 8
    ACL_INT64 = 9
    ACL_UINT64 = 10
    ACL_DOUBLE = 11
    ACL_BOOL = 12
    ACL_STRING = 13
    ACL_COMPLEX64 = 16
    ACL_COMPLEX128 = 17
    ACL_BF16 = 27
    ACL_INT4 = 29
    ACL_UINT1 = 30
    ACL_COMPLEX32 = 33
    ACL_HIFLOAT8 = 34
    ACL_FLOAT8_E5M2 = 35
    ACL_FLOAT8_E4M3FN = 36
    ACL_FLOAT8_E8M0 = 37
    ACL_FLOAT6_E3M2 = 38
    ACL_FLOAT6_E2M3 = 39
    ACL_FLOAT4_E2M1 = 40
    ACL_FLOAT4_E1M2 = 41


class aclFormat(IntEnum):
    """The formats of tensors, which give the axes a meaning."""

    ACL_FORMAT_UNDEFINED = -1
    ACL_FORMAT_NCHW = 0
    ACL_FORMAT_NHWC = 1
    ACL_FORMAT_ND = 2
    ACL_FORMAT_NC1HWC0 = 3
    ACL_FORMAT_FRACTAL_Z = 4
    ACL_FORMAT_NC1HWC0_C04 = 12
    ACL_FORMAT_HWCN = 16
    ACL_FORMAT_NDHWC = 27
    ACL_FORMAT_FRACTAL_NZ = 29
    ACL_FORMAT_NCDHW = 30
    ACL_FORMAT_NDC1HWC0 = 32
    ACL_FRACTAL_Z_3D = 33
    ACL_FORMAT_NC = 35
    ACL_FORMAT_NCL = 47
    ACL_FORMAT_FRACTAL_NZ_C0_16 = 50
    ACL_FORMAT_FRACTAL_NZ_C0_32 = 51


#: The element types' names in contracts.
TYPE_NAMES = {
    **{each: each.name.removeprefix("ACL_").removeprefix("DT_").lower() for each in aclDataType},
    aclDataType.ACL_FLOAT: "float32",
    aclDataType.ACL_DOUBLE: "float64",
    aclDataType.ACL_BF16: "bfloat16",
}
#: The element types that NumPy has; ml_dtypes has added bfloat16.
NUMPY: dict[aclDataType, np.dtype[Any]] = {
    each: np.dtype(getattr(ml_dtypes, name, name))
    for each, name in TYPE_NAMES.items()
    if 0 <= each <= aclDataType.ACL_BF16 and each is not aclDataType.ACL_STRING
}
_BY_NAME = {str(dtype): data_type for data_type, dtype in NUMPY.items()}
#: The formats' names in contracts.
FORMAT_NAMES = {one: one.name.removeprefix("ACL_FORMAT_") for one in aclFormat}


@dataclass(frozen=True, eq=False, slots=True)
class Signature:
    """The properties of a tensor that a plan depends on.

    Tensors that agree in them share one object, so comparisons by identity suffice.
    """

    dims: tuple[int, ...]
    steps: tuple[int, ...]
    dtype_name: str
    format: aclFormat
    unusable: str | None


_signature = lru_cache(1 << 16)(Signature)

#: Tensors have fewer elements than this, so that sizes in bytes fit in 64-bit integers.
_MOST_ELEMENTS = 1 << 58


@dataclass(eq=False, repr=False, slots=True)
class aclTensor:
    """A view of memory; :func:`aclCreateTensor` or :func:`tensor` makes it.

    Attributes:
        dims: the view's shape.
        strides: the view's strides, in elements.
        offset: the offset of the view's first element from the start of the memory, in elements.
        data_type, format: the element type and format that the caller declared.
        dtype_name, format_name: their names in contracts.
        storage_dims: the declared shape of the memory, which is not checked; the size of the memory
            is.
        memory: the address and the owner of the memory.
        steps: the strides, with 1 for axes of one element, whose strides are never used.
        unusable: the reason why the memory cannot be used, or None.
        signature: the object that tensors of the same properties share.
        address: the address of the view's first element.
    """

    dims: tuple[int, ...]
    data_type: aclDataType
    strides: tuple[int, ...]
    offset: int
    format: aclFormat
    storage_dims: tuple[int, ...]
    memory: Memory
    nbytes: InitVar[int | None]
    dtype_name: str = field(init=False)
    format_name: str = field(init=False)
    steps: tuple[int, ...] = field(init=False)
    unusable: str | None = field(init=False)
    signature: Signature = field(init=False)
    address: int = field(init=False)
    _array: npt.NDArray[Any] | None = field(default=None, init=False)

    def __post_init__(self, nbytes: int | None) -> None:
        self.dtype_name = TYPE_NAMES[self.data_type]
        self.format_name = FORMAT_NAMES[self.format]
        self.steps = used_strides(self.dims, self.strides)
        self.unusable = self._why_unusable(nbytes)
        self.signature = _signature(
            self.dims, self.steps, self.dtype_name, self.format, self.unusable
        )
        self.address = self.memory.address + self.offset * self._itemsize

    @property
    def _itemsize(self) -> int:
        return NUMPY[self.data_type].itemsize if self.data_type in NUMPY else 1

    def _why_unusable(self, nbytes: int | None) -> str | None:
        if 0 in self.dims:
            return None
        if isinstance(self.memory.owner, Invalid):
            return repr(self.memory.owner)
        if self.memory.owner is None:
            return "no memory; allowed: a tensor with data"
        count = prod(self.dims)
        if count >= _MOST_ELEMENTS:  # it may have more digits than Python writes
            size = f"2^{count.bit_length() - 1} or more"
            return f"{size} elements; allowed: less than {_MOST_ELEMENTS}"
        if nbytes is None or self.data_type not in NUMPY:
            return None
        low, high = extent(self.dims, self.steps)
        itemsize = NUMPY[self.data_type].itemsize
        if self.offset + low < 0 or (self.offset + high + 1) * itemsize > nbytes:
            return (
                f"elements {self.offset + low} to {self.offset + high} of its storage; allowed: 0 "
                f"to {nbytes // itemsize - 1}, the {nbytes} bytes that there are"
            )
        return None

    @property
    def array(self) -> npt.NDArray[Any]:
        """The view as a NumPy array over the same memory."""
        if self._array is None:
            dtype = NUMPY[self.data_type]
            _, _, owner, writeable = self.memory
            self._array = (
                np.empty(self.dims, dtype)
                if 0 in self.dims
                else array_at(self.address, self.dims, self.steps, dtype, owner, writeable)
            )
        return self._array

    @property
    def region(self) -> Region:
        """The bytes of the view's elements."""
        return Region(self.address, self.dims, self.steps, self._itemsize)

    def loss(self) -> str | None:
        """The reason why the tensor's memory has become unusable; None if it has not."""
        return self.memory.loss()

    def mark_written(self) -> None:
        """Tell the memory's framework that the memory was written to."""
        frameworks.count_writes((self.memory.owner,))

    def __repr__(self) -> str:
        return (
            f"aclTensor({self.dtype_name}, {self.format_name}, dims {self.dims}, strides "
            f"{self.strides}, offset {self.offset})"
        )


class aclBoolArray(tuple[bool, ...]):
    """An array of booleans; :func:`aclCreateBoolArray` makes it."""

    __slots__ = ()

    def __new__(cls, values: Iterable[Any]) -> aclBoolArray:
        """Take entries that are True, False, 1 or 0; others may raise any type of exception."""
        entries = [
            entry if isinstance(entry, (bool, np.bool_)) else operator.index(entry)
            for entry in values
        ]
        if not {0, 1}.issuperset(entries):
            raise TypeError("neither True nor False")
        return super().__new__(cls, map(bool, entries))


def aclCreateTensor(
    view_dims: Sequence[int],
    data_type: int,
    strides: Sequence[int] | None,
    offset: int,
    format: int,
    storage_dims: Sequence[int] | None,
    data: Any,
) -> aclTensor:
    """Make a view of memory, with any rank, dtype, format and size: only phase 1 checks these.

    Args:
        view_dims: the view's shape.
        data_type: an :class:`aclDataType`.
        strides: the view's strides in elements; None for a contiguous view.
        offset: the offset of the view's first element from the start of ``data``, in elements.
        format: an :class:`aclFormat`.
        storage_dims: the shape of the memory; None for the view's shape.
        data: the memory: a contiguous NumPy array, PyTorch CPU tensor or buffer, of any dtype; None
            for a null pointer.

    Raises:
        AclnnError: 161002, for arguments that do not describe a view.
    """
    name = "aclCreateTensor"
    dims = AclnnError.sizes(name, "viewDims", view_dims)
    steps = contiguous_strides(dims)
    if strides is not None:
        steps = AclnnError.integers(name, "stride", strides)
    if len(steps) != len(dims):
        message = f"{len(steps)} of them; allowed: {len(dims)}, one an axis"
        raise AclnnError.of(name, "stride", message)
    (start,) = AclnnError.integers(name, "offset", [offset])
    storage = dims if storage_dims is None else AclnnError.sizes(name, "storageDims", storage_dims)
    kind = AclnnError.member(name, "dataType", aclDataType, data_type)
    order = AclnnError.member(name, "format", aclFormat, format)
    memory = Memory(0, 0, None, False)
    if data is not None:
        memory = AclnnError.memory(name, "tensorData", data, writing=False)
    return aclTensor(dims, kind, steps, start, order, storage, memory, memory.nbytes)


def tensor(array: Any, format: int = aclFormat.ACL_FORMAT_ND) -> aclTensor:
    """Make an aclTensor over a NumPy array or PyTorch CPU tensor, with its shape, strides, dtype.

    Raises:
        AclnnError: 161002, for a dtype or a format that has no number in CANN.
        TypeError: neither an array nor a tensor.
        ValueError: on another device, with strides that are not multiples of the item size, or a
            PyTorch tensor that requires a gradient, which would be lost.
    """
    framework = frameworks.of("array", array)
    device = framework.device("array", array)
    if device != "cpu":
        raise ValueError(f"array: on device {device}; allowed: cpu")
    if not framework.is_known:
        raise TypeError(f"array: {describe(array)}; allowed: an array or a tensor")
    opened = framework.open("array", array, writing=True)
    framework.keep_derivatives("array", opened.tensor)
    itemsize, steps = opened.itemsize, opened.steps
    if any(step % itemsize for step in steps):
        raise ValueError(f"array: strides {steps}; allowed: multiples of {itemsize}")
    strides = tuple(step // itemsize for step in steps)
    dtype = str(opened.dtype)
    data_type = _BY_NAME.get(dtype)
    if data_type is None:
        raise AclnnError.of("tensor", "array", f"dtype {dtype}; allowed: one with an aclDataType")
    order = AclnnError.member("tensor", "format", aclFormat, format)
    dims = tuple(opened.shape)
    nbytes, writeable = prod(dims) * itemsize, opened.read_only is None
    memory = Memory(opened.address_for("array"), nbytes, opened.tensor, writeable)
    return aclTensor(dims, data_type, strides, 0, order, dims, memory, None)


def aclCreateBoolArray(values: Iterable[bool]) -> aclBoolArray:
    """Make an array of any number of booleans; a plain sequence can be used as a mask too.

    Raises:
        AclnnError: 161002, for entries other than True, False, 1 and 0.
    """
    try:
        return aclBoolArray(values)
    except Exception:  # iterating over a caller's object may raise any type of exception
        message = f"{represent(values)}; allowed: a sequence of booleans"
        raise AclnnError.of("aclCreateBoolArray", "value", message) from None
