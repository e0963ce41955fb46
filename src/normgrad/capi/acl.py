"""libascendcl: CANN's runtime, on the CPU. Streams run in order, and at once."""

from __future__ import annotations

import ctypes
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..aclnn import products
from ..aclnn.tensors import NUMPY, aclDataType
from . import libc, pointers
from .enums import aclError, aclrtMemcpyKind, aclrtRunMode
from .errors import ERRORS, HOST_MEMORY_VARIABLE, REPORT_VARIABLE, CallError
from .objects import Event, Runtime, Stream
from .report import REPORT

#: The one device.
_DEVICE = 0

_KINDS = {
    aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_HOST: (False, False),
    aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE: (False, True),
    aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST: (True, False),
    aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_DEVICE: (True, True),
}

#: A chip of each product, by the name that its driver gives.
_CHIPS = {
    products.TRAINING_SERIES: "Ascend910A",
    products.A2: "Ascend910B3",
    products.A3: "Ascend910_9391",
    products.ASCEND_950: "Ascend950PR",
    products.INFERENCE_SERIES: "Ascend310P3",
    products.A200I: "Ascend310B1",
}
_chip_names = {name: ctypes.create_string_buffer(chip.encode()) for name, chip in _CHIPS.items()}


class Context:
    """What streams and events belong to on a device; here to nothing."""


class _State:
    is_initialized = False


def refuse(function: str, name: str, message: str) -> NoReturn:
    raise CallError(aclError.ACL_ERROR_RT_PARAM_INVALID, f"{function}: {name}: {message}")


RUNTIME = Runtime(
    refuse,
    True,
    {
        Context: "aclrtCreateContext",
        Stream: "aclrtCreateStream",
        Event: "aclrtCreateEvent",
    },
)


def _invalid(function: str, name: str, message: str) -> NoReturn:
    raise CallError(aclError.ACL_ERROR_INVALID_PARAM, f"{function}: {name}: {message}")


def _need_init(function: str) -> None:
    if not _State.is_initialized:
        raise CallError(
            aclError.ACL_ERROR_UNINITIALIZE, f"{function}: before aclInit; allowed: after it"
        )


# Initialisation


def aclInit(config_path: int | None) -> None:
    function = "aclInit"
    if _State.is_initialized:
        raise CallError(
            aclError.ACL_ERROR_REPEAT_INITIALIZE, f"{function}: a second time; allowed: once"
        )
    if config_path is not None:
        _read_config(function, config_path)
    _read_environment()
    try:
        products.current()
    except ValueError as error:
        raise CallError(aclError.ACL_ERROR_INVALID_PARAM, f"{function}: {error}") from None
    _State.is_initialized = True


def _read_config(function: str, address: int) -> None:
    """The file's settings are for devices; it only has to be one."""
    try:
        path = os.fsdecode(pointers.text(address))
    except ValueError as error:
        _invalid(function, "configPath", str(error))
    if not path:
        return
    try:
        # Nested deeply, it takes more stack than the calling thread may have.
        with ThreadPoolExecutor(1) as parser:
            parser.submit(json.loads, Path(path).read_bytes() or b"{}").result()
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
    ):
        value = libc.getenv(name.encode())
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = os.fsdecode(value)


def aclFinalize() -> None:
    _need_init("aclFinalize")
    _State.is_initialized = False
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


def aclrtSetDevice(device: int) -> None:
    _need_init("aclrtSetDevice")
    _check_device("aclrtSetDevice", device)


def aclrtResetDevice(device: int) -> None:
    _need_init("aclrtResetDevice")
    _check_device("aclrtResetDevice", device)


def aclrtGetDevice(device: int | None) -> None:
    _need_init("aclrtGetDevice")
    libc.store(ctypes.c_int32, RUNTIME.out("aclrtGetDevice", "deviceId", device), _DEVICE)


def aclrtGetDeviceCount(count: int | None) -> None:
    libc.store(ctypes.c_uint32, RUNTIME.out("aclrtGetDeviceCount", "count", count), 1)


def aclrtGetRunMode(mode: int | None) -> None:
    where = RUNTIME.out("aclrtGetRunMode", "runMode", mode)
    libc.store(ctypes.c_int, where, aclrtRunMode.ACL_HOST)


def aclrtGetSocName() -> int:
    return ctypes.addressof(_chip_names[products.current().product.name])


def aclrtGetMemInfo(attribute: int, free: int | None, total: int | None) -> None:
    """The machine's, whatever kind is asked for."""
    function = "aclrtGetMemInfo"
    _need_init(function)
    page = os.sysconf("SC_PAGE_SIZE")
    for name, address, variable in (
        ("free", free, "SC_AVPHYS_PAGES"),
        ("total", total, "SC_PHYS_PAGES"),
    ):
        where = RUNTIME.out(function, name, address)
        libc.store(ctypes.c_size_t, where, page * os.sysconf(variable))


def aclrtSynchronizeDevice() -> None:
    _need_init("aclrtSynchronizeDevice")


def aclrtCtxSetSysParamOpt(option: int, value: int) -> None:
    """Results are always deterministic, and other options are a device's."""
    _need_init("aclrtCtxSetSysParamOpt")


# Contexts


def aclrtCreateContext(context: int | None, device: int) -> None:
    _need_init("aclrtCreateContext")
    _check_device("aclrtCreateContext", device)
    RUNTIME.create("aclrtCreateContext", "context", context, Context())


def aclrtDestroyContext(context: int | None) -> None:
    RUNTIME.destroy("aclrtDestroyContext", "context", Context, context)


def aclrtSetCurrentContext(context: int | None) -> None:
    _need_init("aclrtSetCurrentContext")
    RUNTIME.find("aclrtSetCurrentContext", "context", Context, context)


# Streams and events


def aclrtCreateStream(stream: int | None) -> None:
    _need_init("aclrtCreateStream")
    RUNTIME.create("aclrtCreateStream", "stream", stream, Stream())


def aclrtDestroyStream(stream: int | None) -> None:
    RUNTIME.destroy("aclrtDestroyStream", "stream", Stream, stream)


def aclrtSynchronizeStream(stream: int | None) -> None:
    _need_init("aclrtSynchronizeStream")
    RUNTIME.check_stream("aclrtSynchronizeStream", stream)


def aclrtCreateEvent(event: int | None) -> None:
    _need_init("aclrtCreateEvent")
    RUNTIME.create("aclrtCreateEvent", "event", event, Event())


def aclrtDestroyEvent(event: int | None) -> None:
    RUNTIME.destroy("aclrtDestroyEvent", "event", Event, event)


def aclrtRecordEvent(event: int | None, stream: int | None) -> None:
    RUNTIME.record("aclrtRecordEvent", event, stream)


def aclrtSynchronizeEvent(event: int | None) -> None:
    RUNTIME.find("aclrtSynchronizeEvent", "event", Event, event)


def aclrtStreamWaitEvent(stream: int | None, event: int | None) -> None:
    RUNTIME.check_stream("aclrtStreamWaitEvent", stream)
    RUNTIME.find("aclrtStreamWaitEvent", "event", Event, event)


def aclrtEventElapsedTime(milliseconds: int | None, start: int | None, end: int | None) -> None:
    RUNTIME.elapsed("aclrtEventElapsedTime", milliseconds, start, end)


# Memory


def _allocate(function: str, name: str, address: int | None, size: int, device: bool) -> None:
    _need_init(function)
    if size == 0:
        _invalid(function, "size", "0; allowed: 1 or more")
    try:
        RUNTIME.allocate(function, name, address, size, device)
    except MemoryError:
        raise CallError(
            aclError.ACL_ERROR_RT_MEMORY_ALLOCATION,
            f"{function}: size: {size} bytes; allowed: what the machine has",
        ) from None


def aclrtMalloc(address: int | None, size: int, policy: int) -> None:
    _allocate("aclrtMalloc", "devPtr", address, size, True)


def aclrtFree(address: int | None) -> None:
    RUNTIME.free("aclrtFree", "devPtr", address, ("aclrtMalloc",))


def aclrtMallocHost(address: int | None, size: int) -> None:
    _allocate("aclrtMallocHost", "hostPtr", address, size, False)


def aclrtFreeHost(address: int | None) -> None:
    RUNTIME.free("aclrtFreeHost", "hostPtr", address, ("aclrtMallocHost",))


def _copy(
    function: str, dst: int | None, most: int, src: int | None, count: int, kind: int
) -> None:
    _need_init(function)
    sides = _KINDS.get(kind)  # type: ignore[call-overload]
    if sides is None:
        allowed = ", ".join(f"{each.name} ({each:d})" for each in aclrtMemcpyKind)
        refuse(function, "kind", f"{kind}; allowed: {allowed}")
    RUNTIME.copy(function, (dst, most, sides[1]), (src, sides[0]), count)


def aclrtMemcpy(dst: int | None, most: int, src: int | None, count: int, kind: int) -> None:
    _copy("aclrtMemcpy", dst, most, src, count, kind)


def aclrtMemcpyAsync(
    dst: int | None, most: int, src: int | None, count: int, kind: int, stream: int | None
) -> None:
    RUNTIME.check_stream("aclrtMemcpyAsync", stream)
    _copy("aclrtMemcpyAsync", dst, most, src, count, kind)


def aclrtMemset(address: int | None, most: int, value: int, count: int) -> None:
    function = "aclrtMemset"
    _need_init(function)
    if count > most:
        refuse(function, "count", f"{count} bytes; allowed: up to maxCount, {most}")
    RUNTIME.fill(function, "devPtr", address, value, count)
