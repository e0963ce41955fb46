"""Test shared libraries that speak a dialect: the calls for a request, and the cases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..declarations.contract import Kind
from ..operators import reference
from .c_functions import Functions, RefusedError
from .cases import IN_PLACE, Case
from .framework_tensors import NotOfferedError
from .memory_checks import Watched, guarded
from .outcomes import Fault, Outcome, wrong
from .requests import Mistake, Request
from .subjects import Implementation
from .tensors import Array, Call, lay_out


class Library(Implementation):
    """A shared library under test, which speaks the dialect of ``calls``."""

    strict = False

    def __init__(self, path: str, calls: type[LibraryCall], functions: Functions) -> None:
        self.name, self.suite = Path(path).name, calls.dialect
        self.facts = {"library": path, "dialect": calls.dialect, **calls.facts(path, functions)}
        self._functions, self._calls = functions, calls

    def once(self, call: Request) -> Outcome:
        return self._calls(self._functions, call).outcome()


class LibraryCall(ABC):
    """A dialect's calls for one request, from the first handle to the last.

    Attributes:
        dialect: the name of the dialect and of its suite.
        markers: functions; a library that exports any of them speaks the dialect.
        needed: further functions, without which nothing can be tested.
        companions: other libraries that may export the needed functions.
        libraries: normgrad's libraries for the dialect, by their names in the list of exports.
        memory: the watched memory of each tensor, which may share it, and of the workspace.
        blocks: the address of a memory's copy on the device, where there is one.
        written: the tensors that may have been written to.
        living: the handles that are not yet destroyed, each with the function that destroys it.
        faults: what the call did that it must not.
    """

    dialect: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    needed: ClassVar[tuple[str, ...]]
    companions: ClassVar[tuple[str, ...]]
    libraries: ClassVar[tuple[str, ...]]

    def __init__(self, functions: Functions, request: Request) -> None:
        self.functions, self.request = functions, request
        arrays = {id(each.array): each.array for each in request.tensors.values()}
        watched = {key: Watched(array) for key, array in arrays.items()}
        self.memory = {name: watched[id(t.array)] for name, t in request.tensors.items()}
        self.blocks: dict[Watched, int] = {}
        self.written: tuple[str, ...] = ()
        self.living: dict[Any, str] = {}
        self.faults: list[Fault] = []

    @staticmethod
    @abstractmethod
    def facts(path: str, functions: Functions) -> dict[str, str]:
        """Facts for a report about the library at a path, or a SubjectError if it is unusable."""

    @abstractmethod
    def run(self) -> None:
        """Make all calls for the request, or raise a RefusedError or a NotOfferedError."""

    def outcome(self) -> Outcome:
        """Make all calls for the request, check the watched memory, and return the outcome."""
        try:
            try:
                self.run()
            finally:
                self.check()
            return Outcome(self.outputs(), faults=tuple(self.faults))
        except RefusedError as refused:
            return Outcome(error=(refused.status, str(refused)), faults=tuple(self.faults))
        finally:
            for handle, destroyer in reversed(self.living.items()):  # those that are left
                if destroyer in self.functions:
                    self.functions.ask(destroyer, handle)

    def check(self) -> None:
        """Note a fault for all writes outside the outputs and the workspace."""
        own = {each for name, each in self.memory.items() if name in (*self.written, "workspace")}
        for name, memory in self.memory.items():
            if fault := memory.fault(memory in own):
                self.faults.append(wrong(f"{name}: {fault}"))

    def outputs(self) -> dict[str, Array]:
        """The outputs' values now."""
        return {name: self.memory[name].value.copy() for name in self.written}

    def address(self, name: str) -> int:
        """The address of a tensor's first element, or of the workspace."""
        return self.memory[name].value.ctypes.data

    # Calls with mistakes

    def unless(self, words: str, value: Any) -> Any:
        """The value; None, for a null pointer, if this is the request's mistake."""
        return None if words == self.request.mistake else value

    def argument(self, name: str, handle: Any) -> Any:
        """A handle as an argument; the request's mistake may destroy it first or make it null."""
        if f"{name}: destroyed" == self.request.mistake:
            self.destroy(handle)
        return self.unless(f"{name}: null", handle)

    def track(self, handle: Any, destroyer: str) -> Any:
        """Note how a new handle is to be destroyed, and return the handle."""
        self.living[handle] = destroyer
        return handle

    def destroy(self, *handles: Any) -> None:
        """Destroy those of the handles that are not yet destroyed."""
        for handle in filter(self.living.__contains__, handles):
            destroyer = self.living[handle]
            if f"{destroyer}: null" == self.request.mistake:
                self.functions.call(destroyer, None)
            del self.living[handle]
            self.functions.call(destroyer, handle)
            if f"{destroyer}: twice" == self.request.mistake:
                self.functions.call(destroyer, handle)

    def workspace(self, size: int) -> tuple[int | None, int]:
        """The address of a new workspace and its size, with the request's mistakes."""
        if not size and self.request.mistake.startswith("workspace: "):
            raise NotOfferedError("it needs no workspace")
        self.memory["workspace"] = Watched(guarded(np.full(size, 0xFF, np.uint8)))
        is_short = self.request.mistake == "workspace: a byte short"
        return self.unless("workspace: null", self.address("workspace")), size - is_short


@dataclass(frozen=True)
class LibraryCase(Case, ABC):
    """A case of a dialect's suite. Its mistakes change the request, not the tensors.

    Attributes:
        eps_of_variance: what the formula adds to save_invstd if that holds the variance; None if it
            does not.
        vectors_out: the memory layout of the outputs with a value for each channel.
    """

    eps_of_variance: float | None = None
    vectors_out: str = "contiguous"

    _never_named = (*Case._never_named, "eps_of_variance")

    @property
    @abstractmethod
    def names(self) -> Mapping[str, str]:
        """The dialect's names of tensors and outputs, by the functional operator's."""

    @property
    @abstractmethod
    def mistakes(self) -> Mapping[str, Mistake]:
        """The mistakes to try in the plain call, by their words."""

    @abstractmethod
    def legal_request(self) -> Request:
        """The request without the mistake."""

    def request(self) -> Request:
        request = self.legal_request()
        if not self.is_mistake:
            return request
        _, changes, computes = self.mistakes[self.change]
        return request.changed(changes, mistake=self.change, computes=computes)

    def status(self) -> str:
        return self.mistakes[self.change].status.name

    def call(self) -> Call:
        return self.unchanged() if self.is_mistake else super().call()

    def output_specs(self, call: Call) -> tuple[()]:
        return ()

    def exact(self, call: Call) -> dict[str, reference.Exact]:
        if self.eps_of_variance is not None and "save_invstd" in call.arrays:
            with np.errstate(all="ignore"):
                variance = call.arrays["save_invstd"].astype(np.float64)
                invstd = 1 / np.sqrt(variance + self.eps_of_variance)
            call = Call(call.name, {**call.tensors, "save_invstd": invstd}, call.options)
        return {self.names[name]: exact for name, exact in call.exact().items()}

    def vector(self, name: str, values: Array) -> Array:
        """An output with a value for each channel, in the memory layout of this case."""
        return lay_out(values, self.vectors_out)

    def _memory(self, call: Call, more: bool = True) -> tuple[dict[str, Array], tuple[str, ...]]:
        """New memory for the dialect's tensors by name, and the names of those written to.

        ``more`` says whether outputs that are not wanted have memory too.
        """
        tensors = call.arrays
        arrays = {self.names[name]: guarded(value) for name, value in tensors.items()}
        data = tensors["input"]
        parameters = tensors.get("weight", tensors["grad_out"])
        outputs = [each for each in call.outputs if each.is_wanted or more]
        for name, kind in ((self.names[each.name], each.kind) for each in outputs):
            if kind is not Kind.DATA:
                vector = np.full(data.shape[self.channel_axis], np.nan, parameters.dtype)
                arrays[name] = guarded(self.vector(name, vector))
            elif self.out in IN_PLACE:
                arrays[name] = arrays[self.names[IN_PLACE[self.out]]]
            else:
                new = np.full(data.shape, np.nan, data.dtype)
                arrays[name] = guarded(new if call.first_out is None else call.first_out)
        return arrays, tuple(self.names[each.name] for each in call.outputs if each.is_wanted)
