"""libascendcl: CANN's runtime, on the CPU."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .. import stacks
from ..aclnn import products
from ..aclnn.tensors import NUMPY, aclDataType
from . import callbacks, enums, physical, pointers
from .blocks import BLOCKS
from .calls import ERRORS, SETTINGS, check_variables, export, fail, product, read_again, refuse
from .declarations import functions_of
from .enums import aclError
from .handles import HANDLES
from .objects import Event, Runtime, Side, memory_info
from .pointers import Address
from .report import REPORT
from .streams import STREAMS, Stream

#: The streams' priorities go from 0 to this.
_LEAST_PRIORITY = 7

#: The version of the runtime's interface.
_VERSION = (1, 15, 0)

#: The functions that allocate device memory, every block of which is aligned.
_DEVICE_MEMORY = ("aclrtMalloc", "aclrtMallocAlign32")
#: The functions that make streams.
_STREAMS = ("aclrtCreateStream", "aclrtCreateStreamWithConfig")

#: A chip of each product, by the name that its driver gives.
_CHIPS = {
    products.TRAINING_SERIES: "Ascend910A",
    products.A2: "Ascend910B3",
    products.A3: "Ascend910_9391",
    products.ASCEND_950: "Ascend950PR",
    products.INFERENCE_SERIES: "Ascend310P3",
    products.A200I: "Ascend310B1",
}


@dataclass(eq=False, repr=False)
class Context:
    """A context of a device; what a thread makes belongs to its current context."""

    device: int


class STATE:
    """The runtime's state in this process.

    Attributes:
        by_acl, by_aclnn: whether aclInit and aclnnInit were called.
        was_finalized: whether aclFinalize was called after the last aclInit.
        has_default: whether aclInit's file names a device for threads that set none.
        users: the calls of aclrtSetDevice minus those of aclrtResetDevice, by device.
        lives: numbers, by device, that increase whenever the device's resources are released.
        defaults: the handles of the devices' own contexts that programs asked for.
    """

    by_acl = by_aclnn = was_finalized = has_default = False
    users: ClassVar[Counter[int]] = Counter()
    lives: ClassVar[defaultdict[int, int]] = defaultdict(lambda: 1)
    defaults: ClassVar[dict[int, int]] = {}


RUNTIME = Runtime(
    aclError.ACL_ERROR_RT_MEMORY_ALLOCATION,
    True,
    {Context: "aclrtCreateContext", Stream: "aclrtCreateStream", Event: "aclrtCreateEvent"},
)


def _need_init() -> None:
    if not (STATE.by_acl or STATE.by_aclnn):
        fail("before aclInit; allowed: after it", aclError.ACL_ERROR_UNINITIALIZE)


NO_DEVICE = (
    "no device in this thread; allowed: after aclrtSetDevice or aclrtSetCurrentContext in it, and "
    "before aclrtResetDevice"
)


def has_device() -> bool:
    """Whether this thread has a context that is alive, or a default device."""
    thread = ERRORS.thread()
    if thread.life == STATE.lives[thread.device]:
        return not thread.context or isinstance(HANDLES.find(thread.context), Context)
    return STATE.has_default


def _enter(device: int, context: int = 0) -> None:
    """Make a context of a device this thread's current one; 0 for the device's own context."""
    thread = ERRORS.thread()
    thread.life, thread.context, thread.device = STATE.lives[device], context, device


def _need_device() -> None:
    _need_init()
    if not has_device():
        fail(NO_DEVICE, aclError.ACL_ERROR_RT_CONTEXT_NULL)


# Initialisation


def aclInit(config_path: Address) -> None:
    if STATE.by_acl:
        fail("a second time; allowed: once", aclError.ACL_ERROR_REPEAT_INITIALIZE)
    STATE.has_default = initialize(config_path)
    STATE.by_acl, STATE.was_finalized = True, False


def initialize(config_path: Address) -> bool:
    """Read the environment and a settings file; returns whether the file names a default device."""
    settings = None if config_path is None else _read_config(config_path)
    read_again()
    product(aclError.ACL_ERROR_INVALID_PARAM)
    check_variables(aclError.ACL_ERROR_INVALID_PARAM)
    return isinstance(settings, dict) and "defaultDevice" in settings


def _read_config(address: int) -> Any:
    """Parse the settings file whose path is at this address; most settings have no effect here."""
    refuse_path = partial(refuse, "configPath", status=aclError.ACL_ERROR_INVALID_PARAM)
    try:
        path = os.fsdecode(pointers.text(address))
    except ValueError as error:
        refuse_path(str(error))
    if not path:
        return None
    try:
        # Deeply nested JSON may need more stack than this thread, or any usual one, has.
        content = Path(path).read_bytes() or b"{}"
        return stacks.elsewhere(partial(json.loads, content))
    except OSError as error:
        refuse_path(f"{path!r} ({error.strerror}); allowed: a file that is there")
    except (ValueError, RecursionError) as error:
        refuse_path(f"{path!r} ({error}); allowed: a JSON file")


def aclFinalize() -> None:
    if STATE.was_finalized:
        fail("a second time; allowed: once", aclError.ACL_ERROR_REPEAT_FINALIZE)
    if not STATE.by_acl:
        fail("before aclInit; allowed: after it", aclError.ACL_ERROR_UNINITIALIZE)
    STATE.by_acl, STATE.was_finalized, STATE.has_default = False, True, False
    finalize()


def finalize() -> None:
    """Finish queued work, take the device from all threads and report, after the last call."""
    if STATE.by_acl or STATE.by_aclnn:
        return
    try:
        STREAMS.abandon()
        STREAMS.finish()
    finally:
        for device in range(SETTINGS.devices):
            STATE.users[device] = 0
            STATE.lives[device] += 1
        REPORT.print_lines()


# Types


def aclDataTypeSize(data_type: int) -> int:
    """The size in bytes of an element type; 0 if it has none."""
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


def _check_device(device: int) -> None:
    if not 0 <= device < SETTINGS.devices:
        more = f" to {SETTINGS.devices - 1}" if SETTINGS.devices > 1 else ", the only one"
        refuse("deviceId", f"{device}; allowed: 0{more}")


def aclrtSetDevice(device: int) -> None:
    _check_device(device)
    STATE.users[device] += 1
    _enter(device)


def aclrtResetDevice(device: int) -> None:
    """Finish all work, and release the device if this undoes the last call of aclrtSetDevice."""
    _check_device(device)
    if STATE.users[device] == 0:
        message = "deviceId: a device that is not set; allowed: once for each aclrtSetDevice"
        fail(message, aclError.ACL_ERROR_RT_CONTEXT_NULL)
    STREAMS.finish()
    STATE.users[device] -= 1
    if STATE.users[device] == 0:
        STATE.lives[device] += 1
        _release((device, 0))


def _release(context: tuple[int, int]) -> None:
    """End the streams and free the memory of a context, given as :func:`_own_context` does."""
    REPORT.was_reset(
        [
            entry
            for handle, entry in HANDLES.living().items()
            if entry.maker in _STREAMS and entry.value.context == context and HANDLES.end(handle)
        ],
        [
            block
            for block in BLOCKS.living()
            if block.maker in _DEVICE_MEMORY and block.context == context and BLOCKS.free(block)
        ],
    )


def aclrtGetSocName() -> int:
    """The chip that the environment variable names, otherwise a chip of the current product."""
    device = product(aclError.ACL_ERROR_INVALID_PARAM)
    chip = os.environ.get(products.PRODUCT_VARIABLE, "").replace(" ", "")
    if not re.fullmatch(r"Ascend\d\w+", chip) or products.find(chip) is not device.product:
        chip = _CHIPS[device.product.name]
    return c_text(chip)


_buffer = cache(ctypes.create_string_buffer)


def c_text(text: str) -> int:
    """The address of a C string that is never freed, since programs keep its address."""
    return ctypes.addressof(_buffer(text.encode()))


# Contexts


def aclrtCreateContext(device: int) -> int:
    """Create a context, which becomes this thread's current one."""
    _check_device(device)
    handle = HANDLES.add(Context(device))
    _enter(device, handle)
    return handle


def aclrtDestroyContext(context: Address) -> None:
    if context in STATE.defaults.values():
        refuse("context", "the device's own; allowed: what aclrtCreateContext made")
    RUNTIME.destroy(Context, context)


def aclrtSetCurrentContext(context: Address) -> None:
    device = RUNTIME.find("context", Context, context).device
    _enter(device, 0 if context in STATE.defaults.values() else context or 0)


def aclrtGetCurrentContext() -> int:
    device, context = _own_context()
    if device not in STATE.defaults:
        STATE.defaults[device] = HANDLES.add(Context(device), is_owned=False)
    return context or STATE.defaults[device]


def _own_context() -> tuple[int, int]:
    """This thread's device and current context; 0 for the device's own context."""
    thread = ERRORS.thread()
    if thread.life == STATE.lives[thread.device]:
        return thread.device, thread.context
    return 0, 0


def _can_access_peer(device: int, peer: int) -> int:
    """Whether two devices, which must differ, reach each other's memory: all do here."""
    _check_device(device)
    _check_peer(peer, device)
    return 1


def _check_peer(peer: int, device: int | None = None) -> None:
    own = _own_context()[0] if device is None else device
    if not 0 <= peer < SETTINGS.devices or peer == own:
        refuse("peerDeviceId", f"{peer}; allowed: another device than {own}")


# Streams and events


def aclrtCreateStreamWithConfig(priority: int, flag: int) -> int:
    """Create a stream; priority and flags are checked, but have no effect."""
    if priority > _LEAST_PRIORITY:
        refuse("priority", f"{priority}; allowed: 0 to {_LEAST_PRIORITY}")
    _check_flags(flag, enums.StreamFlag)
    return HANDLES.add(Stream(context=_own_context()))


def _check_flags(flag: int, kind: type[IntFlag]) -> None:
    if flag & ~sum(kind):
        allowed = ", ".join(f"{each.name} ({each:#x})" for each in kind)
        refuse("flag", f"{flag:#x}; allowed: {allowed}, or some of them")


def _in_time(synchronize: Callable[..., None], *arguments: Address) -> None:
    """Wait; the timeout, which comes last, is checked, but never expires."""
    *handles, timeout = arguments
    if timeout is not None and timeout < -1:
        refuse("timeout", f"{timeout}; allowed: milliseconds, or -1 for any time")
    synchronize(*handles)


def aclrtCreateEventWithFlag(flag: int) -> int:
    _check_flags(flag, enums.EventFlag)
    can_order = bool(flag & (enums.EventFlag.ACL_EVENT_SYNC | enums.EventFlag.ACL_EVENT_EXTERNAL))
    has_time = bool(flag & enums.EventFlag.ACL_EVENT_TIME_LINE)
    return HANDLES.add(Event(can_order, has_time))


def _is_waiting(event: Address) -> bool:
    """Whether work that waits for an event has to wait; none has before the event is recorded."""
    return RUNTIME.find("event", Event, event).recorded is not None and not RUNTIME.is_over(event)


# Memory


def _allocate(size: int, device: bool) -> int:
    if size == 0:
        refuse("size", "0; allowed: 1 or more", aclError.ACL_ERROR_INVALID_PARAM)
    return RUNTIME.allocate(size, device, _own_context())


def _sides(
    dst: Address, dst_pitch: int, src: Address, src_pitch: int, kind: int
) -> tuple[Side, Side]:
    """The destination and source of a copy, whose kind says which of them are device memory."""
    if kind not in set(enums.aclrtMemcpyKind):
        allowed = ", ".join(f"{each.name} ({each:d})" for each in enums.aclrtMemcpyKind)
        refuse("kind", f"{kind}; allowed: {allowed}")
    name = enums.aclrtMemcpyKind(kind).name
    is_default = kind == enums.aclrtMemcpyKind.ACL_MEMCPY_DEFAULT
    to_device = _is_device(dst) if is_default else name.endswith("TO_DEVICE")
    from_device = _is_device(src) if is_default else "DEVICE_TO" in name
    return Side("dst", dst, dst_pitch, to_device), Side("src", src, src_pitch, from_device)


def _is_device(address: Address) -> bool:
    block = None if address is None else BLOCKS.find(address)
    return block is not None and block.is_device


def _copy(dst: Address, most: int, src: Address, count: int, kind: int, *stream: Address) -> None:
    sides = _sides(dst, count, src, count, kind)
    RUNTIME.copy(*sides, count, most=most, stream=RUNTIME.queue(stream))


def _copy_rows(
    dst: Address,
    dst_pitch: int,
    src: Address,
    src_pitch: int,
    width: int,
    height: int,
    kind: int,
    *stream: Address,
) -> None:
    to, source = _sides(dst, dst_pitch, src, src_pitch, kind)
    if to.on_device == source.on_device:
        refuse("kind", f"{kind}; allowed: between the host and the device")
    RUNTIME.copy(to, source, width, height, stream=RUNTIME.queue(stream))


def _fill(address: Address, most: int, value: int, count: int, *stream: Address) -> None:
    where = RUNTIME.queue(stream)
    if count > most:
        refuse("count", f"{count} bytes; allowed: up to maxCount, {most}")
    RUNTIME.fill("devPtr", address, value, count, where)


#: The exported functions that take a line, or that a function above with another name implements.
#: Every kind of memory is the machine's memory. Results are always deterministic, and other options
#: have no effect here.
_CALLS: dict[str, Callable[..., Any]] = {
    **vars(physical),
    "aclGetRecentErrMsg": ERRORS.last,
    "aclrtGetDevice": lambda: _own_context()[0],
    "aclrtGetDeviceCount": lambda: SETTINGS.devices,
    "aclrtDeviceCanAccessPeer": _can_access_peer,
    "aclrtDeviceEnablePeerAccess": lambda peer, flags: _check_peer(peer),
    "aclrtDeviceDisablePeerAccess": _check_peer,
    "aclrtGetRunMode": lambda: enums.aclrtRunMode.ACL_HOST,
    "aclrtGetMemInfo": lambda kind: memory_info(),
    "aclrtSynchronizeDevice": STREAMS.finish,
    "aclrtSynchronizeDeviceWithTimeout": partial(_in_time, STREAMS.finish),
    "aclrtSynchronizeStreamWithTimeout": partial(_in_time, RUNTIME.synchronize),
    "aclrtSynchronizeEventWithTimeout": partial(_in_time, RUNTIME.synchronize_event),
    "aclrtStreamQuery": lambda stream: enums.aclrtStreamStatus(not RUNTIME.is_idle(stream)),
    "aclrtQueryEvent": lambda event: enums.aclrtEventStatus(not RUNTIME.is_over(event)),
    "aclrtQueryEventStatus": lambda event: enums.aclrtEventRecordedStatus(RUNTIME.is_over(event)),
    "aclrtQueryEventWaitStatus": lambda event: enums.aclrtEventWaitStatus(_is_waiting(event)),
    "aclrtResetEvent": RUNTIME.reset,
    "aclrtGetVersion": lambda: _VERSION,
    "aclrtMemcpy2d": _copy_rows,
    "aclrtMemcpy2dAsync": _copy_rows,
    "aclrtCtxSetSysParamOpt": lambda option, value: None,
    "aclrtCreateStream": lambda: HANDLES.add(Stream(context=_own_context())),
    "aclrtDestroyStream": partial(RUNTIME.destroy, Stream),
    "aclrtSynchronizeStream": RUNTIME.synchronize,
    "aclrtSubscribeReport": lambda at, stream: callbacks.subscribe(RUNTIME.stream(stream), at),
    "aclrtUnSubscribeReport": lambda at, stream: callbacks.unsubscribe(RUNTIME.stream(stream), at),
    "aclrtLaunchCallback": lambda *of: callbacks.launch(RUNTIME.stream(of[3]), *of[:3]),
    "aclrtProcessReport": callbacks.process,
    "aclrtCreateEvent": lambda: HANDLES.add(Event()),
    "aclrtDestroyEvent": partial(RUNTIME.destroy, Event),
    "aclrtRecordEvent": RUNTIME.record,
    "aclrtSynchronizeEvent": RUNTIME.synchronize_event,
    "aclrtStreamWaitEvent": RUNTIME.wait,
    "aclrtEventElapsedTime": RUNTIME.elapsed,
    **dict.fromkeys(_DEVICE_MEMORY, lambda size, policy: _allocate(size, True)),
    "aclrtMallocHost": lambda size: _allocate(size, False),
    "aclrtFree": lambda at: RUNTIME.free("devPtr", at, _DEVICE_MEMORY),
    "aclrtFreeHost": lambda at: RUNTIME.free("hostPtr", at, ("aclrtMallocHost",)),
    "aclrtUnmapMem": partial(physical.unmap, RUNTIME),
    "aclrtMemcpy": _copy,
    "aclrtMemcpyAsync": _copy,
    "aclrtMemset": _fill,
    "aclrtMemsetAsync": _fill,
}

#: The functions that can be called before aclInit, and those that need aclInit but no device in the
#: thread. All other functions need both.
_ANYWHERE = """
    aclInit aclFinalize aclGetRecentErrMsg aclDataTypeSize aclFloatToFloat16 aclFloat16ToFloat
    aclrtGetVersion aclrtGetDeviceCount aclrtGetRunMode aclrtGetSocName
    aclrtDestroyContext aclrtDestroyStream aclrtDestroyEvent aclrtFree aclrtFreeHost
    aclrtFreePhysical aclrtReleaseMemAddress aclrtUnmapMem
"""
_AFTER_INIT = """
    aclrtSetDevice aclrtResetDevice aclrtCreateContext aclrtSetCurrentContext aclrtMallocHost
"""
_checks = dict.fromkeys(_AFTER_INIT.split(), _need_init)
for _function in functions_of("ascendcl"):
    if _function.name not in _ANYWHERE.split():
        _checks.setdefault(_function.name, _need_device)
export(globals(), "ascendcl", _CALLS, _checks)
