"""A stand-in for the Triton backend and for GPUs, with the CPU's kernels on the CPU's memory.

The stand-in is behind the backend's interface; all code on the callers' side of it is the
library's. Nothing here needs Triton or a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from normgrad.backends import choice
from normgrad.backends.cpu import runtime as cpu_runtime
from normgrad.backends.cpu.schedule import schedules as cpu
from normgrad.declarations.problem import WORKSPACE
from normgrad.plans import calls
from normgrad.plans.cache import Cache
from normgrad.plans.workspaces import usable_size
from normgrad.support.machine import Machine
from normgrad.tensors import devices, dlpack, frameworks

PACKAGE = "normgrad.backends.triton"
ALIGNMENT = 256

#: The number of GPUs that PyTorch reports.
GPUS = 4


@dataclass(frozen=True)
class Device:
    index: int | None


@dataclass(frozen=True)
class Schedule:
    cpu: Any
    device: Device

    @property
    def workspace_size(self) -> int:
        size: int = self.cpu.workspace_size
        return size and usable_size(size, cpu.ALIGNMENT) + ALIGNMENT - 1

    @property
    def path(self) -> str:
        return f"stand-in {self.cpu.path}"

    @property
    def launches(self) -> tuple[Any, ...]:
        return tuple(self.cpu.steps)


@dataclass
class Seen:
    """A record of the library's calls to its backend and to the frameworks.

    ``settles`` is the result that the library gets for the check of the kernels.
    """

    launches: list[tuple[int | None, list[int]]] = field(default_factory=list)
    scratch: list[tuple[str, int]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    checked: list[tuple[int, Device]] = field(default_factory=list)
    settles: bool = True


def install(monkeypatch: Any, reason: str | None = None) -> Seen:
    """Replace the backend; ``reason`` is why it cannot compute on CUDA tensors, if it cannot."""
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    seen = Seen()

    class Runner:
        def __init__(self, program: Schedule, index: int | None) -> None:
            assert program.device == Device(index)
            self._cpu = cpu_runtime.Runner(program.cpu)
            self._index = index

        def native(self, addresses) -> None:
            return None

        def run(self, addresses: Any) -> None:
            assert addresses[WORKSPACE] % ALIGNMENT == 0
            seen.launches.append((self._index, list(addresses)))
            self._cpu.run(addresses)

    def settled(index: int, device: Device) -> bool:
        seen.checked.append((index, device))
        return seen.settles

    names = ("", "device", "schedule", "runtime", "selfcheck")
    modules = {name: ModuleType(name) for name in names}
    modules["device"].__dict__.update(
        Device=Device, of=Device, INTERPRETED=Device(None), unusable=lambda index=None: reason
    )
    modules["schedule"].__dict__.update(
        ALIGNMENT=ALIGNMENT,
        build=lambda problem, device: Schedule(cpu.build(problem, Machine()), device),
    )
    modules["runtime"].__dict__.update(Runner=Runner)
    modules["selfcheck"].__dict__.update(settled=settled)
    modules[""].__dict__.update({name: module for name, module in modules.items() if name})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"{PACKAGE}.{name}".rstrip("."), module)
    forget(monkeypatch)
    if "torch" in sys.modules:
        monkeypatch.setattr(sys.modules["torch"].cuda, "device_count", lambda: GPUS)

    return seen


def forget(monkeypatch: Any) -> None:
    """Clear what the library caches of devices and plans, now and after the test."""
    monkeypatch.setattr(calls, "_plans", Cache())
    monkeypatch.setattr(devices, "_reasons", {})
    monkeypatch.setattr(choice, "_triton", cache(choice._triton.__wrapped__))


@dataclass
class Namespace:
    """An array namespace for :class:`Array`, which exports its memory to PyTorch as the CPU's."""

    asked: list[Any] = field(default_factory=list)
    uint8: Any = np.uint8

    def empty(self, size: int, dtype: Any, device: Any) -> Any:
        self.asked.append((size, dtype, device))
        return np.empty(size, dtype)

    def from_dlpack(self, value: Any) -> Any:
        return Array(np.from_dlpack(value), namespace=self)


class Array:
    """A DLPack producer over a NumPy array that claims to be on a GPU."""

    def __init__(
        self, array: np.ndarray, index: int = 0, namespace: Namespace | None = None, kind: int = 2
    ) -> None:
        self.array = array
        self.where = kind, index
        self.device = f"the producer's GPU {index}"
        self.namespace = namespace
        self.streams: list[Any] = []
        if namespace is not None:
            self.__array_namespace__ = lambda: namespace

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.streams.append(stream)
        bits = self.array.dtype == dlpack.dtypes.bfloat16.numpy
        speaker = dlpack._BFloat16(self.array) if bits else self.array
        capsule = speaker.__dlpack__(max_version=max_version)
        tensor, _ = dlpack._tensor_in(capsule)
        tensor.device_type, tensor.device_id = self.where
        return capsule


def torch_on_gpu(monkeypatch: Any, seen: Seen) -> Any:
    """A class of PyTorch tensors that claim to be on a GPU: ``OnGpu.of(tensor, index)``."""
    import torch

    class OnGpu(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl
        index = 0
        is_cpu = property(lambda self: False)
        is_cuda = property(lambda self: True)
        device = property(lambda self: torch.device("cuda", self.index))

        def get_device(self) -> int:
            return self.index

        @classmethod
        def of(cls, tensor: torch.Tensor, index: int = 0) -> OnGpu:
            made = tensor.detach().as_subclass(cls)
            made.index = index
            return made

    ours = frameworks.of_torch()
    monkeypatch.setattr(ours, "_types", (*ours._types, OnGpu))
    monkeypatch.setattr(frameworks, "COUNTED", {*frameworks.COUNTED, OnGpu})

    def empty_on(self: Any, spec: Any, device: str, like: Any) -> Any:
        seen.made.append(device)
        return OnGpu.of(self.empty(spec), devices.index_of(device))

    monkeypatch.setattr(frameworks.Torch, "empty_on", empty_on)
    scratch_on_cpu(monkeypatch, seen)
    return OnGpu


def scratch_on_cpu(monkeypatch: Any, seen: Seen) -> None:
    """Have a GPU's workspaces allocated in the CPU's memory."""
    import torch

    def bytes_on(self: Any, device: str, size: int) -> Any:
        seen.scratch.append((device, size))
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(frameworks.Torch, "bytes_on", bytes_on)
