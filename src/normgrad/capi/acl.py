"""libascendcl: CANN's runtime, on the CPU."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntFlag
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..aclnn import products
from ..aclnn.tensors import NUMPY, aclDataType
from . import libc, pointers
from .enums import (
    EventFlag,
    StreamFlag,
    aclError,
    aclrtEventRecordedStatus,
    aclrtMemcpyKind,
    aclrtRunMode,
)
from .errors import (
    ERRORS,
    HOST_MEMORY_VARIABLE,
    REPORT_VARIABLE,
    STREAMS_VARIABLE,
    CallError,
    check_streams_variable,
)
from .handles import HANDLES
from .objects import Event, Runtime, named
from .report import REPORT
from .streams import STREAMS, Stream

#: The one device.
_DEVICE = 0

#: The streams' priorities go from 0 to this.
_LEAST_PRIORITY = 7

#: A chip of each product, by the name that its driver gives.
_CHIPS = {
    products.TRAINING_SERIES: "Ascend910A",
    products.A2: "Ascend910B3",
    products.A3: "Ascend910_9391",
    products.ASCEND_950: "Ascend950PR",
    products.INFERENCE_SERIES: "Ascend310P3",
    products.A200I: "Ascend310B1",
}
_chip_names: dict[str, Any] = {}


class Context:
    """What streams and events belong to on a device; here to nothing."""


class STATE:
    """What the process has set.

    Attributes:
        by_acl, by_aclnn: whether aclInit and aclnnInit were called.
        has_default: whether aclInit's file names a device for threads that set none.
        users: how often aclrtSetDevice was called more than aclrtResetDevice.
        life: counts how often the device's resources were released.
        default: the handle of the context that comes with the device; made when it is asked for.
    """

    by_acl = by_aclnn = has_default = False
    users, life = 0, 1
    default: int | None = None


def refuse(
    function: str,
    name: str,
    message: str,
    status: aclError = aclError.ACL_ERROR_RT_PARAM_INVALID,
) -> NoReturn:
    raise CallError(status, f"{function}: {name}: {message}")


RUNTIME = Runtime(
    refuse,
    aclError.ACL_ERROR_RT_MEMORY_ALLOCATION,
    True,
    {
        Context: "aclrtCreateContext",
        Stream: "aclrtCreateStream",
        Event: "aclrtCreateEvent",
    },
)


_invalid = partial(refuse, status=aclError.ACL_ERROR_INVALID_PARAM)


def _need_init(function: str, by_acl: bool = False) -> None:
    if not (STATE.by_acl or (STATE.by_aclnn and not by_acl)):
        raise CallError(
            aclError.ACL_ERROR_UNINITIALIZE, f"{function}: before aclInit; allowed: after it"
        )


NO_DEVICE = (
    "no device in this thread; allowed: after aclrtSetDevice or aclrtSetCurrentContext in it, and "
    "before aclrtResetDevice"
)


def has_device() -> bool:
    """Whether this thread has a context, its own or the default one."""
    thread = ERRORS.thread()
    if thread.life == STATE.life:
        return not thread.context or HANDLES.is_living(thread.context)
    return STATE.has_default


def _enter(context: int | None) -> None:
    """Give this thread a context; None for the device's own."""
    thread = ERRORS.thread()
    thread.life, thread.context = STATE.life, context or 0


def _need_device(function: str) -> None:
    _need_init(function)
    if not has_device():
        raise CallError(
            aclError.ACL_ERROR_RT_CONTEXT_NULL,
            f"{function}: {NO_DEVICE}",
        )


#: What needs a device, and what needs initialisation alone.
_on_device = partial(named, check=_need_device)
_after_init = partial(named, check=_need_init)


# Initialisation


def aclInit(config_path: int | None) -> None:
    function = "aclInit"
    if STATE.by_acl:
        raise CallError(
            aclError.ACL_ERROR_REPEAT_INITIALIZE, f"{function}: a second time; allowed: once"
        )
    STATE.has_default = initialize(function, config_path)
    STATE.by_acl = True


def initialize(function: str, config_path: int | None) -> bool:
    """Read the environment, and a file of settings; whether that names a device for all threads."""
    settings = None if config_path is None else _read_config(function, config_path)
    _read_environment()
    try:
        products.current()
        check_streams_variable()
    except ValueError as error:
        raise CallError(aclError.ACL_ERROR_INVALID_PARAM, f"{function}: {error}") from None
    return isinstance(settings, dict) and "defaultDevice" in settings


def _read_config(function: str, address: int) -> Any:
    """The file's settings: most are for devices."""
    try:
        path = os.fsdecode(pointers.text(address))
    except ValueError as error:
        _invalid(function, "configPath", str(error))
    if not path:
        return None
    try:
        # Nested deeply, it takes more stack than the calling thread may have.
        with ThreadPoolExecutor(1) as parser:
            return parser.submit(json.loads, Path(path).read_bytes() or b"{}").result()
    except OSError as error:
        _invalid(
            function, "configPath", f"{path!r} ({error.strerror}); allowed: a file that is there"
        )
    except (ValueError, RecursionError) as error:
        _invalid(function, "configPath", f"{path!r} ({error}); allowed: a JSON file")


def _read_environment() -> None:
    """A program may have set variables since Python read them."""
    for name in (
        products.PRODUCT_VARIABLE,
        products.SAVE_INVSTD_VARIABLE,
        REPORT_VARIABLE,
        HOST_MEMORY_VARIABLE,
        STREAMS_VARIABLE,
    ):
        value = libc.getenv(name.encode())
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = os.fsdecode(value)


def aclFinalize() -> None:
    _need_init("aclFinalize", by_acl=True)
    STATE.by_acl = STATE.has_default = False
    finalize()


def finalize() -> None:
    """Do what is queued, release the device and report, if nothing uses it any more."""
    if STATE.by_acl or STATE.by_aclnn:
        return
    try:
        STREAMS.abandon()
        STREAMS.finish()
    finally:
        STATE.users, STATE.life = 0, STATE.life + 1
        REPORT.print_if_wanted()


def aclGetRecentErrMsg() -> int:
    return ERRORS.last()


# Types


def aclDataTypeSize(data_type: int) -> int:
    """In bytes; 0 for what has none."""
    try:
        return NUMPY[aclDataType(data_type)].itemsize
    except (ValueError, KeyError):
        return 0


def aclFloatToFloat16(value: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(value).astype(np.float16).view(np.uint16))


def aclFloat16ToFloat(value: int) -> float:
    return float(np.uint16(value).view(np.float16))


# The device


def _check_device(function: str, device: int) -> None:
    if device != _DEVICE:
        refuse(function, "deviceId", f"{device}; allowed: {_DEVICE}, the only one")


@_after_init
def aclrtSetDevice(function: str, device: int) -> None:
    _check_device(function, device)
    STATE.users += 1
    _enter(None)


@_after_init
def aclrtResetDevice(function: str, device: int) -> None:
    """Counted: the last of as many calls as aclrtSetDevice had releases the device."""
    _check_device(function, device)
    STREAMS.finish()
    STATE.users -= 1
    if STATE.users <= 0:
        STATE.users, STATE.life = 0, STATE.life + 1


def aclrtGetSocName() -> int:
    """The chip that was asked for by name, else one of the product."""
    device = products.current()
    asked = os.environ.get(products.PRODUCT_VARIABLE, "").replace(" ", "")
    if not re.fullmatch(r"Ascend\d\w+", asked) or products.find(asked) is not device.product:
        asked = _CHIPS[device.product.name]
    name = _chip_names.setdefault(asked, ctypes.create_string_buffer(asked.encode()))
    return ctypes.addressof(name)


# Contexts


@_after_init
def aclrtCreateContext(function: str, context: int | None, device: int) -> None:
    """It is the thread's from now on."""
    _check_device(function, device)
    _enter(RUNTIME.create(function, "context", context, Context()))


@named
def aclrtDestroyContext(function: str, context: int | None) -> None:
    if context is not None and context == STATE.default:
        refuse(function, "context", "the device's own; allowed: what aclrtCreateContext made")
    RUNTIME.destroy(Context, function, context)


@_after_init
def aclrtSetCurrentContext(function: str, context: int | None) -> None:
    RUNTIME.find(function, "context", Context, context)
    _enter(context)


@_on_device
def aclrtGetCurrentContext(function: str, context: int | None) -> None:
    where = RUNTIME.out(function, "context", context)
    if STATE.default is None:
        STATE.default = HANDLES.add(Context(), "")  # nobody has to destroy it
    thread = ERRORS.thread()
    current = thread.context if thread.life == STATE.life else 0
    libc.store(ctypes.c_void_p, where, current or STATE.default)


# Streams and events


@_on_device
def aclrtCreateStreamWithConfig(
    function: str, stream: int | None, priority: int, flag: int
) -> None:
    """All streams are alike here."""
    if priority > _LEAST_PRIORITY:
        refuse(function, "priority", f"{priority}; allowed: 0 to {_LEAST_PRIORITY}")
    _check_flags(function, flag, StreamFlag)
    RUNTIME.create(function, "stream", stream, Stream())


def _check_flags(function: str, flag: int, kind: type[IntFlag]) -> None:
    if flag & ~sum(kind):
        allowed = ", ".join(f"{each.name} ({each:#x})" for each in kind)
        refuse(function, "flag", f"{flag:#x}; allowed: {allowed}, or some of them")


@_on_device
def aclrtSynchronizeStreamWithTimeout(function: str, stream: int | None, timeout: int) -> None:
    """It is done in time, however long it takes."""
    if timeout < -1:
        refuse(function, "timeout", f"{timeout}; allowed: milliseconds, or -1 for any time")
    RUNTIME.synchronize(function, stream)


@_on_device
def aclrtCreateEventWithFlag(function: str, event: int | None, flag: int) -> None:
    _check_flags(function, flag, EventFlag)
    can_order = bool(flag & (EventFlag.ACL_EVENT_SYNC | EventFlag.ACL_EVENT_EXTERNAL))
    has_time = bool(flag & EventFlag.ACL_EVENT_TIME_LINE)
    RUNTIME.create(function, "event", event, Event(can_order, has_time))


@_on_device
def aclrtQueryEventStatus(function: str, event: int | None, status: int | None) -> None:
    where = RUNTIME.out(function, "status", status)
    is_over = RUNTIME.is_over(function, event)
    libc.store(ctypes.c_int, where, aclrtEventRecordedStatus(is_over))


# Memory


def _allocate(function: str, name: str, address: int | None, size: int, device: bool) -> None:
    _need_init(function)
    if size == 0:
        _invalid(function, "size", "0; allowed: 1 or more")
    RUNTIME.allocate(function, name, address, size, device)


def _sides(function: str, kind: int) -> tuple[bool, bool]:
    """Whether a copy goes from the device, and to it."""
    if kind not in set(aclrtMemcpyKind):
        allowed = ", ".join(f"{each.name} ({each:d})" for each in aclrtMemcpyKind)
        refuse(function, "kind", f"{kind}; allowed: {allowed}")
    return (
        bool(kind & aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST),
        bool(kind & aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE),
    )


@_on_device
def aclrtMemcpy(
    function: str, dst: int | None, most: int, src: int | None, count: int, kind: int
) -> None:
    from_device, to_device = _sides(function, kind)
    RUNTIME.copy(function, (dst, most, to_device), (src, from_device), count)


@_on_device
def aclrtMemcpyAsync(
    function: str,
    dst: int | None,
    most: int,
    src: int | None,
    count: int,
    kind: int,
    stream: int | None,
) -> None:
    from_device, to_device = _sides(function, kind)
    where = RUNTIME.stream(function, stream)
    RUNTIME.copy(function, (dst, most, to_device), (src, from_device), count, where)


@_on_device
def aclrtMemcpy2d(
    function: str,
    dst: int | None,
    dst_pitch: int,
    src: int | None,
    src_pitch: int,
    width: int,
    height: int,
    kind: int,
) -> None:
    from_device, to_device = _sides(function, kind)
    if from_device == to_device:
        refuse(function, "kind", f"{kind}; allowed: between the host and the device")
    to, source = (dst, dst_pitch, to_device), (src, src_pitch, from_device)
    RUNTIME.copy_rows(function, to, source, width, height)


def _fill(
    function: str, address: int | None, most: int, value: int, count: int, stream: Stream | None
) -> None:
    if count > most:
        refuse(function, "count", f"{count} bytes; allowed: up to maxCount, {most}")
    RUNTIME.fill(function, "devPtr", address, value, count, stream)


# What is a line each

#: What needs a device. Memory is the machine's, whatever kind is asked for; results are always
#: deterministic, and other options are a device's.
_ON_DEVICE: dict[str, Callable[..., Any]] = {
    "aclrtGetDevice": lambda name, at: libc.store(
        ctypes.c_int32, RUNTIME.out(name, "deviceId", at), _DEVICE
    ),
    "aclrtGetMemInfo": lambda name, kind, free, total: RUNTIME.memory_info(
        name, free=free, total=total
    ),
    "aclrtSynchronizeDevice": lambda name: STREAMS.finish(),
    "aclrtCtxSetSysParamOpt": lambda name, option, value: None,
    "aclrtCreateStream": lambda name, at: RUNTIME.create(name, "stream", at, Stream()),
    "aclrtSynchronizeStream": RUNTIME.synchronize,
    "aclrtCreateEvent": lambda name, at: RUNTIME.create(name, "event", at, Event()),
    "aclrtRecordEvent": RUNTIME.record,
    "aclrtSynchronizeEvent": RUNTIME.synchronize_event,
    "aclrtStreamWaitEvent": RUNTIME.wait,
    "aclrtEventElapsedTime": RUNTIME.elapsed,
    "aclrtMalloc": lambda name, at, size, policy: _allocate(name, "devPtr", at, size, True),
    "aclrtMemset": lambda name, at, most, value, count: _fill(name, at, most, value, count, None),
    "aclrtMemsetAsync": lambda name, at, most, value, count, stream: _fill(
        name, at, most, value, count, RUNTIME.stream(name, stream)
    ),
}
#: What needs none.
_ANYWHERE: dict[str, Callable[..., Any]] = {
    "aclrtGetDeviceCount": lambda name, at: libc.store(
        ctypes.c_uint32, RUNTIME.out(name, "count", at), 1
    ),
    "aclrtGetRunMode": lambda name, at: libc.store(
        ctypes.c_int, RUNTIME.out(name, "runMode", at), aclrtRunMode.ACL_HOST
    ),
    "aclrtDestroyStream": partial(RUNTIME.destroy, Stream),
    "aclrtDestroyEvent": partial(RUNTIME.destroy, Event),
    "aclrtMallocHost": lambda name, at, size: _allocate(name, "hostPtr", at, size, False),
    "aclrtFree": lambda name, at: RUNTIME.free(name, "devPtr", at, ("aclrtMalloc",)),
    "aclrtFreeHost": lambda name, at: RUNTIME.free(name, "hostPtr", at, ("aclrtMallocHost",)),
}
globals().update({name: _on_device(call, name) for name, call in _ON_DEVICE.items()})
globals().update({name: named(call, name) for name, call in _ANYWHERE.items()})
