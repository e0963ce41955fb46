"""The choice of the backend that computes on a device.

CPU tensors go to the CPU backend, CUDA tensors to Triton's. The environment variable
``NORMGRAD_BACKEND`` sends CPU tensors to Triton's interpreter instead, which is how its kernels are
tested without a GPU. It is read when a plan is made.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from .. import devices
from ..loading import check_numba, loading
from ..machine import this_machine
from ..settings import SettingError
from .cpu import program as cpu

if TYPE_CHECKING:
    from ..overlap import Places
    from ..problem import Problem

#: The environment variable for the backend of CPU tensors: "cpu", which is the default, or
#: "triton".
VARIABLE = "NORMGRAD_BACKEND"

#: The environment variable that makes Triton interpret its kernels; the name is Triton's.
INTERPRET_VARIABLE = "TRITON_INTERPRET"


class Program(Protocol):
    """The interface of every backend's programs."""

    @property
    def workspace_size(self) -> int:
        """The bytes of the workspace, including a margin to align the caller's buffer."""

    @property
    def path(self) -> str:
        """A description of the chosen kernels, for people and tests."""

    @property
    def input_is_grad_out(self) -> bool:
        """Whether the program does not need x, and reads dy in its place."""


class Runner(Protocol):
    """A program that is ready to run on addresses.

    The CPU backend's can also run later calls of the same signature (``cpu.runtime.Runner.learn``).
    """

    def run(self, addresses: Sequence[int]) -> None:
        """Compute on the addresses of a call's tensors, in the order of :class:`.problem.Role`."""


class Backend(ABC):
    """The interface of a backend; a backend runs only programs that it built.

    Attributes:
        alignment: the alignment in bytes of the part of a workspace that programs use.
    """

    alignment: int

    @abstractmethod
    def build(self, problem: Problem) -> Program:
        """Build the program for a problem."""

    @abstractmethod
    def computes(self, program: Any) -> bool:
        """Whether a program has anything to run."""

    @abstractmethod
    def runner(self, program: Any, inputs: Places, outputs: Places) -> Runner:
        """Make the runner of a program, for tensors at these places."""


class _Cpu(Backend):
    alignment = cpu.ALIGNMENT

    def build(self, problem: Problem) -> cpu.Program:
        return cpu.build(problem, this_machine())

    def computes(self, program: cpu.Program) -> bool:
        return bool(program.steps)

    def runner(self, program: cpu.Program, inputs: Places, outputs: Places) -> Runner:
        with loading():
            from .cpu.runtime import Runner
        return Runner(program, inputs, outputs)


class _Triton(Backend):
    """The Triton backend on the GPU with an index, or in the interpreter on the CPU for None."""

    def __init__(self, index: int | None) -> None:
        with loading():
            from .triton import device, program
        self.alignment: int = program.ALIGNMENT
        self._program = program
        self._index = index
        self._device = device.INTERPRETED if index is None else device.of(index)
        self._checked = index is None

    def build(self, problem: Problem) -> Program:
        made: Program = self._program.build(problem, self._device)
        return made

    def computes(self, program: Any) -> bool:
        return bool(program.launches)

    def runner(self, program: Any, inputs: Places, outputs: Places) -> Runner:
        if not self._checked:
            # The check calls the operators, which import this module.
            with loading():
                from .triton import selfcheck
            self._checked = selfcheck.settled(f"cuda:{self._index}", self._device)
        with loading():
            from .triton import runtime
        runner: Runner = runtime.Runner(program, self._index)
        return runner


_CPU = _Cpu()


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
        return _CPU
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
        KernelError: the environment tells Numba to compile nothing.
    """
    if of(devices.CPU) is _CPU:
        check_numba()


_triton = cache(_Triton)
