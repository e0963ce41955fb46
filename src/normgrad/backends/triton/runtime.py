"""Compiling and launching: on a GPU, or by Triton's interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .config import Arguments, Config, Tensor
from .launches import Launch
from .program import Program
from .tiling import ITEMSIZES

#: How kernels are compiled. A product and a sum are made one only where a kernel says so: else
#: what a sum leaves could not be told.
#: And with up to 128 registers a thread, for two programs of 256 threads, or one of 512, to a
#: processor. Left to itself ptxas makes room for more programs, and puts some bytes elsewhere.
OPTIONS = {"enable_fp_fusion": False, "maxnreg": 128}

_compiling = threading.Lock()


def _signature(value: Any) -> Any:
    """The type of an argument: 64 bits, however they are nested."""
    if isinstance(value, tuple):
        parts = [_signature(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return "i64"


def source(kernel: str, arguments: Arguments, config: Config) -> Any:
    """What Triton compiles."""
    from triton.compiler import ASTSource

    from . import kernels

    signature = {"a": _signature(arguments), "C": "constexpr"}
    return ASTSource(getattr(kernels, kernel), signature, {"C": config}, {})


_kernels: dict[Any, Any] = {}


def compiled(launch: Launch, config: Config, target: Any, index: int | None = None) -> Any:
    """A launch's kernel, compiled; Triton keeps it on disk.

    Each device has its own: what a kernel is launched by belongs to the device it was loaded on.
    """
    import triton

    ranks = len(launch.arguments.axes), len(launch.arguments.counts)
    key = launch.kernel, config, launch.warps, target, ranks, index
    found = _kernels.get(key)
    if found is None:
        with _compiling:
            found = _kernels.get(key)
            if found is None:
                made = source(launch.kernel, launch.arguments, config)
                options = {"num_warps": launch.warps, **OPTIONS}
                found = _kernels[key] = triton.compile(made, target=target, options=options)
    return found


def _fitting(tensor: Tensor, address: int) -> Tensor:
    """A tensor as its address allows it to be read."""
    vector = tensor.vector
    while address % (vector * ITEMSIZES[tensor.code]):
        vector //= 2
        if vector <= 1:
            break
    return tensor if vector == tensor.vector else tensor._replace(vector=max(1, vector))


class Runner:
    """A program with its kernels, ready for addresses.

    ``index`` is the number of a CUDA device, or None to interpret the kernels on the CPU, for
    which Triton was to be imported with TRITON_INTERPRET=1.
    """

    def __init__(self, program: Program, index: int | None) -> None:
        self._launches = program.launches
        self._index = index
        self._ready: dict[tuple[int, ...], list[tuple[Launch, Config, Callable[..., None]]]] = {}
        if index is not None:
            import torch

            self._cuda = torch.cuda
            self._stream = torch._C._cuda_getCurrentRawStream

    def run(self, addresses: Sequence[int]) -> None:
        """Launch the kernels on the device's current stream, without waiting for them."""
        if self._index is None:
            _interpret(self._launches, addresses)
            return
        # What the kernels were compiled for: the lowest bits of the tensors' addresses.
        key = (addresses[0] & 15, addresses[1] & 15, addresses[2] & 15)
        if self._cuda.current_device() != self._index:
            with self._cuda.device(self._index):
                self._launch(key, addresses)
        else:
            self._launch(key, addresses)

    def _launch(self, key: tuple[int, ...], addresses: Sequence[int]) -> None:
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready[key] = self._prepare(key)
        stream = self._stream(self._index)
        for launch, config, start in ready:
            start(launch.at(addresses), config, stream=stream)

    def _prepare(self, key: tuple[int, ...]) -> list[tuple[Launch, Config, Callable[..., None]]]:
        from triton.runtime import driver

        target = driver.active.get_current_target()
        prepared = []
        for launch in self._launches:
            config = aligned(launch.config, key)
            kernel = compiled(launch, config, target, self._index)
            # Here Triton loads it, which only one thread may do.
            with _compiling:
                start = kernel[(launch.programs, 1, 1)]
            prepared.append((launch, config, start))
        return prepared


def aligned(config: Config, addresses: Sequence[int]) -> Config:
    """A configuration for tensors at such addresses."""
    return config._replace(
        dy=_fitting(config.dy, addresses[0]),
        x=_fitting(config.x, addresses[1]),
        dx=_fitting(config.dx, addresses[2]),
    )


def _interpret(launches: Sequence[Launch], addresses: Sequence[int]) -> None:
    """Run kernels one program after the other."""
    from . import kernels

    for launch in launches:
        arguments = launch.at(addresses)
        config = aligned(launch.config, addresses)
        start = getattr(kernels, launch.kernel)[(launch.programs,)]
        # What is infinite or NaN on a GPU raises nothing there.
        with np.errstate(all="ignore"):
            start(arguments, C=config)
