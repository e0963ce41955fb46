"""The machine code of units: object files, found or compiled once, and loaded by llvmlite.

A unit's object file comes from the package, where a wheel for a platform brings a folder for each
level of its architecture; from the user's cache folder; or from the compiler. Only the compiler
needs Numba, and it runs in processes of its own where these can be started.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import mmap
import shutil
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding as llvm

from ....support import cache, memory, notices
from ....support.forks import KernelError, loading
from ....support.machine import this_machine
from .. import target
from .units import symbol

#: The folder of the kernels' sources.
FOLDER = Path(__file__).parents[1]
#: Files outside this folder whose constants kernels use.
_SHARED = "tensors/dtypes.py", "tensors/strides.py", "support/memory.py", "declarations/problem.py"
#: The folder with a folder for each level that the wheel brings kernels for.
PACKAGED = FOLDER / "machine_code"
#: The number of folders of kernels that are kept for each user: those of other checkouts, versions
#: and processors, of which the one that was written to last is this one.
_FOLDERS = 4

#: Every so many seconds of compiling, a message says why the caller is waiting.
LONG = 2.0

#: The bytes of memory that must be free before Numba is imported: the import took 184 MiB of
#: address space.
_NUMBA = 256 << 20

#: The bytes of memory that must be free before anything is compiled or loaded, since LLVM ends the
#: process when memory runs out. No kernel took more than 28 MiB to compile.
_LLVM = 64 << 20

#: The most processes that compile at once; each takes some 200 MB.
_MOST_PROCESSES = 16

#: The addresses of the units that this process has loaded.
_loaded: dict[str, int] = {}

#: What this process has said, which it says once.
_reported: set[str] = set()


@functools.cache
def sources() -> str:
    """A digest of everything the kernels are compiled from."""
    shared = (FOLDER.parents[1] / name for name in _SHARED)
    return cache.digest_of((*sorted(FOLDER.rglob("*.py")), *shared))


@functools.cache
def digest() -> str:
    """A digest of all that decides what machine code this process compiles."""
    parts = sources(), _numbas_version(), llvmlite.__version__, target.processor()
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _numba() -> ModuleSpec | None:
    """Where Numba is installed; None if it is not."""
    with suppress(ValueError):  # sys.modules has something else of that name
        return find_spec("numba")
    return None


def _numbas_version() -> str:
    """The version of Numba by its installation's folder: importing its metadata takes 70 ms."""
    spec = _numba()
    if spec is None or spec.origin is None:
        return ""
    installed = Path(spec.origin).parents[1].glob("numba-*.dist-info")
    return " ".join(sorted(path.name for path in installed))


def packaged(level: str) -> Path:
    """The folder of the package's kernels for a level, as these sources would be compiled."""
    return PACKAGED / f"{level}-{sources()[:16]}"


@functools.cache
def level() -> str | None:
    """The level whose kernels the package brings for this processor; None if there is none."""
    return next((name for name in target.levels_here() if packaged(name).is_dir()), None)


def file_of(unit: str) -> str:
    """The name of a unit's object file."""
    return f"{symbol(unit)}.o"


def _cached(unit: str) -> Path:
    """The place of a unit's object file in the cache folder."""
    return cache.folder() / cache.KERNELS / digest()[:16] / file_of(unit)


def find(units: Iterable[str]) -> dict[str, bytes]:
    """The object files of those units that are in the package or in the cache folder."""
    packaged_level, contents = level(), {}
    for unit in units:
        content = None
        with suppress(OSError):
            if packaged_level is not None:
                path = packaged(packaged_level) / file_of(unit)
                content = cache.unseal(path, path.read_bytes())
        with suppress(OSError):
            if content is None:
                path = _cached(unit)
                content = cache.unseal(path, cache.read(path) or b"")
        if content is not None:
            contents[unit] = content
    return contents


def keep(unit: str, content: bytes) -> None:
    """Write a unit's object file to the cache folder.

    Raises:
        OSError: it cannot be written.
    """
    path = _cached(unit)
    is_new = not path.parent.is_dir()
    cache.write(path, cache.seal(path, content))
    if is_new:
        _remove_old(path.parent)


def _remove_old(mine: Path) -> None:
    """Remove the kernels of other sources and processors but for the last that were written to."""
    with suppress(OSError):
        others = [(path.stat().st_mtime, path) for path in cache.kernels() if path != mine]
        for _, path in sorted(others, reverse=True)[_FOLDERS - 1 :]:
            shutil.rmtree(path)


def check() -> None:
    """Make sure that kernels are at hand, or can be compiled as far as the settings tell.

    Raises:
        KernelError: the system forbids to load kernels, or Numba is not installed.
    """
    _check_memory()
    if level() is None and _numba() is None:
        raise KernelError(
            f"this processor ({target.processor().name}) has none of the levels that the package "
            "has kernels for, and Numba, which compiles kernels, is not installed; allowed: "
            "`pip install 'normgrad[compile]'`"
        )


def _check_memory() -> None:
    """Raise a KernelError if memory may not become executable, since LLVM would not notice."""
    memory.need("loading kernels", mmap.PAGESIZE)
    library = ctypes.CDLL(None, use_errno=True)
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    place = ctypes.c_char.from_buffer(page)
    failed = library.mprotect(ctypes.byref(place), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    del place
    page.close()
    if failed and ctypes.get_errno() in (errno.EACCES, errno.EPERM):
        raise KernelError(
            "compiled kernels: they cannot be loaded, since the system forbids this process "
            "executable memory; allowed: a process without PR_SET_MDWE, systemd's "
            "MemoryDenyWriteExecute, or the like"
        )


def compiled(
    units: Sequence[str], tick: Callable[[], object]
) -> Generator[tuple[str, bytes], None, None]:
    """Compile units; yields each with its object file, and calls ``tick`` while nothing happens.

    A unit that no other process could compile is compiled in this one, which shows why.

    Raises:
        MemoryError: there is too little memory.
        KernelError: Numba is not installed.
    """
    check()
    with loading():
        from . import processes
    rest = list(units)
    count = min(this_machine().cores, _MOST_PROCESSES)
    with closing(processes.compiled(units, count, tick)) as contents:
        for unit, content in contents:
            rest.remove(unit)
            yield unit, content
    for unit in rest:
        yield unit, _compiled_here(unit)


def _compiled_here(unit: str) -> bytes:
    memory.need("importing Numba", _NUMBA)
    with loading():
        from . import configuration
    memory.need("compiling kernels", _LLVM)
    with loading(), configuration.of_kernels():
        from .compiler import object_of

        return object_of(unit)


def _compile(units: Sequence[str]) -> dict[str, bytes]:
    """Compile units and keep them; say every few seconds why the caller is waiting."""
    if not target.converts_halves():
        raise KernelError(
            f"this processor ({target.processor().name}) cannot convert float16; allowed: one with "
            "F16C, as all of x86-64 since 2012 have it (in QEMU: -cpu max)"
        )
    said, told, objects = time.monotonic(), -1, dict[str, bytes]()

    def tick() -> None:
        nonlocal said, told
        now, done = time.monotonic(), len(objects)
        is_last = told >= 0 and done == len(units)
        if done != told and (now - said >= LONG or is_last):
            said, told = now, done
            notices.say(
                "normgrad compiles kernels, once for this processor: %d of %d are done "
                "(`normgrad warmup` does it beforehand)",
                done,
                len(units),
            )

    with closing(compiled(units, tick)) as new:
        for unit, content in new:
            objects[unit] = content
            try:
                keep(unit, content)
            except OSError as error:
                if "not kept" not in _reported:
                    _reported.add("not kept")
                    warnings.warn(
                        f"compiled kernels cannot be kept on disk ({error}); each process compiles "
                        f"them again. Set {cache.VARIABLE} to a folder that can be written.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
            tick()
    return objects


def addresses(units: Iterable[str]) -> dict[str, int]:
    """The addresses of units' machine code, which never change.

    Units that are not at hand are compiled together.

    Raises:
        MemoryError: there is too little memory to compile or load one.
        KernelError: the system forbids to load kernels, or Numba is not installed.
        KeyboardInterrupt: an interrupt; what is compiled by then is kept.
    """
    units = list(dict.fromkeys(units))
    if not all(unit in _loaded for unit in units):
        _provide(units)
    return {unit: _loaded[unit] for unit in units}


def _provide(units: Sequence[str]) -> None:
    """Load units, which are found or compiled first."""
    with loading():
        _check_memory()
        missing = [unit for unit in units if unit not in _loaded]
        objects = find(missing)
        rest = [unit for unit in missing if unit not in objects]
        _load({**objects, **(_compile(rest) if rest else {})})


#: The engines of what is loaded, which stays as long as they do.
_engines: list[Any] = []


def _engine() -> Any:
    """A new engine of LLVM's, which makes object files ready to run."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    # This manager of memory reserves an object's sections together: code reaches its constants
    # only within 2 GiB.
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)


def _load(objects: Mapping[str, bytes]) -> None:
    memory.need("compiling kernels", _LLVM)
    with loading():
        engine = _engine()  # of these alone: an interrupt may leave one with a part of them
        for content in objects.values():
            engine.add_object_file(llvm.ObjectFileRef.from_data(content))
        engine.finalize_object()
        _engines.append(engine)
        _loaded.update({unit: engine.get_function_address(symbol(unit)) for unit in objects})
