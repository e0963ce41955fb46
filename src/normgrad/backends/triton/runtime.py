"""The compilation and launch of kernels on a GPU, or their interpretation on the CPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...loading import KernelError
from .. import NativeSchedule
from . import cuda_driver
from .config import Arguments, Config
from .launches import Launch
from .schedule import Schedule
from .tiling import ITEMSIZES

#: The options of the compilation. A product and a sum are fused only where a kernel says so, since
#: rounding errors could not be computed otherwise. A thread may use 128 registers, which allows two
#: programs of 256 threads, or one of 512, per processor. Without the option ptxas makes room for
#: more programs, and spills registers.
OPTIONS = {"enable_fp_fusion": False, "maxnreg": 128}

#: The lock on compiling and loading kernels, which only one thread at a time may do.
_compiling = threading.Lock()


def _signature(value: Any) -> Any:
    """The type of an argument, which consists of 64-bit integers in nested tuples."""
    if isinstance(value, tuple):
        parts = [_signature(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return "i64"


def source(kernel: str, arguments: Arguments, config: Config) -> Any:
    """A kernel's source in the form for Triton's compiler."""
    from triton.compiler import ASTSource

    from . import kernels

    signature = {"a": _signature(arguments), "C": "constexpr"}
    return ASTSource(getattr(kernels, kernel), signature, {"C": config}, {})


_kernels: dict[Any, Any] = {}


def compiled(launch: Launch, config: Config, target: Any, index: int | None = None) -> Any:
    """The compiled kernel of a launch, which Triton also caches on disk.

    Each device has its own, since a loaded kernel belongs to one device. Only one thread at a time
    may call this.
    """
    import triton

    key = launch.kernel, config, launch.warps, target, _signature(launch.arguments), index
    kernel = _kernels.get(key)
    if kernel is None:
        kernel_source = source(launch.kernel, launch.arguments, config)
        options = {"num_warps": launch.warps, **OPTIONS}
        kernel = _kernels[key] = triton.compile(kernel_source, target=target, options=options)
    return kernel


class Ready:
    """A schedule's launches for one alignment of the tensors' addresses.

    Attributes:
        steps: the launches as CUDA's driver reads them; None if it could not make them alone.
    """

    def __init__(self, launches: Sequence[tuple[Launch, Config, Any]]) -> None:
        """Load the kernels; ``launches`` are launches, their configurations and their kernels."""
        self._launches = [
            (launch, config, kernel[(launch.programs, 1, 1)]) for launch, config, kernel in launches
        ]
        kernels = [(launch, kernel) for launch, _, kernel in launches]
        suitable = all(cuda_driver.suits(kernel, launch) for launch, kernel in kernels)
        self.steps = cuda_driver.steps(kernels) if suitable else None

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """Launch the kernels by Triton's launcher, which calls its hooks and raises errors."""
        for launch, config, start in self._launches:
            start(launch.at(addresses), config, stream=stream)


class Runner:
    """A schedule that is ready to run on addresses.

    ``index`` is the index of a CUDA device, or None to interpret the kernels on the CPU, for which
    Triton must have been imported with TRITON_INTERPRET=1.
    """

    def __init__(self, schedule: Schedule, index: int | None) -> None:
        self._launches = schedule.launches
        self._index = index
        self._ready: dict[tuple[int, ...], Ready] = {}
        if index is not None:
            import torch

            self._cuda = torch.cuda
            self._stream = torch._C._cuda_getCurrentRawStream

    def native(self, addresses: Sequence[int]) -> NativeSchedule | None:
        """The launches for code that makes them without Python; None if it cannot.

        ``addresses`` are those of dy, x and dx; the launches are for others of their alignment.
        """
        function = cuda_driver.function()
        if self._index is None or function is None:
            return None
        with self._cuda.device(self._index):
            steps = self._ready_for(addresses).steps
        if steps is None:
            return None
        return NativeSchedule([], steps.ravel().tolist(), len(steps), launch=function)

    def run(self, addresses: Sequence[int]) -> None:
        """Launch the kernels on the device's current stream, without waiting for them."""
        if self._index is None:
            _interpret(self._launches, addresses)
        elif self._cuda.current_device() == self._index:
            self._start(addresses)
        else:
            with self._cuda.device(self._index):
                self._start(addresses)

    def _start(self, addresses: Sequence[int]) -> None:
        self._ready_for(addresses).start(addresses, self._stream(self._index))

    def _ready_for(self, addresses: Sequence[int]) -> Ready:
        """The launches for the alignment of these addresses."""
        low = (1 << cuda_driver.ALIGNED_BITS) - 1
        key = (addresses[0] & low, addresses[1] & low, addresses[2] & low)
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready.setdefault(key, self._prepare(key))
        return ready

    def _prepare(self, key: tuple[int, ...]) -> Ready:
        if self._cuda.is_current_stream_capturing():
            raise KernelError(
                f"cuda:{self._index}: a first call while a CUDA graph is captured; allowed: a call "
                "like one that was made before, which compiled and loaded the kernels"
            )
        from triton.runtime import driver as triton_driver

        target = triton_driver.active.get_current_target()
        launches = []
        # Triton also loads the kernels here.
        with _compiling:
            for launch in self._launches:
                config = aligned(launch.config, key)
                launches.append((launch, config, compiled(launch, config, target, self._index)))
            return Ready(launches)


def aligned(config: Config, addresses: Sequence[int]) -> Config:
    """A launch's configuration for tensors at these addresses."""
    tensors = []
    for tensor, address in zip((config.dy, config.x, config.dx), addresses, strict=False):
        size = ITEMSIZES[tensor.code]
        vector = max(1, math.gcd(tensor.vector * size, address) // size)
        tensors.append(tensor._replace(vector=vector))
    dy, x, dx = tensors
    following = aligned(config.next, addresses) if config.next else None
    return config._replace(dy=dy, x=x, dx=dx, next=following)


def _interpret(launches: Sequence[Launch], addresses: Sequence[int]) -> None:
    """Run kernels one program after the other."""
    from . import kernels

    for launch in launches:
        arguments = launch.at(addresses)
        config = aligned(launch.config, addresses)
        start = getattr(kernels, launch.kernel)[(launch.programs,)]
        # NumPy must not warn of infinities and NaNs, which are silent on a GPU.
        with np.errstate(all="ignore"):
            start(arguments, C=config)
