"""Threads' stacks: how much of one a call may use, and work on a new thread with a larger one.

Kernels keep tiles and sums on the stack, up to a quarter of a MiB. A thread may have less, if
:func:`threading.stack_size` or the program that made it says so. Compiled code compares its own
place with ``limit``, which each thread sets once, and does nothing if there is too little room, or
if it does not know the thread. Where the C library does not tell the place of a thread's stack,
as on other systems than Linux, nothing is compared.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

_T = TypeVar("_T")

#: The bytes of stack that kernels need below the driver. A call took up to 218 KiB, on tensors that
#: are read as columns and copied to tiles.
ROOM = 256 << 10

#: The least stack of a thread that imports Numba and compiles, or starts threads.
LOADING_ROOM = 1 << 20

#: The stack of threads that are made for the purpose.
_ENOUGH = 8 << 20


@cache
def _library() -> ctypes.CDLL | None:
    """The C library if it tells where a thread's stack is; else None."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "pthread_getattr_np"):
        return None
    library.pthread_self.restype = ctypes.c_ulong
    library.pthread_setspecific.argtypes = [ctypes.c_uint, ctypes.c_void_p]
    return library


def _new_key() -> tuple[int, int]:
    library, number = _library(), ctypes.c_uint()
    if library is None or library.pthread_key_create(ctypes.byref(number), None) != 0:
        return 0, 0
    getter = ctypes.cast(library.pthread_getspecific, ctypes.c_void_p).value or 0
    return number.value, getter


#: The key of the threads' own value ``limit``, and the address of the function that reads it, which
#: is 0 where there is none. Of two keys that threads make at once, one would never be set.
KEY = _new_key()


def _stack() -> tuple[int, int]:
    """This thread's lowest stack address, and its stack's size; 0 and a large size if unknown."""
    library = _library()
    attributes = ctypes.create_string_buffer(256)  # a pthread_attr_t has 56 bytes or fewer
    low, size = ctypes.c_size_t(), ctypes.c_size_t(_ENOUGH)
    if library is None:
        return 0, _ENOUGH
    if library.pthread_getattr_np(ctypes.c_ulong(library.pthread_self()), attributes) == 0:
        library.pthread_attr_getstack(attributes, ctypes.byref(low), ctypes.byref(size))
        library.pthread_attr_destroy(attributes)
    return low.value, size.value


def learn() -> None:
    """Set this thread's ``limit``: the lowest address from which kernels still have room."""
    library = _library()
    if library is not None:
        low, _ = _stack()
        library.pthread_setspecific(KEY[0], low + ROOM)


def with_room(work: Callable[[], _T]) -> _T:
    """Do work that imports, compiles or starts threads: here, or on a thread with room for it."""
    return work() if _stack()[1] >= LOADING_ROOM else elsewhere(work)


#: Held while the size of new stacks is another; reentrant, since a signal handler may compute.
_starting = threading.RLock()


def _renew() -> None:
    global _starting
    _starting = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def start(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread with a large stack; a RuntimeError if the system has no room."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _starting:
        before = threading.stack_size(_ENOUGH)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


def elsewhere(work: Callable[[], _T]) -> _T:
    """Do work on a new thread with a large stack; its result, or its exception.

    An interrupt is raised once the work is done.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = start(run, "normgrad")
    try:
        thread.join()
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return results[0]
