"""Implementations under test: normgrad's, PyTorch's, and any other in Python."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..operators.by_name import FUNCTIONS
from .cases import Case, Topic
from .conversions import (
    Counterpart,
    NotOfferedError,
    first_line,
    outputs,
    to_array,
    to_dlpack,
    to_torch,
)
from .memory import Watched, leak_of, reverse
from .outcomes import Judged, Outcome
from .tensors import Array, Call

#: Numbers of threads that must give the same bits; None stands for all threads.
THREADS = (1, 2, 3, None)

#: The name of the fault that calls give different bits.
OTHER_BITS = "other bits"

#: The reason why a call is not tried: the function lacks a parameter that the call needs.
NO_PARAMETER = "no parameter"


class SubjectError(Exception):
    """The name is of no usable implementation; the text says why."""


def unlike(first: Outcome, again: Outcome) -> list[str]:
    """The names of the first outcome's outputs that differ in bits, or are missing, in another."""
    return [
        name
        for name, value in first.outputs.items()
        if name not in again.outputs or again.outputs[name].tobytes() != value.tobytes()
    ]


class Runner(ABC):
    """What cases are run on: an implementation, or a process that has one.

    Attributes:
        name: its name in a report.
        suite: the name of the suite that tests it.
        strict: whether it must accept all that normgrad does, and name arguments in errors.
        facts: its properties for a report.
    """

    name: str
    suite: str
    strict: bool
    facts: dict[str, str]

    @abstractmethod
    def run(self, case: Case) -> Outcome | Judged:
        """The outcome of a case of its suite, or its verdict where no outcome was left."""

    def has(self, case: Case) -> bool:
        """Whether there is the operator that a case calls, as far as is known without a call."""
        return self.suite != "operators" or case.operator in self.facts["operators"].split(", ")


class Implementation(Runner):
    """An implementation under test, in this process."""

    @abstractmethod
    def once(self, call: Any) -> Outcome:
        """Make a case's call once, and return the outcome.

        Raises:
            NotOfferedError: the implementation does not offer what the call needs.
        """

    def bare(self, call: Any) -> Callable[[], object]:
        """A function that makes a call without any checks, whose own memory would show."""
        return lambda: self.once(call)

    def repeats(self) -> Iterator[str]:
        """Set up each further call that must give the same bits, and yield words for it."""
        yield from ["when it is called again"] * 3

    def run(self, case: Case) -> Outcome:
        """The outcome of a case of its suite, which includes every error."""
        try:
            if not self.has(case):  # before its tensors are made, which takes time
                raise NotOfferedError(f"no {case.operator}")
            call = case.request()
            if case.topic is Topic.DETERMINISM:
                return self._repeated(case, call)
            outcome = self.once(call)
            leak = ""
            if case.topic is Topic.MEMORY and outcome.error is None:
                leak = leak_of(self.bare(call))
            return replace(outcome, faults=(*outcome.faults, leak)) if leak else outcome
        except NotOfferedError as error:
            return Outcome(absent=str(error))

    def _repeated(self, case: Case, call: Any) -> Outcome:
        """The outcome of a call that is repeated.

        The first call has other values in the same memory. State that a later call reuses or writes
        to then shows in the values or as a fault.
        """
        reverse(call.inputs)
        before = self.once(call)
        copy = _copied(before)
        reverse(call.inputs)
        first = _copied(self.once(call))
        if first.error is not None:
            return first
        faults = [
            f"{name}: a later call writes to what an earlier one returned"
            for name in unlike(copy, before)
        ]
        for how in self.repeats():
            again = self.once(case.request())
            faults += again.faults
            if again.error is not None:
                faults.append(f"another call: {': '.join(again.error)}")
            else:
                faults += [f"{name}: {OTHER_BITS} {how}" for name in unlike(first, again)]
        return replace(first, faults=(*first.faults, *dict.fromkeys(faults)))


def _copied(outcome: Outcome) -> Outcome:
    copies = {name: value.copy() for name, value in outcome.outputs.items()}
    return replace(outcome, outputs=copies)


class Subject(Implementation):
    """An implementation in Python under test.

    Args:
        name: its name in a report.
        operators: an object, or class, with some of normgrad's operators as its methods, under
            normgrad's names and with normgrad's arguments, tensors by position and the rest by
            keyword. A call that needs a parameter which the method lacks (``out``,
            ``channel_axis``, a mask) is not tried, and one for which the method raises
            NotImplementedError does not count. The object may have

            - ``framework``: "numpy" (arrays, with ml_dtypes' bfloat16), "torch" (tensors), or
              "dlpack" (what ``from_dlpack`` makes of an object with ``__dlpack__``, or that);
            - ``device``: the device of PyTorch's tensors, "cpu" by default;
            - ``set_num_threads``: takes a number of threads, or None for all.
        strict: whether it must accept all that normgrad does, and name arguments in errors.

    Raises:
        SubjectError: it has none of the operators, or its framework or device cannot be used.
    """

    suite = "operators"

    def __init__(self, name: str, operators: Any, strict: bool = False) -> None:
        self.name, self.strict = name, strict
        if inspect.isclass(operators):
            try:
                operators = operators()
            except Exception as error:
                raise SubjectError(
                    f"{name}: cannot be made: {type(error).__name__}: {error}"
                ) from error
        self.functions: dict[str, Callable[..., Any]] = {
            function: getattr(operators, function)
            for function in FUNCTIONS
            if callable(getattr(operators, function, None))
        }
        if not self.functions:
            raise SubjectError(
                f"{name}: no operators; allowed: an object with some of {', '.join(FUNCTIONS)}"
            )
        self.framework: str = getattr(operators, "framework", "numpy")
        self.device = str(getattr(operators, "device", "cpu"))
        from_dlpack = getattr(operators, "from_dlpack", lambda producer: producer)
        conversions: dict[str, Callable[[Array], Counterpart]] = {
            "numpy": Counterpart,
            "torch": partial(to_torch, device=self.device),
            "dlpack": partial(to_dlpack, from_dlpack=from_dlpack),
        }
        if self.framework not in conversions:
            raise SubjectError(
                f"{name}: framework {self.framework!r}; allowed: {', '.join(conversions)}"
            )
        self.convert = conversions[self.framework]
        try:
            self.convert(np.zeros(1, np.float32))
        except Exception as error:  # the framework or the device is missing
            raise SubjectError(
                f"{name}: {self.framework} on device {self.device!r} cannot be used "
                f"({first_line(error)}); allowed: what this machine has"
            ) from None
        self._set_num_threads = getattr(operators, "set_num_threads", None) or (lambda count: None)
        self.facts = {
            "operators": ", ".join(self.functions),
            "tensors": f"{self.framework}, {self.device}",
        }

    def repeats(self) -> Iterator[str]:
        """Two calls with each of ``THREADS``, if the implementation can set their number."""
        try:
            for count in THREADS:
                self._set_num_threads(count)
                yield from [f"with {count or 'all'} threads"] * 2
        finally:
            self._set_num_threads(None)

    def bare(self, call: Call) -> Callable[[], object]:
        arguments = _Arguments(self, call)
        return partial(self.functions[call.name], *arguments.positional, **arguments.options)

    def once(self, call: Call) -> Outcome:
        function = self.functions.get(call.name)
        if function is None:
            raise NotOfferedError(f"no {call.name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arguments = _Arguments(self, call)
            _check_accepts(function, arguments.options)
            try:
                result = function(*arguments.positional, **arguments.options)
            except NotImplementedError as error:
                raise NotOfferedError(first_line(error) or "not implemented") from None
            except Exception as error:
                faults = tuple(arguments.faults(refused=True))
                return Outcome(error=(type(error).__name__, first_line(error)), faults=faults)
            try:
                results = outputs(call, result)
            except Exception as error:  # a result of another kind may raise anything
                fault = f"its result cannot be read: {type(error).__name__}: {error}"
                return Outcome(faults=(fault, *arguments.faults()))
            return Outcome(results, faults=tuple(arguments.faults(results)))


def _check_accepts(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise a NotOfferedError unless the function has a parameter for each option."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function in C without a signature
        return
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise NotOfferedError(f"{NO_PARAMETER} {name}")


class _Arguments:
    """A call's arguments as an implementation takes them, and checks of them after the call."""

    def __init__(self, subject: Subject, call: Call) -> None:
        self._call, first, arrays = call, call.first_out, call.arrays
        watched = arrays if first is None else {**arrays, "out": first}
        self._watched = {name: Watched(each) for name, each in watched.items()}
        counterparts = {name: subject.convert(each) for name, each in arrays.items()}
        tensors = {name: each.tensor for name, each in counterparts.items()}
        self.options = dict(call.options)
        # In the order of normgrad's function, which may have an option among the tensors.
        self.positional = [
            self.options.pop(each.name) if each.name in self.options else tensors.get(each.name)
            for each in inspect.signature(FUNCTIONS[call.name]).parameters.values()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        if call.out is not None:
            same = (tensors[name] for name, each in arrays.items() if each is first)
            out = next(same, None)  # in place, the output is the input's own tensor
            if out is None and first is not None:
                if subject.framework == "torch" and not first.flags.writeable:
                    raise NotOfferedError("PyTorch has no read-only tensors")
                counterparts["out"] = subject.convert(first)
                out = counterparts["out"].tensor
            is_tensor = call.operator.out_is_tensor
            self.options["out"] = out if is_tensor else (out, *call.out[1:])
        self._counterparts = counterparts.values()

    def faults(
        self, results: Mapping[str, Array] | None = None, refused: bool = False
    ) -> Iterator[str]:
        """Describe wrong writes, and results that share memory with an input or with each other.

        Shared memory is not seen of tensors on other devices.
        """
        for each in self._counterparts:
            each.fetch()
        results, target = results or {}, self._call.first_out
        first = self._call.results[0] if results else ""  # a wrong call may have no results
        if target is not None and first in results:
            out = self.options["out"]
            array = to_array(out[0] if isinstance(out, tuple) else out)
            if array.tobytes() != results[first].tobytes():
                yield "out: what was returned is not written to it"
        for name, memory in self._watched.items():
            if fault := memory.fault(memory.value is target and not refused):
                yield f"{name}: {fault}"
        others = self._call.arrays
        for name, value in results.items():
            if target is None or name != first:
                for other, array in others.items():
                    if np.may_share_memory(value, array):
                        yield f"{name}: in the memory of {other}"
                others[name] = value
