"""Forks: the lock that they must not cut short, and the error of kernels that cannot be had."""

from __future__ import annotations

import logging  # noqa: F401 - see where the hooks are registered
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: The lock is held while modules are imported and kernels compiled. In a child that is forked in
#: the meantime, the locks of the import system and of Numba would stay locked for ever, by a thread
#: that does not exist there. A fork in the C libraries waits for this lock first.
LOADING = threading.RLock()

#: The number of seconds that a fork in Python waits for the lock. The wait must end, since the fork
#: hooks of other modules may hold locks that an import needs. Compiling the kernels of one call
#: takes some ten seconds.
PATIENCE = 60.0


class KernelError(RuntimeError):
    """Kernels cannot be compiled or loaded in this process, or give wrong results on a GPU."""


#: Whether the last fork got the lock, and whether this process was forked while another thread held
#: it. That thread does not exist in the child, and never releases the lock.
_fork_has_lock = _lock_is_lost = False


def _before_fork() -> None:
    global _fork_has_lock
    _fork_has_lock = not _lock_is_lost and LOADING.acquire(timeout=PATIENCE)


def _after_in_parent() -> None:
    if _fork_has_lock:
        LOADING.release()


def _after_in_child() -> None:
    global _lock_is_lost
    _lock_is_lost = not _fork_has_lock
    _after_in_parent()


# Hooks run in the reverse order of registration. The hook of logging takes a lock that Numba needs
# while it compiles. That hook is registered before this one (by the import), so it runs later, and
# its lock is free while a fork waits here.
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)


@contextmanager
def loading() -> Iterator[None]:
    """A context, for one thread at a time, in which modules are imported or kernels loaded.

    Forks wait for its end. It raises a RuntimeError if this process was forked while another thread
    was in one.
    """
    if _lock_is_lost:
        raise RuntimeError(
            "this process was forked while another thread was compiling kernels; allowed: a fork "
            "before or after that, or another start method, such as multiprocessing's 'spawn'"
        )
    with LOADING:
        yield
