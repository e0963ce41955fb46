"""libnnopbase and libopapi: tensors, masks, executors, and the operators' two phases."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .. import aclnn
from ..aclnn.contracts import CONTRACTS
from ..aclnn.phases import phase_1, phase_2
from ..aclnn.tensors import NUMPY, Status, aclDataType
from ..aclnn.translations import BY_NAME
from ..dialects import Use, span
from ..rules import Parameter
from ..unusable import Unusable
from ..workspaces import Allocation, Launcher, Memory
from . import acl, pointers
from .blocks import FOREIGN, UNKNOWN_SIZE, memory_at, with_problem
from .calls import (
    ERRORS,
    SETTINGS,
    export,
    fail,
    need_access,
    need_memory,
    product,
    refuse,
    refuse_null,
)
from .declarations import functions_of
from .handles import HANDLES
from .objects import MOST_AXES
from .pointers import MOST_VALUES, Address
from .signatures import Function
from .streams import STREAMS, Stream

_malloc = pointers.c_function("malloc", ctypes.c_void_p, ctypes.c_size_t)


# Tensors and masks


class aclScalar(NamedTuple):
    """A number of some dtype."""

    value: Any
    data_type: aclDataType


#: The arrays, with the C type of their values.
_ARRAYS: dict[type[Any], Any] = {
    type("aclIntArray", (tuple,), {}): ctypes.c_int64,
    type("aclFloatArray", (tuple,), {}): ctypes.c_float,
    # Bytes, since values other than 0 and 1 are not valid C bools, but count as true.
    aclnn.aclBoolArray: ctypes.c_uint8,
}
#: The lists of handles, with the kind of object behind the handles.
_LISTS: dict[type[Any], type[Any]] = {
    type("aclTensorList", (tuple,), {}): aclnn.aclTensor,
    type("aclScalarList", (tuple,), {}): aclScalar,
}


def _check_length(name: str, address: Address, count: int, most: int) -> None:
    if count > most:
        refuse(name, f"{count} of them; allowed: up to {most}")
    if address is None and count:
        refuse_null(name)


def aclCreateTensor(
    dims: Address,
    count: int,
    data_type: int,
    strides: Address,
    offset: int,
    format: int,
    storage_dims: Address,
    storage_count: int,
    data: Address,
) -> int:
    def sizes(name: str, address: Address, count: int) -> list[int]:
        _check_length(name, address, count, MOST_AXES)
        return pointers.load(ctypes.c_int64, address, count)

    view_dims = sizes("viewDims", dims, count)
    steps = None if strides is None else sizes("stride", strides, count)
    storage = None if storage_dims is None else sizes("storageDims", storage_dims, storage_count)
    for name, values in (("stride", steps or ()), ("offset", (offset,))):
        if values and min(values) < 0:  # as the function's page says
            refuse(name, f"{', '.join(map(str, values))}; allowed: 0 or more")
    if prod(view_dims) >= 1 << 63:
        ERRORS.note_device(f"viewDims: {view_dims}; allowed: fewer elements than an int64 counts")
    tensor = _tensor_at(data, offset, view_dims, data_type, steps, format, storage)
    return HANDLES.add(tensor)


def _tensor_at(
    data: Address,
    offset: int,
    dims: Sequence[int],
    data_type: int,
    steps: Sequence[int] | None,
    format: int,
    storage: Sequence[int] | None,
) -> aclnn.aclTensor:
    """Make a tensor over memory at an address; None if the address is set later."""
    if data is not None and data % _ALIGNMENT:
        what = f"{data % _ALIGNMENT} bytes behind a multiple of {_ALIGNMENT}"
        ERRORS.note_device(f"tensorData: {what}; allowed: such a multiple")
    memory, start = _storage(data_type, data, offset)
    view = (dims, data_type, steps, start, format, storage)
    tensor = aclnn.aclCreateTensor(*view, memory)
    if tensor.problem is None and memory.owner is FOREIGN:
        memory = with_problem(memory, *tensor.region.bounds(), False)
        if memory.problem is not None:
            tensor = aclnn.aclCreateTensor(*view, memory)
    tensor.data_offset = offset
    return tensor


def _device_memory(address: Address) -> Memory | None:
    """The memory that a pointer points to, with a problem if a device could not access it."""
    memory = memory_at(address)
    if memory is None or SETTINGS.host_memory:
        return memory
    if memory.owner is not FOREIGN and memory.owner.is_device:
        return memory
    return memory._replace(problem="no memory from aclrtMalloc; allowed: device memory")


#: The alignment in bytes without which a tensor's data has undefined results on devices.
_ALIGNMENT = 32

#: The owner of a tensor's memory before aclSetTensorAddr sets its address.
_UNSET = Allocation()


def _storage(data_type: int, data: Address, offset: int) -> tuple[Memory, int]:
    """The memory that a view may reach, and the view's offset in it.

    A view may reach the whole block, including its bytes before ``data``.
    """
    memory = _device_memory(data)
    if memory is None:
        return Memory(0, UNKNOWN_SIZE, _UNSET, False), offset
    if memory.owner is FOREIGN or data_type not in NUMPY:
        return memory, offset
    block = memory.owner
    itemsize = NUMPY[aclDataType(data_type)].itemsize
    before = (memory.address - block.address) // itemsize
    address = memory.address - before * itemsize
    return memory._replace(address=address, nbytes=block.end - address), offset + before


def aclCreateScalar(value: Address, data_type: int) -> int:
    if value is None:
        refuse_null("value")
    if data_type not in NUMPY:
        refuse("dataType", f"{data_type}; allowed: an aclDataType of numbers")
    kind = aclDataType(data_type)
    size = NUMPY[kind].itemsize
    content = ctypes.string_at(need_memory("value", value, size), size)
    return HANDLES.add(aclScalar(np.frombuffer(content, NUMPY[kind])[0], kind))


def _create(kind: type[Any], values: Address, count: int) -> int:
    """aclCreateXxx for arrays and lists."""
    _check_length("value", values, count, MOST_VALUES)
    entries = pointers.load(_ARRAYS.get(kind, ctypes.c_void_p), values, count)
    if kind is aclnn.aclBoolArray:
        entries = [*map(bool, entries)]
    for index, each in enumerate(entries if kind in _LISTS else ()):
        if each is not None:  # null is allowed, and stands for an absent tensor
            _object(f"value[{index}]", _LISTS[kind], each)
    return HANDLES.add(kind(entries))


def _destroy(kind: type[Any], name: str, handle: Address) -> None:
    """aclDestroyXxx, which for a list destroys its elements too; a null has no effect."""
    if handle is None:
        return
    value = _end(name, kind, handle)
    for index, each in enumerate(value if kind in _LISTS else ()):
        if each is not None:
            _end(f"{name}[{index}]", _LISTS[kind], each)


def _measure(kind: type[Any], name: str, handle: Address) -> int:
    """aclGetXxxSize: the number of elements."""
    return len(_object(name, kind, handle))


def _object(name: str, kind: type[Any], handle: Address, null: Status | None = None) -> Any:
    """The object behind a handle; the call fails if the handle is null or invalid."""
    return HANDLES.need(name, kind, handle, f"an {kind.__name__}", null)


def _end(name: str, kind: type[Any], handle: Address, null: Status | None = None) -> Any:
    """Do the same, and end the handle."""
    value = HANDLES.take(name, kind, handle, f"an {kind.__name__}", null)
    if kind is aclnn.aclTensor:  # an executor may still refer to the tensor
        value.is_destroyed = True
    return value


#: The aclGetXxx functions of tensors, and the aclTensor's attributes.
_ATTRIBUTES = {
    "aclGetViewShape": "dims",
    "aclGetViewStrides": "strides",
    "aclGetStorageShape": "storage_dims",
    "aclGetViewOffset": "data_offset",
    "aclGetDataType": "data_type",
    "aclGetFormat": "format",
}


def _get(attribute: str, tensor: Address) -> Any:
    """aclGetXxx of a tensor; if the result is an array, the caller has to free it."""
    value = getattr(_object("tensor", aclnn.aclTensor, tensor), attribute)
    if not isinstance(value, tuple):
        return value
    copy = _malloc(max(1, 8 * len(value)))
    if copy is None:
        fail("no memory", Status.ACLNN_ERR_INNER)
    pointers.store_all(ctypes.c_int64, copy, value)
    return copy, len(value)


# The library


def aclnnInit(config_path: Address) -> None:
    """Initialise the library; a program that has called aclInit may omit this call."""
    if acl.STATE.by_aclnn:
        refuse("configPath", "a second call; allowed: one")
    acl.initialize(config_path)
    acl.STATE.by_aclnn = True


def aclnnFinalize() -> None:
    acl.STATE.by_aclnn = False
    acl.finalize()


# Executors


def aclSetAclOpExecutorRepeatable(executor: Address) -> None:
    _object(*_EXECUTOR, executor, Status.ACLNN_ERR_INNER_NULLPTR).repeatable = True


def aclDestroyAclOpExecutor(executor: Address) -> None:
    _end(*_EXECUTOR, executor, Status.ACLNN_ERR_INNER_NULLPTR)


_EXECUTOR = "executor", aclnn.aclOpExecutor


def _set_address(
    counts: Callable[[Parameter], bool],
    executor: Address,
    index: int,
    tensor: Address,
    address: Address,
) -> None:
    """Give one tensor of a repeatable executor new memory.

    Args:
        counts: tells whether ``index`` counts a given parameter of phase 1.
        executor, tensor: handles; the tensor has the shape, strides and dtype of the one that phase
            1 was given.
        index: the index of the tensor among the counted parameters, including null ones.
        address: the address of the new memory.
    """
    repeated = _object(*_EXECUTOR, executor, Status.ACLNN_ERR_INNER_NULLPTR)
    value = _object("tensor", aclnn.aclTensor, tensor, Status.ACLNN_ERR_INNER_NULLPTR)
    assert tensor is not None
    if not repeated.repeatable:
        refuse("executor", "used once; allowed: after aclSetAclOpExecutorRepeatable")
    slots = [row.name for row in CONTRACTS[repeated.name].parameters if counts(row)]
    if index >= len(slots):
        refuse("index", f"{index}; allowed: 0 to {len(slots) - 1}")
    name = slots[index]
    old = repeated.tensors[name]
    if old is None:
        refuse("index", f"{index}, {name}, null in phase 1; allowed: a tensor's")
    if (value.dims, value.strides, value.dtype_name) != (old.dims, old.strides, old.dtype_name):
        refuse("tensor", f"{value!r}; allowed: {name}, {old!r}")
    moved = _tensor_at(
        address, value.data_offset, value.dims, value.data_type, value.strides, value.format,
        value.storage_dims,
    )  # fmt: skip
    if moved.problem is not None:
        refuse("addr", moved.problem)
    repeated.tensors = {**repeated.tensors, name: moved}
    HANDLES.replace(tensor, moved)


#: The functions that set addresses, and tests for the parameters that their indices count.
_SETTERS: dict[str, Callable[[Parameter], bool]] = {
    "aclSetTensorAddr": lambda row: True,
    "aclSetInputTensorAddr": lambda row: not row.is_output,
    "aclSetOutputTensorAddr": lambda row: row.is_output,
}


# The operators


def _argument(handle: int) -> Any:
    """The object behind a handle for phase 1; Unusable if it is a tensor without its memory."""
    value = HANDLES.find(handle)
    if type(value) is aclnn.aclTensor:
        freed_by = value.memory.owner.freed_by
        if freed_by is not None:
            return Unusable(f"a tensor whose memory {freed_by} has freed")
    return value


def _phase_1(function: Function) -> Callable[..., tuple[int, int]]:
    """The C form of a phase 1, which takes handles and returns one."""
    translation = BY_NAME[function.name.removesuffix("GetWorkspaceSize")]
    names = [row.name for row in translation.contract.rows]
    handles = [kind.endswith("*") for kind, _ in function.parameters[:-2]]

    def call(*values: Any) -> tuple[int, int]:
        arguments = [
            _argument(value) if is_handle and value is not None else value
            for is_handle, value in zip(handles, values)  # noqa: B905 - time
        ]
        device = product(Status.ACLNN_ERR_PARAM_INVALID)
        size, executor = phase_1(translation, dict(zip(names, arguments)), device)  # noqa: B905
        return size, HANDLES.add(executor)

    return call


def _phase_2(function: Function) -> Callable[..., None]:
    """The C form of a phase 2, which ends the handle of the executor that it uses up."""
    translation = BY_NAME[function.name]

    def call(workspace: Address, size: int, executor: Address, stream: Address) -> None:
        value = HANDLES.find(executor)
        where = acl.RUNTIME.default if stream is None else HANDLES.find_a(Stream, stream)
        scratch = _workspace(workspace, size)
        is_executor = type(value) is aclnn.aclOpExecutor

        def launch(run: Callable[[], None], refuse: Callable[[str], NoReturn]) -> None:
            # This mapping is kept, since aclSetTensorAddr may replace it before the work runs.
            tensors = value.tensors
            assert isinstance(where, Stream)
            STREAMS.do(
                where,
                lambda: _uses(value, tensors, scratch),
                run,
                lambda: _check_memory(value, tensors),
                (value,),  # its tensors may be destroyed before the work is done
                refuse,
            )

        if is_executor:
            if not acl.has_device():
                refuse("stream", acl.NO_DEVICE, Status.ACLNN_ERR_RUNTIME_ERROR)
            _check_memory(value, value.tensors)
        try:
            stream_of = Launcher(launch) if isinstance(where, Stream) else where
            phase_2(translation, scratch, size, value, stream_of)
        finally:
            if is_executor and value.is_used_up:
                assert executor is not None
                HANDLES.end(executor)

    return call


def _uses(
    executor: aclnn.aclOpExecutor, tensors: Mapping[str, Any], scratch: Memory | None
) -> Iterator[Use]:
    yield from executor.prepared.uses(tensors)
    size = executor.prepared.workspace_size
    if scratch is not None and size:
        yield span("workspace", "writes", scratch.address, size)


def _check_memory(executor: aclnn.aclOpExecutor, tensors: Mapping[str, Any]) -> None:
    """Check that all tensors have memory, and that memory outside all blocks can be accessed."""
    owners = [tensors[name].memory.owner for name in executor.prepared.used]
    if _UNSET not in owners and FOREIGN not in owners:
        return
    for use in executor.prepared.uses(tensors):
        name, tensor = use.name, tensors[use.name]
        if tensor.memory.owner is _UNSET and 0 not in tensor.dims:
            refuse(name, "no memory; allowed: a tensor with data")
        if tensor.memory.owner is FOREIGN:
            need_access(use)


def _workspace(address: Address, size: int) -> Memory | None:
    memory = _device_memory(address)
    if memory is None or memory.problem is not None or memory.owner is not FOREIGN:
        return memory
    memory = memory._replace(nbytes=min(size, UNKNOWN_SIZE))
    return with_problem(memory, memory.address, memory.address + memory.nbytes, True)


def _calls() -> dict[str, Callable[..., Any]]:
    """The implementations of the exported functions that the tables above describe, by name."""
    calls: dict[str, Callable[..., Any]] = {}
    for function in functions_of("opapi"):
        make = _phase_2 if function.is_phase_2 else _phase_1
        calls[function.name] = make(function)
    calls.update({name: partial(_get, attribute) for name, attribute in _ATTRIBUTES.items()})
    calls.update({name: partial(_set_address, counts) for name, counts in _SETTERS.items()})
    exported = {each.name: each for each in functions_of("nnopbase")}
    for kind in (aclnn.aclTensor, aclScalar, *_ARRAYS, *_LISTS):
        what = kind.__name__.removeprefix("acl")
        if kind in _ARRAYS or kind in _LISTS:
            calls[f"aclCreate{what}"] = partial(_create, kind)
        for name, act in ((f"aclDestroy{what}", _destroy), (f"aclGet{what}Size", _measure)):
            if name in exported:
                calls[name] = partial(act, kind, exported[name].parameters[0][1])
    return calls


_CALLS = _calls()
for _library in ("nnopbase", "opapi"):
    export(globals(), _library, _CALLS)
