"""Shared libraries that speak a dialect: what is done with one, step by step, and its verdicts."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import dtypes, layout, reference
from .c_functions import Functions, RefusedError
from .cases import Case
from .outcomes import Judged, Outcome, Verdict, within_bounds
from .subjects import Implementation, NotOfferedError
from .tensors import Array, Call
from .watched import Watched


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
        null: for what a null pointer is given: arguments, results' places and whatever else the
            dialect's steps name, and functions that destroy.
        destroyed: what is destroyed before it is used: arguments, or what the dialect's steps name.
        destroyed_between: arguments that are, between the operator's two functions.
        destroyed_twice: a function that destroys, which is called twice.
        bytes_missing: of the workspace.
        computed_by: the function that is to compute, if it is not the operator's own.
        computes: whether more is done than to check the arguments.
        used_again: whether what was made for one computation is used for another.
        runs: how often it is computed.
    """

    operator: str
    arguments: dict[str, Argument]
    written: tuple[str, ...]
    null: set[str] = field(default_factory=set)
    destroyed: set[str] = field(default_factory=set)
    destroyed_between: set[str] = field(default_factory=set)
    destroyed_twice: str = ""
    bytes_missing: int = 0
    computed_by: str = ""
    computes: bool = True
    used_again: bool = False
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
        return replace(self, arguments=arguments, null=set(self.null))


Change = Callable[[Request], None]


def handled(computes: bool = True, **changes: Any) -> Change:
    """A change of a request: other attributes, and whether the operator still computes."""

    def put(request: Request) -> None:
        for name, value in changes.items():
            setattr(request, name, value)
        request.computes = computes

    return put


def together(*changes: Change) -> Change:
    """Several changes of one request."""

    def put(request: Request) -> None:
        for change in changes:
            change(request)

    return put


class Steps(ABC):
    """What is done with a library for one request, from the first handle to the last.

    Attributes:
        memory: that of each tensor, watched; tensors of one array share it.
        faults: what was done that must not be, in words.
    """

    def __init__(self, functions: Functions, request: Request) -> None:
        self.functions, self.request = functions, request
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
                self._check(request.written if request.used_again else ())
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

    def unless_null(self, name: str, value: Any) -> Any:
        """A value, or None where the request has a null pointer for it."""
        return None if name in self.request.null else value

    def given(self, name: str, handle: int) -> Any:
        """A handle as an argument: destroyed before, or null, if it is to be."""
        if name in self.request.destroyed:
            self.destroy(handle)
        return self.unless_null(name, handle)

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
            if destroyer in self.request.null:
                self.functions.call(destroyer, None)
            del self._living[handle]
            self.functions.call(destroyer, handle)
            if destroyer == self.request.destroyed_twice:
                self.functions.call(destroyer, handle)

    def destroy_all(self) -> None:
        """Destroy what is left, in the order in which it was made."""
        self.destroy(*self._living)

    def need_workspace(self, size: int) -> None:
        """See that a workspace can be too small, where it is to be."""
        if size == 0 and (self.request.bytes_missing or "workspace" in self.request.null):
            raise NotOfferedError("it needs no workspace")


class LibraryCase(Case, ABC):
    """A case of a dialect's suite: mistakes are made in the request, not in the tensors."""

    @abstractmethod
    def request(self) -> Request:
        """What is done with a library: new tensors, the same each time."""

    @abstractmethod
    def exact(self) -> dict[str, reference.Exact]:
        """The oracle's outputs by the dialect's names, each with its scale."""


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


class LibrarySubject(Implementation):
    """A shared library to be tried.

    Args:
        path: its file.
        functions: what it has.
        facts: what a report says of it.
    """

    strict = False
    again = (None,) * 3
    _is_ready = False

    def __init__(self, path: str, functions: Functions, facts: Mapping[str, str]) -> None:
        self.name = Path(path).name
        self.functions = functions
        self._facts = {"library": path, **facts}

    @property
    def facts(self) -> dict[str, str]:
        """See :class:`.subjects.Implementation`."""
        return self._facts

    def described(self, case: LibraryCase) -> Request:
        """See :class:`.subjects.Implementation`."""
        return case.request()

    def once(self, call: Request) -> Outcome:
        """See :class:`.subjects.Implementation`."""
        try:
            if not self._is_ready:
                self.prepare()
                self._is_ready = True
        except RefusedError as error:
            return Outcome(error=(error.status, str(error)))
        return self.steps(call).outcome()

    @abstractmethod
    def prepare(self) -> None:
        """What a program does once before it computes, in the process that computes.

        Raises:
            RefusedError: it cannot be done.
        """

    @abstractmethod
    def steps(self, request: Request) -> Steps:
        """What is done for a request."""


def judge(case: LibraryCase, outcome: Outcome, ours: Callable[[], Outcome]) -> Judged:
    """What an outcome of a library is worth; see :func:`.outcomes.judge`.

    Args:
        case: of its suite.
        outcome: what came of it.
        ours: what our own dialect makes of the same request, for a wrong call.
    """
    if outcome.absent:
        return Judged(case, Verdict.ABSENT, detail=outcome.absent)
    if case.is_mistake:
        return _judge_mistake(case, outcome, ours())
    if outcome.error is not None:
        return Judged(case, Verdict.REFUSED, detail=": ".join(outcome.error))
    if outcome.faults:
        return Judged(case, Verdict.BROKEN, detail="; ".join(outcome.faults))
    return within_bounds(case, outcome.outputs, case.exact(), dtypes.float32)


def _judge_mistake(case: LibraryCase, outcome: Outcome, expected: Outcome) -> Judged:
    """The verdict on a wrong call, from what our dialect makes of it."""
    assert expected.error is not None, f"{case}: our own dialect takes it"
    allowed = expected.error[0]
    if outcome.error is None:
        return Judged(case, Verdict.ACCEPTED, detail=f"{case.change}: success; allowed: {allowed}")
    if outcome.faults:
        return Judged(case, Verdict.BROKEN, detail="; ".join(outcome.faults))
    status, said = outcome.error
    detail = f"{case.change}: {status} ({said})"
    if status != allowed:
        return Judged(case, Verdict.BROKEN, detail=f"{detail}; allowed: {allowed}")
    return Judged(case, Verdict.MET, detail=detail)
