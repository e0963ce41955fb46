"""libinfinirt and libinfiniop: InfiniCore's runtime, descriptors and operator, on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from .. import infiniop
from ..dialects import Use, span
from ..infiniop import INPUTS, OUTPUTS, infiniDevice_t, infiniStatus_t
from ..workspaces import Launcher
from . import pointers
from .blocks import FOREIGN, memory_at, with_problem
from .calls import ERRORS, check_variables, export, need_access, refuse, refuse_null
from .enums import infinirtEventFlags_t, infinirtEventStatus_t, infinirtMemcpyKind_t
from .handles import HANDLES
from .objects import MOST_AXES, Event, Runtime, Side, memory_info
from .pointers import Address
from .streams import STREAMS, Stream

#: The operator's tensors, in the order of the C function's arguments.
NAMES = (*OUTPUTS, *INPUTS)


RUNTIME = Runtime(
    infiniStatus_t.INFINI_STATUS_INTERNAL_ERROR,
    False,
    {Stream: "infinirtStreamCreate", Event: "infinirtEventCreate"},
)


# Devices


def infinirtInit() -> None:
    check_variables()
    infiniop.infinirtInit()


def infinirtGetMemInfo(device: int, number: int) -> tuple[int, int]:
    if (device, number) != (infiniDevice_t.INFINI_DEVICE_CPU, 0):
        refuse("device", f"{device}, {number}; allowed: INFINI_DEVICE_CPU, 0")
    return memory_info()


# Events


def infinirtEventCreateWithFlags(flags: int) -> int:
    if flags & ~sum(infinirtEventFlags_t):
        refuse("flags", f"{flags:#x}; allowed: 0, 1, 2 or 3, as infinirtEventFlags_t has")
    has_time = not flags & infinirtEventFlags_t.INFINIRT_EVENT_DISABLE_TIMING
    return HANDLES.add(Event(has_time=has_time))


# Memory


def _allocate(size: int, *stream: Address) -> int:
    RUNTIME.queue(stream)  # checks the handle
    return RUNTIME.allocate(size, True)


def _free(makers: tuple[str, ...], address: Address, *stream: Address) -> None:
    where = RUNTIME.queue(stream)
    if address is not None:  # null has no effect, as for free() in C
        RUNTIME.free("ptr", address, makers, where)


_free_of_device = partial(_free, ("infinirtMalloc", "infinirtMallocAsync"))


def _copy(dst: Address, src: Address, size: int, kind: int, *stream: Address) -> None:
    where = RUNTIME.queue(stream)
    # All kinds do the same, since all memory is the CPU's.
    if kind not in set(infinirtMemcpyKind_t):
        refuse("kind", f"{kind}; allowed: 0 to 3, an infinirtMemcpyKind_t")
    to, source = Side("dst", dst, size, True), Side("src", src, size, True)
    RUNTIME.copy(to, source, size, stream=where)


def _fill(address: Address, value: int, count: int, *stream: Address) -> None:
    RUNTIME.fill("ptr", address, value, count, RUNTIME.queue(stream))


# Descriptors


def infiniopCreateTensorDescriptor(ndim: int, shape: Address, strides: Address, dtype: int) -> int:
    if ndim > MOST_AXES:
        refuse("ndim", f"{ndim}; allowed: up to {MOST_AXES}")
    if shape is None and ndim:
        refuse_null("shape", f"{ndim} sizes")
    dims = pointers.load(ctypes.c_size_t, shape or 0, ndim)
    steps = None if strides is None else pointers.load(ctypes.c_ssize_t, strides, ndim)
    return HANDLES.add(infiniop.infiniopCreateTensorDescriptor(ndim, dims, steps, dtype))


def _destroy(name: str, handle: Address) -> None:
    """Destroy the object behind a handle; the dialect raises an error if it is invalid."""
    value = HANDLES.find(handle)
    STREAMS.end("desc", value)
    getattr(infiniop, name)(value)
    assert handle is not None
    HANDLES.end(handle)


def _workspace_size(desc: Address) -> int:
    return infiniop.infiniopGetBatchNormBackwardWorkspaceSize(HANDLES.find(desc))


def _device_of(value: int, desc: Address) -> int:
    _workspace_size(desc)  # raises the dialect's error if the handle is not an operator's
    return value


# The operator


def infiniopCreateBatchNormBackwardDescriptor(*handles: Address) -> int:
    values = map(HANDLES.find, handles)
    return HANDLES.add(infiniop.infiniopCreateBatchNormBackwardDescriptor(*values))


def infiniopBatchNormBackward(
    desc: Address, workspace: Address, workspace_size: int, *tensors_and_stream: Address
) -> None:
    *tensors, stream = tensors_and_stream
    where = RUNTIME.stream(stream)
    operator = HANDLES.find(desc)
    memories = dict(zip(NAMES, map(memory_at, tensors), strict=True))
    memories["workspace"] = memory_at(workspace, workspace_size)
    data = {name: memory for name, memory in memories.items() if memory is not None}

    def uses() -> Iterator[Use]:
        for name, memory in data.items():
            if name == "workspace":
                yield span(name, "writes", memory.address, operator.plan.workspace_size)
                continue
            verb = "writes" if name in OUTPUTS else "reads"
            in_place = ("grad_output", "input") if name == "grad_input" else ()
            spec = operator.specs[name]
            region = spec.region(memory.address)
            first, end = region.bounds()
            is_host = memory.owner is FOREIGN and end - first == spec.nbytes
            yield Use(name, verb, region, is_host and name in OUTPUTS, in_place)

    def check() -> None:
        for use in uses():
            if data[use.name].owner is FOREIGN:
                need_access(use)

    def launch(run: Callable[[], None], refuse: Callable[[str], NoReturn]) -> None:
        STREAMS.do(where, uses, run, check, (operator,), refuse)
        if stream is None:  # InfiniCore's CPU computes at once
            RUNTIME.synchronize(None)

    if type(operator) is infiniop.infiniopBatchNormBackwardDescriptor_t:
        for use in uses():
            memory = data[use.name]
            data[use.name] = with_problem(memory, *use.region.bounds(), use.writes)
    arguments = [*map(data.get, NAMES), Launcher(launch)]
    infiniop.infiniopBatchNormBackward(operator, data.get("workspace"), workspace_size, *arguments)


#: The exported functions that take a line, or that a function above with another name implements.
_CALLS: dict[str, Callable[..., Any]] = {
    "normgradGetRecentErrMsg": ERRORS.last,  # an addition to InfiniCore's functions
    "infinirtGetDeviceCount": infiniop.infinirtGetDeviceCount,
    "infinirtGetAllDeviceCount": lambda: [*map(infiniop.infinirtGetDeviceCount, infiniDevice_t)],
    "infinirtGetDevice": infiniop.infinirtGetDevice,
    "infinirtSetDevice": infiniop.infinirtSetDevice,
    "infinirtDeviceSynchronize": STREAMS.finish,
    "infinirtStreamCreate": lambda: HANDLES.add(Stream()),
    "infinirtStreamDestroy": partial(RUNTIME.destroy, Stream),
    "infinirtStreamSynchronize": RUNTIME.synchronize,
    "infinirtStreamWaitEvent": RUNTIME.wait,
    "infinirtEventCreate": lambda: HANDLES.add(Event()),
    "infinirtEventQuery": lambda event: infinirtEventStatus_t(not RUNTIME.is_over(event)),
    "infinirtEventRecord": RUNTIME.record,
    "infinirtEventSynchronize": RUNTIME.synchronize_event,
    "infinirtEventDestroy": partial(RUNTIME.destroy, Event),
    "infinirtEventElapsedTime": RUNTIME.elapsed,
    "infinirtMalloc": _allocate,
    "infinirtMallocAsync": _allocate,
    "infinirtMallocHost": lambda size: RUNTIME.allocate(size, False),
    "infinirtFree": _free_of_device,
    "infinirtFreeAsync": _free_of_device,
    "infinirtFreeHost": partial(_free, ("infinirtMallocHost",)),
    "infinirtMemcpy": _copy,
    "infinirtMemcpyAsync": _copy,
    "infinirtMemset": _fill,
    "infinirtMemsetAsync": _fill,
    "infiniopCreateHandle": lambda: HANDLES.add(infiniop.infiniopCreateHandle()),
    "infiniopGetDescriptorDeviceType": partial(_device_of, infiniDevice_t.INFINI_DEVICE_CPU),
    "infiniopGetDescriptorDeviceId": partial(_device_of, 0),
    "infiniopGetBatchNormBackwardWorkspaceSize": _workspace_size,
    **{
        name: partial(_destroy, name)
        for name in (
            "infiniopDestroyHandle",
            "infiniopDestroyTensorDescriptor",
            "infiniopDestroyBatchNormBackwardDescriptor",
        )
    },
}
for _library in ("infinirt", "infiniop"):
    export(globals(), _library, _CALLS)
