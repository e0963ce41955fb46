"""``normgrad run``: compute a file's gradients, check their errors and time them."""

from __future__ import annotations

import inspect
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.text import Text

import normgrad

from ..bench import timing
from ..declarations.contract import Operator
from ..declarations.options import OPTIONS, addend, flag, mask, real, sizes
from ..operators import precision
from ..operators.by_name import OPERATORS, choices_of
from ..plans.plan import Plan
from ..support.settings import SettingError
from ..support.values import integer, shorten
from ..tensors import dtypes
from . import archives, show
from .archives import Array, Contents, Format, InputError

if TYPE_CHECKING:
    from ..testing import Call

#: The most names in a note.
_MAX_NAMES = 8


class Result(NamedTuple):
    """One output: its L2 norm, and its largest error in units of the error bound."""

    name: str
    array: Array
    norm: float
    units: float

    @property
    def passed(self) -> bool:
        """Whether every element is within its bound."""
        return self.units <= 1.0


class Request(NamedTuple):
    """A call with all its arguments, their file's format, and remarks on the file."""

    call: Call
    plan: Plan
    format: Format
    notes: Sequence[str]


class Report(NamedTuple):
    """The requested outputs, the calls' times after a first one that compiles, and warnings."""

    results: Sequence[Result]
    times: timing.Times
    notes: Sequence[str]


# The arguments that are not tensors

#: The default of an argument that has none.
REQUIRED = inspect.Parameter.empty

#: What the values of an argument may be, by the argument's check.
_ALLOWED = {
    flag: "true or false",
    real: "a number",
    addend: "a number, 0 or more",
    integer: "an integer",
    sizes: "an integer, or several such as 32,32",
    mask: "true or false for each output, such as 1,1,0",
}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def _read(check: Callable[..., Any], value: Any) -> Any:
    """Read a value for this check from a word, a number, a boolean or a list of them.

    It is the value's text that is read, in which True is no number and 1.0 no integer. A value of
    another sort is a LookupError, TypeError or ValueError.
    """
    if check is flag:
        return _FLAGS[str(value).strip().lower()]
    if check in (real, addend):
        return check("", float(str(value)))
    if check is integer:
        return int(str(value))
    if isinstance(value, str):
        entries = value.strip("()[] ")
        value = (entries.rstrip(",") if check is sizes else entries).split(",")
    if check is mask:
        return tuple(_read(flag, entry) for entry in value)
    several = value if isinstance(value, list) else [value]
    return tuple(_read(integer, size) for size in several)


def _operator(contents: Contents, option: str | None) -> Operator:
    subject, name = "--operator", option
    if option is None:
        subject, name = f"{contents.path}: operator", contents.value("operator")
    if isinstance(name, str) and name in OPERATORS:
        return OPERATORS[name]
    reason = reprlib.repr(name)
    if name is None:
        reason = "not named; name it in an entry operator, or with --operator"
    raise InputError(subject, reason, ", ".join(OPERATORS))


def _spelling(name: str) -> str:
    """The spelling of an argument as an option."""
    return "--training or --evaluation" if name == "training" else f"--{name.replace('_', '-')}"


def _choices(
    contents: Contents, operator: Operator, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    known = choices_of(operator.name)
    for name in overrides:
        if name not in known:
            allowed = ", ".join(map(_spelling, known))
            raise InputError(_spelling(name), f"no argument of {operator.name}", allowed)
    choices = {}
    for name, default in known.items():
        value = overrides[name] if name in overrides else contents.value(name)
        if value is None:
            if default is REQUIRED:
                where = f"in an entry {name} or with {_spelling(name)}"
                reason = f"{name}: missing; {operator.name} needs it, {where}"
                raise InputError(contents.path, reason)
            choices[name] = default
            continue
        try:
            choices[name] = _read(OPTIONS[name], value)
        except (LookupError, TypeError, ValueError):
            subject = _spelling(name) if name in overrides else f"{contents.path}: {name}"
            raise InputError(subject, reprlib.repr(value), _ALLOWED[OPTIONS[name]]) from None
    return choices


# The request


def _tensors(contents: Contents, operator: Operator) -> dict[str, Array | None]:
    needed = [parameter.name for parameter in operator.inputs if parameter.required]
    others = [parameter.name for parameter in operator.inputs if not parameter.required]
    if missing := [name for name in needed if name not in contents.names]:
        tensors = f"needs {', '.join(needed)}, and takes {', '.join(others)}"
        reason = f"no {', no '.join(missing)}; {operator.name} {tensors}"
        raise InputError(contents.path, reason)
    return {
        name: contents.tensor(name, kind.dtypes) if name in contents.names else None
        for name, kind in ((each.name, each.kind) for each in operator.inputs)
    }


def _unused(contents: Contents, arguments: Iterable[str]) -> tuple[str, ...]:
    names_read = {"operator", *arguments}
    names = [name for name in contents.names if name not in names_read]
    # Other programs write their format into every file.
    names += [name for name in contents.metadata if name not in {*names_read, "format"}]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    first = ", ".join(map(shorten, names[:_MAX_NAMES]))
    return (f"{contents.path}: not used: {first}{more}",) if names else ()


def load(path: Path, name: str | None, overrides: Mapping[str, Any]) -> Request:
    """Read and check a file and the command line's arguments, without computing anything.

    ``name``, the operator's, and ``overrides`` are the command line's, which override the file's.
    """
    from ..testing import Call

    with archives.reading(path) as contents:
        operator = _operator(contents, name)
        choices = _choices(contents, operator, overrides)
        tensors = _tensors(contents, operator)
        notes = _unused(contents, (*tensors, *choices))
    try:
        plan = normgrad.plan(operator.name, **tensors, **choices)
    except SettingError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(path, str(error)) from None
    return Request(Call(operator.name, tensors, choices), plan, contents.format, notes)


def out_format(out: Path, request: Request) -> Format:
    """The format to write; an InputError if it cannot hold the gradients or be written."""
    archives.check_writable(out)
    kind = {each.value: each for each in Format}.get(out.suffix.lower(), request.format)
    if kind is Format.NPZ:
        for output, spec in zip(request.call.outputs, request.plan.output_specs, strict=True):
            if spec is not None and spec.dtype is dtypes.bfloat16:
                reason = f"{output.name} is bfloat16, which a .npz cannot hold"
                raise InputError(out, reason, "a name that ends in .safetensors")
    return kind


# The run


def execute(request: Request) -> Report:
    """Compute, time and check the gradients."""
    call = request.call
    compute = partial(getattr(normgrad, call.name), **call.tensors, **call.options)
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        with show.working("compiling the kernels and computing"):
            gradients = compute()
        times = timing.measure({"ours": compute}, timing.QUICK_SECONDS)
    with show.working("checking against the float64 reference"):
        results = _checked(call, (gradients,) if call.operator.out_is_tensor else gradients)
    return Report(results, times, [*dict.fromkeys(str(each.message) for each in log)])


def _checked(call: Call, gradients: tuple[Array | None, ...]) -> list[Result]:
    exact, results = call.exact(), []
    for name, array in zip(call.results, gradients, strict=True):
        if array is not None:
            units = precision.error(array, exact[name], call.arithmetic)
            with np.errstate(all="ignore"):
                norm = np.linalg.norm(array.astype(np.float64).ravel())
            results.append(Result(name, array, float(norm), float(units.max(initial=0.0))))
    return results


_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
_SECONDS = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"))


def show_report(request: Request, report: Report, out: Path | None) -> None:
    """Print the table of the outputs, and below it the time of a call."""
    verdicts = {True: Text("pass", "green"), False: Text("FAIL", "bold red")}
    rows = [
        (
            *(each.name, each.array.shape, each.array.dtype.name),
            *(f"{each.norm:.6g}", f"{each.units:.3g}", verdicts[each.passed]),
        )
        for each in report.results
    ]
    seconds = report.times.medians["ours"]
    traffic = _traffic(request, report.results)
    moved = sum(traffic.values())
    right = ("L2 norm", "max error / bound")
    noise = f"noise      times spread by {report.times.spread:.0%}: the machine had other work"
    show.columns(
        ("output", "shape", "dtype", *right, "check"),
        rows,
        f"time       {show.scaled(seconds, _SECONDS)} a call (median of {report.times.rounds}, "
        "after a first one that compiles)",
        f"bandwidth  {moved / seconds / 1e9:.3g} GB/s (effective: "
        f"{show.scaled(moved, _BYTES)} of {', '.join(traffic) or 'nothing'})",
        f"path       {request.plan.path}",
        *([noise] if report.times.spread > timing.NOISY else []),
        *([f"written    {out}"] if out is not None else []),
        title=request.call.name,
        right=right,
    )


def _traffic(request: Request, results: Sequence[Result]) -> dict[str, int]:
    """The bytes of each data tensor that computing the requested outputs reads or writes."""
    if not results:
        return {}
    names = ("grad_out", "input") if request.plan.reads_input else ("grad_out",)
    moved = {name: request.call.arrays[name].nbytes for name in names}
    return moved | {each.name: each.array.nbytes for each in results if each.name == "grad_input"}
