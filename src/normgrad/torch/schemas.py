"""The schemas of the operators for PyTorch: their arguments, and the declarations they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from ..contract import GRAD_INPUT, Kind, Operator, Output, Parameter, only
from ..operators.by_name import PLANNED
from ..options import OPTIONS, flag, integer, mask, real, sizes
from ..problem import Role

#: The namespace of the operators in ``torch.ops``.
NAMESPACE = "normgrad"

_TYPES = {flag: "bool", real: "float", integer: "int", sizes: "SymInt[]"}
#: The names that normgrad's declarations may use for PyTorch's arguments.
_RENAMED = {"train": "training", "weight": "gamma", "bias": "beta", "group": "num_groups"}
#: The types of arguments that a declaration may lack.
_OTHERS = {
    **dict.fromkeys(("N", "C", "HxW"), "SymInt"),
    "eps": "float",
    "bias": "Tensor?",
    "group_name": "str",
    "key": "int",
}


@dataclass(frozen=True)
class Schema:
    """The schema of an operator for PyTorch.

    Attributes:
        name: the name in the namespace, which is ATen's if ATen has the operator.
        operator: normgrad's declaration of what the operator computes.
        names: the names of the arguments, in PyTorch's order.
    """

    name: str
    operator: Operator
    names: tuple[str, ...]

    @cached_property
    def declared(self) -> dict[str, str]:
        """The declaration's name of each argument."""
        known = {*[each.name for each in self.operator.parameters], *self.operator.options}
        return {
            name: _RENAMED[name] if _RENAMED.get(name) in known else name for name in self.names
        }

    @cached_property
    def inputs(self) -> dict[str, Kind]:
        """The kinds of the tensors among the arguments, by name, in the declaration's order."""
        theirs = {declared: name for name, declared in self.declared.items()}
        return {theirs[each.name]: each.kind for each in self.operator.parameters}

    @property
    def text(self) -> str:
        """The schema in the form that ``torch.library`` takes."""
        arguments = ", ".join(f"{self._type_of(name)} {name}" for name in self.names)
        results = ", ".join(f"Tensor {output.name}" for output in self.operator.all_outputs)
        return f"{self.name}({arguments}) -> " + (
            "Tensor" if self.operator.out_is_tensor else f"({results})"
        )

    def _type_of(self, argument: str) -> str:
        operator, ours = self.operator, self.declared[argument]
        for parameter in operator.parameters:
            if parameter.name == ours:
                return "Tensor" if parameter.required else "Tensor?"
        if ours not in operator.options:
            return _OTHERS[argument]
        if OPTIONS[ours] is mask:
            return f"bool[{len({each.mask for each in operator.all_outputs} - {None})}]"
        return _TYPES[OPTIONS[ours]] + "?" * (ours == "eps" and operator.has_own_eps)

    def read(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The declaration's tensors and options, from PyTorch's arguments.

        Raises:
            ValueError: the arguments N, C and HxW differ from the input's sizes.
        """
        given = dict(zip(self.names, arguments, strict=True))
        if "HxW" in given:
            _check_sizes(given["input"], given["N"], given["C"], given["HxW"])
        given = {self.declared[name]: value for name, value in given.items()}
        tensors = {each.name: given[each.name] for each in self.operator.parameters}
        options = {name: given[name] for name in self.operator.options if name in given}
        for name, value in options.items():
            if isinstance(value, list):
                options[name] = tuple(value)
        return tensors, options

    def arguments_of(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """PyTorch's arguments, from the declaration's tensors and options; reverts :meth:`read`."""
        if "HxW" in self.names:
            samples, channels, *rest = given["input"].shape
            given = {**given, "N": samples, "C": channels, "HxW": prod(rest)}
        return tuple([given.get(self.declared[name]) for name in self.names])


def _check_sizes(input: Any, N: Any, C: Any, HxW: Any) -> None:  # noqa: N803 - ATen's names
    shape = tuple(input.shape)
    if input.dim() < 2 or shape[:2] != (N, C) or input.numel() != N * C * HxW:
        raise ValueError(
            f"input: shape {shape}; allowed: (N, C, ...) of N*C*HxW elements, with N={N}, C={C} "
            f"and HxW={HxW}"
        )


_BATCH = "input weight bias running_mean running_var"
_SIZES = "N C HxW group"
#: The arguments of ATen's operators; normgrad's names of these lack ``native_`` and ``_fused_``.
_ARGUMENTS = {
    "native_batch_norm": f"{_BATCH} training momentum eps",
    "native_batch_norm_backward": (
        "grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask"
    ),
    "batch_norm_stats": "input eps",
    "batch_norm_elemt": "input weight bias mean invstd eps",
    "batch_norm_gather_stats_with_counts": (
        "input mean invstd running_mean running_var momentum eps counts"
    ),
    "batch_norm_backward_reduce": "grad_out input mean invstd weight input_g weight_g bias_g",
    "batch_norm_backward_elemt": "grad_out input mean invstd weight sum_dy sum_dy_xmu count",
    "native_group_norm": f"input weight bias {_SIZES} eps",
    "native_group_norm_backward": f"grad_out input mean rstd weight {_SIZES} output_mask",
    "native_layer_norm": "input normalized_shape weight bias eps",
    "native_layer_norm_backward": (
        "grad_out input normalized_shape mean rstd weight bias output_mask"
    ),
    "_fused_rms_norm": "input normalized_shape weight eps",
    "_fused_rms_norm_backward": "grad_out input normalized_shape rstd weight output_mask",
}
_ROWS = [
    Schema(
        name,
        PLANNED[name.removeprefix("native_").removeprefix("_fused_")],
        tuple(arguments.split()),
    )
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
        (*_BATCH.split(), "momentum", "eps", "group_name", "key"),
    ),
    Schema(
        "all_reduce_sum",
        Operator(
            "all_reduce_sum",
            parameters=(Parameter("values", Kind.CHANNEL, required=True),),
            options=(),
            all_outputs=(Output("total", Kind.CHANNEL, Role.RESULT),),
            result=only,
            out_is_tensor=True,
        ),
        ("values", "group_name"),
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
            out_is_tensor=False,
        ),
        ("grad_out", "input", "weight", "mean", "invstd", "count", "group_name", "output_mask"),
    ),
)

#: All schemas by name.
SCHEMAS = {row.name: row for row in (*_ROWS, *_SYNCHRONISED)}
