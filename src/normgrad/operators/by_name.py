"""Operators by name, and the public function :func:`plan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from .. import contract, devices, frameworks
from ..arguments import out_entries
from ..contract import Kind, Operator
from ..plans import Plan
from ..tensor import TensorSpec, naming
from ..unusable import shown
from .batch_norm import BATCH_NORM_BACKWARD, batch_norm_backward
from .forward import (
    BATCH_NORM,
    BATCH_NORM_ELEMT,
    GROUP_NORM,
    batch_norm,
    batch_norm_elemt,
    group_norm,
)
from .group_norm import GROUP_NORM_BACKWARD, group_norm_backward
from .layer_norm import LAYER_NORM, LAYER_NORM_BACKWARD, layer_norm, layer_norm_backward
from .rms_norm import RMS_NORM, RMS_NORM_BACKWARD, rms_norm, rms_norm_backward
from .statistics import (
    BATCH_NORM_GATHER_STATS_WITH_COUNTS,
    BATCH_NORM_STATS,
    batch_norm_gather_stats_with_counts,
    batch_norm_stats,
)
from .sync_batch_norm import (
    BATCH_NORM_BACKWARD_ELEMT,
    BATCH_NORM_BACKWARD_REDUCE,
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
)

#: Every operator with its public function, whose signature has the defaults; the gradients first.
_FUNCTIONS: dict[Operator, Callable[..., Any]] = {
    BATCH_NORM_BACKWARD: batch_norm_backward,
    BATCH_NORM_BACKWARD_REDUCE: batch_norm_backward_reduce,
    BATCH_NORM_BACKWARD_ELEMT: batch_norm_backward_elemt,
    GROUP_NORM_BACKWARD: group_norm_backward,
    LAYER_NORM_BACKWARD: layer_norm_backward,
    RMS_NORM_BACKWARD: rms_norm_backward,
    BATCH_NORM: batch_norm,
    BATCH_NORM_STATS: batch_norm_stats,
    BATCH_NORM_GATHER_STATS_WITH_COUNTS: batch_norm_gather_stats_with_counts,
    BATCH_NORM_ELEMT: batch_norm_elemt,
    GROUP_NORM: group_norm,
    LAYER_NORM: layer_norm,
    RMS_NORM: rms_norm,
}
#: All operators by name, and all public functions by name.
PLANNED = {operator.name: operator for operator in _FUNCTIONS}
FUNCTIONS = {operator.name: function for operator, function in _FUNCTIONS.items()}
#: The operators that are gradients, by name.
OPERATORS = {name: operator for name, operator in PLANNED.items() if operator.is_gradient}


@cache
def _signature(name: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of an operator's function."""
    return inspect.signature(FUNCTIONS[name]).parameters


def choices_of(name: str) -> dict[str, Any]:
    """An operator's arguments that are not tensors, with their defaults or Parameter.empty."""
    known = _signature(name)
    return {option: known[option].default for option in PLANNED[name].options}


def plan(name: str, /, *, out: Any = None, device: Any = None, **arguments: Any) -> Plan:
    """Plan an operator from the specs of its tensors.

    Args:
        name: "batch_norm_backward", "batch_norm_backward_reduce", "batch_norm_backward_elemt",
            "group_norm_backward", "layer_norm_backward", "rms_norm_backward", "batch_norm",
            "batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_elemt",
            "group_norm", "layer_norm" or "rms_norm".
        arguments: the operator's arguments by keyword. A tensor is given as a
            :class:`TensorSpec`, or as an array or tensor, whose data are not read.
        out: the same for the outputs; None, or None entries, for outputs in the input's layout.
        device: the device of the tensors: "cpu", "cuda" (the current GPU), "cuda:0" or a
            torch.device. None for the device of the tensors among the arguments, and for the CPU
            if all are specs. (Tensors on PyTorch's meta device count as specs.)

    Returns:
        A plan that runs on any tensors of these specs, on that device.

    Raises:
        TypeError: an unknown or missing argument, or a dtype.
        ValueError: an unknown operator, a shape, an output that overlaps itself, or a device.
    """
    operator = PLANNED.get(name) if isinstance(name, str) else None
    if operator is None:
        raise ValueError(f"name: {shown(name)}; allowed: {', '.join(PLANNED)}")
    specs: dict[str, TensorSpec | None] = {
        parameter.name: None for parameter in operator.parameters
    }
    kinds = {parameter.name: parameter.kind for parameter in operator.parameters}
    choices = choices_of(name)
    for argument, value in arguments.items():
        if argument in specs:
            specs[argument] = _as_spec(argument, value, kinds[argument])
        elif argument in choices:
            choices[argument] = value
        else:
            known = ", ".join(_signature(name))
            raise TypeError(f"{argument}: no argument of {name}; allowed: {known}")
    for argument, value in choices.items():
        if value is inspect.Parameter.empty:
            raise TypeError(f"{argument}: missing; {name} has no default for it")
    options = operator.read_options(**choices)
    outputs = operator.outputs(options)
    given = {
        operator.out_name(index, output): (output, value)
        for index, (output, value) in enumerate(
            zip(outputs, out_entries(operator, outputs, out), strict=True)
        )
    }
    out_specs = {
        output.name: _as_spec(shown, value, output.kind) for shown, (output, value) in given.items()
    }
    if device is None:
        results = {shown: value for shown, (_, value) in given.items()}
        where = _where({**{name: arguments.get(name) for name in specs}, **results})
    else:
        where = devices.named(device)
    wanted = contract.check(operator, options, specs, out_specs)
    return Plan(operator, options, specs, wanted, device=where)


def _where(values: Mapping[str, Any]) -> str:
    """The device of the tensors among these arguments; the CPU if all are specs."""
    found: tuple[str, str] | None = None
    for name, value in values.items():
        if value is None or isinstance(value, TensorSpec):
            continue
        device = frameworks.of(name, value).device(name, value)
        if device == "meta":
            continue
        if found is None:
            devices.check(name, device)
            found = name, device
        devices.check_same(name, device, found[1], found[0])
    return devices.CPU if found is None else found[1]


def _as_spec(name: str, value: Any, kind: Kind) -> TensorSpec | None:
    if value is None or isinstance(value, TensorSpec):
        return value
    with naming(name):
        return frameworks.of(name, value).described(name, value, kind.dtypes)
