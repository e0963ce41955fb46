"""Launch kernels without a GPU, through a fake libcuda.so.1 that only records the launches.

:func:`install` replaces CUDA in its process for good, so tests call it, and everything else here,
in a separate process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from normgrad.problem import OTHERS

SOURCE = Path(__file__).with_suffix(".c")
#: The most launches that are recorded.
KEPT = 4096
#: The current stream of the first device; each further device's is one more.
STREAM = 0x1000


class Launched(ctypes.Structure):
    """A launch with the arguments that CUDA got; the C source declares the same struct."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("attributes", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("kernel", ctypes.c_uint64),
        ("values", ctypes.c_int64 * 256),
    ]

    def described(self) -> dict[str, Any]:
        """The launch as a dictionary."""
        return {
            "grid": tuple(self.grid),
            "block": tuple(self.block),
            "shared": self.shared,
            "device": self.device,
            "attributes": self.attributes,
            "stream": self.stream,
            "kernel": self.kernel,
            "values": self.values[: self.count],
        }


def compiler() -> str | None:
    """The system's C compiler."""
    return shutil.which("cc") or shutil.which("gcc")


def build() -> Path:
    """Build the library, always at the same path in Triton's cache folder.

    The path is part of the key under which Triton caches modules that it links with the library.
    """
    import triton

    found = compiler()
    assert found is not None
    folder = Path(triton.knobs.cache.dir) / "normgrad-fake-cuda"
    folder.mkdir(parents=True, exist_ok=True)
    target, made = folder / "libcuda.so.1", folder / f"libcuda.{os.getpid()}"
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")
    command = [found, *flags, f"-isystem{headers}", f"-Wl,-soname,{target.name}", SOURCE]
    subprocess.run([*command, "-o", made], check=True)
    made.replace(target)
    return target


class Cuda:
    """The fake library, with the functions of torch.cuda that normgrad and Triton need."""

    def __init__(self, library: Path) -> None:
        # Triton's own code finds a library of this name if one is loaded already.
        self.library = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        self.library.fake_launches.restype = ctypes.POINTER(Launched)
        self.library.fake_launched.restype = ctypes.c_ulong
        self._thread = threading.local()

    def current_device(self) -> int:
        """Like PyTorch's function: the first device, in a thread without a context."""
        return max(0, int(self.library.fake_current()))

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        """Like PyTorch's context manager."""
        before = self.library.fake_current()
        self.library.fake_use(index)
        try:
            yield
        finally:
            self.library.fake_use(before)

    def use_stream(self, number: int) -> None:
        """Make a stream the thread's current one, on all devices."""
        self._thread.stream = number

    def stream(self, index: int) -> int:
        """The thread's current stream on a device."""
        return int(getattr(self._thread, "stream", STREAM)) + index

    def launches(self) -> list[dict[str, Any]]:
        """The launches since the last call of this method."""
        kept, count = self.library.fake_launches(), self.library.fake_launched()
        assert count <= KEPT
        found = [kept[index].described() for index in range(count)]
        self.library.fake_forget()
        return found


cuda: Cuda


def install(library: Path) -> None:
    """Have Triton and PyTorch find the library and its devices."""
    global cuda
    os.environ["TRITON_LIBCUDA_PATH"] = str(library.parent)
    cuda = Cuda(library)
    cuda.library.fake_use(0)
    import torch

    replaced: Any = torch.cuda
    replaced.is_available = lambda: True
    replaced.current_device = cuda.current_device
    replaced.device = cuda.device
    replaced.is_current_stream_capturing = lambda: False
    replaced.get_device_capability = lambda device=None: (9, 0)
    compiled: Any = torch._C
    compiled._cuda_getCurrentRawStream = cuda.stream


# Functions that tests call in the process


def run(program: Any, calls: Sequence[Sequence[int]], index: int = 0) -> dict[str, Any]:
    """Run a program at each of these lists of addresses in turn.

    Returns the launches, how many kernels were looked up, and the current device afterwards.
    """
    from normgrad.backends.triton import runtime

    with mock.patch.object(runtime, "compiled", wraps=runtime.compiled) as compiled:
        runner = runtime.Runner(program, index)
        for addresses in calls:
            runner.run(addresses)
    return {
        "launches": cuda.launches(),
        "compiled": compiled.call_count,
        "device": cuda.current_device(),
    }


def described(program: Any, addresses: Sequence[int]) -> list[dict[str, Any]]:
    """The launches of a program as the driver's tables describe them, for these addresses."""
    import numpy as np

    from normgrad.backends.triton import cuda_driver, runtime

    runner = runtime.Runner(program, 0)
    runner.run(addresses)
    cuda.launches()
    (ready,) = runner._ready.values()
    found = []
    for row in ready.steps:
        config = row[: cuda_driver.CONFIG_STREAM].view(np.uint32).tolist()
        constants = row[cuda_driver.CONSTANTS :][: row[cuda_driver.CONSTANT_COUNT]].tolist()
        found.append(
            {
                "grid": tuple(config[:3]),
                "block": tuple(config[3:6]),
                "shared": config[6],
                "kernel": int(row[cuda_driver.KERNEL]),
                "values": [*addresses[:OTHERS], *constants],
            }
        )
    return found


def run_hooked(name: str, program: Any, calls: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Like :func:`run`, with one of Triton's hooks; also returns the hook's kernels and streams."""
    from triton import knobs

    told = []

    def hook(metadata: Any) -> None:
        found = metadata.get()
        told.append((found["name"], found["stream"]))

    chain = getattr(knobs.runtime, name)
    chain.add(hook)
    try:
        found = run(program, calls)
    finally:
        chain.remove(hook)
    return {**found, "told": told}


def run_hooked_later(
    name: str, program: Any, addresses: Sequence[int], replaces: bool
) -> list[tuple[str, int]]:
    """The kernels and streams that a hook is told of which is there for the second of three calls.

    Either it is added to Triton's chain, or it takes the chain's place.
    """
    from triton import knobs

    from normgrad.backends.triton.runtime import Runner

    told, chain = [], getattr(knobs.runtime, name)

    def hook(metadata: Any) -> None:
        found = metadata.get()
        told.append((found["name"], found["stream"]))

    runner = Runner(program, 0)
    runner.run(addresses)
    if replaces:
        setattr(knobs.runtime, name, hook)
    else:
        chain.add(hook)
    try:
        runner.run(addresses)
    finally:
        setattr(knobs.runtime, name, chain)
        chain.remove(hook)
    runner.run(addresses)
    cuda.launches()
    return told


def run_captured(program: Any, calls: Sequence[Sequence[int]]) -> tuple[str, list[dict[str, Any]]]:
    """The error of a first call in a capture; and the launches of later calls, the last in one."""
    import torch

    from normgrad.backends.triton.runtime import Runner

    runner, error = Runner(program, 0), ""
    capturing = mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True)
    with capturing:
        try:
            runner.run(calls[0])
        except RuntimeError as caught:
            error = str(caught)
    runner.run(calls[0])
    with capturing:
        runner.run(calls[1])
    return error, cuda.launches()


def run_refused(
    status: int, program: Any, addresses: Sequence[int], after: int
) -> tuple[str, int, int]:
    """The error if CUDA refuses launches, and the numbers of launches then and in a later run.

    CUDA accepts all launches of a first call, and ``after`` of the next.
    """
    from normgrad.backends.triton.runtime import Runner

    runner = Runner(program, 0)
    runner.run(addresses)
    cuda.launches()
    error = ""
    cuda.library.fake_answer(status, after)
    try:
        runner.run(addresses)
    except RuntimeError as caught:
        error = str(caught)
    finally:
        cuda.library.fake_answer(0, 0)
    refused = len(cuda.launches())
    runner.run(addresses)
    return error, refused, len(cuda.launches())


def run_in_threads(
    program: Any, calls: Sequence[Sequence[int]], rounds: int
) -> list[dict[str, Any]]:
    """Make all calls at once, each in its own thread and stream; return the launches.

    The calls may have addresses of different alignments.
    """
    from normgrad.backends.triton.runtime import Runner

    runner = Runner(program, 0)
    everyone = threading.Barrier(len(calls))

    def work(index: int) -> None:
        cuda.use_stream(STREAM * (index + 1))
        everyone.wait()
        for _ in range(rounds):
            runner.run(calls[index])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            list(pool.map(work, range(len(calls))))
    finally:
        sys.setswitchinterval(before)
    return cuda.launches()
