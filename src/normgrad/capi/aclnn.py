"""libnnopbase and libopapi: tensors, masks, executors, and the operators' two phases."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .. import aclnn
from ..aclnn.status import Status
from ..aclnn.tensors import NUMPY, aclDataType
from ..arguments import Allocation, Memory
from ..unusable import Unusable
from . import libc
from .blocks import FOREIGN, UNKNOWN_SIZE, host_memory_is_allowed, memory_at
from .declarations import functions_of
from .errors import CallError
from .handles import HANDLES
from .objects import Stream
from .signatures import Function

#: More axes, or booleans, than anything has: a length that is none.
_MOST_AXES, _MOST_BOOLEANS = 1024, 1 << 20


def _fail(status: Status, function: str, name: str, message: str) -> NoReturn:
    raise CallError(status, f"{function}: {name}: {message}")


def _null(function: str, name: str) -> NoReturn:
    _fail(Status.ACLNN_ERR_PARAM_NULLPTR, function, name, "null; allowed: a pointer")


def _invalid(function: str, name: str, message: str) -> NoReturn:
    _fail(Status.ACLNN_ERR_PARAM_INVALID, function, name, message)


# Tensors and masks


def _values(
    function: str, name: str, kind: Any, address: int | None, count: int, most: int
) -> list[Any]:
    if count > most:
        _invalid(function, name, f"{count} of them; allowed: up to {most}")
    if address is None:
        if count:
            _null(function, name)
        return []
    return libc.load(kind, address, count)


def aclCreateTensor(
    dims: int | None,
    count: int,
    data_type: int,
    strides: int | None,
    offset: int,
    format: int,
    storage_dims: int | None,
    storage_count: int,
    data: int | None,
) -> int:
    function = "aclCreateTensor"

    def sizes(name: str, address: int | None, count: int) -> list[int]:
        return _values(function, name, ctypes.c_int64, address, count, _MOST_AXES)

    view_dims = sizes("viewDims", dims, count)
    steps = None if strides is None else sizes("stride", strides, count)
    storage = None if storage_dims is None else sizes("storageDims", storage_dims, storage_count)
    memory, offset = _storage(data_type, data, offset)
    tensor = aclnn.aclCreateTensor(view_dims, data_type, steps, offset, format, storage, memory)
    return HANDLES.add(tensor, function)


def _storage(data_type: int, data: int | None, offset: int) -> tuple[Memory | None, int]:
    """The memory that a view may reach, and the view's offset in it.

    A view may reach whatever is in the block, before ``data`` too.
    """
    memory = memory_at(data)
    if memory is None:
        return None, offset
    block = memory.owner
    is_device = block is not FOREIGN and block.is_device
    if not is_device and not host_memory_is_allowed():
        problem = "no memory from aclrtMalloc; allowed: device memory"
        return memory._replace(problem=problem), offset
    if block is FOREIGN or data_type not in NUMPY:
        return memory, offset
    itemsize = NUMPY[aclDataType(data_type)].itemsize
    before = (memory.address - block.address) // itemsize
    address = memory.address - before * itemsize
    return memory._replace(address=address, nbytes=block.end - address), offset + before


def aclCreateBoolArray(values: int | None, count: int) -> int:
    function = "aclCreateBoolArray"
    # As bytes: what is no 0 or 1 is no C bool, but is true.
    found = _values(function, "value", ctypes.c_uint8, values, count, _MOST_BOOLEANS)
    return HANDLES.add(aclnn.aclCreateBoolArray(found), function)


def _found(function: str, name: str, kind: type[Any], handle: int | None) -> Any:
    """What is behind a handle that has to be one."""
    value = HANDLES.find_a(kind, handle)
    if value is None:
        _null(function, name)
    if isinstance(value, Unusable):
        _invalid(function, name, f"{value!r}; allowed: an {kind.__name__}")
    return value


def _destroy(function: str, name: str, kind: type[Any], handle: int | None) -> Any:
    value = _found(function, name, kind, handle)
    assert handle is not None
    if not HANDLES.end(handle, function):  # by another thread, just now
        _found(function, name, kind, handle)
    return value


def aclDestroyTensor(tensor: int | None) -> None:
    if tensor is not None:
        value = _destroy("aclDestroyTensor", "tensor", aclnn.aclTensor, tensor)
        # An executor may still hold it.
        value.memory = value.memory._replace(problem="it was destroyed")


def aclDestroyBoolArray(array: int | None) -> None:
    if array is not None:
        _destroy("aclDestroyBoolArray", "array", aclnn.aclBoolArray, array)


def _copied(
    function: str, names: tuple[str, str], values: tuple[int, ...], address: int, count: int
) -> None:
    """Hand over an array that the caller frees."""
    array = libc.malloc(max(1, 8 * len(values)))
    if array is None:
        _fail(Status.ACLNN_ERR_INNER, function, names[0], "no memory for it")
    libc.store_all(ctypes.c_int64, array, values)
    libc.store(ctypes.c_void_p, address, array)
    libc.store(ctypes.c_uint64, count, len(values))


def aclGetViewShape(tensor: int | None, dims: int | None, count: int | None) -> None:
    function = "aclGetViewShape"
    value = _found(function, "tensor", aclnn.aclTensor, tensor)
    if dims is None or count is None:
        _null(function, "viewDims" if dims is None else "viewDimsNum")
    _copied(function, ("viewDims", "viewDimsNum"), value.dims, dims, count)


def aclGetViewStrides(tensor: int | None, strides: int | None, count: int | None) -> None:
    function = "aclGetViewStrides"
    value = _found(function, "tensor", aclnn.aclTensor, tensor)
    if strides is None or count is None:
        _null(function, "stridesValue" if strides is None else "stridesNum")
    _copied(function, ("stridesValue", "stridesNum"), value.strides, strides, count)


def aclGetDataType(tensor: int | None, data_type: int | None) -> None:
    function = "aclGetDataType"
    value = _found(function, "tensor", aclnn.aclTensor, tensor)
    if data_type is None:
        _null(function, "dataType")
    libc.store(ctypes.c_int, data_type, value.data_type)


def aclGetFormat(tensor: int | None, format: int | None) -> None:
    function = "aclGetFormat"
    value = _found(function, "tensor", aclnn.aclTensor, tensor)
    if format is None:
        _null(function, "format")
    libc.store(ctypes.c_int, format, value.format)


# Executors


def aclSetAclOpExecutorRepeatable(executor: int | None) -> None:
    function = "aclSetAclOpExecutorRepeatable"
    _found(function, "executor", aclnn.aclOpExecutor, executor).repeatable = True


def aclDestroyAclOpExecutor(executor: int | None) -> None:
    _destroy("aclDestroyAclOpExecutor", "executor", aclnn.aclOpExecutor, executor)


# The operators


def _tensor(handle: int | None) -> Any:
    tensor = HANDLES.find(handle)
    if type(tensor) is aclnn.aclTensor:
        owner = tensor.memory.owner
        if isinstance(owner, Allocation) and owner.freed_by is not None:
            return Unusable(f"a tensor whose memory {owner.freed_by} has freed")
    return tensor


def _as_it_is(value: Any) -> Any:
    return value


_FROM_C: dict[str, Callable[[Any], Any]] = {
    "const aclTensor *": _tensor,
    "aclTensor *": _tensor,
    "const aclBoolArray *": HANDLES.find,
}


def _phase_1(function: Function) -> Callable[..., None]:
    """The C form of a phase 1: the handles' tensors, and two results through pointers."""
    name = function.name
    operator = name.removesuffix("GetWorkspaceSize")
    python = getattr(aclnn, name)
    inputs = [_FROM_C.get(kind, _as_it_is) for kind, _ in function.parameters[:-2]]

    def call(*arguments: Any) -> None:
        *given, size_at, executor_at = arguments
        if size_at is None or executor_at is None:
            _null(operator, "workspaceSize" if size_at is None else "executor")
        values = [convert(value) for convert, value in zip(inputs, given)]  # noqa: B905 - time
        size, executor = python(*values)
        libc.store(ctypes.c_uint64, size_at, size)
        libc.store(ctypes.c_void_p, executor_at, HANDLES.add(executor, name))

    return call


def _phase_2(function: Function) -> Callable[..., None]:
    """The C form of a phase 2: blocks for pointers, and an executor that is gone with its use."""
    name = function.name
    python = getattr(aclnn, name)

    def call(workspace: int | None, size: int, executor: int | None, stream: int | None) -> None:
        value = HANDLES.find(executor)
        if stream is not None and isinstance(HANDLES.find_a(Stream, stream), Unusable):
            message = f"{HANDLES.find_a(Stream, stream)!r}; allowed: what aclrtCreateStream made"
            _fail(Status.ACLNN_ERR_RUNTIME_ERROR, name, "stream", message)
        try:
            python(_workspace(workspace, size), size, value, None)
        finally:
            if type(value) is aclnn.aclOpExecutor and value.is_used_up:
                assert executor is not None
                HANDLES.end(executor, name)

    return call


def _workspace(address: int | None, size: int) -> Memory | None:
    memory = memory_at(address)
    if memory is None or memory.problem is not None:
        return memory
    if memory.owner is FOREIGN:
        if host_memory_is_allowed():
            return memory._replace(nbytes=min(size, UNKNOWN_SIZE))
        problem = "no memory from aclrtMalloc; allowed: device memory"
        return memory._replace(problem=problem)
    return memory


def _define_operators() -> None:
    here = sys.modules[__name__]
    for function in functions_of("opapi"):
        make = _phase_2 if function.parameters[0][1] == "workspace" else _phase_1
        setattr(here, function.name, make(function))


_define_operators()
