"""Make schedules for any device without having it, for the tests of plans and compilation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from common import FLOATS, HALVES, Case, lay_out

import normgrad as ng
from normgrad import TensorSpec, testing
from normgrad.backends import choice
from normgrad.backends.triton import schedule
from normgrad.backends.triton.device import Device
from normgrad.declarations.contract import Kind
from normgrad.declarations.problem import Problem
from normgrad.operators.by_name import PLANNED

H200 = Device()
#: Devices on which small tensors are read in one pass, or in two.
PASSES = {
    "one pass": Device("large", threads=32, processors=4, programs_each=1, persistent=1 << 14),
    "two passes": Device("bare", threads=32, processors=4, programs_each=1, persistent=1),
}

#: The kernels that read dy and x in tiles.
OVER_TENSORS = ("sums", "write", "groups")

A100 = Device("NVIDIA A100", 108)


def spec(shape: tuple[int, ...], dtype: str, layout: str = "contiguous") -> TensorSpec:
    """A tensor's spec: "contiguous", "channels_last", or "sliced" with a gap after each element."""
    if layout == "contiguous":
        return TensorSpec(shape, dtype)
    strides = [0] * len(shape)
    order = [*range(len(shape))]
    if layout == "channels_last":
        order = [0, *range(2, len(shape)), 1]
    step = 2 if layout == "sliced" else 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis] * (2 if layout == "sliced" else 1)
    return TensorSpec(shape, dtype, strides)


def arguments(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    layout: str = "contiguous",
    x_layout: str | None = None,
    groups: int = 4,
) -> dict[str, Any]:
    """An operator's arguments for a plan, with all optional tensors; rows have two axes."""
    wide = "float64" if dtype == "float64" else "float32"
    data = {
        "grad_out": spec(shape, dtype, layout),
        "input": spec(shape, dtype, x_layout or layout),
    }
    vector = TensorSpec((shape[1],), wide)
    group = TensorSpec((shape[0], groups), wide)
    row, position = TensorSpec((shape[0], 1), wide), TensorSpec((shape[1],), dtype)
    given = {"mean": vector, "invstd": vector, "weight": vector}
    forward = {"input": data["input"]}
    return {
        "batch_norm_backward": {
            **data, "weight": vector, "save_mean": vector, "save_invstd": vector, "training": True
        },
        "evaluation": {
            **data, "weight": vector, "running_mean": vector, "running_var": vector,
            "training": False,
        },
        "missing": {**data, "weight": vector, "training": True},
        "batch_norm_backward_reduce": {**data, **given},
        "batch_norm_backward_elemt": {
            **data, **given, "sum_dy": vector, "sum_dy_xmu": vector,
            "count": TensorSpec((2,), "int32"),
        },
        "group_norm_backward": {
            **data, "mean": group, "rstd": group, "weight": vector, "num_groups": groups
        },
        "batch_norm": {
            **forward, "weight": vector, "bias": vector, "running_mean": vector,
            "running_var": vector, "training": True,
        },
        "batch_norm_stats": forward,
        "batch_norm_elemt": {**forward, **given, "bias": vector},
        "group_norm": {**forward, "weight": vector, "bias": vector, "num_groups": groups},
        "layer_norm": {
            **forward, "weight": position, "bias": position, "normalized_shape": shape[1]
        },
        "layer_norm_backward": {
            **data, "mean": row, "rstd": row, "weight": position, "normalized_shape": shape[1]
        },
        "rms_norm": {**forward, "weight": position, "normalized_shape": shape[1]},
        "rms_norm_backward": {
            **data, "rstd": row, "weight": position, "normalized_shape": shape[1]
        },
        "batch_norm_gather_stats_with_counts": {
            "input": data["input"],
            "mean": TensorSpec((3, shape[1]), wide),
            "invstd": TensorSpec((3, shape[1]), wide),
            "running_mean": vector,
            "running_var": vector,
            "counts": TensorSpec((3,), "int32"),
        },
    }[name]  # fmt: skip


#: Shapes of several ranks, most of whose kernels have the same compile-time constants.
RANKS = ((2, 16), (2, 2, 16), (2, 2, 2, 2, 16))


def calls_of_ranks(kind: str) -> list[Case]:
    """Calls on tensors of several ranks, of whose axes no two make one; also vectors and counts."""
    cases = [testing.Case(testing.Topic.VALUES, kind, shape, layout="sliced") for shape in RANKS]
    if PLANNED[cases[0].operator].statistics is Kind.ROW:
        cases.append(replace(cases[-1], vectors="sliced"))
    calls = [case.call() for case in cases]
    for name in ("count", "counts"):
        if name in calls[0].tensors:
            calls.append(cases[0].call())
            calls[-1].tensors[name] = calls[-1].arrays[name][:, np.newaxis]
    return calls


#: Operators, with the cases of each that have different programs.
CASES = {
    name: {"evaluation": "batch_norm_backward", "missing": "batch_norm_backward"}.get(name, name)
    for name in (
        "batch_norm_backward", "evaluation", "missing", "batch_norm_backward_reduce",
        "batch_norm_backward_elemt", "group_norm_backward", "batch_norm", "batch_norm_stats",
        "batch_norm_elemt", "group_norm", "batch_norm_gather_stats_with_counts",
    )
}  # fmt: skip


def forward_case(kind: str, shape: tuple[int, ...], dtype: str, layout: str) -> Case:
    """A forward pass in training, on normally distributed tensors."""
    rng = np.random.default_rng(0)
    kept = FLOATS["float32" if dtype in HALVES else dtype]
    x = lay_out((0.3 + rng.standard_normal(shape)).astype(FLOATS[dtype]), layout)
    w, b, mean, var = (rng.standard_normal(shape[1]).astype(kept) for _ in range(4))
    if kind == "group_norm":
        return Case(kind, {"input": x, "weight": w, "bias": b}, {"num_groups": 2, "eps": 1e-3})
    tensors = {"input": x, "weight": w, "bias": b, "running_mean": mean, "running_var": abs(var)}
    return Case(kind, tensors, {"training": True, "eps": 1e-3, "momentum": 0.3})


class Planned:
    """A backend that plans for a device, and runs nothing."""

    alignment = schedule.ALIGNMENT

    def __init__(self, device: Device) -> None:
        self._device = device

    def build(self, problem: Problem) -> schedule.Schedule:
        return schedule.build(problem, self._device)

    def computes(self, made: schedule.Schedule) -> bool:
        return bool(made.launches)


def plan_of(name: str, device: Device = H200, **planned: Any) -> Any:
    """The plan of an operator on a device, which this machine need not have."""
    with mock.patch.object(choice, "of", return_value=Planned(device)):
        return ng.plan(CASES.get(name, name), **planned)


def schedule_of(name: str, device: Device = H200, **planned: Any) -> schedule.Schedule:
    """The schedule of such a plan."""
    made: schedule.Schedule = plan_of(name, device, **planned)._schedule
    return made


def schedules(device: Device, dtype: str) -> Iterator[tuple[str, schedule.Schedule]]:
    """Programs of every kind, for a dtype.

    There are fewer shapes for float64, whose kernels take longest to compile.
    """
    shapes = {(256, 64, 56, 56): "large", (8, 64, 14, 14): "small"}
    if dtype != "float64":
        shapes |= {(256, 512, 7, 7): "short rows", (20, 6, 65536): "few channels"}
    for shape, size in shapes.items():
        for layout in ("contiguous", "channels_last"):
            groups = 2 if shape[1] % 4 else 8
            for name in CASES:
                planned = arguments(name, shape, dtype, layout, groups=groups)
                yield f"{name} {size} {layout}", schedule_of(name, device, **planned)
    for shape, groups in (((4096, 768), 1), ((512, 192, 3), 8), ((64, 50264), 1)):
        for name in ("group_norm_backward", "group_norm"):
            made = schedule_of(name, device, **arguments(name, shape, dtype, groups=groups))
            yield f"{name} {shape}", made
    for layout, x_layout in (("contiguous", "channels_last"), ("sliced", "sliced")):
        for name in ("batch_norm_backward", "group_norm_backward", "batch_norm_backward_elemt"):
            planned = arguments(name, (32, 64, 28, 28), dtype, layout, x_layout, groups=8)
            yield f"{name} {layout} {x_layout}", schedule_of(name, device, **planned)
