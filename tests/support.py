"""What the tests share: tensors in every layout, and the one check that every result must pass."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import normgrad as ng
from normgrad import dtypes, plans, precision, reference
from normgrad.backends import choice
from normgrad.backends.cpu import program, steps
from normgrad.backends.triton import device
from normgrad.backends.triton.device import Device

FLOATS = {dtype.name: dtype.numpy for dtype in dtypes.FLOATS}
HALVES = ("float16", "bfloat16")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: Whether Triton's interpreter computes, for which large tensors take too long.
INTERPRETED = os.environ.get("NORMGRAD_BACKEND") == "triton"
#: A shape whose rows are longer than what is taken at once.
LONG_ROWS = (3, 2, 20, 20) if INTERPRETED else (3, 6, 70, 70)

LAYOUTS = ("contiguous", "channels_last", "sliced", "transposed", "negative", "expanded", "odd")


def lay_out(values: np.ndarray, layout: str) -> np.ndarray:
    """The same values (but for "expanded") in another memory layout."""
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
    if layout == "odd":  # the last axis contiguous, the rows apart
        wide = np.full((*values.shape[:-1], values.shape[-1] + 3), np.nan, values.dtype)
        view = wide[..., 2 : 2 + values.shape[-1]]
        view[...] = values
        return view
    raise ValueError(layout)


def same_strides(like: np.ndarray) -> np.ndarray:
    """A new array with exactly these strides, negative ones too, full of NaN."""
    flip = tuple(slice(None, None, -1 if step < 0 else 1) for step in like.strides)
    low = like[flip]
    span = 1 + sum(
        (n - 1) * abs(s) // low.itemsize for n, s in zip(low.shape, low.strides, strict=True)
    )
    flat = np.full(span, np.nan, like.dtype)
    return np.lib.stride_tricks.as_strided(flat, low.shape, low.strides)[flip]


def poisoned(like: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """A new output in the same layout, full of NaN."""
    out = np.empty_like(like, dtype=dtype or like.dtype)
    out[...] = np.nan
    return out


@dataclass
class Case:
    """A call: the operator, its tensors and options, as NumPy arrays."""

    name: str
    tensors: dict[str, np.ndarray | None]
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        tensors = {
            name: None if value is None else f"{value.dtype}{value.shape}{value.strides}"
            for name, value in self.tensors.items()
        }
        return f"{self.name}({tensors}, {self.options})"

    @property
    def arithmetic(self) -> dtypes.DType:
        data = (self.tensors[name] for name in ("grad_out", "input") if name in self.tensors)
        return dtypes.arithmetic(*(dtypes.parse(tensor.dtype) for tensor in data))

    def exact(self) -> dict[str, reference.Exact]:
        options = {
            key: value
            for key, value in self.options.items()
            if key in ("training", "momentum", "eps", "channel_axis", "num_groups")
        }
        with np.errstate(all="ignore"):
            return getattr(reference, self.name)(**self.tensors, **options)

    def call(self, **more: Any) -> Any:
        return getattr(ng, self.name)(**self.tensors, **self.options, **more)


def named(result: Any) -> dict[str, Any]:
    """A result by name; that of an operator with one output is the tensor itself."""
    return result._asdict() if hasattr(result, "_asdict") else {"the only one": result}


def check(case: Case, result: Any, *, normal: bool = False, exact: Any = None) -> float:
    """Every output within its bound; the largest error in units of it."""
    worst = 0.0
    exact = exact or case.exact()
    for name, value in named(result).items():
        if value is None:
            continue
        name = name if name in exact else next(iter(exact))
        units = precision.error(np.asarray(value), exact[name], case.arithmetic, normal)
        assert units.shape == exact[name].value.shape
        if units.size:
            worst = max(worst, float(units.max()))
            assert units.max() <= 1, f"{name}: {units.max():.3g} of the bound in {case}"
    return worst


def run(case: Case, *, normal: bool = False, **more: Any) -> Any:
    """Call, check against the oracle, and see that no input has changed."""
    before = {
        name: None if value is None else value.tobytes() for name, value in case.tensors.items()
    }
    exact = case.exact()
    result = case.call(**more)
    after = {
        name: None if value is None else value.tobytes() for name, value in case.tensors.items()
    }
    assert before == after
    check(case, result, normal=normal, exact=exact)
    return result


def bits(result: Any) -> dict[str, bytes | None]:
    """A result as bytes, to compare exactly."""
    return {
        name: None if value is None else np.ascontiguousarray(value).tobytes()
        for name, value in named(result).items()
    }


#: What is interpreted in the place of a GPU where tensors are to be cut finely.
FINE = Device("fine", processors=3, l2=1 << 10, threads=32, programs_each=1, held=1)


@contextlib.contextmanager
def on_device(made_up: Device) -> Iterator[None]:
    """Plans that are interpreted are for this GPU."""
    with (
        mock.patch.object(device, "INTERPRETED", made_up),
        mock.patch.object(choice, "_triton", cache(choice._Triton)),
        mock.patch.dict(plans._plans, clear=True),
    ):
        yield


@contextlib.contextmanager
def cut_finely() -> Iterator[None]:
    """Plans as for large tensors: many tasks, channels in parts, dx written past the caches.

    And on a GPU that is interpreted, whose cache holds next to nothing and whose programs nothing.
    """
    with (
        on_device(FINE),
        mock.patch.object(steps, "SMALL", 1),
        mock.patch.object(steps, "PART", 8),
        mock.patch.object(steps, "CHANNELS_PER_TASK", 2),
        mock.patch.object(steps, "ROWS_OF_PART", 1),
        mock.patch.object(program, "streams", return_value=True),
        mock.patch.object(program, "fetches_ahead", return_value=True),
        mock.patch.dict(plans._plans, clear=True),
    ):
        yield


OPERATORS = (
    "train",
    "train_without_statistics",
    "eval",
    "reduce",
    "elemt",
    "group_norm",
)


def make(
    kind: str,
    shape: tuple[int, ...],
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
) -> Case:
    """Normally distributed tensors, with the statistics that a forward pass would give."""
    rng = np.random.default_rng(seed)
    axis = channel_axis % len(shape)
    x_dtype = x_dtype or dtype
    parameter_dtype = parameter_dtype or ("float32" if dtype in HALVES else x_dtype)
    parameters = FLOATS[parameter_dtype]

    def tensor(values: np.ndarray, name: str, where: str) -> np.ndarray:
        return lay_out(values.astype(FLOATS[name]), where)

    dy = tensor(rng.standard_normal(shape), dtype, layout)
    x = tensor(mean + std * rng.standard_normal(shape), x_dtype, x_layout or layout)
    channels = shape[axis]
    w = rng.standard_normal(channels).astype(parameters) if weight else None
    wide = x.astype(np.float64)
    others = tuple(i for i in range(len(shape)) if i != axis)
    data = {"grad_out": dy, "input": x}
    common = {} if channel_axis == 1 else {"channel_axis": channel_axis}
    with np.errstate(all="ignore"):
        if kind == "group_norm":
            groups = np.zeros((shape[0], num_groups, 1))
            if wide.size:
                groups = np.moveaxis(wide, axis, 1).reshape(shape[0], num_groups, -1)
            mu = groups.mean(-1).astype(parameters)
            var = ((groups - mu.astype(np.float64)[..., None]) ** 2).mean(-1)
            return Case(
                "group_norm_backward",
                {**data, "mean": mu, "rstd": (1 / np.sqrt(var + 1e-5)).astype(parameters),
                 "gamma": w},
                {"num_groups": num_groups, **common},
            )  # fmt: skip
        count = max(1, wide.size // max(1, channels))
        mu = (wide.sum(others) / count).astype(parameters)
        var = (wide**2).sum(others) / count - mu.astype(np.float64) ** 2
        var = np.maximum(var, 0.0)
        r = (1 / np.sqrt(var + 1e-5)).astype(parameters)
    if kind == "train":
        return Case(
            "batch_norm_backward",
            {**data, "weight": w, "save_mean": mu, "save_invstd": r},
            {"training": True, **common},
        )
    if kind == "train_without_statistics":
        return Case(
            "batch_norm_backward", {**data, "weight": w}, {"training": True, "eps": 1e-3, **common}
        )
    if kind == "eval":
        return Case(
            "batch_norm_backward",
            {**data, "weight": w, "running_mean": mu, "running_var": var.astype(parameters)},
            {"training": False, **common},
        )
    if kind == "reduce":
        return Case(
            "batch_norm_backward_reduce",
            {**data, "mean": mu, "invstd": r, "weight": w},
            dict(common),
        )
    if kind == "elemt":
        sums = rng.standard_normal((2, channels)) * np.sqrt(count)
        return Case(
            "batch_norm_backward_elemt",
            {
                **data,
                "mean": mu,
                "invstd": r,
                "weight": w,
                "sum_dy": sums[0].astype(parameters),
                "sum_dy_xmu": sums[1].astype(parameters),
                "count": np.array([count, 2 * count], np.int32),
            },
            dict(common),
        )
    raise ValueError(kind)
