"""Test shared libraries that speak a dialect: requests, mistakes in them, and attempts at them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .. import layout, reference
from ..contract import Kind
from .c_functions import Functions, RefusedError, our_own
from .cases import IN_PLACE, Case
from .conversions import NotOfferedError
from .memory import Watched, guarded
from .outcomes import Fault, Outcome, wrong
from .subjects import Implementation
from .tensors import Array, Call


@dataclass(frozen=True)
class Tensor:
    """A tensor's memory, and its description for a library, in the words of :mod:`..rules`.

    Strides are in elements; ``null_strides`` says whether they are given as a null pointer.
    """

    array: Array
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype_name: str
    format_name: str = ""
    null_strides: bool = False

    @classmethod
    def of(cls, array: Array, format_name: str = "", no_strides: bool = False) -> Tensor:
        """Describe an array as it is; ``no_strides``: with null strides if it is contiguous."""
        strides = tuple(step // array.itemsize for step in array.strides)
        if array.flags.c_contiguous:  # also if empty, where NumPy's strides are arbitrary
            strides = layout.contiguous_strides(array.shape)
        is_null = no_strides and array.flags.c_contiguous
        return cls(array, array.shape, strides, array.dtype.name, format_name, is_null)


#: A tensor, a mask, a number, or None for a null pointer.
Argument = Tensor | tuple[bool, ...] | bool | int | float | None


@dataclass(frozen=True)
class Request:
    """The description of one call of an operator: its arguments, and its mistakes.

    Attributes:
        operator: the C function that computes.
        arguments: by name, in the order of the C function that checks them.
        outputs: the tensors that are written to.
        mistakes: in the words that the steps look for: "input: null" passes a null pointer for an
            argument, "input: destroyed" destroys a handle before its use.
        computed_by: the function that computes, if it is not the operator's own.
        computes: whether the call computes, rather than only checks the arguments.
        runs: how often the call computes.
    """

    operator: str
    arguments: dict[str, Argument]
    outputs: tuple[str, ...]
    mistakes: frozenset[str] = frozenset()
    computed_by: str = ""
    computes: bool = True
    runs: int = 1

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the arguments."""
        return {name: each for name, each in self.arguments.items() if isinstance(each, Tensor)}

    @property
    def inputs(self) -> list[Array]:
        """The arrays that are not written to."""
        return [each.array for name, each in self.tensors.items() if name not in self.outputs]


#: A change of a request, over the same memory.
Change = Callable[[Request], Request]


def redescribe(names: Iterable[str], fields: Mapping[str, Any], request: Request) -> Request:
    """The request with other fields in these tensors' descriptions."""
    changed = {name: replace(request.tensors[name], **fields) for name in names}
    return replace(request, arguments={**request.arguments, **changed})


def with_argument(name: str, value: Argument, request: Request) -> Request:
    """The request with another value of an argument that is not a tensor."""
    return replace(request, arguments={**request.arguments, name: value})


def check_only(request: Request) -> Request:
    """The request without its computation."""
    return replace(request, computes=False)


def both(first: Change, second: Change) -> Change:
    """Both changes."""
    return lambda request: second(first(request))


def with_mistakes(*wrong: str, computes: bool = True) -> dict[str, Change]:
    """A change that adds a mistake, for each of these mistakes, by the mistake's words."""

    def with_mistake(words: str, request: Request) -> Request:
        mistakes = request.mistakes | {words}
        return replace(request, mistakes=mistakes, computes=request.computes and computes)

    return {words: partial(with_mistake, words) for words in wrong}


class Steps(ABC):
    """A dialect's calls for one request, from the first handle to the last.

    Attributes:
        dialect: the name of the dialect and of its suite.
        markers: functions; a library that exports any of them speaks the dialect.
        needed: further functions, without which nothing can be tested.
        companions: other libraries that may export the needed functions.
        libraries: normgrad's libraries for the dialect, by their names in the list of exports.
        memory: the watched memory of each tensor, which may share it, and of the workspace.
        blocks: the address of a memory's copy on the device, where there is one.
        living: the handles that are not yet destroyed, each with the function that destroys it.
        faults: what the call did that it must not.
    """

    dialect: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    needed: ClassVar[tuple[str, ...]]
    companions: ClassVar[tuple[str, ...]]
    libraries: ClassVar[tuple[str, ...]]

    def __init__(self, functions: Functions, request: Request, stream: int | None) -> None:
        self.functions, self.request, self.stream = functions, request, stream
        arrays = {id(each.array): each.array for each in request.tensors.values()}
        watched = {key: Watched(array) for key, array in arrays.items()}
        self.memory = {name: watched[id(t.array)] for name, t in request.tensors.items()}
        self.blocks: dict[Watched, int] = {}
        self.living: dict[int, str] = {}
        self.faults: list[Fault] = []

    @staticmethod
    @abstractmethod
    def facts(path: str, functions: Functions) -> dict[str, str]:
        """Facts for a report about the library at a path, or a SubjectError if it is unusable."""

    @staticmethod
    @abstractmethod
    def prepare(functions: Functions) -> int | None:
        """Make a program's first calls, in the process that computes; see :meth:`run`."""

    @abstractmethod
    def run(self) -> None:
        """Make all calls for the request.

        Raises:
            RefusedError: a function returned a status other than success, or no handle.
            NotOfferedError: the operator does not exist, or the mistake does not apply to it.
        """

    def outcome(self) -> Outcome:
        """Make all calls for the request, check the watched memory, and return the outcome."""
        request = self.request
        try:
            try:
                self.run()
            except RefusedError:
                self._check(request.outputs if "executor: used again" in request.mistakes else ())
                raise
            self._check(request.outputs)
            return Outcome(self.outputs(), faults=tuple(self.faults))
        except RefusedError as refused:
            return Outcome(error=(refused.status, str(refused)), faults=tuple(self.faults))
        finally:
            for handle, destroyer in reversed(self.living.items()):  # those that are left
                self.functions.ask(destroyer, handle)

    def outputs(self) -> dict[str, Array]:
        """The outputs' values now."""
        memories = {name: self.memory[name] for name in self.request.outputs}
        return {
            name: memory.view(self.now(memory)).copy().view(memory.value.dtype)
            for name, memory in memories.items()
        }

    def now(self, memory: Watched) -> Array:
        """The bytes of a tensor's memory as they are now."""
        return memory.bytes()

    def _check(self, outputs: tuple[str, ...]) -> None:
        """Note a fault for all writes outside these tensors and the workspace."""
        own = {self.memory[name] for name in (*outputs, "workspace") if name in self.memory}
        for name, memory in self.memory.items():
            if fault := memory.fault(memory in own, self.now(memory)):
                self.faults.append(wrong(f"{name}: {fault}"))

    # Steps common to all dialects

    def unless(self, words: str, value: Any) -> Any:
        """The value; None, for a null pointer, if the request has this mistake."""
        return None if words in self.request.mistakes else value

    def argument(self, name: str, handle: int) -> Any:
        """A handle as an argument; the request's mistakes may destroy it first or make it null."""
        if f"{name}: destroyed" in self.request.mistakes:
            self.destroy(handle)
        return self.unless(f"{name}: null", handle)

    def track(self, handle: int, destroyer: str) -> int:
        """Note how a new handle is to be destroyed, and return the handle."""
        self.living[handle] = destroyer
        return handle

    def destroy(self, *handles: int) -> None:
        """Destroy those of the handles that are not yet destroyed."""
        for handle in handles:
            destroyer = self.living.get(handle)
            if destroyer is None:
                continue
            if f"{destroyer}: null" in self.request.mistakes:
                self.functions.call(destroyer, None)
            del self.living[handle]
            self.functions.call(destroyer, handle)
            if f"{destroyer}: twice" in self.request.mistakes:
                self.functions.call(destroyer, handle)

    def watch(self, name: str, values: Array) -> Watched:
        """Make guarded memory with these values, which is checked in the end like the tensors'."""
        self.memory[name] = Watched(guarded(values))
        return self.memory[name]

    def workspace(self, size: int, address: int | None) -> tuple[int | None, int]:
        """The workspace's address and size for the operator, with the request's mistakes."""
        words = ("workspace: null", "workspace: a byte short")
        is_null, is_short = (each in self.request.mistakes for each in words)
        if size == 0 and (is_null or is_short):
            raise NotOfferedError("it needs no workspace")
        return None if is_null else address, size - is_short


class Library(Implementation):
    """A shared library under test, which speaks the dialect of ``steps``.

    Raises:
        SubjectError: the library cannot be used.
    """

    strict = False

    def __init__(self, path: str, steps: type[Steps], functions: Functions) -> None:
        self.name, self.suite = Path(path).name, steps.dialect
        self.facts = {"library": path, "dialect": steps.dialect, **steps.facts(path, functions)}
        self._steps, self._functions = steps, functions

    @cached_property
    def _stream(self) -> int | None:
        return self._steps.prepare(self._functions)

    def once(self, call: Request) -> Outcome:
        try:
            steps = self._steps(self._functions, call, self._stream)
        except RefusedError as error:
            return Outcome(error=(error.status, str(error)))
        return steps.outcome()


@cache
def our_library(steps: type[Steps]) -> Library:
    """normgrad's own implementation of the dialect, called in Python without the C library."""
    return Library(steps.dialect, steps, Functions(steps.libraries, our_own))


class LibraryCase(Case, ABC):
    """A case of a dialect's suite, whose calls are those of ``steps``.

    Its mistakes change the request, not the tensors.
    """

    def output_specs(self, call: Call) -> tuple[()]:
        return ()

    steps: ClassVar[type[Steps]]

    @property
    @abstractmethod
    def names(self) -> Mapping[str, str]:
        """The dialect's names of tensors and outputs, by the functional operator's."""

    @property
    @abstractmethod
    def eps_of_variance(self) -> float | None:
        """What the formula adds to save_invstd if that holds the variance; None if it does not."""

    def call(self) -> Call:
        return self.unchanged() if self.is_mistake else super().call()

    def exact(self, call: Call) -> dict[str, reference.Exact]:
        if self.eps_of_variance is not None and "save_invstd" in call.arrays:
            with np.errstate(all="ignore"):
                variance = call.arrays["save_invstd"].astype(np.float64)
                invstd = 1 / np.sqrt(variance + self.eps_of_variance)
            call = Call(call.name, {**call.tensors, "save_invstd": invstd}, call.options)
        exacts = call.exact()
        return {self.names[name]: exact for name, exact in exacts.items()}

    def status(self) -> str:
        """The status with which normgrad's own dialect refuses the same wrong request."""
        error = our_library(self.steps).once(self.request()).error
        assert error is not None, f"{self}: our own dialect takes it"
        return error[0]

    def _memory(
        self, call: Call, all_outputs: bool = True
    ) -> tuple[dict[str, Array], tuple[str, ...]]:
        """New memory for the dialect's tensors by name, and the names of those written to.

        ``all_outputs`` says whether outputs that are not wanted have memory too.
        """
        tensors = call.arrays
        arrays = {self.names[name]: guarded(value) for name, value in tensors.items()}
        data = tensors["input"]
        parameters = tensors.get("weight", tensors.get("gamma", tensors["grad_out"]))
        for output in call.outputs:
            name, out = self.names[output.name], call.first_out
            if not (output.is_wanted or all_outputs):
                continue
            if output.kind is not Kind.DATA:
                vector = np.full(data.shape[self.channel_axis], np.nan, parameters.dtype)
                arrays[name] = guarded(self._vector_out(name, vector))
            elif self.out in IN_PLACE:
                arrays[name] = arrays[self.names[IN_PLACE[self.out]]]
            else:
                new = np.full(data.shape, np.nan, data.dtype) if out is None else out
                arrays[name] = guarded(new)
        return arrays, tuple(self.names[each.name] for each in call.outputs if each.is_wanted)

    @abstractmethod
    def _vector_out(self, name: str, values: Array) -> Array:
        """An output with a value for each channel, in the memory layout of this case."""
