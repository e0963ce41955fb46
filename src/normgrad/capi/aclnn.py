"""libnnopbase and libopapi: tensors, masks, executors, and the operators' two phases."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .. import aclnn
from ..aclnn.status import Status
from ..aclnn.tensors import NUMPY, aclDataType
from ..unusable import Unusable
from ..workspaces import Allocation, Memory
from . import libc
from .blocks import FOREIGN, UNKNOWN_SIZE, checked, host_memory_is_allowed, memory_at
from .declarations import functions_of
from .errors import CallError
from .handles import HANDLES
from .objects import MOST_AXES, Stream
from .pointers import MOST_VALUES
from .signatures import Function


def _fail(status: Status, function: str, name: str, message: str) -> NoReturn:
    raise CallError(status, f"{function}: {name}: {message}")


def _null(function: str, name: str) -> NoReturn:
    _fail(Status.ACLNN_ERR_PARAM_NULLPTR, function, name, "null; allowed: a pointer")


def refuse(function: str, name: str, message: str) -> NoReturn:
    _fail(Status.ACLNN_ERR_PARAM_INVALID, function, name, message)


# Tensors and masks


def _check_length(function: str, name: str, address: int | None, count: int, most: int) -> None:
    if count > most:
        refuse(function, name, f"{count} of them; allowed: up to {most}")
    if address is None and count:
        _null(function, name)


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
        _check_length(function, name, address, count, MOST_AXES)
        return libc.load(ctypes.c_int64, address, count)

    view_dims = sizes("viewDims", dims, count)
    steps = None if strides is None else sizes("stride", strides, count)
    storage = None if storage_dims is None else sizes("storageDims", storage_dims, storage_count)
    memory, offset = _storage(data_type, data, offset)
    described = (view_dims, data_type, steps, offset, format, storage)
    tensor = aclnn.aclCreateTensor(*described, memory)
    if memory is not None and tensor.problem is None:
        memory = checked(memory, *tensor.region.bounds(), False)
        if memory.problem is not None:
            tensor = aclnn.aclCreateTensor(*described, memory)
    return HANDLES.add(tensor, function)


def _device_memory(address: int | None) -> Memory | None:
    """The memory that a pointer points to; a problem where a device could not read it."""
    memory = memory_at(address)
    if memory is None or host_memory_is_allowed():
        return memory
    if memory.owner is not FOREIGN and memory.owner.is_device:
        return memory
    return memory._replace(problem="no memory from aclrtMalloc; allowed: device memory")


def _storage(data_type: int, data: int | None, offset: int) -> tuple[Memory | None, int]:
    """The memory that a view may reach, and the view's offset in it.

    A view may reach whatever is in the block, before ``data`` too.
    """
    memory = _device_memory(data)
    if memory is None or memory.owner is FOREIGN or data_type not in NUMPY:
        return memory, offset
    block = memory.owner
    itemsize = NUMPY[aclDataType(data_type)].itemsize
    before = (memory.address - block.address) // itemsize
    address = memory.address - before * itemsize
    return memory._replace(address=address, nbytes=block.end - address), offset + before


def aclCreateBoolArray(values: int | None, count: int) -> int:
    function = "aclCreateBoolArray"
    _check_length(function, "value", values, count, MOST_VALUES)
    # As bytes: what is no 0 or 1 is no C bool, but is true.
    found = b"" if values is None else ctypes.string_at(values, count)
    return HANDLES.add(aclnn.aclCreateBoolArray(map(bool, found)), function)


def _found(function: str, name: str, kind: type[Any], handle: int | None) -> Any:
    """What is behind a handle that has to be one."""
    return _there(function, name, kind, HANDLES.find_a(kind, handle))


def _there(function: str, name: str, kind: type[Any], value: Any) -> Any:
    if value is None:
        _null(function, name)
    if isinstance(value, Unusable):
        refuse(function, name, f"{value!r}; allowed: an {kind.__name__}")
    return value


def _destroy(function: str, name: str, kind: type[Any], handle: int | None) -> Any:
    return _there(function, name, kind, HANDLES.end_a(kind, handle, function))


def aclDestroyTensor(tensor: int | None) -> None:
    if tensor is not None:
        value = _destroy("aclDestroyTensor", "tensor", aclnn.aclTensor, tensor)
        # An executor may still hold it.
        value.is_destroyed = True


def aclDestroyBoolArray(array: int | None) -> None:
    if array is not None:
        _destroy("aclDestroyBoolArray", "array", aclnn.aclBoolArray, array)


def _queried(function: str, tensor: int | None, **results: int | None) -> aclnn.aclTensor:
    """A tensor that something is asked of, with pointers to write it to."""
    found: aclnn.aclTensor = _found(function, "tensor", aclnn.aclTensor, tensor)
    for name, address in results.items():
        if address is None:
            _null(function, name)
    return found


def _hand_over(
    function: str, values: tuple[int, ...], array: int | None, count: int | None
) -> None:
    """Write an array that the caller frees, and its length."""
    copy = libc.malloc(max(1, 8 * len(values)))
    if copy is None:
        raise CallError(Status.ACLNN_ERR_INNER, f"{function}: no memory")
    libc.store_all(ctypes.c_int64, copy, values)
    libc.store(ctypes.c_void_p, array, copy)
    libc.store(ctypes.c_uint64, count, len(values))


def aclGetViewShape(tensor: int | None, dims: int | None, count: int | None) -> None:
    function = "aclGetViewShape"
    value = _queried(function, tensor, viewDims=dims, viewDimsNum=count)
    _hand_over(function, value.dims, dims, count)


def aclGetViewStrides(tensor: int | None, strides: int | None, count: int | None) -> None:
    function = "aclGetViewStrides"
    value = _queried(function, tensor, stridesValue=strides, stridesNum=count)
    _hand_over(function, value.strides, strides, count)


def aclGetDataType(tensor: int | None, data_type: int | None) -> None:
    value = _queried("aclGetDataType", tensor, dataType=data_type)
    libc.store(ctypes.c_int, data_type, value.data_type)


def aclGetFormat(tensor: int | None, format: int | None) -> None:
    value = _queried("aclGetFormat", tensor, format=format)
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
        if type(value) is aclnn.aclOpExecutor:
            _check_host_memory(name, value)
        try:
            python(_workspace(workspace, size), size, value, HANDLES.find_a(Stream, stream))
        finally:
            if type(value) is aclnn.aclOpExecutor and value.is_used_up:
                assert executor is not None
                HANDLES.end(executor, name)

    return call


def _check_host_memory(function: str, executor: aclnn.aclOpExecutor) -> None:
    """That tensors in no block are there, and that those that are outputs can be written."""
    prepared = executor.prepared
    for name in (*prepared.operands, *prepared.zeros):
        tensor = executor.tensors[name]
        if tensor is not None and tensor.memory.owner is FOREIGN:
            writing = name in prepared.outputs or name in prepared.zeros
            memory = checked(tensor.memory, *tensor.region.bounds(), writing)
            if memory.problem is not None:
                refuse(function, name, memory.problem)


def _workspace(address: int | None, size: int) -> Memory | None:
    memory = _device_memory(address)
    if memory is None or memory.problem is not None or memory.owner is not FOREIGN:
        return memory
    memory = memory._replace(nbytes=min(size, UNKNOWN_SIZE))
    return checked(memory, memory.address, memory.address + memory.nbytes, True)


def _define_operators() -> None:
    here = sys.modules[__name__]
    for function in functions_of("opapi"):
        make = _phase_2 if function.parameters[0][1] == "workspace" else _phase_1
        setattr(here, function.name, make(function))


_define_operators()
