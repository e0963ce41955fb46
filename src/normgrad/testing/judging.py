"""The verdict on a case's outcome: its faults, and errors in units of two bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..declarations.contract import Kind
from ..operators import precision
from ..operators.reference import Array, Exact
from ..support.values import shorten
from ..tensors import dtypes
from ..tensors.dtypes import DType
from ..tensors.specs import TensorSpec
from ..tensors.strides import dense_like, used_strides
from .cases import Case, Topic
from .outcomes import UNREADABLE, Fault, Level, Outcome, convention, wrong
from .tensors import Call


@dataclass(frozen=True)
class Judged:
    """A case's verdict.

    Attributes:
        case: the case.
        faults: what is wrong with the outcome; the case passes if there are none.
        absent: why the call was not tried or shows nothing, if the implementation lacks something.
        units: the largest error in units of normgrad's bound, where there was a result.
        plain: the same in units of what plain float32 code gives.
        said: the error with which a wrong call was refused.
    """

    case: Case
    faults: tuple[Fault, ...] = ()
    absent: str = ""
    units: float | None = None
    plain: float | None = None
    said: str = ""

    @property
    def gravest(self) -> Fault | None:
        """The first fault of the gravest level."""
        return next((each for level in Level for each in self.faults if each.level is level), None)

    @property
    def level(self) -> Level | None:
        """The level of the gravest fault."""
        return self.gravest.level if self.gravest else None

    @property
    def passed(self) -> bool:
        """Whether the call was tried and all is as normgrad would have it."""
        return not (self.faults or self.absent)

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        if self.absent:
            return "not offered"
        return "passed" if self.level is None else self.level.value

    @property
    def details(self) -> list[str]:
        """What is said beside the word: each fault, or why a call was not tried or was refused."""
        said = self.absent or self.said
        return [said] if said else [str(fault) for fault in self.faults]

    def __str__(self) -> str:
        details = "; ".join(self.details)
        return shorten(f"{self.word}: {details}" if details else self.word, 1000)

    def beyond(self, bound: float) -> bool:
        """Whether an error exceeds so many times normgrad's bound."""
        return self.units is not None and self.units > bound

    def beside(self, base: Judged | None) -> Judged:
        """The verdict on a wrong call, given the verdict on the plain call without the mistake.

        An error shows that the mistake was noticed only if the plain call has a result.
        """
        if not self.said or base is None or base.units is not None:
            return self
        reason = base.absent or base.faults[0].what
        detail = f"without its mistake the call is {base.word}: {reason}"
        return replace(self, said="", absent=detail)


def judge(case: Case, outcome: Outcome, strict: bool = False) -> Judged:
    """The verdict on an outcome.

    Args:
        case: the case that was run.
        outcome: the outcome of its call.
        strict: whether the implementation is normgrad's own: all faults are wrong then, and errors
            must be TypeErrors or ValueErrors that begin with the argument's name.
    """
    if outcome.absent:
        return Judged(case, absent=outcome.absent)
    judged = (_judge_mistake if case.is_mistake else _judge_legal)(case, outcome, strict)
    if not strict:
        return judged
    faults = (replace(fault, level=Level.WRONG) for fault in judged.faults)
    return replace(judged, faults=tuple(faults))


def _judge_legal(case: Case, outcome: Outcome, strict: bool) -> Judged:
    faults = list(outcome.faults)
    if outcome.error is not None:
        kind, text = outcome.error
        level = Level.CONVENTION if case.is_our_meaning else Level.WRONG
        what = f"refuses a legal call: {kind}: {_wordless(text)}"
        # Any function of the operator's name should take the plain call.
        seen = f"{text}; tried: {case.call()}" if case.topic is Topic.PLAIN else text
        faults.append(Fault(level, what, seen))
        return Judged(case, tuple(faults))
    call = case.call()
    faults += _unlike(call, case.output_specs(call), outcome.outputs, strict)
    exact = case.exact(call)
    same = {
        name: value
        for name, value in outcome.outputs.items()
        if exact[name].value.shape == value.shape
        and dtypes.from_numpy(value.dtype) in dtypes.FLOATS
    }
    units = plain = 0.0
    for name, value in same.items():
        worst, found = _distance(case, call, name, value, exact[name])
        units, plain = max(units, worst[0]), max(plain, worst[1])
        faults += found
    return Judged(case, tuple(faults), units=units, plain=plain)


def _wordless(text: str) -> str:
    """An error's text without what changes from call to call."""
    return re.sub(r"\W*\d[\w.,x]*", "", text.partition("\n")[0])[:80]


def _coarsest(call: Call) -> DType:
    """The least precise dtype of the data tensors."""
    kinds = {each.name: each.kind for each in call.operator.inputs}
    data = [v.dtype for name, v in call.arrays.items() if kinds[name] is Kind.DATA]
    found = [dtypes.parse(each) for each in data] or [call.arithmetic]
    return max(found, key=lambda dtype: dtype.unit_roundoff)


def _distance(
    case: Case, call: Call, name: str, value: Array, exact: Exact
) -> tuple[tuple[float, float], list[Fault]]:
    """The largest errors of an output in units of the bound and of plain code, and the fault."""
    errors = precision.error(value, exact, call.arithmetic, case.normal)
    plains = precision.plain_error(
        value, exact, call.arithmetic, _coarsest(call), max(1, call.size), case.goes_one_way
    )
    worst = float(errors.max(initial=0.0)), float(plains.max(initial=0.0))
    if max(worst) <= 1:
        return worst, []
    level = Level.WRONG if worst[1] > 1 and not case.is_extreme else Level.BEYOND
    if call.count <= 1:  # where a formula is undefined, and each library has its own value
        level = Level.CONVENTION
    judged = plains if worst[1] > 1 else errors
    by_channel = {each.name: each.kind for each in call.outputs}.get(name) is Kind.CHANNEL
    first, place = (
        tuple(map(int, np.unravel_index(int(index), judged.shape)))
        for index in ((judged > 1).argmax(), judged.argmax())
    )
    digits = 17 if value.dtype == np.float64 else 9  # which tell it from its neighbours
    text = (
        f"{int((judged > 1).sum()):,} of {value.size:,} {_WORDS[level]}, first at "
        f"{_place(first, by_channel)}; worst at {_place(place, by_channel)}: "
        f"{value[place]}, expected {exact.value[place]:.{digits}g}: {_factor(errors[place])} the "
        f"bound, {_factor(plains[place])} plain code's, {_ulps(value[place], exact.value[place])}"
    )
    return worst, [Fault(level, name, text)]


#: What elements are whose errors have a level.
_WORDS = {Level.WRONG: "wrong", Level.BEYOND: "beyond the bound", Level.CONVENTION: "other values"}


def _place(indices: tuple[int, ...], by_channel: bool) -> str:
    return f"channel {indices[0]:,}" if by_channel else str(indices)


def _factor(units: float) -> str:
    # As many digits as tell it from 1 times the bound, which is allowed.
    spellings = (f"{units:.{digits}g}" for digits in range(3, 18))
    return f"{next(each for each in spellings if each != '1' or units <= 1)} times"


def _ulps(got: Array, exact: Array) -> str:
    """The distance in units in the last place of the exact value in the output's dtype."""
    dtype = dtypes.parse(got.dtype)
    with np.errstate(all="ignore"):
        power = 2.0 ** math.floor(math.log2(abs(exact))) if exact and np.isfinite(exact) else 0.0
        last = max(2 * dtype.unit_roundoff * power, dtype.smallest_subnormal)
        return f"{float(abs(np.longdouble(got) - exact) / last):.3g} ulp"


def _judge_mistake(case: Case, outcome: Outcome, strict: bool) -> Judged:
    allowed = case.status()
    if outcome.error is None:
        faults = [fault for fault in outcome.faults if fault.what != UNREADABLE]
        return Judged(case, (*faults, _accepted(case, outcome, allowed)))
    if outcome.faults:
        return Judged(case, outcome.faults)
    kind, text = outcome.error
    if allowed:
        detail, is_right = f"{case.change}: {kind} ({text})", kind == allowed
    else:
        argument = case.changes_of(case.unchanged())[case.change].argument
        allowed = f"a TypeError or ValueError that begins with {argument}"
        is_named = kind in ("TypeError", "ValueError") and text.startswith(argument)
        detail, is_right = f"{kind}: {text}", is_named or not strict
    if is_right:
        return Judged(case, said=detail)
    return Judged(case, (wrong("another error", f"{detail}; allowed: {allowed}"),))


def _accepted(case: Case, outcome: Outcome, allowed: str) -> Fault:
    """The fault of a wrong call that gives results.

    That is a convention, but for a library whose contract demands a status, and where an argument
    is read past its end: NaN lies there.
    """
    if allowed:
        return wrong("accepts a wrong call", f"{case.change}: success; allowed: {allowed}")
    call = case.unchanged()
    if case.changes_of(call)[case.change].is_short:
        strange = [name for name, value in outcome.outputs.items() if np.isnan(value).any()]
        if strange:
            return wrong(f"reads past the end of {case.change.partition(':')[0]}", strange[0])
    return convention("accepts a wrong call", case.change)


def _unlike(
    call: Call, specs: Sequence[TensorSpec | None], outputs: Mapping[str, Array], strict: bool
) -> Iterator[Fault]:
    """The faults of outputs that are missing, or not as the contract says.

    An implementation that is not strict may return outputs that were masked off. It may return
    vectors in another dtype: statistics no less precise than the data, other vectors no less
    precise than was asked for or than the arithmetic.
    """
    for name, output, spec in zip(call.results, call.outputs, specs, strict=False):
        array = outputs.get(name)
        if spec is None:
            if array is not None and strict:
                yield wrong(f"{name}: not asked for")
            continue
        if array is None:
            yield wrong(f"{name}: not there")
            continue
        if array.shape != spec.shape:
            yield wrong(f"{name}: other shape", f"shape {array.shape}; allowed: {spec.shape}")
            continue
        allowed = [spec.dtype]
        if not strict and output.kind is not Kind.DATA:
            data = dtypes.parse(call.data.dtype)
            least = data if output.is_wide else spec.dtype
            most = precision.roundoff(least, call.arithmetic)
            allowed += [each for each in dtypes.FLOATS if each.unit_roundoff <= most]
        if dtypes.from_numpy(array.dtype) not in allowed:
            names = ", ".join(dict.fromkeys(map(str, allowed)))
            yield wrong(f"{name}: other dtype", f"dtype {array.dtype}; allowed: {names}")
        elif output.kind is Kind.DATA and call.first_out is None and array.size:
            steps = tuple(step // array.itemsize for step in array.strides)
            ours, theirs = (
                used_strides(spec.shape, dense_like(spec.shape, each))
                for each in (spec.strides, steps)
            )
            if ours != theirs:
                yield convention("other strides", f"{name}: {steps}; input's: {spec.strides}")
