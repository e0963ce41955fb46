"""Implementations under test: normgrad's, PyTorch's, and any other in Python."""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..operators.by_name import FUNCTIONS, parameters_of
from ..support.values import describe
from .cases import OWNED, Case, Topic
from .framework_tensors import (
    Counterpart,
    NotOfferedError,
    first_line,
    to_array,
    to_dlpack,
    to_torch,
)
from .memory_checks import Watched, guarded, leak_of, reverse
from .outcomes import UNREADABLE, Fault, Outcome, convention, wrong
from .tensors import Array, Call

#: Numbers of threads that must give the same bits; None stands for all threads.
THREADS = (1, 2, 3, 5, 8, None)

#: The name of the fault that calls give different bits.
OTHER_BITS = "other bits"

#: The reason why a call is not tried: the function lacks a parameter that the call needs.
NO_PARAMETER = "no parameter"

#: The callers at once, and the calls of each.
CALLERS, CALLS = 4, 20


class SubjectError(Exception):
    """The name is of no usable implementation; the text says why."""


def unlike(first: Outcome, again: Outcome) -> list[str]:
    """The names of the first outcome's outputs that differ in bits, or are missing, in another."""
    return [
        name
        for name, value in first.outputs.items()
        if name not in again.outputs or again.outputs[name].tobytes() != value.tobytes()
    ]


class Implementation(ABC):
    """An implementation under test.

    Attributes:
        name: its name in a report.
        suite: the name of the suite that tests it.
        strict: whether it must accept all that normgrad does, and name arguments in errors.
        facts: its properties for a report.
        device: the device that it runs on.
        declared: the operators of one's own for which it may have functions.
    """

    name: str
    suite: str
    strict: bool
    facts: dict[str, str]
    device = "cpu"
    declared: Sequence[Any] = ()

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The verdicts on the plain calls that have been run, by their kind."""
        return {}

    @abstractmethod
    def once(self, call: Any) -> Outcome:
        """Make a case's call once, and return the outcome.

        Raises:
            NotOfferedError: the implementation does not offer what the call needs.
        """

    def has(self, case: Case) -> bool:
        """Whether there is the operator that a case calls, as far as is known without a call."""
        return self.suite != "operators" or case.operator in self.facts["operators"].split(", ")

    def bare(self, call: Any) -> Callable[[], object]:
        """A function that makes a call without any checks, whose own memory would show."""
        return lambda: self.once(call)

    def lacking(self) -> dict[str, list[str]]:
        """The parameters that its functions lack, where that can be told."""
        return {}

    def repeats(self) -> Iterator[str]:
        """Set up each further call that must give the same bits, and yield words for it."""
        yield from ["when it is called again"] * 3

    def run(self, case: Case) -> Outcome:
        """The outcome of a case of its suite, which includes every error."""
        try:
            if not self.has(case):  # before its tensors are made, which takes time
                raise NotOfferedError(f"no {case.operator}")
            call = self.request(case)
            before = _state()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = self._outcome(case, call)
            after = _state()
            changed = [name for name in before if after[name] != before[name]]
            faults = [wrong(f"changes {name}") for name in changed]
            return replace(outcome, faults=(*outcome.faults, *faults))
        except NotOfferedError as error:
            return Outcome(absent=str(error))

    def request(self, case: Case) -> Any:
        """What is run for a case."""
        return case.request()

    def _outcome(self, case: Case, call: Any) -> Outcome:
        if case.topic is Topic.DETERMINISM:
            return self._repeated(case, call)
        if case.topic is Topic.CONCURRENCY:
            return self._at_once(case, call)
        outcome = self.once(call)
        if (
            case.topic is Topic.MEMORY
            and outcome.error is None
            and (leak := leak_of(self.bare(call)))
        ):
            return replace(outcome, faults=(*outcome.faults, wrong("keeps memory", leak)))
        return outcome

    def _at_once(self, case: Case, call: Any) -> Outcome:
        """The outcome of a call; of one among several threads if it differs, in values, there.

        Every second thread has other values, lest what another thread computes look right.
        """
        calls = [call, *(self.request(case) for _ in range(CALLERS - 1))]
        for each in calls[1::2]:
            reverse(each.inputs)
        first = [_copied(self.once(each)) for each in calls]
        with ThreadPoolExecutor(CALLERS) as pool, _switching_often():
            found = [*pool.map(self._differing, first, calls)]
        return next((each for each in found[::2] if each is not None), first[0])

    def _differing(self, first: Outcome, call: Any) -> Outcome | None:
        """Repeat a call until it ends otherwise than the first."""
        for _ in range(CALLS):
            again = _copied(self.once(call))
            if again.error != first.error or unlike(first, again):
                return again
        return None

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
            wrong(f"{name}: a later call writes to what an earlier one returned")
            for name in unlike(copy, before)
        ]
        for how in self.repeats():
            again = self.once(self.request(case))
            faults += again.faults
            if again.error is not None:
                faults.append(wrong("another call ends in an error", ": ".join(again.error)))
            else:
                what = f"{OTHER_BITS} {'by number of threads' if 'threads' in how else 'again'}"
                faults += [convention(what, f"{name} {how}") for name in unlike(first, again)]
        return replace(first, faults=(*first.faults, *dict.fromkeys(faults)))


def _state() -> dict[str, object]:
    """What a call has no business to change in its process, by name."""
    numbers = np.random.get_state(legacy=False)["state"]
    state: dict[str, object] = {
        "NumPy's error handling": np.geterr(),
        "NumPy's random numbers": (numbers["pos"], numbers["key"].tobytes()),
        "Python's random numbers": random.getstate(),
        "how subnormal numbers are computed": float(np.float32(1e-40) * np.ones(1, np.float32)[0]),
    }
    if torch := sys.modules.get("torch"):
        for name in ("get_default_dtype", "get_num_threads", "is_grad_enabled"):
            state[f"torch.{name}()"] = getattr(torch, name)()
    return state


@contextmanager
def _switching_often() -> Iterator[None]:
    """Let Python's threads take turns every ten microseconds."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _copied(outcome: Outcome) -> Outcome:
    copies = {name: value.copy("K") for name, value in outcome.outputs.items()}
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
        declared: further operators, for which there may be functions.

    Raises:
        SubjectError: it has none of the operators, or its framework or device cannot be used.
    """

    suite = "operators"

    def __init__(
        self, name: str, operators: Any, strict: bool = False, declared: Sequence[Any] = ()
    ) -> None:
        self.name, self.strict, self.declared = name, strict, declared
        known = (*FUNCTIONS, *(each.name for each in declared))
        if inspect.isclass(operators):
            try:
                operators = operators()
            except (Exception, SystemExit) as error:
                raise SubjectError(
                    f"{name}: cannot be made: {type(error).__name__}: {error}"
                ) from error
        self.functions: dict[str, Callable[..., Any]] = {
            function: getattr(operators, function)
            for function in known
            if callable(getattr(operators, function, None))
        }
        if not self.functions:
            raise SubjectError(
                f"{name}: no operators; allowed: an object with some of {', '.join(known)}"
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

    def lacking(self) -> dict[str, list[str]]:
        """normgrad's parameters by keyword that functions lack, by the functions' names."""
        found = {}
        for name, function in self.functions.items():
            ours = parameters_of(name).values() if name in FUNCTIONS else ()
            names = _names(function)
            if names is not None:
                keywords = [e.name for e in ours if e.kind is e.KEYWORD_ONLY]
                found[name] = [each for each in keywords if each not in names]
        return {name: each for name, each in found.items() if each}

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

    def request(self, case: Case) -> Call:
        """The call, in memory with guards on both sides but for an output that owns its memory."""
        call: Call = case.request()
        moved: dict[int, Array] = {}
        if case.is_mistake and call.out is not None:  # how the output lies is the mistake
            return call
        for name, array in call.arrays.items():
            call.tensors[name] = moved.setdefault(id(array), guarded(array))
        if call.first_out is not None and case.out != OWNED:
            out = call.first_out
            call.give(moved[id(out)] if id(out) in moved else guarded(out))
        return call

    def once(self, call: Call) -> Outcome:
        function = self.functions.get(call.name)
        if function is None:
            raise NotOfferedError(f"no {call.name}")
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
            fault = wrong(UNREADABLE, f"{type(error).__name__}: {error}")
            return Outcome(faults=(fault, *arguments.faults()))
        return Outcome(results, faults=tuple(arguments.faults(results)))


def outputs(call: Call, result: Any) -> dict[str, Array]:
    """A result's arrays by name; it is a tuple in normgrad's order, or the only output."""
    try:
        values = (result,) if call.operator.out_is_tensor else tuple(result)
    except TypeError:
        names = ", ".join(call.results)
        raise TypeError(
            f"result: {describe(result)}; allowed: a sequence of tensors, for {names}"
        ) from None
    pairs = zip(call.results, values, strict=False)
    return {name: to_array(value) for name, value in pairs if value is not None}


def _names(function: Callable[..., Any]) -> Container[str] | None:
    """The names of a function's parameters; None if it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function in C without a signature
        return None
    return None if any(e.kind is e.VAR_KEYWORD for e in parameters.values()) else parameters


def _check_accepts(function: Callable[..., Any], options: Iterable[str]) -> None:
    """Raise a NotOfferedError unless the function has a parameter for each option."""
    names = _names(function)
    for name in options:
        if names is not None and name not in names:
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
            self.options.pop(each) if each in self.options else tensors.get(each)
            for each in call.signature
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
    ) -> Iterator[Fault]:
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
                yield wrong("out: what was returned is not written to it")
        for name, memory in self._watched.items():
            if fault := memory.fault(memory.value is target and not refused):
                yield wrong(f"{name}: {fault}")
        others = self._call.arrays
        for name, value in results.items():
            if target is None or name != first:
                for other, array in others.items():
                    if np.may_share_memory(value, array):
                        yield wrong(f"{name}: in the memory of {other}")
                others[name] = value
