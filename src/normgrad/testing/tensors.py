"""Tensors to test operators with, in any layout and dtype, with a forward pass's statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import dtypes, reference
from ..contract import Operator, Output
from ..dtypes import DType
from ..operators.by_name import PLANNED, choices_of

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

#: How the values of a tensor may lie in memory; see :func:`lay_out`.
LAYOUTS = ("contiguous", "channels_last", "sliced", "transposed", "negative", "expanded", "odd")
HALVES = ("float16", "bfloat16")

#: Added to variances, where nothing else is said.
EPS = 1e-5

_GATHER = "batch_norm_gather_stats_with_counts"
#: What of the options the oracle takes: the others say what is not to be computed.
_FOR_ORACLE = (*("training", "momentum", "eps", "channel_axis", "num_groups", "normalized_shape"),)


def lay_out(values: Array, layout: str) -> Array:
    """The same values in another memory layout.

    Args:
        values: any array.
        layout: "contiguous"; "channels_last": axis 1 is the last in memory; "sliced": every second
            element of a larger array, whose others are NaN; "transposed": the axes in memory in
            reverse; "negative": every stride negative; "expanded": the last axis has stride 0, and
            so the values of its first element; "odd": the last axis contiguous, with three
            elements more between rows.

    Raises:
        ValueError: another layout.
    """
    if layout == "contiguous":
        return np.ascontiguousarray(values)
    if layout == "channels_last":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)
    if layout == "sliced":
        wide = np.full([2 * size + 1 for size in values.shape], np.nan, values.dtype)
        view = wide[tuple(slice(1, 2 * size + 1, 2) for size in values.shape)]
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
    if layout == "odd":
        wide = np.full((*values.shape[:-1], values.shape[-1] + 3), np.nan, values.dtype)
        view = wide[..., 2 : 2 + values.shape[-1]]
        view[...] = values
        return view
    raise ValueError(f"layout: {layout!r}; allowed: {', '.join(LAYOUTS)}")


@dataclass
class Call:
    """A call of an operator, as NumPy arrays.

    Attributes:
        name: the operator, by the name of normgrad's function.
        tensors: its tensors by the names of its parameters; None where absent.
        options: its other arguments.
        out: tensors of the caller's to write to, as the function takes them.
    """

    name: str
    tensors: dict[str, Array | None]
    options: dict[str, Any] = field(default_factory=dict)
    out: Any = None

    def __repr__(self) -> str:
        tensors = {
            name: None if value is None else f"{value.dtype}{value.shape}{value.strides}"
            for name, value in self.tensors.items()
        }
        return f"{self.name}({tensors}, {self.options})"

    @property
    def operator(self) -> Operator:
        """The operator's contract."""
        return PLANNED[self.name]

    @property
    def inputs(self) -> list[Array | None]:
        """The tensors, as the operator reads them."""
        return list(self.tensors.values())

    @property
    def arithmetic(self) -> DType:
        """What it is computed in, which the bound depends on."""
        # Statistics of ranks are merged without their data.
        names = ("mean", "invstd") if self.name == _GATHER else ("grad_out", "input")
        found = (self.tensors.get(name) for name in names)
        return dtypes.arithmetic(*(dtypes.parse(each.dtype) for each in found if each is not None))

    @property
    def choices(self) -> dict[str, Any]:
        """The arguments that are not tensors, with the defaults of those not given."""
        return {**choices_of(self.name), **self.options}

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What there is to compute, wanted or not."""
        return self.operator.outputs(self.operator.read_options(**self.choices))

    @property
    def results(self) -> tuple[str, ...]:
        """What the outputs are called in the function's result, and by the oracle."""
        outputs = self.outputs
        if self.operator.out_is_tensor:
            return (outputs[0].name,)
        fields: tuple[str, ...] = self.operator.result([None] * len(outputs))._fields
        return fields

    def give(self, data: Array | None) -> None:
        """Have the first output, the one that is shaped like the input, written to this."""
        rest = [None] * (len(self.outputs) - 1)
        self.out = data if self.operator.out_is_tensor else (data, *rest)

    @property
    def first_out(self) -> Array | None:
        """What was given for the first output."""
        found: Array | None = self.out
        if isinstance(self.out, tuple):
            found = self.out[0]
        return found

    def exact(self) -> dict[str, reference.Exact]:
        """The oracle's outputs by name, each with its scale."""
        options = {name: value for name, value in self.options.items() if name in _FOR_ORACLE}
        with np.errstate(all="ignore"):
            found: dict[str, reference.Exact] = getattr(reference, self.name)(
                **self.tensors, **options
            )
        return found

    def call(self, **more: Any) -> Any:
        """What normgrad returns."""
        import normgrad

        return getattr(normgrad, self.name)(**self.tensors, **self.options, **more)


@dataclass
class _Maker:
    """Normally distributed tensors, with the statistics that a forward pass would give.

    Attributes:
        parameters: the dtype of what there is for each channel.
        options: where the channels are, if that is to be said.
    """

    shape: Shape
    axis: int
    groups: int
    parameters: np.dtype[Any]
    options: dict[str, Any]
    rng: np.random.Generator
    grad_out: Array
    input: Array
    weight: Array | None = None
    bias: Array | None = None

    @property
    def data(self) -> dict[str, Array | None]:
        return {"grad_out": self.grad_out, "input": self.input}

    @property
    def channels(self) -> int:
        return self.shape[self.axis]

    def vector(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape or self.channels).astype(self.parameters)

    @property
    def count(self) -> int:
        return max(1, self.input.size // max(1, self.channels))

    def statistics(self) -> tuple[Array, Array]:
        """Of every channel: the mean as it is rounded, the variance."""
        wide = self.input.astype(np.float64)
        others = tuple(axis for axis in range(wide.ndim) if axis != self.axis)
        mean = (wide.sum(others) / self.count).astype(self.parameters)
        with np.errstate(all="ignore"):
            var = (wide**2).sum(others) / self.count - mean.astype(np.float64) ** 2
        return mean, np.maximum(var, 0.0)

    def invstd(self, var: Array) -> Array:
        return (1 / np.sqrt(var + EPS)).astype(self.parameters)

    def train(self) -> Call:
        mean, var = self.statistics()
        saved = {"save_mean": mean, "save_invstd": self.invstd(var)}
        tensors = {**self.data, "weight": self.weight, **saved}
        return Call("batch_norm_backward", tensors, {"training": True, **self.options})

    def train_without_statistics(self) -> Call:
        options = {"training": True, "eps": 1e-3, **self.options}
        return Call("batch_norm_backward", {**self.data, "weight": self.weight}, options)

    def eval(self) -> Call:
        mean, var = self.statistics()
        running = {"running_mean": mean, "running_var": var.astype(self.parameters)}
        tensors = {**self.data, "weight": self.weight, **running}
        return Call("batch_norm_backward", tensors, {"training": False, **self.options})

    def reduce(self) -> Call:
        mean, var = self.statistics()
        tensors = {**self.data, "mean": mean, "invstd": self.invstd(var), "weight": self.weight}
        return Call("batch_norm_backward_reduce", tensors, dict(self.options))

    def elemt(self) -> Call:
        mean, var = self.statistics()
        sums = self.rng.standard_normal((2, self.channels)) * np.sqrt(self.count)
        tensors = {
            **self.data,
            "mean": mean,
            "invstd": self.invstd(var),
            "weight": self.weight,
            "sum_dy": sums[0].astype(self.parameters),
            "sum_dy_xmu": sums[1].astype(self.parameters),
            "count": np.array([self.count, 2 * self.count], np.int32),
        }
        return Call("batch_norm_backward_elemt", tensors, dict(self.options))

    def group_norm(self) -> Call:
        wide = self.input.astype(np.float64)
        groups = np.zeros((self.shape[0], self.groups, 1))
        if wide.size:
            groups = np.moveaxis(wide, self.axis, 1).reshape(*groups.shape[:2], -1)
        mean = groups.mean(-1).astype(self.parameters)
        var = ((groups - mean.astype(np.float64)[..., None]) ** 2).mean(-1)
        statistics = {"mean": mean, "rstd": self.invstd(var)}
        tensors = {**self.data, **statistics, "gamma": self.weight}
        return Call("group_norm_backward", tensors, {"num_groups": self.groups, **self.options})

    @property
    def row(self) -> Shape:
        """What layer norm normalises: the last axis, or the last two where there are many."""
        return self.shape[-2:] if len(self.shape) > 3 else self.shape[-1:]

    def of_rows(self, values: Array) -> Array:
        """The mean of each row."""
        over = tuple(range(-len(self.row), 0))
        means: Array = values.sum(over, keepdims=True) / max(1, math.prod(self.row))
        return means

    def _of_position(self, given: Array | None) -> Array | None:
        return None if given is None else self.vector(*self.row)

    def layer_norm(self) -> Call:
        wide = self.input.astype(np.float64)
        mean = self.of_rows(wide).astype(self.parameters)
        var = self.of_rows((wide - mean.astype(np.float64)) ** 2)
        weight = self._of_position(self.weight)
        tensors = {**self.data, "mean": mean, "rstd": self.invstd(var), "weight": weight}
        return Call("layer_norm_backward", tensors, {"normalized_shape": self.row})

    def forward_layer_norm(self) -> Call:
        affine = {"weight": self._of_position(self.weight), "bias": self._of_position(self.bias)}
        options = {"normalized_shape": self.row, "eps": 1e-3}
        return Call("layer_norm", {"input": self.input, **affine}, options)

    def rms_norm(self) -> Call:
        squares = self.of_rows(self.input.astype(np.float64) ** 2)
        weight = self._of_position(self.weight)
        tensors = {**self.data, "rstd": self.invstd(squares), "weight": weight}
        return Call("rms_norm_backward", tensors, {"normalized_shape": self.row})

    def forward_rms_norm(self) -> Call:
        tensors = {"input": self.input, "weight": self._of_position(self.weight)}
        return Call("rms_norm", tensors, {"normalized_shape": self.row, "eps": 1e-3})

    def _forward(self, training: bool) -> Call:
        running = {"running_mean": self.vector(), "running_var": abs(self.vector())}
        tensors = {"input": self.input, "weight": self.weight, "bias": self.bias, **running}
        options = {"training": training, "eps": 1e-3, "momentum": 0.3, **self.options}
        return Call("batch_norm", tensors, options)

    def forward(self) -> Call:
        return self._forward(training=True)

    def forward_eval(self) -> Call:
        return self._forward(training=False)

    def normalise(self) -> Call:
        mean, var = self.statistics()
        affine = {"weight": self.weight, "bias": self.bias}
        tensors = {"input": self.input, **affine, "mean": mean, "invstd": self.invstd(var)}
        return Call("batch_norm_elemt", tensors, dict(self.options))

    def stats(self) -> Call:
        return Call("batch_norm_stats", {"input": self.input}, {"eps": EPS, **self.options})

    def gather(self) -> Call:
        mean, _ = self.statistics()
        spread = np.abs(self.rng.standard_normal((3, self.channels))) + 0.5
        means = mean.astype(np.float64) + self.rng.standard_normal((3, self.channels))
        running = {"running_mean": self.vector(), "running_var": abs(self.vector())}
        ranks = {"mean": means.astype(self.parameters), "invstd": self.invstd(spread)}
        counts = np.array([self.count, 0, 2 * self.count], np.int32)
        tensors: dict[str, Array | None]
        tensors = {"input": self.input, **ranks, **running, "counts": counts}
        return Call(_GATHER, tensors, {"eps": EPS, "momentum": 0.3})

    def forward_group_norm(self) -> Call:
        tensors = {"input": self.input, "gamma": self.weight, "beta": self.bias}
        options = {"num_groups": self.groups, "eps": 1e-3, **self.options}
        return Call("group_norm", tensors, options)


#: The gradients, batch norm's in its ways.
GRADIENTS = (
    "train",
    "train_without_statistics",
    "eval",
    "reduce",
    "elemt",
    "group_norm",
    "layer_norm",
    "rms_norm",
)
#: The forward pass, and its statistics.
FORWARD = (
    *("forward", "forward_eval", "normalise", "stats", "gather"),
    *("forward_group_norm", "forward_layer_norm", "forward_rms_norm"),
)

_MADE: dict[str, Callable[[_Maker], Call]] = {
    name: getattr(_Maker, name) for name in (*GRADIENTS, *FORWARD)
}


@cache
def operator_of(kind: str) -> str:
    """The operator that a kind is a call of, by the name of normgrad's function."""
    return make(kind, (1, 1)).name


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
    seed: int = 0,
) -> Call:
    """A call with normally distributed tensors, and the statistics that a forward pass would give.

    Args:
        kind: one of ``GRADIENTS`` or ``FORWARD``.
        shape: of input.
        dtype: of grad_out.
        x_dtype: of input; as grad_out's if None.
        parameter_dtype: of what there is for each channel; if None, input's, float32 for halves.
        layout: how grad_out lies in memory, one of ``LAYOUTS``.
        x_layout: how input does; as grad_out if None.
        channel_axis, num_groups: the operator's options.
        mean, std: of the input.
        weight: whether there are a weight and a bias.
        seed: for the random numbers.
    """
    x_dtype = x_dtype or dtype
    parameters = parameter_dtype or ("float32" if dtype in HALVES else x_dtype)
    rng = np.random.default_rng(seed)
    dy = rng.standard_normal(shape).astype(dtypes.BY_NAME[dtype].numpy)
    x = (mean + std * rng.standard_normal(shape)).astype(dtypes.BY_NAME[x_dtype].numpy)
    maker = _Maker(
        tuple(shape),
        channel_axis % len(shape),
        num_groups,
        dtypes.BY_NAME[parameters].numpy,
        {} if channel_axis == 1 else {"channel_axis": channel_axis},
        rng,
        lay_out(dy, layout),
        lay_out(x, x_layout or layout),
    )
    if weight:
        maker.weight, maker.bias = maker.vector(), maker.vector()
    return _MADE[kind](maker)
