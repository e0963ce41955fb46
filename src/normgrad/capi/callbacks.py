"""Callbacks: functions of the program that are work of a stream, and threads that await them."""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from .calls import CURRENT, fail, refuse
from .enums import aclError
from .streams import STREAMS, Clock, Stream

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

#: The threads that subscribe to streams' callbacks.
_threads: WeakKeyDictionary[Stream, int] = WeakKeyDictionary()
#: The work up to each callback that a thread has not processed.
_pending: defaultdict[int, deque[Clock]] = defaultdict(deque)
_changed = threading.Condition()


def subscribe(stream: Stream, thread: int) -> None:
    """Name the thread that processes a stream's callbacks."""
    with _changed:
        if stream in _threads:
            message = f"stream: one of thread {_threads[stream]}; allowed: one of no thread"
            fail(message, aclError.ACL_ERROR_REPEAT_SUBSCRIBE)
        _threads[stream] = thread


def unsubscribe(stream: Stream, thread: int) -> None:
    """Undo :func:`subscribe`."""
    with _changed:
        _thread_of(stream)
        if _threads[stream] != thread:
            refuse("threadId", f"{thread}; allowed: {_threads[stream]}, the stream's")
        del _threads[stream]


def _thread_of(stream: Stream) -> int:
    thread = _threads.get(stream)
    if thread is None:
        message = "stream: one of no thread; allowed: after aclrtSubscribeReport"
        fail(message, aclError.ACL_ERROR_STREAM_NOT_SUBSCRIBE)
    return thread


def launch(stream: Stream, function: int | None, data: int | None, kind: int) -> None:
    """Add a callback to a stream's work; it runs where that does, not in the subscribed thread."""
    thread = _thread_of(stream)
    if function is None:
        refuse("fn", "null; allowed: a function")
    if not _is_code(function):
        refuse("fn", f"no code at {function:#x}; allowed: a function")
    if kind not in (0, 1):
        refuse("blockType", f"{kind}; allowed: ACL_CALLBACK_NO_BLOCK, ACL_CALLBACK_BLOCK")
    STREAMS.do(stream, tuple, partial(_call, function, data))
    with _changed:
        _pending[thread].append(stream.clock)
        _changed.notify_all()


def _is_code(address: int) -> bool:
    """Whether memory can be executed; True if the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return True
    for line in lines:
        span, permissions, *_ = line.split()
        low, high = (int(word, 16) for word in span.split("-"))
        if low <= address < high:
            return "x" in permissions
    return False


def _call(function: int, data: int | None) -> None:
    current = CURRENT.function  # the callback may make calls
    try:
        _CALLBACK(function)(data)
    finally:
        CURRENT.function = current


def process(timeout: int) -> None:
    """Wait until a callback of this thread's streams has run; at most so many milliseconds."""
    if timeout < -1:
        refuse("timeout", f"{timeout}; allowed: -1 for no limit, or milliseconds")
    thread = threading.get_ident()
    with _changed:
        if thread not in _threads.values():
            message = "a thread of no stream; allowed: after aclrtSubscribeReport"
            fail(message, aclError.ACL_ERROR_THREAD_NOT_SUBSCRIBE)
        limit = None if timeout == -1 else timeout / 1e3
        if not _changed.wait_for(lambda: _pending[thread], limit):
            message = f"timeout: no callback in {timeout} ms"
            fail(message, aclError.ACL_ERROR_WAIT_CALLBACK_TIMEOUT, is_mistake=False)
        clock = _pending[thread].popleft()
    STREAMS.finish(clock)
