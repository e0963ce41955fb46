"""Changes that give a call special values, or make it wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..declarations.contract import Kind
from ..operators.by_name import PLANNED
from .tensors import Array, Call


@dataclass(frozen=True)
class Change:
    """A change of a call.

    Attributes:
        argument: the argument that is changed; the error for a mistake must name it.
        make: changes the call.
        fits: whether a call has what ``make`` changes.
        is_short: whether the argument has fewer elements than the operator reads.
    """

    argument: str
    make: Callable[[Call], None]
    fits: Callable[[Call], bool] = lambda call: True
    is_short: bool = False


_VECTOR_KINDS = (Kind.CHANNEL, Kind.GROUP, Kind.RANKS, Kind.ROW, Kind.POSITION)


def is_vector(call: Call, name: str) -> bool:
    """Whether a tensor has a value for each channel, group, rank, row or position."""
    return _kinds(call)[name] in _VECTOR_KINDS


def _kinds(call: Call) -> dict[str, Kind]:
    return {parameter.name: parameter.kind for parameter in call.operator.inputs}


def mask_options(call: Call, mask: tuple[bool, ...]) -> dict[str, Any]:
    """The options that say which outputs to compute."""
    if call.name == "batch_norm_backward_reduce":
        return dict(zip(("input_g", "weight_g", "bias_g"), mask, strict=True))
    return {"output_mask": mask}


def _data(call: Call) -> dict[str, Array]:
    kinds = _kinds(call)
    return {name: value for name, value in call.arrays.items() if kinds[name] is Kind.DATA}


def _has(*names: str) -> Callable[[Call], bool]:
    return lambda call: call.arrays.keys() >= set(names)


def _replace(call: Call, name: str, change: Callable[[Array], Array | None]) -> None:
    call.tensors[name] = change(call.arrays[name])


def _fill(call: Call, values: Mapping[str, float]) -> None:
    """Fill each of these tensors that the call has with one value."""
    for name in call.arrays.keys() & values:
        _replace(call, name, partial(np.full_like, fill_value=values[name]))


def of_tensor(name: str, change: Callable[[Array], Array | None]) -> Change:
    """A change of one tensor, to None if it is left out; it fits calls that have the tensor."""
    return Change(name, lambda call: _replace(call, name, change), _has(name))


# Special values


def _put(name: str, value: float, *places: Any) -> Change:
    """Put a value in these places of a tensor, each given by its indices, or in one channel."""

    def put(values: Array) -> Array:
        values = values.copy()
        # The last axis longer than 1: values per row have length 1 on the normalised axes.
        axis = max(axis for axis, size in enumerate(values.shape) if size > 1)
        for place in places or ((*[slice(None)] * axis, 1),):
            values[place] = value
        return values

    return of_tensor(name, put)


def _all_positive(call: Call) -> None:
    """Make all terms positive: each addition of a chain rounds, and sums keep growing."""
    rng = np.random.default_rng(5)
    for name, old in _data(call).items():
        call.tensors[name] = (1 + rng.random(old.shape)).astype(old.dtype)
    _fill(call, {"mean": 0, "invstd": 1, "save_mean": 0, "save_invstd": 1})


def _thirds(call: Call) -> None:
    """Give every sum terms of one sign, whose additions round in one direction.

    In each channel every fourth element of the input is 8/3 and of grad_out 4/3; the others are 4/3
    and 0. Given means are 0, given weights and 1/std are 1. So the terms of every sum have one
    sign: x, dy, (x − mean)² and dy·(x − mean), whether the mean is given (0) or computed (5/3).

    In binary a third is 0.0101…: whatever the last place of a running sum is, an addition of 4/3
    rounds a third of it away, in one direction until the sum passes the next power of two. So a
    chain of L additions in float32 is off by about L/20 unit roundoffs, where random terms of one
    sign would be by about √L/4. The bound is 16.
    """
    for name, old in _data(call).items():
        samples, channels, *rest = old.shape
        order = np.arange(old.size // channels).reshape(samples, 1, *rest)
        high, low = (8 / 3, 4 / 3) if name == "input" else (4 / 3, 0)
        new = np.empty_like(old)
        new[...] = np.where(order % 4 == 0, high, low)
        call.tensors[name] = new
    _fill(call, _NEUTRAL)


#: Values of the given vectors with which results depend on the data alone.
_NEUTRAL = {
    **dict.fromkeys(("mean", "save_mean", "running_mean"), 0.0),
    **dict.fromkeys(("invstd", "rstd", "save_invstd", "running_var", "weight"), 1.0),
}


def _factors(weight: float, invstd: float) -> Change:
    """Make products overflow or underflow float32 if they are taken in the wrong order.

    In the formula's order they do not.
    """
    values = {"weight": weight, "save_invstd": invstd}
    return Change("weight", lambda call: _fill(call, values), _has(*values))


def _subnormal(call: Call) -> None:
    """Make the input subnormal, and the factors such that the output is of ordinary size."""
    rng = np.random.default_rng(6)
    least = np.finfo(np.float32).smallest_subnormal
    old = call.arrays["input"]
    call.tensors["input"] = (rng.integers(-(2**20), 2**20, old.shape) * least).astype(old.dtype)
    _fill(call, {"mean": 0, "bias": 0, "invstd": 2.0**62, "weight": 2.0**62})


def _forward(call: Call) -> bool:
    return "grad_out" not in call.tensors and "counts" not in call.tensors


def _sums(call: Call) -> bool:
    """Whether sums over a channel, group or row are computed."""
    evaluates = call.name == "batch_norm" and not call.options["training"]
    return not (evaluates or call.operator.out_is_tensor or "counts" in call.tensors)


def _computes_statistics(call: Call) -> bool:
    return _forward(call) and not {"mean", "invstd"} & set(call.tensors)


_SPECIAL_VALUES = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf}
_VECTORS = dict.fromkeys(
    parameter.name
    for operator in PLANNED.values()
    for parameter in operator.inputs
    if parameter.kind in _VECTOR_KINDS
)

#: The change that needs a large call.
LONG_SUMS = "long sums of one sign"
#: The change that shows whether subnormal numbers are flushed to zero.
SUBNORMAL = "subnormal input"

#: Changes to special values, by name. They fit calls of float32, of shape (3, 4, 40) or larger.
TWISTS: Mapping[str, Change] = {
    **{  # the last element of a row, where a kernel's vectors end
        f"NaN in the last element of {name}": _put(name, np.nan, (1, 2, -1))
        for name in ("grad_out", "input")
    },
    **{  # one element and a whole row of one channel
        f"{word} in {name}": _put(name, value, (1, 2, 3), (2, 2))
        for name in ("grad_out", "input")
        for word, value in _SPECIAL_VALUES.items()
    },
    **{
        f"{word} in {name}": _put(name, value)
        for name in _VECTORS
        for word, value in {**_SPECIAL_VALUES, "0": 0.0}.items()
    },
    "negative running_var": _put("running_var", -1.0),
    "all terms positive": Change("input", _all_positive),
    LONG_SUMS: Change("input", _thirds, _sums),
    **{
        f"weight {weight:g}, invstd {invstd:g}": _factors(weight, invstd)
        for weight, invstd in ((1e-30, 1e-3), (1e30, 1e7), (1e-15, 1e-15), (1e20, 1e-19))
    },
    SUBNORMAL: Change("input", _subnormal, _has("bias", "invstd")),
    "one element far away": replace(_put("input", 1e15, np.s_[0, :, 0]), fits=_computes_statistics),
    "constant input": replace(
        of_tensor("input", partial(np.full_like, fill_value=1.5)), fits=_forward
    ),
    "count empty": of_tensor("count", lambda old: np.zeros(0, np.float32)),
    "count 0": of_tensor("count", lambda old: np.zeros(1, np.int32)),
}


#: Changes with which products may leave float32's range, in another order than the formula's.
EXTREME = frozenset(
    change
    for change in TWISTS
    if change.startswith("weight ") or change in (SUBNORMAL, "one element far away")
)


def is_essential(change: str) -> bool:
    """Whether a quick run keeps the change: what may spread, long sums, subnormal numbers."""
    return change in (LONG_SUMS, SUBNORMAL) or change.startswith(("NaN in ", "inf in "))


# Mistakes


def _option(name: str, value: Any) -> Change:
    return Change(name, lambda call: call.options.__setitem__(name, value))


def _no_divisor(call: Call) -> None:
    """Ask for three groups of four channels, with statistics for three groups."""
    call.options["num_groups"] = 3
    for name in ("mean", "rstd"):
        if name in call.tensors:
            _replace(call, name, lambda old: np.concatenate([old, old], -1)[..., :3])


def _short(values: Array) -> Array:
    return values[..., :-1]


def _reshaped(shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Change:
    """A change of all data tensors' shapes."""

    def put(call: Call) -> None:
        call.tensors |= {name: old.reshape(shape(old.shape)) for name, old in _data(call).items()}

    return Change("input", put)


def _with_out(make: Callable[[Array], Array]) -> Change:
    """A change that gives the call a data output, which ``make`` makes from the input."""
    return Change("out", lambda call: call.give(make(call.arrays["input"])))


def _read_only(like: Array) -> Array:
    array = np.full_like(like, np.nan)
    array.flags.writeable = False
    return array


def _partly_over(call: Call) -> None:
    """Give an output whose memory begins one element after the start of the input's."""
    old = call.arrays["input"]
    memory = np.concatenate([old.reshape(-1), np.zeros(1, old.dtype)])
    call.tensors["input"] = memory[:-1].reshape(old.shape)
    call.give(memory[1:].reshape(old.shape))


_VECTOR_MISTAKES: Mapping[str, Callable[[Array], Array]] = {
    "an element short": _short,
    "an element long": lambda old: np.concatenate([old, old[..., :1]], -1),
    "an axis more": lambda old: old[None],
}
_TENSOR_MISTAKES: Mapping[Kind, Mapping[str, Callable[[Array], Array]]] = {
    Kind.DATA: {
        "a sample short": lambda old: old[:-1],
        "a position short": _short,
        "an axis fewer": lambda old: old.reshape(old.shape[0], -1),
        "two axes swapped": lambda old: old.reshape(*old.shape[1::-1], *old.shape[2:]),
    },
    **dict.fromkeys(_VECTOR_KINDS, _VECTOR_MISTAKES),
    Kind.COUNT: {"float64": lambda old: old.astype(np.float64)},
}
_FLOAT_MISTAKES: Mapping[str, Callable[[Array], Array]] = {
    "int32": lambda old: old.astype(np.int32),
    "complex64": lambda old: old.astype(np.complex64),
}
_OPTION_MISTAKES: Mapping[str, tuple[Any, ...]] = {
    "num_groups": (0, -2),
    "channel_axis": (7, -8),
    "normalized_shape": ((), (7,), "five"),
    "output_mask": ((True,), (True, True, True, True)),
    "training": ("yes",),
    "eps": ("small",),
}
_OUT_MISTAKES: Mapping[str, Callable[[Array], Array]] = {
    "of another shape": lambda like: np.full((*like.shape[:-1], 1), np.nan, like.dtype),
    "of integers": lambda like: np.zeros(like.shape, np.int32),
    "read-only": _read_only,
    "that overlaps itself": lambda like: np.lib.stride_tricks.as_strided(
        np.full(1, np.nan, like.dtype), like.shape, (0,) * like.ndim
    ),
}


def mistakes(call: Call) -> dict[str, Change]:
    """The mistakes to try in a call, by name."""
    by_name: dict[str, Change] = {}
    for parameter in call.operator.inputs:
        name = parameter.name
        if name not in call.arrays:
            continue
        # The input's shape is the one that the others are compared with.
        alterations: dict[str, Callable[[Array], Array | None]] = {}
        if name != "input":
            alterations |= _TENSOR_MISTAKES[parameter.kind]
        if parameter.kind is not Kind.COUNT:
            alterations |= _FLOAT_MISTAKES
        if parameter.required:
            alterations["missing"] = lambda old: None
        for title, alter in alterations.items():
            change = of_tensor(name, alter)
            by_name[f"{name}: {title}"] = replace(change, is_short=title.endswith(" short"))
    if "num_groups" in call.choices:
        by_name["num_groups: no divisor"] = Change("num_groups", _no_divisor)
    one_axis = _reshaped(lambda shape: (-1,))
    if "normalized_shape" in call.choices:  # one axis may be a row, but not of this length
        one_axis = replace(one_axis, argument="normalized_shape")
    by_name["input: one axis"] = one_axis
    by_name["input: nine axes"] = _reshaped(lambda shape: (*shape, *[1] * (9 - len(shape))))
    for name, values in _OPTION_MISTAKES.items():
        if name in call.choices:
            by_name |= {f"{name}: {value!r}": _option(name, value) for value in values}
    if any(output.kind is Kind.DATA for output in call.outputs):
        by_name |= {f"out: {title}": _with_out(make) for title, make in _OUT_MISTAKES.items()}
        by_name["out: partly over input"] = Change("out", _partly_over)
    return by_name
