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
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from normgrad.declarations.problem import PLACES

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
        ("thread", ctypes.c_uint64),
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
            "thread": self.thread,
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
        """Make a stream the thread's current one on the first device."""
        self.library.fake_use_stream(ctypes.c_uint64(number))

    def stream(self, index: int) -> int:
        """The thread's current stream on a device."""
        found = ctypes.c_void_p()
        self.library.aoti_torch_get_current_cuda_stream(index, ctypes.byref(found))
        return found.value or 0

    def current_stream(self, index: int) -> Any:
        """Like PyTorch's function."""
        return SimpleNamespace(cuda_stream=self.stream(index))

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
    replaced.current_stream = cuda.current_stream
    replaced.is_current_stream_capturing = lambda: False
    replaced.get_device_capability = lambda device=None: (9, 0)
    compiled: Any = torch._C
    compiled._cuda_getCurrentRawStream = cuda.stream  # Triton's driver imports it
    from normgrad.backends.triton import cuda_driver

    function: Any = cuda.library.aoti_torch_get_current_cuda_stream
    mock.patch.object(cuda_driver, "_stream_function", return_value=function).start()


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


def run_by_triton(program: Any, addresses: Sequence[int]) -> list[dict[str, Any]]:
    """The launches of a program by Triton's own launcher, for these addresses."""
    from triton.runtime import driver

    from normgrad.backends.triton import runtime

    target = driver.active.get_current_target()
    for launch in program.launches:
        config = runtime.aligned(launch.config, addresses)
        start = runtime.compiled(launch, config, target)[(launch.programs, 1, 1)]
        start(launch.at(addresses), config, stream=STREAM)
    return cuda.launches()


@contextmanager
def in_place_of_the_cpu(runner: Any) -> Iterator[None]:
    """Have C++ launch a runner's kernels in the place of the CPU's, whose tensors it takes."""
    from normgrad.backends.cpu import runtime as cpu_runtime

    def native(cpu: Any, addresses: Any) -> Any:
        return runner.native(addresses)

    with mock.patch.object(cpu_runtime.Runner, "native", native):
        yield


def run_by_each(
    program: Any, way: str, index: int, in_thread: bool
) -> tuple[list[dict[str, Any]], int, list[int], int]:
    """Run layer norm's program by Python or C++, in this thread or in one without a context.

    The kernels are loaded before, by this thread. Returns the launches, the thread, the addresses
    of the tensors that C++ had, and the thread's current device afterwards.
    """
    import torch

    import normgrad
    from normgrad.backends.triton.runtime import Runner

    x, w, b = torch.randn(4, 64), torch.randn(64), torch.randn(64)
    normgrad.layer_norm(x[:, :2], (2,))  # from the first tensor of PyTorch's on, C++ computes
    runner, found = Runner(program, index), []

    def work() -> tuple[int, int]:
        if way == "Python":
            runner.run([0] * PLACES)
        else:
            with in_place_of_the_cpu(runner):  # each runner has a plan of C++'s
                found[:] = normgrad.layer_norm(x, (64,), w, b, eps=1.0 + index + 2 * in_thread)
        return threading.get_ident(), int(cuda.library.fake_current())

    work()
    cuda.launches()
    if in_thread:
        with ThreadPoolExecutor(1) as pool:
            thread, current = pool.submit(work).result()
    else:
        thread, current = work()
    tensors = [each.data_ptr() for each in (x, w, b, *found)]
    return cuda.launches(), thread, tensors, current


def refusals(program: Any) -> list[list[tuple[str, int]]]:
    """The errors' texts, and the numbers of launches, of three calls by Python and by C++.

    Of a first call while the stream is captured, of one that CUDA refuses, and of a later one.
    """
    import torch

    import normgrad
    from normgrad.backends.triton.runtime import Runner

    x = torch.randn(4, 64)
    normgrad.layer_norm(x[:, :2], (2,))
    found: list[list[tuple[str, int]]] = []
    capturing = mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True)
    for way in ("Python", "C++"):
        runner, number = Runner(program, 0), iter(range(1, 9))

        def call(way: str = way, runner: Any = runner, number: Iterator[int] = number) -> None:
            if way == "Python":
                runner.run([0] * PLACES)
            else:
                with in_place_of_the_cpu(runner):  # a call that C++ asks a plan for
                    normgrad.layer_norm(x, (64,), eps=float(next(number)))

        def error(call: Any = call) -> tuple[str, int]:
            text = ""
            try:
                call()
            except RuntimeError as caught:
                text = str(caught).partition("\n")[0]
            return text, len(cuda.launches())

        with capturing:
            captured = error()
        call()
        cuda.launches()
        cuda.library.fake_answer(701, 0)
        refused = error()
        cuda.library.fake_answer(0, 0)
        found.append([captured, refused, error()])
    return found


def has_native(program: Any, tells_stream: bool) -> bool:
    """Whether C++ can launch a program, where PyTorch may have no function for the stream."""
    from normgrad.backends.triton import cuda_driver, runtime

    launcher = cuda_driver.launcher(0)
    if not tells_stream:
        with mock.patch.object(cuda_driver, "_stream_function", return_value=None):
            launcher = cuda_driver.launcher.__wrapped__(0)
    with mock.patch.object(cuda_driver, "launcher", return_value=launcher):
        return runtime.Runner(program, 0).native([0, 0, 0]) is not None


def launchers_made(program: Any, threads: int) -> int:
    """How many launchers a device gets where threads with runners of their own need the first."""
    from normgrad.backends.triton import cuda_driver, runtime

    fresh = mock.patch.object(cuda_driver, "launcher", cache(cuda_driver.launcher.__wrapped__))
    slow = mock.patch.object(cuda_driver, "_check", side_effect=lambda *_: time.sleep(0.05))
    function = cuda_driver._stream_function
    counted = mock.patch.object(cuda_driver, "_stream_function", side_effect=function)
    runners = [runtime.Runner(program, 0) for _ in range(threads)]
    with fresh, slow, counted as made, ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda runner: runner.native([0, 0, 0]), runners))
    return made.call_count


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
