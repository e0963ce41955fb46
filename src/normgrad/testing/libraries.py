"""Shared libraries that speak a dialect: what is done with one, step by step, and its verdicts."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .. import dtypes, layout, reference
from ..contract import Kind
from .c_functions import Dialect, Functions, RefusedError, our_own
from .cases import IN_PLACE, Case
from .outcomes import Outcome
from .subjects import Implementation, NotOfferedError
from .tensors import Array, Call
from .watched import Watched, guarded


@dataclass
class Tensor:
    """A tensor's memory, and what a library is told of it, in the words of :mod:`..rules`.

    Attributes:
        array: its memory.
        dims, strides: what is said of it, strides in elements.
        dtype_name, format_name: the same.
        null_strides: whether a null pointer stands for the strides.
    """

    array: Array
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype_name: str
    format_name: str = ""
    null_strides: bool = False

    @classmethod
    def of(cls, array: Array, format_name: str = "") -> Tensor:
        """An array as it is."""
        strides = tuple(step // array.itemsize for step in array.strides)
        if array.flags.c_contiguous:  # also without elements, where NumPy's may be anything
            strides = layout.contiguous_strides(array.shape)
        return cls(array, array.shape, strides, dtypes.parse(array.dtype).name, format_name)


#: A tensor, a mask, a number, or None for a null pointer.
Argument = Tensor | tuple[bool, ...] | bool | int | float | None


@dataclass
class Request:
    """A call of an operator, described: all that is done, and what is done wrong.

    Attributes:
        operator: the C function that computes.
        arguments: by name, in the order of the C function that checks them.
        written: the tensors that are written to.
        wrong: what is done wrong, in the words that the steps look for: "input: null" where a null
            pointer is given for an argument, "input: destroyed" where a handle is destroyed before.
        computed_by: the function that is to compute, if it is not the operator's own.
        computes: whether more is done than to check the arguments.
        runs: how often it is computed.
    """

    operator: str
    arguments: dict[str, Argument]
    written: tuple[str, ...]
    wrong: set[str] = field(default_factory=set)
    computed_by: str = ""
    computes: bool = True
    runs: int = 1

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the arguments."""
        return {name: each for name, each in self.arguments.items() if isinstance(each, Tensor)}

    @property
    def inputs(self) -> list[Array]:
        """The memory of what is not written to."""
        return [each.array for name, each in self.tensors.items() if name not in self.written]

    def copied(self) -> Request:
        """The same over the same memory, to be changed."""
        arguments = {name: copy.copy(value) for name, value in self.arguments.items()}
        return replace(self, arguments=arguments, wrong=set(self.wrong))


Change = Callable[[Request], None]


def handled(*wrong: str, computes: bool = True) -> Change:
    """A change of a request: what is done wrong, and whether the operator still computes."""

    def put(request: Request) -> None:
        request.wrong.update(wrong)
        request.computes = computes

    return put


def mishandled(*wrong: str, computes: bool = True) -> dict[str, Change]:
    """A change for each way to do something wrong, by the words for it."""
    return {words: handled(words, computes=computes) for words in wrong}


def together(*changes: Change) -> Change:
    """Several changes of one request."""

    def put(request: Request) -> None:
        for change in changes:
            change(request)

    return put


class Steps(ABC):
    """What is done with a library for one request, from the first handle to the last.

    Attributes:
        stream: what the dialect's ``prepare`` gave.
        memory: that of each tensor, watched; tensors of one array share it.
        faults: what was done that must not be, in words.
    """

    def __init__(self, functions: Functions, request: Request, stream: int | None) -> None:
        self.functions, self.request, self.stream = functions, request, stream
        arrays = {id(each.array): each.array for each in request.tensors.values()}
        watched = {key: Watched(array) for key, array in arrays.items()}
        self.memory = {name: watched[id(t.array)] for name, t in request.tensors.items()}
        self.faults: list[str] = []
        self._living: dict[int, str] = {}

    @abstractmethod
    def run(self) -> None:
        """All of it.

        Raises:
            RefusedError: a function returned another status than success, or no handle.
            NotOfferedError: there is no such operator, or nothing to be wrong with.
        """

    def now(self, name: str) -> Array:
        """The bytes of a tensor's memory as they are now."""
        return self.memory[name].bytes()

    def outcome(self) -> Outcome:
        """Do all of it, and see what came of it.

        Raises:
            NotOfferedError: see :meth:`run`.
        """
        request = self.request
        try:
            try:
                self.run()
            except RefusedError:
                self._check(request.written if "executor: used again" in request.wrong else ())
                raise
            self._check(request.written)
            return Outcome(self.outputs(), faults=tuple(self.faults))
        except RefusedError as refused:
            return Outcome(error=(refused.status, str(refused)), faults=tuple(self.faults))
        finally:
            self.end()

    def end(self) -> None:
        """Destroy what is left, which is something only of a call that was refused."""
        for handle, destroyer in reversed(self._living.items()):
            self.functions.ask(destroyer, handle)

    def outputs(self) -> dict[str, Array]:
        """The outputs as they are now."""
        found = {}
        for name in self.request.written:
            memory = self.memory[name]
            found[name] = memory.view(self.now(name)).copy().view(memory.value.dtype)
        return found

    def _check(self, written: tuple[str, ...]) -> None:
        """That nothing else was written to."""
        arrays = [self.memory[name] for name in written]
        for name, memory in self.memory.items():
            fault = memory.fault(any(memory is each for each in arrays), self.now(name))
            if fault:
                self.faults.append(f"{name}: {fault}")

    # What the steps of every dialect are made of

    def unless(self, words: str, value: Any) -> Any:
        """A value, or None where this is to be done wrong: a null pointer."""
        return None if words in self.request.wrong else value

    def given(self, name: str, handle: int) -> Any:
        """A handle as an argument: destroyed before, or null, if it is to be."""
        if f"{name}: destroyed" in self.request.wrong:
            self.destroy(handle)
        return self.unless(f"{name}: null", handle)

    def made(self, handle: int, destroyer: str) -> int:
        """A handle, which is to be destroyed."""
        self._living[handle] = destroyer
        return handle

    def destroy(self, *handles: int) -> None:
        """Destroy handles, unless that is done already."""
        for handle in handles:
            destroyer = self._living.get(handle)
            if destroyer is None:
                continue
            if f"{destroyer}: null" in self.request.wrong:
                self.functions.call(destroyer, None)
            del self._living[handle]
            self.functions.call(destroyer, handle)
            if f"{destroyer}: twice" in self.request.wrong:
                self.functions.call(destroyer, handle)

    def destroy_all(self) -> None:
        """Destroy what is left, in the order in which it was made."""
        self.destroy(*self._living)

    def workspace(self, size: int, address: int | None) -> tuple[int | None, int]:
        """A workspace's address and size, as the operator is told."""
        words = ("workspace: null", "workspace: a byte short")
        is_null, is_short = (each in self.request.wrong for each in words)
        if size == 0 and (is_null or is_short):
            raise NotOfferedError("it needs no workspace")
        return None if is_null else address, size - is_short


class LibraryCase(Case, ABC):
    """A case of a dialect's suite: mistakes are made in the request, not in the tensors."""

    is_of_library = True
    dialect: ClassVar[Dialect]

    @abstractmethod
    def request(self) -> Request:
        """What is done with a library: new tensors, the same each time."""

    def status(self) -> str:
        """The status that our own dialect gives for the same request, which is a wrong one."""
        error = our_library(self.dialect).once(self.request()).error
        assert error is not None, f"{self}: our own dialect takes it"
        return error[0]

    def _memory(
        self, call: Call, names: Mapping[str, str], all_outputs: bool = True
    ) -> tuple[dict[str, Array], tuple[str, ...]]:
        """New memory for a call's tensors by the dialect's names, and what of it is written to.

        Args:
            call: as the functional operator has it.
            names: the dialect's, by the functional operator's.
            all_outputs: whether outputs that are not asked for have memory too.
        """
        arrays = {
            names[name]: guarded(value) for name, value in call.tensors.items() if value is not None
        }
        data, parameters = arrays["input"], call.tensors.get("weight", call.tensors.get("gamma"))
        dtype = (arrays[names["grad_out"]] if parameters is None else parameters).dtype
        for output in call.outputs:
            name, given = names[output.name], call.first_out
            if not (output.wanted or all_outputs):
                continue
            if output.kind is not Kind.DATA:
                vector = np.full(data.shape[self.channel_axis], np.nan, dtype)
                arrays[name] = guarded(self._vector_out(name, vector))
            elif self.out in IN_PLACE:
                arrays[name] = arrays[names[IN_PLACE[self.out]]]
            else:
                new = np.full(data.shape, np.nan, data.dtype) if given is None else given
                arrays[name] = guarded(new)
        return arrays, tuple(names[each.name] for each in call.outputs if each.wanted)

    @abstractmethod
    def _vector_out(self, name: str, values: Array) -> Array:
        """An output with a value for each channel, as it is to lie in memory."""


def exact_of_variance(call: Call, eps: float) -> dict[str, reference.Exact]:
    """The oracle's outputs of a call whose save_invstd holds variances."""
    # As float64, so that nothing is rounded before the formula.
    wide = {
        name: None if value is None else value.astype(np.float64)
        for name, value in call.tensors.items()
    }
    variance = wide["save_invstd"]
    if variance is not None:
        with np.errstate(all="ignore"):
            wide["save_invstd"] = 1 / np.sqrt(variance + eps)
    return Call(call.name, wide, call.options).exact()


class Library(Implementation):
    """A shared library to be tried.

    Args:
        path: its file.
        dialect: that it speaks.
        functions: what it has.

    Raises:
        SubjectError: it cannot be used.
    """

    strict = False

    def __init__(self, path: str, dialect: Dialect, functions: Functions) -> None:
        self.name, self.suite = Path(path).name, dialect.name
        self.facts = {"library": path, "dialect": dialect.name, **dialect.facts(path, functions)}
        self._dialect, self._functions = dialect, functions
        self._prepared: tuple[Any, ...] = ()

    def once(self, call: Request) -> Outcome:
        """See :class:`.subjects.Implementation`."""
        try:
            self._prepared = self._prepared or (self._dialect.prepare(self._functions),)
        except RefusedError as error:
            return Outcome(error=(error.status, str(error)))
        steps: Steps = self._dialect.steps(self._functions, call, *self._prepared)
        return steps.outcome()


@cache
def our_library(dialect: Dialect) -> Library:
    """Our own, without the C."""
    return Library(dialect.name, dialect, Functions(dialect, our_own))
