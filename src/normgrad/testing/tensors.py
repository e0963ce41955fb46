"""Make test tensors in any layout and dtype, with the statistics of a forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..declarations.contract import Input, Kind, Operator, Output
from ..declarations.options import Options
from ..declarations.problem import Role
from ..operators import reference
from ..operators.by_name import PLANNED, choices_of, parameters_of
from ..tensors import dtypes
from ..tensors.dtypes import DType

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

#: The memory layouts of a tensor; see :func:`lay_out`.
LAYOUTS = (
    *("contiguous", "channels_last", "sliced", "transposed", "negative", "expanded", "odd"),
    "constant",
)
HALVES = ("float16", "bfloat16")

#: The default constant that is added to variances.
EPS = 1e-5


def lay_out(values: Array, layout: str) -> Array:
    """The same values in another memory layout.

    Args:
        values: any array.
        layout: "contiguous"; "channels_last": axis 1 is the last in memory; "sliced": every second
            element, along each axis, of a larger array whose other elements are NaN; "transposed":
            the axes lie in memory in reverse order; "negative": every stride is negative;
            "expanded": the last axis has stride 0, and repeats its first element; "odd": the last
            axis is contiguous, with three more elements between rows; "constant": every stride is
            0, as in the gradient of a sum.

    Raises:
        ValueError: the layout is unknown.
    """
    if layout == "contiguous":
        return np.ascontiguousarray(values)
    if layout == "channels_last":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)
    if layout in ("sliced", "odd"):
        shape = tuple(2 * size + 1 for size in values.shape)
        places: tuple[Any, ...] = tuple(slice(1, size, 2) for size in shape)
        if layout == "odd":
            *outer, row = values.shape
            shape, places = (*outer, row + 3), (..., slice(2, 2 + row))
        view: Array = np.full(shape, np.nan, values.dtype)[places]
        view[...] = values
        return view
    if layout == "transposed":
        return np.ascontiguousarray(values.T).T
    if layout == "negative":
        flip = tuple(slice(None, None, -1) for _ in values.shape)
        return np.ascontiguousarray(values[flip])[flip]
    if layout == "expanded":
        first = values[..., :1] if values.shape[-1] else values
        return np.broadcast_to(first, values.shape)
    if layout == "constant":
        return np.broadcast_to(values.reshape(-1)[:1].reshape(()), values.shape)
    raise ValueError(f"layout: {layout!r}; allowed: {', '.join(LAYOUTS)}")


@dataclass
class Call:
    """A call of an operator, as NumPy arrays.

    Attributes:
        name: the operator, by the name of normgrad's function.
        tensors: its tensors by the names of its parameters; None where absent.
        options: its other arguments.
        out: the caller's tensors to write to, as the function takes them.
    """

    name: str
    tensors: dict[str, Array | None]
    options: dict[str, Any] = field(default_factory=dict)
    out: Any = None

    def __repr__(self) -> str:
        """The call as it is written, with a tensor's dtype, shape and strides in its place."""
        positional = [name for name in self.signature if name in (self.tensors | self.options)]
        values = {**self.tensors, **self.options}
        arguments = [_described(values.pop(name)) for name in positional]
        arguments += [f"{name}={_described(value)}" for name, value in values.items()]
        return f"{self.name}({', '.join(arguments)})"

    @property
    def operator(self) -> Operator:
        """The operator's contract."""
        return PLANNED[self.name]

    @property
    def arrays(self) -> dict[str, Array]:
        """The tensors that are not absent."""
        return {name: value for name, value in self.tensors.items() if value is not None}

    @property
    def inputs(self) -> list[Array]:
        """The tensors that the operator reads."""
        return list(self.arrays.values())

    @property
    def arithmetic(self) -> DType:
        """The dtype that the call is computed in, on which the bound depends."""
        # Merging the statistics of ranks reads no data tensors.
        names = ("mean", "invstd") if self.operator.gathers else ("grad_out", "input")
        arrays = (each for name, each in self.arrays.items() if name in names)
        return dtypes.arithmetic(*(dtypes.parse(each.dtype) for each in arrays))

    @property
    def choices(self) -> dict[str, Any]:
        """The arguments that are not tensors, including defaults."""
        return {**choices_of(self.name), **self.options}

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All outputs of the operator, whatever the mask."""
        return self.operator.outputs(self.operator.read_options(**self.choices))

    @property
    def results(self) -> tuple[str, ...]:
        """The outputs' names in the function's result, which the oracle uses too."""
        outputs = self.outputs
        if self.operator.out_is_tensor:
            return (outputs[0].name,)
        return tuple(self.operator.result([None] * len(outputs))._fields)

    @property
    def data(self) -> Array:
        """The data tensor whose shape and dtype the outputs have."""
        return self.arrays["input"]

    @property
    def signature(self) -> tuple[str, ...]:
        """The names of the arguments that the operator's function takes by position, in order."""
        parameters = parameters_of(self.name).values()
        return tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)

    @property
    def size(self) -> int:
        """The number of elements of the data, which no sum has more terms than."""
        return max((each.size for each in self.arrays.values()), default=1)

    @property
    def count(self) -> int:
        """The number of elements that one mean and 1/std are of."""
        data, kind = self.data, self.operator.statistics
        sets = data.shape[self.choices.get("channel_axis", 1)] if data.ndim > 1 else 1
        if kind is Kind.ROW:
            row = self.choices["normalized_shape"]
            return int(np.prod(row))
        if kind is Kind.GROUP:
            sets = len(data) * int(self.choices["num_groups"])
        return data.size // max(1, sets)

    def give(self, data: Array | None) -> None:
        """Have the first output, which has the input's shape, written to this array."""
        rest = [None] * (len(self.outputs) - 1)
        self.out = data if self.operator.out_is_tensor else (data, *rest)

    @property
    def first_out(self) -> Array | None:
        """The caller's array for the first output."""
        array: Array | None = self.out[0] if isinstance(self.out, tuple) else self.out
        return array

    def exact(self) -> dict[str, reference.Exact]:
        """The oracle's outputs by name, each with its scale."""
        # Without the masks: the oracle computes all outputs.
        options = {name: each for name, each in self.options.items() if name in Options._fields}
        oracle: Callable[..., dict[str, reference.Exact]] = getattr(reference, self.name)
        with np.errstate(all="ignore"):
            return oracle(**self.tensors, **options)

    def call(self, **more: Any) -> Any:
        """Make the call with normgrad's function, and return its result."""
        import normgrad

        return getattr(normgrad, self.name)(**self.tensors, **self.options, **more)


def _described(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    strides = "" if value.flags.c_contiguous else f" of strides {value.strides}"
    return f"{value.dtype}{value.shape}{strides}"


#: The kinds of calls: the operator, the tensors that are left out, and options other than those for
#: channels, groups and rows. The gradients come first, with several kinds for batch norm.
_KINDS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "train": ("batch_norm_backward", "running_mean running_var", {"training": True}),
    "train_without_statistics": (
        "batch_norm_backward",
        "running_mean running_var save_mean save_invstd",
        {"training": True, "eps": 1e-3},
    ),
    "eval": ("batch_norm_backward", "save_mean save_invstd", {"training": False, "eps": 1e-3}),
    "reduce": ("batch_norm_backward_reduce", "", {}),
    "elemt": ("batch_norm_backward_elemt", "", {}),
    "group_norm": ("group_norm_backward", "", {}),
    "layer_norm": ("layer_norm_backward", "", {}),
    "rms_norm": ("rms_norm_backward", "", {}),
    "forward": ("batch_norm", "", {"training": True, "eps": 1e-3, "momentum": 0.3}),
    "forward_eval": ("batch_norm", "", {"training": False, "eps": 1e-3, "momentum": 0.3}),
    "normalise": ("batch_norm_elemt", "", {}),
    "stats": ("batch_norm_stats", "", {"eps": EPS}),
    "gather": ("batch_norm_gather_stats_with_counts", "", {"eps": EPS, "momentum": 0.3}),
    "forward_group_norm": ("group_norm", "", {"eps": 1e-3}),
    "forward_layer_norm": ("layer_norm", "", {"eps": 1e-3}),
    "forward_rms_norm": ("rms_norm", "", {"eps": 1e-3}),
}
GRADIENTS = tuple(kind for kind, (name, *_) in _KINDS.items() if PLANNED[name].is_gradient)
#: The kinds that are no gradients: forward passes, and their statistics.
FORWARD = tuple(kind for kind in _KINDS if kind not in GRADIENTS)


def operator_of(kind: str) -> str:
    """The operator that a kind calls, by the name of normgrad's function."""
    return _KINDS[kind][0]


def make(
    kind: str,
    shape: Shape,
    *,
    dtype: str = "float32",
    x_dtype: str | None = None,
    parameter_dtype: str | None = None,
    layout: str = "contiguous",
    x_layout: str | None = None,
    channel_axis: int = 1,
    num_groups: int = 1,
    mean: float = 0.3,
    std: float = 1.0,
    weight: bool = True,
    row_axes: int | None = None,
    seed: int = 0,
) -> Call:
    """A call with normally distributed tensors, and the statistics that a forward pass would give.

    Args:
        kind: one of ``GRADIENTS`` or ``FORWARD``.
        shape: the input's shape.
        dtype: grad_out's dtype.
        x_dtype: the input's dtype; grad_out's if None.
        parameter_dtype: the dtype of vectors; if None, the input's, but float32 for halves.
        layout: grad_out's memory layout, one of ``LAYOUTS``.
        x_layout: the input's memory layout; grad_out's if None.
        channel_axis, num_groups: the operator's options.
        mean, std: the input's mean and standard deviation.
        weight: whether there are a weight and a bias.
        row_axes: the number of axes of a row; 0 for one that ``normalized_shape`` gives as an
            integer. If None, two of four or more axes, else one.
        seed: the seed of the random numbers.
    """
    x_dtype = x_dtype or dtype
    parameter_dtype = parameter_dtype or ("float32" if dtype in HALVES else x_dtype)
    real = dtypes.BY_NAME[parameter_dtype].numpy
    rng = np.random.default_rng(seed)
    dy = rng.standard_normal(shape).astype(dtypes.BY_NAME[dtype].numpy)
    x = (mean + std * rng.standard_normal(shape)).astype(dtypes.BY_NAME[x_dtype].numpy)
    data = {"grad_out": lay_out(dy, layout), "input": lay_out(x, x_layout or layout)}

    name, absent, options = _KINDS[kind]
    operator = PLANNED[name]
    axis = channel_axis % len(shape)
    channels = shape[axis]
    count = max(1, x.size // max(1, channels))
    row = (
        shape[-(row_axes or 1) :] if row_axes is not None else shape[-2 if len(shape) > 3 else -1 :]
    )

    def vector(*sizes: int) -> Array:
        return rng.standard_normal(sizes or channels).astype(real)

    affine = {Role.WEIGHT: vector(), Role.BIAS: vector()} if weight else {}
    mean_of, var_of = _statistics(operator, data["input"], axis, num_groups, row, real)
    if operator.gathers:  # the statistics of three ranks
        var_of = abs(rng.standard_normal((3, channels))) + 0.5
        mean_of = mean_of + rng.standard_normal((3, channels))
    invstd_of: Array = 1 / np.sqrt(var_of + EPS)

    def value(parameter: Input) -> Array | None:
        role = parameter.role
        if isinstance(role, tuple):
            role = role[0] or role[1]
        if parameter.kind is Kind.DATA:
            return data[parameter.name]
        if parameter.kind is Kind.COUNT:
            counts = [count, 0, 2 * count] if operator.gathers else [count, 2 * count]
            return np.array(counts, np.int32)
        if role is Role.MEAN:
            return mean_of.astype(real)
        if role is Role.INVSTD:
            return (var_of if parameter.is_variance else invstd_of).astype(real)
        if role in (Role.SUM_DY, Role.SUM_DY_XMU):
            total: Array = rng.standard_normal(channels) * math.sqrt(count)
            return total.astype(real)
        if role in (Role.RUNNING_MEAN, Role.RUNNING_VAR):
            return abs(vector()) if role is Role.RUNNING_VAR else vector()
        if parameter.kind is Kind.POSITION:
            return vector(*row) if weight else None
        return affine.get(role or Role.WEIGHT)

    parameters = [each for each in operator.inputs if each.name not in absent.split()]
    normalized_shape = row[0] if row_axes == 0 else row
    sizes: dict[str, Any] = {"num_groups": num_groups, "normalized_shape": normalized_shape}
    sizes |= {"channel_axis": channel_axis} if channel_axis != 1 else {}
    choices = {name: each for name, each in sizes.items() if name in operator.options}
    return Call(name, {each.name: value(each) for each in parameters}, {**choices, **options})


def _statistics(
    operator: Operator, x: Array, axis: int, groups: int, row: Shape, real: np.dtype[Any]
) -> tuple[Array, Array]:
    """The rounded mean of each channel, group or row, and the variance about that mean."""
    wide = x.astype(np.float64)
    over = tuple(each for each in range(x.ndim) if each != axis)
    if operator.statistics is Kind.ROW:
        over = tuple(range(x.ndim - len(row), x.ndim))
    elif operator.statistics is Kind.GROUP:
        wide, over = np.moveaxis(wide, axis, 1), (2,)
        wide = wide.reshape(len(wide), groups, x.size // (len(wide) * groups or 1))
    count = max(1, math.prod(wide.shape[each] for each in over))
    mean = (wide.sum(over, keepdims=True) / count).astype(real).astype(np.float64)
    centred = wide - mean if operator.is_centred else wide
    var = (centred**2).sum(over, keepdims=True) / count
    if operator.statistics is Kind.ROW:
        return mean, var
    return mean.squeeze(over), var.squeeze(over)
