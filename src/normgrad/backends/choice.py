"""The choice of the backend that computes on a device.

CPU tensors go to the CPU backend, CUDA tensors to Triton's. The environment variable
``NORMGRAD_BACKEND`` sends CPU tensors to Triton's interpreter instead, which is how its kernels are
tested without a GPU. It is read when a plan is made.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from ..support import memory
from ..support.forks import loading
from ..support.machine import this_machine
from ..support.settings import SettingError
from ..tensors import devices

if TYPE_CHECKING:
    from ..declarations.problem import Problem
    from .cpu import runtime as cpu_runtime
    from .cpu.schedule import schedules as cpu
    from .triton import runtime as triton_runtime
    from .triton import schedule as triton

#: The environment variable for the backend of CPU tensors: "cpu", which is the default, or
#: "triton".
VARIABLE = "NORMGRAD_BACKEND"

#: The bytes of memory that must be free before llvmlite is imported: the import took 157 MiB of
#: address space.
_LLVMLITE = 192 << 20

#: The environment variable that makes Triton interpret its kernels; the name is Triton's.
INTERPRET_VARIABLE = "TRITON_INTERPRET"


def _runtime() -> ModuleType:
    """The module that loads and runs machine code.

    Raises:
        MemoryError: there is too little memory to import llvmlite.
    """
    if "llvmlite" not in sys.modules:  # an import that fails in the middle cannot be repeated
        memory.need("importing llvmlite", _LLVMLITE)
    with loading():
        from .cpu import runtime
    return runtime


class _Cpu:
    def __init__(self) -> None:
        with loading():
            from .cpu.schedule import schedules
        self.alignment = schedules.ALIGNMENT
        self._schedules = schedules

    def build(self, problem: Problem) -> cpu.Schedule:
        return self._schedules.build(problem, this_machine())

    def computes(self, schedule: cpu.Schedule) -> bool:
        return bool(schedule.steps)

    def runner(self, schedule: cpu.Schedule) -> cpu_runtime.Runner:
        runner: cpu_runtime.Runner = _runtime().Runner(schedule)
        return runner


class _Triton:
    """The Triton backend on the GPU with an index, or in the interpreter on the CPU for None."""

    def __init__(self, index: int | None) -> None:
        with loading():
            from .triton import device, schedule
        self.alignment = schedule.ALIGNMENT
        self._schedule = schedule
        self._index = index
        self._device = device.INTERPRETED if index is None else device.of(index)
        self._checked = False

    def build(self, problem: Problem) -> triton.Schedule:
        return self._schedule.build(problem, self._device)

    def computes(self, schedule: triton.Schedule) -> bool:
        return bool(schedule.launches)

    def runner(self, schedule: triton.Schedule) -> triton_runtime.Runner:
        with loading():
            from .triton import runtime, selfcheck
        if self._index is not None and not self._checked:
            self._checked = selfcheck.settled(self._index, self._device)
        return runtime.Runner(schedule, self._index)


#: The interface that a plan uses: ``build`` makes the schedule for a problem; ``computes`` says
#: whether that has anything to run; ``runner`` makes its runner, whose ``run`` computes on
#: addresses in the order of :class:`.declarations.problem.Role`. Schedules start their part of a
#: workspace at a multiple of ``alignment`` bytes.
Backend = _Cpu | _Triton

_cpu = cache(_Cpu)
_triton = cache(_Triton)


def of(device: str) -> Backend:
    """The backend for a device that :func:`.devices.check` accepts.

    Raises:
        SettingError: the environment asks for a backend that is unknown or not available.
    """
    setting = os.environ.get(VARIABLE) or devices.CPU
    if setting not in (devices.CPU, "triton"):
        raise SettingError(f"{VARIABLE}: {setting!r}; allowed: cpu, triton")
    if device != devices.CPU:
        return _triton(devices.index_of(device))
    if setting == devices.CPU:
        return _cpu()
    if os.environ.get(INTERPRET_VARIABLE) != "1":
        raise SettingError(
            f"{VARIABLE}: 'triton' for tensors on the CPU; allowed: with {INTERPRET_VARIABLE}=1, "
            "or cpu"
        )
    if find_spec("triton") is None:
        raise SettingError(f"{VARIABLE}: 'triton', which is not installed; allowed: cpu")
    return _triton(None)


def check() -> None:
    """Make sure that the backend for tensors on the CPU can compute.

    Raises:
        SettingError: the environment asks for a backend that is unknown or not available.
        KernelError: there are no kernels for this processor, and nothing can compile them; or the
            system forbids to load any.
    """
    if of(devices.CPU) is _cpu():
        _runtime().store.check()
