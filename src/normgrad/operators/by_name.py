"""Operators by name, and the public function :func:`plan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ..declarations import contract
from ..declarations.contract import Kind, Operator
from ..plans.arguments import out_entries, out_tuple
from ..plans.plan import Plan
from ..support.values import represent
from ..tensors import devices, frameworks
from ..tensors.specs import TensorSpec, naming
from . import batch_norm, group_norm, layer_norm, rms_norm, sync_batch_norm

#: Every operator with the public function of its name, whose signature has the defaults; the
#: gradients first.
_FUNCTIONS: dict[Operator, Callable[..., Any]] = {
    value: getattr(module, value.name)
    for gradients in (True, False)
    for module in (batch_norm, sync_batch_norm, group_norm, layer_norm, rms_norm)
    for value in vars(module).values()
    if isinstance(value, Operator) and value.is_gradient is gradients
}
#: All operators by name, and all public functions by name.
PLANNED = {operator.name: operator for operator in _FUNCTIONS}
FUNCTIONS = {operator.name: function for operator, function in _FUNCTIONS.items()}
#: The operators that are gradients, by name.
OPERATORS = {name: operator for name, operator in PLANNED.items() if operator.is_gradient}


@cache
def parameters_of(name: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of an operator's function."""
    return inspect.signature(FUNCTIONS[name]).parameters


def choices_of(name: str) -> dict[str, Any]:
    """An operator's arguments that are not tensors, with their defaults or Parameter.empty."""
    parameters = parameters_of(name)
    return {option: parameters[option].default for option in PLANNED[name].options}


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
        raise ValueError(f"name: {represent(name)}; allowed: {', '.join(PLANNED)}")
    kinds = {parameter.name: parameter.kind for parameter in operator.inputs}
    specs: dict[str, TensorSpec | None] = dict.fromkeys(kinds)
    choices = choices_of(name)
    for argument, value in arguments.items():
        if argument in specs:
            specs[argument] = spec_of(argument, value, kinds[argument])
        elif argument in choices:
            choices[argument] = value
        else:
            allowed = ", ".join(parameters_of(name))
            raise TypeError(f"{argument}: no argument of {name}; allowed: {allowed}")
    for argument, value in choices.items():
        if value is inspect.Parameter.empty:
            raise TypeError(f"{argument}: missing; {name} has no default for it")
    options = operator.read_options(**choices)
    outputs = operator.outputs(options)
    outs: dict[str, Any] = {}
    out_specs: dict[str, TensorSpec | None] = {}
    for index, value in enumerate(out_entries(outputs, out_tuple(operator, out))):
        title = operator.out_name(index, outputs[index])
        outs[title] = value
        out_specs[outputs[index].name] = spec_of(title, value, outputs[index].kind)
    if device is None:
        where = device_of({**{name: arguments.get(name) for name in specs}, **outs})
    else:
        where = devices.full_name(device)
    checked = contract.check(operator, options, specs, out_specs)
    return Plan(operator, options, specs, checked, device=where)


def device_of(values: Mapping[str, Any]) -> str:
    """The device of the tensors among these arguments; the CPU if all are specs."""
    first: tuple[str, str] | None = None
    for name, value in values.items():
        if value is None or isinstance(value, TensorSpec):
            continue
        device = frameworks.of(name, value).device(name, value)
        if device == "meta":
            continue
        if first is None:
            devices.check(name, device)
            first = name, device
        devices.check_same(name, device, first[1], first[0])
    return devices.CPU if first is None else first[1]


def spec_of(name: str, value: Any, kind: Kind) -> TensorSpec | None:
    """The spec of an argument, which may be one already; None for None."""
    if value is None or isinstance(value, TensorSpec):
        return value
    with naming(name):
        return frameworks.of(name, value).spec_of(name, value, kind.dtypes)
