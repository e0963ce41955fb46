"""Numba's configuration while this process compiles kernels, whatever the user's own is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

from .. import target


@contextmanager
def of_kernels() -> Iterator[None]:
    """A context in which Numba has the configuration for kernels; other threads' compilations wait.

    Numba has one configuration for a process, from variables and a file in the current folder, and
    reads both again at each compilation.
    """
    with global_compiler_lock:
        before = dict(vars(config))
        # Numba refuses another number of threads once it has started some.
        threads = {"NUMBA_NUM_THREADS": str(config.NUMBA_NUM_THREADS)}
        try:
            config._env_reloader.process_environ({**target.settings(), **threads})
            config.reload_config = lambda: None
            yield
        finally:
            vars(config).update(before)
