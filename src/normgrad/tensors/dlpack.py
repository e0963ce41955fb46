"""The DLPack protocol through ctypes, since NumPy's reader does not support bfloat16.

The structures are those of dlpack.h, https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.values import describe
from . import dtypes
from .specs import KINDS, OpenTensor
from .strides import contiguous_strides

_CPU = 1
_DEVICES = {
    **{1: "cpu", 2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm"},
    13: "cuda_managed",
}

#: The protocol's codes of streams: CUDA's default stream, and none, for a consumer that does not
#: read the data.
DEFAULT_STREAM, NO_STREAM = 1, -1

_READ_ONLY, _COPIED = 1, 2
_BFLOAT = 4
#: The maximum number of axes, which is more than any framework supports.
_MAX_RANK = 64
#: The dtypes' names without their bits, by type code.
_KINDS = {0: "int", 1: "uint", 2: "float", 3: "handle", _BFLOAT: "bfloat", 5: "complex", 6: "bool"}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


# Prototypes of our own: the attributes of ctypes.pythonapi are shared with all other packages.
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_Capsule = type(np.zeros(1).__dlpack__())


def _tensor_in(capsule: Any) -> tuple[_DLTensor, int]:
    """The tensor in a capsule, and its flags."""
    name = _get_name(capsule)
    if name == b"dltensor_versioned":
        managed = _Versioned.from_address(get_pointer(capsule, name))
        if managed.major != 1:
            raise TypeError(f"DLPack version {managed.major} is not known; allowed: 1")
        return managed.tensor, managed.flags
    if name == b"dltensor":
        return _DLTensor.from_address(get_pointer(capsule, name)), 0
    raise TypeError(f"a DLPack capsule named {name!r} cannot be read")


def _axes_of(tensor: _DLTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and strides of a tensor, checked for impossible values."""
    rank = tensor.ndim
    if not 0 <= rank <= _MAX_RANK or (rank and not tensor.shape):
        raise TypeError(f"it says it has {rank} axes")
    shape = tuple(tensor.shape[:rank])
    if any(size < 0 for size in shape):
        raise TypeError(f"it says its shape is {shape}")
    if not tensor.strides:
        return shape, contiguous_strides(shape)
    return shape, tuple(tensor.strides[:rank])


def device_of(name: str, producer: Any) -> str:
    """The device of a producer's tensor, as "cpu" or "cuda:0"."""
    try:
        kind, index = producer.__dlpack_device__()
        kind = int(kind)
    except Exception as error:
        raise TypeError(
            f"{name}: {type(producer).__name__}.__dlpack_device__() failed ({error}); allowed: "
            f"{KINDS}"
        ) from None
    return _device(kind, index)


def _device(kind: int, index: int) -> str:
    device = _DEVICES.get(kind, f"DLPack device type {kind}")
    return device if kind == _CPU else f"{device}:{index}"


def open_tensor(name: str, producer: Any, device: str, stream: int | None = None) -> OpenTensor:
    """Open a tensor of anything with ``__dlpack__``, without a copy.

    ``device`` is that of :func:`device_of`. On a GPU, the producer makes ``stream``, which reads
    the data, wait for them.
    """
    reader = {} if stream is None else {"stream": stream}
    try:
        try:
            capsule = producer.__dlpack__(**reader, max_version=(1, 0))
        except TypeError:  # the producer implements a version before 1.0
            capsule = producer.__dlpack__(**reader)
        if type(capsule) is not _Capsule:
            raise TypeError(f"__dlpack__() returned {describe(capsule)}, not a capsule")
        tensor, flags = _tensor_in(capsule)
        shape, strides = _axes_of(tensor)
        where = _device(tensor.device_type, tensor.device_id)
        if where != device:
            raise TypeError(f"it says it is on device {device}, and its data on {where}")
        address = (tensor.data or 0) + tensor.byte_offset
        if address >= 2**63 or (address == 0 and 0 not in shape):
            raise TypeError(f"it says its data are at address {address}")
    except Exception as error:
        raise TypeError(
            f"{name}: {type(producer).__name__} cannot be read through DLPack ({error}); allowed: "
            f"{KINDS}"
        ) from None
    kind = _KINDS.get(tensor.code, f"DLPack type {tensor.code}, ")
    lanes = "" if tensor.lanes == 1 else f"x{tensor.lanes}"
    dtype_name = f"{kind}{tensor.bits}{lanes}"
    dtype = dtypes.BY_NAME.get(dtype_name, dtype_name)
    read_only = None
    if flags & _READ_ONLY:
        read_only = "read-only memory; allowed: memory that can be written"
    elif flags & _COPIED:
        owner = type(producer).__name__
        read_only = f"{owner} hands out a copy of its memory; allowed: memory that can be written"
    itemsize = -(-tensor.bits * tensor.lanes // 8)
    steps = tuple([step * itemsize for step in strides])
    return OpenTensor(capsule, address, shape, steps, itemsize, dtype, read_only)


class _BFloat16:
    """A NumPy bfloat16 array as a DLPack producer: the capsule is uint16's with another dtype."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._bits = array.view(np.uint16)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)

    def __dlpack__(self, **arguments: Any) -> Any:
        capsule = self._bits.__dlpack__(**arguments)
        tensor, _ = _tensor_in(capsule)
        tensor.code = _BFLOAT
        return capsule


def producer_of(array: npt.NDArray[Any]) -> Any:
    """What hands out an array's memory through DLPack; NumPy's own cannot with bfloat16."""
    return _BFloat16(array) if dtypes.from_numpy(array.dtype) is dtypes.bfloat16 else array


def bytes_like(producer: Any, size: int) -> Any:
    """New memory from the producer's array namespace, on its device; None if it has none."""
    try:
        namespace = producer.__array_namespace__()
        return namespace.empty(size, dtype=namespace.uint8, device=producer.device)
    except Exception:  # no namespace, or one without these functions
        return None


def like_producer(array: Any, producer: Any) -> Any:
    """Convert a new array to the producer's type with its array namespace, if it has one."""
    try:
        speaker = producer_of(array) if isinstance(array, np.ndarray) else array
        return producer.__array_namespace__().from_dlpack(speaker)
    except Exception:  # no namespace, or one that does not accept this array
        return array
