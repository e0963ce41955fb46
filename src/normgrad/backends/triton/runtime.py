"""The compilation and launch of kernels on a GPU, or their interpretation on the CPU."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...support.forks import KernelError
from .. import NativeSchedule
from . import cuda_driver
from .config import Config
from .launches import Launch
from .layouts import ITEMSIZES
from .schedule import Schedule

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


@cache
def _kernels() -> Any:
    """The module of the kernels, with a digest of each.

    In Triton 3.6 the digest of a function depends on which others have one, and so does the place
    of its kernels in the cache on disk: all have one, in the same order in every process.
    """
    from . import kernels

    for function in vars(kernels).values():
        getattr(function, "cache_key", None)
    return kernels


@cache
def _compiled(kernel: str, config: Config, warps: int, target: Any, arguments: Any) -> Any:
    """A compiled kernel, which Triton also caches on disk; ``arguments`` are the types."""
    import triton
    from triton.compiler import ASTSource

    signature = {"a": arguments, "C": "constexpr"}
    source = ASTSource(getattr(_kernels(), kernel), signature, {"C": config}, {})
    return triton.compile(source, target=target, options={"num_warps": warps, **OPTIONS})


def compiled(launch: Launch, config: Config, target: Any) -> Any:
    """The compiled kernel of a launch; only one thread at a time may call this."""
    return _compiled(launch.kernel, config, launch.warps, target, _signature(launch.arguments))


@cache
def _loaded(kernel: Any, index: int) -> int:
    """The handle of a kernel on a device, whose context is the current one."""
    from triton.runtime import driver

    load, metadata = driver.active.utils.load_binary, kernel.metadata
    _, function, *_ = load(metadata.name, kernel.asm["cubin"], metadata.shared, index)
    return int(function)


class Runner:
    """A schedule that is ready to run on addresses.

    ``index`` is the index of a CUDA device, or None to interpret the kernels on the CPU, for which
    Triton must have been imported with TRITON_INTERPRET=1.
    """

    def __init__(self, schedule: Schedule, index: int | None) -> None:
        self._launches = schedule.launches
        self._index = index
        #: The launches by the alignment of the tensors' addresses.
        self._ready: dict[tuple[int, ...], cuda_driver.Rows] = {}

    def native(self, addresses: Sequence[int]) -> NativeSchedule | None:
        """The launches for code that makes them without Python; None if it cannot.

        ``addresses`` are those of dy, x and dx; the launches are for others of their alignment.
        """
        if self._index is None:
            return None
        rows, launcher = self._rows(self._index, addresses), cuda_driver.launcher(self._index)
        if not launcher.stream_of:
            return None
        words = rows.ravel().tolist()
        return NativeSchedule([], words, len(rows), launcher=ctypes.addressof(launcher))

    def run(self, addresses: Sequence[int]) -> None:
        """Launch the kernels on the device's current stream, without waiting for them."""
        if self._index is None:
            _interpret(self._launches, addresses)
            return
        from torch import cuda

        rows, stream = self._rows(self._index, addresses), cuda.current_stream(self._index)
        cuda_driver.launch(self._index, rows, addresses, stream.cuda_stream)

    def _rows(self, index: int, addresses: Sequence[int]) -> cuda_driver.Rows:
        """The launches for the alignment of these addresses."""
        low = (1 << cuda_driver.ALIGNED_BITS) - 1
        key = (addresses[0] & low, addresses[1] & low, addresses[2] & low)
        rows = self._ready.get(key)
        if rows is None:
            rows = self._ready.setdefault(key, self._prepare(index, key))
        return rows

    def _prepare(self, index: int, key: tuple[int, ...]) -> cuda_driver.Rows:
        """Compile and load the kernels for an alignment."""
        from torch import cuda
        from triton.runtime import driver

        rows = []
        with cuda.device(index), _compiling:
            if cuda.is_current_stream_capturing():
                raise KernelError(
                    f"cuda:{index}: a first call while a CUDA graph is captured; allowed: after "
                    "the same call once before the capture, which compiles and loads the kernels"
                )
            cuda_driver.launcher(index)  # under the lock: C++ has the address of the only one
            target = driver.active.get_current_target()
            for launch in self._launches:
                kernel = compiled(launch, aligned(launch.config, key), target)
                rows.append(cuda_driver.row(launch, kernel, _loaded(kernel, index)))
        return np.stack(rows)


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
