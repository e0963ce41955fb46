"""The schemas of the operators for PyTorch: their arguments, and the declarations they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ..contract import GRAD_INPUT, Kind, Operator, Output, Parameter
from ..operators.by_name import PLANNED
from ..problem import Role

#: The namespace of the operators in ``torch.ops``.
NAMESPACE = "normgrad"


def overload(name: str) -> Any:
    """The operator with a name, as PyTorch calls it."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


#: The names that normgrad's declarations may use for PyTorch's arguments.
_RENAMED = {"train": "training", "weight": "gamma", "bias": "beta", "group": "num_groups"}


class Schema:
    """The schema of an operator for PyTorch.

    Attributes:
        name: the name in the namespace, which is ATen's if ATen has the operator.
        operator: normgrad's declaration of what the operator computes.
        text: the schema in the form that ``torch.library`` takes.
        names: the names of the arguments, in PyTorch's order.
        tensors: those of the tensors among them, of which the declaration may lack some.
        declared: the declaration's name of each argument.
        inputs: the kinds of the tensors among the arguments, by name, in the declaration's order.
    """

    def __init__(self, name: str, operator: Operator, arguments: str) -> None:
        """Take the name, the declaration, and the types and names of the arguments."""
        self.name, self.operator = name, operator
        results = ", ".join(f"Tensor {output.name}" for output in operator.all_outputs)
        result_type = "Tensor" if operator.out_is_tensor else f"({results})"
        self.text = f"{name}({arguments}) -> {result_type}"
        kinds, self.names = zip(*[each.split() for each in arguments.split(", ")], strict=True)
        self.tensors = tuple(
            name for kind, name in zip(kinds, self.names, strict=True) if kind.startswith("Tensor")
        )
        declared_names = {*operator.names, *operator.options}
        self.declared = {
            name: _RENAMED[name] if _RENAMED.get(name) in declared_names else name
            for name in self.names
        }
        theirs = {declared: name for name, declared in self.declared.items()}
        self.inputs = {theirs[each.name]: each.kind for each in operator.parameters}

    def read(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The declaration's tensors and options, from PyTorch's arguments."""
        values = dict(zip(self.names, arguments, strict=True))
        if "HxW" in values:
            input, samples, channels, size = (values[name] for name in ("input", "N", "C", "HxW"))
            shape, elements = tuple(input.shape), samples * channels * size
            if input.dim() < 2 or shape[:2] != (samples, channels) or input.numel() != elements:
                raise ValueError(
                    f"input: shape {shape}; allowed: (N, C, ...) of N*C*HxW elements, with "
                    f"N={samples}, C={channels} and HxW={size}"
                )
        values = {self.declared[name]: value for name, value in values.items()}
        tensors = {each.name: values[each.name] for each in self.operator.parameters}
        options = {name: values[name] for name in self.operator.options if name in values}
        for name, value in options.items():
            if isinstance(value, list):
                options[name] = tuple(value)
        return tensors, options

    def arguments_of(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """PyTorch's arguments, from the declaration's tensors and options; reverts :meth:`read`."""
        if "HxW" in self.names:
            samples, channels, *rest = values["input"].shape
            values = {**values, "N": samples, "C": channels, "HxW": prod(rest)}
        return tuple([values.get(self.declared[name]) for name in self.names])


_AFFINE = "Tensor input, Tensor? weight, Tensor? bias"
_GRADIENT = "Tensor grad_out, Tensor input"
_RUNNING = "Tensor? running_mean, Tensor? running_var"
_SAVED = "Tensor mean, Tensor invstd"
_SIZES = "SymInt N, SymInt C, SymInt HxW, int group"
_ROW = "SymInt[] normalized_shape"
#: The arguments of ATen's operators; normgrad's names of these lack ``native_`` and ``_fused_``.
_ARGUMENTS = {
    "native_batch_norm": f"{_AFFINE}, {_RUNNING}, bool training, float momentum, float eps",
    "native_batch_norm_backward": (
        f"{_GRADIENT}, Tensor? weight, {_RUNNING}, Tensor? save_mean, Tensor? save_invstd, "
        "bool train, float eps, bool[3] output_mask"
    ),
    "batch_norm_stats": "Tensor input, float eps",
    "batch_norm_elemt": f"{_AFFINE}, {_SAVED}, float eps",
    "batch_norm_gather_stats_with_counts": (
        f"Tensor input, {_SAVED}, {_RUNNING}, float momentum, float eps, Tensor counts"
    ),
    "batch_norm_backward_reduce": (
        f"{_GRADIENT}, {_SAVED}, Tensor? weight, bool input_g, bool weight_g, bool bias_g"
    ),
    "batch_norm_backward_elemt": (
        f"{_GRADIENT}, {_SAVED}, Tensor? weight, Tensor sum_dy, Tensor sum_dy_xmu, Tensor count"
    ),
    "native_group_norm": f"{_AFFINE}, {_SIZES}, float eps",
    "native_group_norm_backward": (
        f"{_GRADIENT}, Tensor mean, Tensor rstd, Tensor? weight, {_SIZES}, bool[3] output_mask"
    ),
    "native_layer_norm": f"Tensor input, {_ROW}, Tensor? weight, Tensor? bias, float eps",
    "native_layer_norm_backward": (
        f"{_GRADIENT}, {_ROW}, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, "
        "bool[3] output_mask"
    ),
    "_fused_rms_norm": f"Tensor input, {_ROW}, Tensor? weight, float? eps",
    "_fused_rms_norm_backward": (
        f"{_GRADIENT}, {_ROW}, Tensor rstd, Tensor? weight, bool[2] output_mask"
    ),
}
_ROWS = [
    Schema(name, PLANNED[name.removeprefix("native_").removeprefix("_fused_")], arguments)
    for name, arguments in _ARGUMENTS.items()
]
#: The schemas of ATen's operators, by the names of normgrad's declarations.
ATEN = {row.operator.name: row for row in _ROWS}

_FORWARD, _ELEMENTS = PLANNED["batch_norm"], PLANNED["batch_norm_backward_elemt"]
_SYNCHRONISED = (
    Schema(
        "sync_batch_norm",
        replace(
            _FORWARD,
            name="sync_batch_norm",
            options=("momentum", "eps"),
            all_outputs=(*_FORWARD.all_outputs, Output("count", Kind.COUNT, Role.COUNT)),
        ),
        f"{_AFFINE}, {_RUNNING}, float momentum, float eps, str group_name, int key",
    ),
    Schema(
        "all_reduce_sum",
        Operator(
            "all_reduce_sum",
            parameters=(Parameter("values", Kind.CHANNEL, required=True),),
            options=(),
            all_outputs=(Output("total", Kind.CHANNEL, Role.RESULT, ("values",)),),
        ),
        "Tensor values, str group_name",
    ),
    Schema(
        "sync_batch_norm_backward",
        replace(
            _ELEMENTS,
            name="sync_batch_norm_backward",
            parameters=tuple(
                each for each in _ELEMENTS.parameters if not each.name.startswith("sum_dy")
            ),
            options=("output_mask",),
            all_outputs=(GRAD_INPUT, *PLANNED["batch_norm_backward_reduce"].all_outputs[2:]),
        ),
        f"{_GRADIENT}, Tensor? weight, {_SAVED}, Tensor count, str group_name, bool[3] output_mask",
    ),
)

#: All schemas by name.
SCHEMAS = {row.name: row for row in (*_ROWS, *_SYNCHRONISED)}
