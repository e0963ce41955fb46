"""Strategies: tensors in memory that is watched, legal calls, and what can be wrong with them.

What the operators take and give is written here once more, from their documentation: what is said
twice is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from common import Producer
from hypothesis import strategies as st

from .memory import (
    COUNTS,
    DTYPES,
    KINDS_OF_VALUES,
    MOST_ELEMENTS,
    Short,
    View,
    Watched,
    fill,
    placed,
    torch,
    views,
)
from .memory import FLOATS as FLOATS
from .memory import WRONG_DTYPES as WRONG_DTYPES

# Operators, as they are documented


@dataclass(frozen=True)
class Operator:
    """What an operator takes and gives.

    Attributes:
        name: as in the public API.
        tensors: each parameter's kind ("data", "channel", "group", "count", "ranks"), in order.
        required: those that may not be None.
        outputs: each one's kind, and the first of these that is there gives a new one its dtype
            ("mean" being the mean in use, "wide" the type that the data are computed in).
        options: the arguments that are no tensors.
        alone: whether there is one output, which is not in a tuple.
    """

    name: str
    tensors: Mapping[str, str]
    required: tuple[str, ...]
    outputs: Mapping[str, tuple[str, tuple[str, ...]]]
    options: tuple[str, ...] = ()
    alone: bool = False

    def wanted(self, options: Mapping[str, Any], given: Sequence[str]) -> dict[str, bool]:
        """Which outputs there are, for these options and parameters that are there."""
        names = list(self.outputs)
        if "output_mask" in options:
            return dict(zip(names, map(bool, options["output_mask"]), strict=True))
        if "input_g" in options:
            flags = [options[flag] for flag in ("input_g", "input_g", "weight_g", "bias_g")]
            return dict(zip(names, map(bool, flags), strict=True))
        found = dict.fromkeys(names, True)
        for name in ("running_mean", "running_var"):
            if name in names:
                found[name] = name in given
        if self.name == "batch_norm" and not options["training"]:
            found = {name: name == "output" for name in names}
        return found


_DATA = {"grad_out": "data", "input": "data"}
_AXIS = ("channel_axis",)
OPERATORS = {
    operator.name: operator
    for operator in (
        Operator(
            "batch_norm_backward",
            {**_DATA, **dict.fromkeys(
                ("weight", "running_mean", "running_var", "save_mean", "save_invstd"), "channel")},
            ("grad_out", "input"),
            {"grad_input": ("data", ("input",)),
             "grad_weight": ("channel", ("weight", "mean", "input")),
             "grad_bias": ("channel", ("weight", "mean", "input"))},
            ("training", "eps", "output_mask", *_AXIS),
        ),
        Operator(
            "batch_norm_backward_reduce",
            {**_DATA, **dict.fromkeys(("mean", "invstd", "weight"), "channel")},
            ("grad_out", "input", "mean", "invstd"),
            {"sum_dy": ("channel", ("mean",)), "sum_dy_xmu": ("channel", ("mean",)),
             "grad_weight": ("channel", ("weight", "mean")),
             "grad_bias": ("channel", ("weight", "mean"))},
            ("input_g", "weight_g", "bias_g", *_AXIS),
        ),
        Operator(
            "batch_norm_backward_elemt",
            {**_DATA, **dict.fromkeys(
                ("mean", "invstd", "weight", "sum_dy", "sum_dy_xmu"), "channel"),
             "count": "count"},
            ("grad_out", "input", "mean", "invstd", "sum_dy", "sum_dy_xmu", "count"),
            {"grad_input": ("data", ("input",))},
            _AXIS,
            alone=True,
        ),
        Operator(
            "group_norm_backward",
            {**_DATA, "mean": "group", "rstd": "group", "weight": "channel"},
            ("grad_out", "input", "mean", "rstd"),
            {"grad_input": ("data", ("input",)),
             "grad_weight": ("channel", ("weight", "mean")),
             "grad_bias": ("channel", ("weight", "mean"))},
            ("num_groups", "output_mask", *_AXIS),
        ),
        Operator(
            "batch_norm",
            {"input": "data", **dict.fromkeys(
                ("weight", "bias", "running_mean", "running_var"), "channel")},
            ("input",),
            {"output": ("data", ("input",)), "mean": ("channel", ("wide",)),
             "invstd": ("channel", ("wide",)), "running_mean": ("channel", ("running_mean",)),
             "running_var": ("channel", ("running_var",))},
            ("training", "momentum", "eps", *_AXIS),
        ),
        Operator(
            "batch_norm_elemt",
            {"input": "data", **dict.fromkeys(("weight", "bias", "mean", "invstd"), "channel")},
            ("input", "mean", "invstd"),
            {"output": ("data", ("input",))},
            _AXIS,
            alone=True,
        ),
        Operator(
            "batch_norm_stats",
            {"input": "data"},
            ("input",),
            {"mean": ("channel", ("wide",)), "invstd": ("channel", ("wide",))},
            ("eps", *_AXIS),
        ),
        Operator(
            "batch_norm_gather_stats_with_counts",
            {"input": "data", "mean": "ranks", "invstd": "ranks", "running_mean": "channel",
             "running_var": "channel", "counts": "count"},
            ("input", "mean", "invstd", "counts"),
            {"mean": ("channel", ("mean",)), "invstd": ("channel", ("invstd",)),
             "running_mean": ("channel", ("running_mean",)),
             "running_var": ("channel", ("running_var",))},
            ("momentum", "eps"),
        ),
        Operator(
            "group_norm",
            {"input": "data", "weight": "channel", "bias": "channel"},
            ("input",),
            {"output": ("data", ("input",)), "mean": ("group", ("wide",)),
             "rstd": ("group", ("wide",))},
            ("num_groups", "eps", *_AXIS),
        ),
    )
}  # fmt: skip

#: Parameters that are about a spread: a variance, 1/std, or a number of elements.
SPREADS = {"running_var", "save_invstd", "invstd", "rstd", "count", "counts"}


def _same_value(draw: Any, value: Any, kinds: Sequence[Callable[[Any], Any]]) -> Any:
    """A number in one of the types that it may have."""
    return draw(st.sampled_from(kinds))(value)


@st.composite
def _reals(draw: Any, values: Sequence[float]) -> Any:
    value = draw(st.sampled_from(values))
    kinds: list[Any] = [float, np.float64, np.float32]
    if math.isfinite(value):
        kinds.append(Fraction)
        if value == int(value):
            kinds += [int, np.int64]
    return _same_value(draw, value, kinds)


_FLAGS = st.sampled_from([True, False, np.True_, np.False_])
_EPS = [1e-5, 1e-3, 1.0, 0.0, math.inf, 1e-300]
_MOMENTA = [0.1, 1.0, 0.0, 0.5, -0.5, 2.0, math.nan, math.inf]


@st.composite
def _options(draw: Any, operator: Operator, kind: str) -> dict[str, Any]:
    """Legal values; the axis is settled already, and comes from elsewhere."""
    everyday = kind in ("normal", "few")
    made: dict[str, Any] = {}
    for name in operator.options:
        if name in ("training", "input_g", "weight_g", "bias_g"):
            made[name] = draw(_FLAGS)
        elif name == "eps":
            made[name] = draw(_reals(_EPS[:3] if everyday else _EPS))
        elif name == "momentum":
            made[name] = draw(_reals(_MOMENTA[:4] if everyday else _MOMENTA))
        elif name == "output_mask":
            mask = draw(st.lists(_FLAGS, min_size=3, max_size=3))
            made[name] = draw(st.sampled_from([tuple, list, np.array]))(mask)
    return made


@dataclass(repr=False)
class Call(Short):
    """A call: its tensors and options, and the outputs that are given.

    Attributes:
        operator: what is called.
        tensors: by name; None where left out.
        options: everything else, but ``out``.
        axis: the channel axis, from the front.
        out: None for no argument; else an entry for each output, None for a new one.
        kind: of the values.
        framework: "numpy", "torch" or "dlpack".
    """

    operator: Operator
    tensors: dict[str, View | None]
    options: dict[str, Any]
    axis: int
    out: dict[str, View | None] | None
    kind: str
    framework: str

    def __repr__(self) -> str:
        parts = {**self.tensors, **self.options, "out": self.out}
        shown = "".join(f"\n    {name}={value!r}" for name, value in parts.items())
        return f"{self.operator.name} of {self.framework}, {self.kind} values:{shown}"

    @property
    def given(self) -> list[str]:
        return [name for name, view in self.tensors.items() if view is not None]

    @property
    def wanted(self) -> dict[str, bool]:
        return self.operator.wanted(self.options, self.given)

    @property
    def outputs(self) -> list[View]:
        """The given outputs that are written."""
        wanted = self.wanted
        return [
            view for name, view in (self.out or {}).items() if view is not None and wanted[name]
        ]

    @property
    def arenas(self) -> list[np.ndarray]:
        views = (*self.tensors.values(), *(self.out or {}).values())
        return [view.arena for view in views if view is not None]

    def watched(self) -> Watched:
        return Watched(self.arenas, self.outputs)

    def values(self) -> dict[str, np.ndarray | None]:
        """Copies of the inputs, for the oracle."""
        return {
            name: None if view is None else np.array(view.array)
            for name, view in self.tensors.items()
        }


@st.composite
def shapes(draw: Any, least: int = 2, most: int = 8) -> tuple[int, ...]:
    """Of as many axes; small, sometimes empty, sometimes with a long axis."""
    rank = draw(st.integers(least, most))
    sizes = draw(
        st.lists(st.sampled_from([1, 2, 3, 4, 2, 3, 5, 1, 0]), min_size=rank, max_size=rank)
    )
    while math.prod(sizes) > MOST_ELEMENTS:
        sizes[sizes.index(max(sizes))] = 1
    if rank and draw(st.integers(0, 7)) == 0:
        axis = draw(st.integers(0, rank - 1))
        rest = math.prod(size for index, size in enumerate(sizes) if index != axis)
        sizes[axis] = min(draw(st.sampled_from([7, 33, 70, 200])), MOST_ELEMENTS // max(1, rest))
    return tuple(sizes)


_MIXTURES = ("float32", "float32", "bfloat16", "float16", "float64", "half", "any")


@st.composite
def calls(
    draw: Any, name: str, frameworks: Sequence[str] = ("numpy", "numpy", "numpy", "torch", "dlpack")
) -> Call:
    """A legal call."""
    operator = OPERATORS[name]
    framework = draw(st.sampled_from(frameworks if torch is not None else ("numpy",)))
    shape = draw(shapes())
    grouped = "num_groups" in operator.options
    axis = 1
    if "channel_axis" in operator.options:
        axis = draw(st.integers(1 if grouped else 0, len(shape) - 1))
    channels = shape[axis]
    kind = draw(st.sampled_from(KINDS_OF_VALUES))
    options = draw(_options(operator, kind))
    if "channel_axis" in operator.options:
        spelled = draw(st.sampled_from([axis, axis - len(shape)]))
        options["channel_axis"] = _same_value(draw, spelled, [int, np.int64, np.int8])
    groups = 1
    if grouped:
        divisors = [n for n in range(1, channels + 1) if channels % n == 0] or [1, 2, 5]
        groups = draw(st.sampled_from(divisors))
        options["num_groups"] = _same_value(draw, groups, [int, np.int32])

    count_shape = draw(shapes(0, 8 if draw(st.booleans()) else 1))
    if "ranks" in operator.tensors.values() and math.prod(count_shape) > 16:
        count_shape = (3,)
    of_kind = {
        "data": shape,
        "channel": (channels,),
        "group": (shape[0], groups),
        "count": count_shape,
        "ranks": (math.prod(count_shape), channels),
    }

    mixture = draw(st.sampled_from(_MIXTURES))
    half = draw(st.sampled_from(["bfloat16", "float16"])) if mixture == "half" else ""

    def dtype_of(about: str) -> str:
        if about == "count":
            return str(draw(st.sampled_from(list(COUNTS))))
        if mixture == "any":
            return str(draw(st.sampled_from(list(FLOATS))))
        if mixture == "half":
            return half if about == "data" else "float32"
        return mixture

    how = {"negative": framework == "numpy", "whole": framework != "numpy"}
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tensors: dict[str, View | None] = {}
    for parameter, about in operator.tensors.items():
        if parameter not in operator.required and draw(st.booleans()):
            tensors[parameter] = None
            continue
        view_shape = of_kind[about]
        if parameter.startswith("save_") and not options["training"] and draw(st.booleans()):
            view_shape = (0,)
        view = draw(views(view_shape, dtype_of(about), **how))
        fill(view, rng, kind, parameter in SPREADS)
        tensors[parameter] = view

    call = Call(operator, tensors, options, axis, None, kind, framework)
    if draw(st.booleans()):
        call.out = _drawn_outputs(draw, call, of_kind, dtype_of, how)
    return call


def _drawn_outputs(
    draw: Any, call: Call, of_kind: Any, dtype_of: Any, how: Any
) -> dict[str, View | None]:
    """Outputs of every sort: in any layout, in place, between the elements of others."""
    out: dict[str, View | None] = {}
    before: list[View] = []
    how = {**how, "whole": True}
    for name, (about, _) in call.operator.outputs.items():
        if not call.wanted[name] or draw(st.integers(0, 3)) == 0:
            out[name] = None
            continue
        shape, dtype = of_kind[about], dtype_of(about)
        choices = ["new", "new", "between"]
        sources = {"grad_input": ("grad_out", "input"), "output": ("input",)}.get(name, ())
        if name.startswith("running"):
            sources = (name,)
        places = [
            view
            for source in sources
            if (view := call.tensors.get(source)) is not None
            and view.is_whole
            and is_apart(view.shape, view.strides)
            and not any(view.arena is other.arena for other in before)
        ]
        if places:
            choices.append("in place")
        choice = draw(st.sampled_from(choices))
        twins = [
            view
            for view in before
            if (view.shape, view.dtype) == (shape, dtype)
            and sum(view.arena is other.arena for other in before) == 1
        ]
        if choice == "in place":
            view = draw(st.sampled_from(places))
        elif choice == "between" and twins:
            view = _between(twins[-1]) or draw(views(shape, dtype, output=True, **how))
        elif choice == "between":
            # Twice as far apart as needed: room for another.
            itemsize = DTYPES[dtype].itemsize
            strides = [2 * itemsize] * len(shape)
            for axis in range(len(shape) - 2, -1, -1):
                strides[axis] = strides[axis + 1] * max(1, shape[axis + 1])
            view = placed(shape, dtype, strides)
        else:
            view = draw(views(shape, dtype, output=True, **how))
        out[name] = view
        before.append(view)
    return out


def _between(other: View) -> View | None:
    """A tensor of the same look between the elements of another; None where there is no room."""
    steps = [abs(step) for size, step in zip(other.shape, other.strides, strict=True) if size > 1]
    if not steps or any(step % (2 * other.itemsize) for step in steps):
        return None
    return View(other.shape, other.dtype, other.strides, other.offset + other.itemsize, other.arena)


def is_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no element is there twice, by counting them."""
    offsets = np.zeros((), np.int64)
    for size, step in zip(shape, strides, strict=True):
        offsets = offsets[..., None] + step * np.arange(size)
    return bool(np.unique(offsets).size == offsets.size)


# What callers hold


class Subclass(np.ndarray):
    """An array by another name."""


_NUMPY_FORMS: Sequence[Callable[[np.ndarray], Any]] = (
    lambda array: array,
    lambda array: array,
    lambda array: array.view(Subclass),
    lambda array: array.view(np.matrix) if array.ndim == 2 else array,
)


def _frozen(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _frozen_parameter(tensor: Any) -> Any:
    return torch.nn.Parameter(tensor, requires_grad=False)


def in_hand(draw: Any, view: View, framework: str, output: bool) -> Any:
    """A tensor as its framework has it, in one of the forms that are taken."""
    if framework == "numpy":
        forms = _NUMPY_FORMS if output else (*_NUMPY_FORMS, _frozen)
        return draw(st.sampled_from(forms))(view.array)
    if framework == "torch":
        made = view.tensor
        return (
            made if output else draw(st.sampled_from([lambda each: each, _frozen_parameter]))(made)
        )
    return Producer(view.tensor)


def as_array(value: Any) -> np.ndarray:
    """A result of any framework as NumPy's."""
    if isinstance(value, Producer):
        value = value._tensor
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    value = value.detach()
    if value.dtype is torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def arguments(draw: Any, call: Call) -> dict[str, Any]:
    """A call's keyword arguments."""
    made: dict[str, Any] = dict(call.options)
    for name, view in call.tensors.items():
        if view is not None or name in call.operator.required or draw(st.booleans()):
            made[name] = None if view is None else in_hand(draw, view, call.framework, False)
    positional = [name for name in call.operator.tensors if name not in made]
    made.update(dict.fromkeys(positional))
    if call.out is not None:
        entries = [
            None if view is None else in_hand(draw, view, call.framework, True)
            for view in call.out.values()
        ]
        made["out"] = entries[0] if call.operator.alone else tuple(entries)
    return made
