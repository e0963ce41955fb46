"""The cache of compiled kernels on disk.

Numba keeps an index beside numbered files. Two processes that compile at once can give one number
to kernels of two dtypes, and a process that is killed meanwhile leaves a number for an older
kernel: the next process would compute with the wrong kernel. So here every kernel has a file of its
own name, which begins with a digest of the kernel's key and of the file's content.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import sys
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import serialize
from numba.core.caching import FunctionCache, NullCache

from ...writing import replacing
from . import packaged


@cache
def sources() -> str:
    """A digest of the kernels' sources and the versions of their compilers.

    Numba checks only the file that holds a function, and would go on using a kernel whose helpers
    in other files have changed.
    """
    return f"{packaged.sources()} {numba.__version__} {llvmlite.__version__}"


class _Files:
    """The files of a function's kernels, in the place of Numba's index and numbered files."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = Path(folder), name

    def _path(self, key: Any) -> Path:
        """A kernel's file, named by signature and CPU: kernels of changed sources replace it."""
        signature, cpu, *_ = key
        digest = hashlib.sha256(repr((signature, cpu)).encode()).hexdigest()
        return self._folder / f"{self._name}.{digest[:16]}.nbc"

    @staticmethod
    def _digest(key: Any, content: bytes) -> bytes:
        return hashlib.sha256(f"{sources()} {key!r}\n".encode() + content).digest()

    def load(self, key: Any) -> Any:
        """The kernel that was saved under a key; None if there is none, or it is damaged."""
        try:
            found = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        size = hashlib.sha256().digest_size
        if found[:size] != self._digest(key, found[size:]):
            return None
        return pickle.loads(found[size:])

    def save(self, key: Any, data: Any) -> None:
        """Save a kernel under its key."""
        content = serialize.dumps(data)
        with replacing(self._path(key)) as file:
            file.write(self._digest(key, content) + content)


def warn(why: object) -> None:
    """Warn that a kernel cannot be kept."""
    warnings.warn(
        f"compiled kernels cannot be kept on disk ({why}); each process compiles them again. Set "
        "NUMBA_CACHE_DIR to a folder that can be written.",
        RuntimeWarning,
        stacklevel=3,
    )


#: After so many seconds of compiling, a message says why the caller is waiting.
LONG = 2.0


class _Compiling:
    """The state of compiling in this process.

    Attributes:
        told: whether the message that kernels are compiled once was printed, or is not wanted.
    """

    def __init__(self) -> None:
        self.told = False
        self._seconds = self._start = 0.0

    def begins(self) -> None:
        """Note that a kernel is compiled now. A fork waits for the message too: see loading.py."""
        if not self.told and self._seconds >= LONG:
            self.told = True
            _tell()
        self._start = time.monotonic()

    def ends(self) -> None:
        """Note that the kernel is compiled."""
        self._seconds += time.monotonic() - self._start


_compiling = _Compiling()


def _tell() -> None:
    text = (
        "compiling kernels, which is done once and takes some seconds: they are kept on disk. "
        "`normgrad warmup` does it beforehand."
    )
    logging.getLogger("normgrad").info(text)
    with suppress(AttributeError, OSError, ValueError):  # stderr is None, or closed
        if sys.stderr.isatty():
            print(f"normgrad: {text}", file=sys.stderr, flush=True)


def beforehand() -> None:
    """From now on, this process compiles kernels for later calls, without a message."""
    _compiling.told = True


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache on disk, with this module's files; its failures do not reach the caller.

    A cache that cannot be read or written costs a compilation, no more.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file = _Files(self.cache_path, self._impl.filename_base)

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether a kernel is on disk."""
        with suppress(Exception):
            key = self._index_key(sig, target_context.codegen())
            return self._cache_file.load(key) is not None
        return False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """A kernel from disk; or None, and Numba compiles it next."""
        found = None
        with suppress(Exception):  # a damaged file may raise any type of exception
            found = super().load_overload(sig, target_context)
        if found is None:
            _compiling.begins()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel that has been compiled, or warn."""
        _compiling.ends()
        try:
            super().save_overload(sig, data)
        except Exception as error:
            warn(error)


def cache_for(function: Any) -> Any:
    """The cache for a function's kernels; its path is None if no folder can be written."""
    try:
        return KernelCache(function)
    except RuntimeError:  # Numba found no folder for it
        return NullCache()
