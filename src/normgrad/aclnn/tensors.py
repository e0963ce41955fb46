"""aclTensor and aclBoolArray: views of memory, with a dtype and a format."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .. import frameworks, layout
from ..memory import array_at
from ..unusable import shown
from ..workspaces import Memory, memory_of
from .status import AclnnError, Status, invalid


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


class aclFormat(IntEnum):
    """What the axes of a tensor stand for."""

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
    ACL_FORMAT_NC = 35
    ACL_FORMAT_NCL = 47


#: The element types whose names in NumPy are no part of their own.
_OTHERWISE_NAMED: dict[aclDataType, Any] = {
    aclDataType.ACL_FLOAT: np.float32,
    aclDataType.ACL_DOUBLE: np.float64,
    aclDataType.ACL_BF16: ml_dtypes.bfloat16,
}
#: The element types that NumPy does not have, and what messages call them.
_NOT_IN_NUMPY = {aclDataType.ACL_DT_UNDEFINED: "undefined", aclDataType.ACL_STRING: "string"}
#: The element types that NumPy has.
NUMPY: dict[aclDataType, np.dtype[Any]] = {
    each: np.dtype(_OTHERWISE_NAMED.get(each, each.name.removeprefix("ACL_").lower()))
    for each in aclDataType
    if each not in _NOT_IN_NUMPY
}
_BY_NUMPY = {dtype: data_type for data_type, dtype in NUMPY.items()}
_NAMES = {**{data_type: dtype.name for data_type, dtype in NUMPY.items()}, **_NOT_IN_NUMPY}
_FORMAT_NAMES = {one: one.name.removeprefix("ACL_FORMAT_") for one in aclFormat}


@dataclass(frozen=True, eq=False, slots=True)
class Look:
    """What a plan depends on; tensors that look the same have one object, which is equal to itself
    alone."""

    dims: tuple[int, ...]
    steps: tuple[int, ...]
    dtype_name: str


@lru_cache(1 << 16)
def _look(
    dims: tuple[int, ...],
    steps: tuple[int, ...],
    data_type: aclDataType,
    format: aclFormat,
    problem: str | None,
) -> Look:
    """The one object for tensors that look like this, whatever memory they are views of."""
    return Look(dims, steps, _NAMES[data_type])


#: What can be counted in bytes.
_MOST_ELEMENTS = 1 << 58


@dataclass(eq=False, repr=False, slots=True)
class aclTensor:
    """A view of memory; made by :func:`aclCreateTensor` or :func:`tensor`.

    Attributes:
        dims: of the view.
        strides: of the view, in elements.
        offset: of the view's first element from the storage's.
        given_offset: the same, from the address that a C program gave.
        data_type, format: as they were declared.
        dtype_name, format_name: as the rules have them.
        storage_dims: the shape of the memory; only its owner's size is checked.
        memory: where it is, and what it belongs to.
        steps: the strides, but for axes of one element, where none is ever taken.
        problem: what is wrong with the memory, or None.
        look: the same for tensors that look the same.
        is_destroyed: whether a C program has destroyed it.
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
    given_offset: int = field(init=False)
    problem: str | None = field(init=False)
    look: Look = field(init=False)
    is_destroyed: bool = field(default=False, init=False)
    _array: npt.NDArray[Any] | None = field(default=None, init=False)

    def __post_init__(self, nbytes: int | None) -> None:
        self.dtype_name = _NAMES[self.data_type]
        self.format_name = _FORMAT_NAMES[self.format]
        self.steps = layout.taken(self.dims, self.strides)
        self.given_offset = self.offset
        self.problem = self._find_problem(nbytes)
        self.look = _look(self.dims, self.steps, self.data_type, self.format, self.problem)

    def _find_problem(self, nbytes: int | None) -> str | None:
        if 0 in self.dims:
            return None
        if self.memory.problem is not None:
            return self.memory.problem
        if self.memory.owner is None:
            return "no memory; allowed: a tensor with data"
        if layout.elements(self.dims) >= _MOST_ELEMENTS:
            return f"{layout.elements(self.dims)} elements; allowed: less than {_MOST_ELEMENTS}"
        if nbytes is None or self.data_type not in NUMPY:
            return None
        low, high = layout.extent(self.dims, self.steps)
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
            start, _, owner, writeable, _ = self.memory
            start += self.offset * dtype.itemsize
            self._array = (
                np.empty(self.dims, dtype)
                if 0 in self.dims
                else array_at(start, self.dims, self.steps, dtype, owner, writeable)
            )
        return self._array

    @property
    def region(self) -> layout.Region:
        """The bytes that it touches."""
        itemsize = NUMPY[self.data_type].itemsize if self.data_type in NUMPY else 1
        start = self.memory.address + self.offset * itemsize
        return layout.Region(start, self.dims, self.steps, itemsize)

    def lost(self) -> str | None:
        """Why it can no longer be used, though it could be when it was made; None if it can."""
        return "it was destroyed" if self.is_destroyed else self.memory.lost()

    def wrote(self) -> None:
        """Told after its memory was written."""
        frameworks.written([self.memory.owner])

    def __repr__(self) -> str:
        return (
            f"aclTensor({self.dtype_name}, {self.format_name}, dims {self.dims}, strides "
            f"{self.strides}, offset {self.offset})"
        )


class aclBoolArray(tuple[bool, ...]):
    """Some booleans; made by :func:`aclCreateBoolArray`."""

    __slots__ = ()

    def __new__(cls, values: Iterable[Any]) -> aclBoolArray:
        """Of entries that are True, False, 1 or 0; anything else raises what it likes."""
        found = [
            entry if isinstance(entry, (bool, np.bool_)) else operator.index(entry)
            for entry in values
        ]
        if not {0, 1}.issuperset(found):
            raise TypeError("neither True nor False")
        return super().__new__(cls, map(bool, found))


def memory(function: str, name: str, value: Any, writing: bool) -> Memory:
    """The memory of what a caller gave; 161002 for what has none."""
    try:
        return memory_of(name, value, writing)
    except (TypeError, ValueError) as error:
        raise AclnnError(Status.ACLNN_ERR_PARAM_INVALID, function, str(error), name) from None


def _integers(function: str, name: str, values: Iterable[Any]) -> tuple[int, ...]:
    try:
        return tuple([operator.index(value) for value in values])
    except Exception:  # what is no sequence, or no integers, raises what it likes
        raise invalid(function, name, f"{shown(values)}; allowed: a sequence of integers") from None


def _sizes(function: str, name: str, values: Iterable[Any]) -> tuple[int, ...]:
    sizes = _integers(function, name, values)
    if any(size < 0 for size in sizes):
        raise invalid(function, name, f"{sizes} has a negative size; allowed: 0 or more")
    return sizes


def _member(function: str, name: str, kind: type[IntEnum], value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        message = f"{shown(value)}; allowed: an {kind.__name__}"
        raise invalid(function, name, message) from None


def aclCreateTensor(
    view_dims: Sequence[int],
    data_type: int,
    strides: Sequence[int] | None,
    offset: int,
    format: int,
    storage_dims: Sequence[int] | None,
    data: Any,
) -> aclTensor:
    """A view of memory: any rank, dtype, format and length, which phase 1 alone checks.

    Args:
        view_dims: the view's shape.
        data_type: an :class:`aclDataType`.
        strides: in elements; None for a contiguous view.
        offset: the view's first element, in elements from the start of ``data``.
        format: an :class:`aclFormat`.
        storage_dims: the shape of the memory; None for the view's.
        data: the memory: a contiguous NumPy array, PyTorch CPU tensor or buffer, of any dtype; None
            for a null pointer.

    Raises:
        AclnnError: 161002, for arguments that describe no view at all.
    """
    name = "aclCreateTensor"
    dims = _sizes(name, "viewDims", view_dims)
    steps = (
        layout.contiguous_strides(dims) if strides is None else _integers(name, "stride", strides)
    )
    if len(steps) != len(dims):
        raise invalid(name, "stride", f"{len(steps)} of them; allowed: {len(dims)}, one an axis")
    (start,) = _integers(name, "offset", [offset])
    storage = dims if storage_dims is None else _sizes(name, "storageDims", storage_dims)
    kind = _member(name, "dataType", aclDataType, data_type)
    order = _member(name, "format", aclFormat, format)
    if data is None:
        found = Memory(0, 0, None, False)
    elif type(data) is Memory:
        found = data  # with what is wrong with it, which phase 1 says
    else:
        found = memory(name, "tensorData", data, writing=False)
    return aclTensor(dims, kind, steps, start, order, storage, found, found.nbytes)


def tensor(array: Any, format: int = aclFormat.ACL_FORMAT_ND) -> aclTensor:
    """An aclTensor over a NumPy array or a PyTorch CPU tensor: its shape, strides and dtype.

    Raises:
        AclnnError: 161002, for a dtype or a format that has no number.
        TypeError: no array.
        ValueError: on another device, or with strides that are no whole items.
    """
    framework = frameworks.of("array", array)
    device = framework.device("array", array)
    if device != "cpu":
        raise ValueError(f"array: on device {device}; allowed: cpu")
    opened = framework.opened("array", array, writing=True)
    if isinstance(opened, np.ndarray):
        dtype, itemsize = opened.dtype, opened.itemsize
        if any(step % itemsize for step in opened.strides):
            raise ValueError(f"array: strides {opened.strides}; allowed: multiples of {itemsize}")
        strides = tuple(step // itemsize for step in opened.strides)
        writeable = opened.flags.writeable
    else:
        name = str(opened.dtype).removeprefix("torch.")
        try:
            dtype = np.dtype({"bfloat16": ml_dtypes.bfloat16, "bool": np.bool_}.get(name, name))
        except TypeError:  # quantized and others that NumPy does not know
            message = f"dtype {name}; allowed: one with an aclDataType"
            raise invalid("tensor", "array", message) from None
        strides, writeable = tuple(opened.stride()), True
    data_type = _BY_NUMPY.get(dtype)
    if data_type is None:
        raise invalid("tensor", "array", f"dtype {dtype}; allowed: one with an aclDataType")
    order = _member("tensor", "format", aclFormat, format)
    dims = tuple(opened.shape)
    address = framework.address("array", opened)
    found = Memory(address, opened.nbytes, opened, bool(writeable))
    return aclTensor(dims, data_type, strides, 0, order, dims, found, None)


def aclCreateBoolArray(values: Iterable[bool]) -> aclBoolArray:
    """Some booleans, any number of them; what wants a mask takes a plain sequence too.

    Raises:
        AclnnError: 161002, for entries that are neither True nor False, nor 1 or 0.
    """
    try:
        return aclBoolArray(values)
    except Exception:  # what is no sequence raises what it likes
        message = f"{shown(values)}; allowed: a sequence of booleans"
        raise invalid("aclCreateBoolArray", "value", message) from None
