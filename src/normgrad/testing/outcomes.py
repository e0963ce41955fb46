"""The outcome of a case's call, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

import normgrad

from .. import dtypes, precision
from ..contract import Kind
from ..unusable import shorten
from .cases import Case
from .changes import mistakes
from .tensors import Array, Call


@dataclass(frozen=True)
class Outcome:
    """What a call did.

    Attributes:
        outputs: the outputs that it returned, by name, without those masked off.
        error: the exception's class and text, if it raised one.
        absent: why the call could not be tried, if the implementation does not offer it.
        faults: what else it did that it must not, in words.
    """

    outputs: Mapping[str, Array] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    absent: str = ""
    faults: tuple[str, ...] = ()


class Verdict(Enum):
    """A case's verdict on an implementation: the word for it in a report, and its meaning."""

    meaning: str

    MET = "met", "every result is within its bound, or the wrong call ended in an error"
    BROKEN = (
        "wrong",
        "a result is beyond its bound, or has another shape or dtype than was asked for, or memory "
        "was written to that is not the result's",
    )
    ACCEPTED = "accepted", "a wrong call did not end in an error"
    CRASHED = "crashed", "the process ended"
    HUNG = "hung", "the call did not return in time"
    REFUSED = (
        "refused",
        "a legal call ended in an error; that counts as a defect if the operator answers none",
    )
    ABSENT = (
        "not offered",
        "the implementation has no such operator, parameter, dtype or layout; or a wrong call "
        "ended in an error, but the same call without the mistake is not answered either, so the "
        "error shows nothing",
    )

    def __new__(cls, word: str, meaning: str) -> Verdict:
        verdict = object.__new__(cls)
        verdict._value_, verdict.meaning = word, meaning
        return verdict

    @property
    def is_defect(self) -> bool:
        """Whether a caller gets a wrong result, a missed error, a crash or a hang."""
        return self not in (Verdict.MET, Verdict.REFUSED, Verdict.ABSENT)


#: The edges of the error histogram's bins, as base-10 logarithms of error / bound. Errors beyond
#: either end, such as zero and infinite ones, count in the outermost bins.
EDGES = np.linspace(-6.0, 3.0, 91)


@dataclass(frozen=True)
class Judged:
    """A case's verdict.

    Attributes:
        case: the case.
        verdict: its verdict.
        units: the largest error in units of the bound, where there was a result.
        detail: what was wrong, or why the call was refused.
        counts: the error histogram over the elements of all outputs; see :data:`EDGES`.
    """

    case: Case
    verdict: Verdict
    units: float | None = None
    detail: str = ""
    counts: Array = field(
        default_factory=lambda: np.zeros(len(EDGES) - 1, np.int64), repr=False, compare=False
    )

    def __str__(self) -> str:
        return f"{self.verdict.value}: {self.detail}" if self.detail else self.verdict.value

    def __post_init__(self) -> None:
        """Shorten what an implementation says, which may be of any length."""
        object.__setattr__(self, "detail", shorten(self.detail, 1000))

    @property
    def is_answer(self) -> bool:
        """Whether a legal call returned something, right or wrong.

        A met case without elements, or with every result masked off, computes nothing and so is no
        answer.
        """
        if self.case.is_mistake:
            return False
        is_computed = bool(math.prod(self.case.shape) and self.counts.any())
        return self.verdict is Verdict.BROKEN or (self.verdict is Verdict.MET and is_computed)

    def beside(self, base: Judged | None) -> Judged:
        """The verdict on a wrong call, given the verdict on the plain call without the mistake.

        An error shows that the mistake was noticed only if the plain call is answered.
        """
        is_refusal = self.case.is_mistake and self.verdict is Verdict.MET
        if not is_refusal or base is None or base.is_answer:
            return self
        detail = f"without its mistake the call is {base.verdict.value} too: {base.detail}"
        return replace(self, verdict=Verdict.ABSENT, detail=detail)


def judge(case: Case, outcome: Outcome | Judged, strict: bool = False) -> Judged:
    """The verdict on an outcome.

    Args:
        case: the case that was run.
        outcome: the outcome of its call, or the verdict where the call left no outcome.
        strict: whether errors must have the form of normgrad's: a TypeError or ValueError that
            begins with the argument's name.
    """
    if isinstance(outcome, Judged):
        return outcome
    if outcome.absent:
        return Judged(case, Verdict.ABSENT, detail=outcome.absent)
    if case.is_mistake:
        return _judge_mistake(case, outcome, strict)
    if outcome.error is not None:
        return Judged(case, Verdict.REFUSED, detail=": ".join(outcome.error))
    call, faults = case.call(), list(outcome.faults)
    if case.has_contract:
        faults += _unlike(call, outcome.outputs, strict)
    if faults:
        return Judged(case, Verdict.BROKEN, detail="; ".join(faults))
    return _within_bounds(case, call, outcome.outputs)


def _within_bounds(case: Case, call: Call, outputs: Mapping[str, Array]) -> Judged:
    """The verdict on the outputs' values; their shapes and dtypes are right already."""
    exact = case.exact(call)
    worst, beyond = 0.0, []
    counts = np.zeros(len(EDGES) - 1, np.int64)
    for name, value in outputs.items():
        errors = precision.error(value, exact[name], call.arithmetic, case.normal)
        with np.errstate(divide="ignore"):
            counts += np.histogram(np.clip(np.log10(errors), EDGES[0], EDGES[-1]), EDGES)[0]
        largest = float(errors.max(initial=0.0))
        worst = max(worst, largest)
        if largest > 1:
            place = np.unravel_index(int(errors.argmax()), errors.shape)
            digits = 17 if value.dtype == np.float64 else 9  # which tell it from its neighbours
            beyond.append(
                # 17 digits near 1, lest it read "1 of the bound", which is allowed.
                f"{name}: {largest:.{3 if largest >= 1.01 else 17}g} of the bound at "
                f"{tuple(map(int, place))}: {value[place]}, expected "
                f"{exact[name].value[place]:.{digits}g}"
            )
    verdict = Verdict.BROKEN if beyond else Verdict.MET
    return Judged(case, verdict, worst, "; ".join(beyond), counts)


def _judge_mistake(case: Case, outcome: Outcome, strict: bool) -> Judged:
    allowed = case.status()
    if outcome.error is None:
        reply = f"success; allowed: {allowed}" if allowed else "nothing was said"
        return Judged(case, Verdict.ACCEPTED, detail=f"{case.change}: {reply}")
    if outcome.faults:
        return Judged(case, Verdict.BROKEN, detail="; ".join(outcome.faults))
    kind, text = outcome.error
    if allowed:
        detail, is_right = f"{case.change}: {kind} ({text})", kind == allowed
    else:
        argument = mistakes(case.unchanged())[case.change].argument
        allowed = f"a TypeError or ValueError that begins with {argument}"
        is_named = kind in ("TypeError", "ValueError") and text.startswith(argument)
        detail, is_right = f"{kind}: {text}", is_named or not strict
    if is_right:
        return Judged(case, Verdict.MET, detail=detail)
    return Judged(case, Verdict.BROKEN, detail=f"{detail}; allowed: {allowed}")


def _unlike(call: Call, outputs: Mapping[str, Array], strict: bool) -> list[str]:
    """Describe outputs that are missing, or not as the contract says.

    An implementation that is not strict may return outputs that were masked off. It may return
    vectors in another dtype: statistics no less precise than the data, other vectors no less
    precise than was asked for or than the arithmetic.
    """
    plan = normgrad.plan(call.name, **call.tensors, **call.options, out=call.out)
    faults = []
    for name, output, spec in zip(call.results, call.outputs, plan.output_specs, strict=True):
        array = outputs.get(name)
        if spec is None:
            if array is not None and strict:
                faults.append(f"{name}: not asked for")
        elif array is None:
            faults.append(f"{name}: not there")
        elif array.shape != spec.shape:
            faults.append(f"{name}: shape {array.shape}; allowed: {spec.shape}")
        else:
            allowed = [spec.dtype]
            if not strict and output.kind is not Kind.DATA:
                data = dtypes.parse(call.arrays["input"].dtype)
                least = data if output.is_wide else spec.dtype
                most = precision.roundoff(least, call.arithmetic)
                allowed += [each for each in dtypes.FLOATS if each.unit_roundoff <= most]
            if dtypes.from_numpy(array.dtype) not in allowed:
                names = ", ".join(dict.fromkeys(map(str, allowed)))
                faults.append(f"{name}: dtype {array.dtype}; allowed: {names}")
    return faults
