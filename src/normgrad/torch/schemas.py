"""PyTorch's operators: what each takes, and which of normgrad's it is; one table for all rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from ..contract import OPTIONS, Kind, Operator, Sort
from ..operators.by_name import PLANNED

#: The namespace of ``torch.ops`` that the operators are in.
NAMESPACE = "normgrad"


@dataclass(frozen=True)
class Schema:
    """An operator.

    Attributes:
        name: in the namespace; ATen's where ATen has it.
        arguments, results: in the words of PyTorch's schemas.
        inputs: the kinds of the tensors among the arguments, by name.
        outputs: the results' kinds, in order.
        operator: normgrad's operator that it is, if it is one.
        ours: what normgrad's calls the arguments that have other names here.
        changes: how many of the last results ATen's own operator writes to its arguments instead.
        elementwise: whether the result is the first tensor's, element by element.
    """

    name: str
    arguments: str
    results: str
    inputs: Mapping[str, Kind]
    outputs: tuple[Kind, ...]
    operator: Operator | None = None
    ours: Mapping[str, str] = field(default_factory=dict)
    changes: int = 0
    elementwise: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the arguments are called."""
        return tuple(entry.split()[-1] for entry in self.arguments.split(", "))

    @property
    def text(self) -> str:
        """The schema as ``torch.library`` takes it."""
        return f"{self.name}({self.arguments}) -> {self.results}"

    def read(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tensors and the options of normgrad's operator, among arguments that are checked.

        Raises:
            ValueError: sizes that are not the input's.
        """
        given = dict(zip(self.names, arguments, strict=True))
        if "HxW" in given:
            _check_sizes(given["input"], given["N"], given["C"], given["HxW"])
        given = {self.ours.get(name, name): value for name, value in given.items()}
        assert self.operator is not None
        tensors = {each.name: given[each.name] for each in self.operator.parameters}
        options = {name: given[name] for name in self.operator.options if name in given}
        for name, value in options.items():
            if isinstance(value, list):
                options[name] = tuple(value)
        return tensors, options

    def arguments_of(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments that :meth:`read` reads as these tensors and options."""
        if "HxW" in self.names:
            samples, channels, *rest = given["input"].shape
            given = {**given, "N": samples, "C": channels, "HxW": prod(rest)}
        return tuple([given.get(self.ours.get(name, name)) for name in self.names])


def _check_sizes(input: Any, N: Any, C: Any, HxW: Any) -> None:  # noqa: N803 - ATen's names
    shape = tuple(input.shape)
    if input.dim() < 2 or shape[:2] != (N, C) or input.numel() != N * C * HxW:
        raise ValueError(
            f"input: shape {shape}; allowed: (N, C, ...) of N*C*HxW elements, with N={N}, C={C} "
            f"and HxW={HxW}"
        )


_SORTS = {Sort.FLAG: "bool", Sort.REAL: "float", Sort.INTEGER: "int", Sort.SIZES: "SymInt[]"}
#: Arguments that only PyTorch's operators have.
_OTHERS = {"N": "SymInt", "C": "SymInt", "HxW": "SymInt", "eps": "float", "bias": "Tensor?"}


def _of(
    name: str, operator: str, arguments: str, ours: Mapping[str, str] = {}, changes: int = 0
) -> Schema:
    """The schema of an operator of normgrad's, from PyTorch's order and names of its arguments."""
    planned = PLANNED[operator]
    parameters = {parameter.name: parameter for parameter in planned.parameters}
    theirs = {value: key for key, value in ours.items()}
    outputs = planned.all_outputs

    def typed(argument: str) -> str:
        own = ours.get(argument, argument)
        if own in parameters:
            return "Tensor" if parameters[own].required else "Tensor?"
        if own not in planned.options:
            return _OTHERS[argument]
        if OPTIONS[own] is Sort.FLAGS:
            return f"bool[{len({each.mask for each in outputs} - {None})}]"
        return _SORTS[OPTIONS[own]] + "?" * (own == "eps" and planned.has_own_eps)

    results = ", ".join(f"Tensor {output.name}" for output in outputs)
    return Schema(
        name,
        ", ".join(f"{typed(argument)} {argument}" for argument in arguments.split()),
        "Tensor" if planned.out_is_tensor else f"({results})",
        {theirs.get(own, own): parameter.kind for own, parameter in parameters.items()},
        tuple(output.kind for output in outputs),
        planned,
        ours,
        changes,
    )


_BATCH = "input weight bias running_mean running_var"
_GROUP = {"weight": "gamma", "bias": "beta", "group": "num_groups"}
_SIZES = "N C HxW group"
_SCHEMAS = (
    _of("native_batch_norm", "batch_norm", f"{_BATCH} training momentum eps"),
    _of(
        "native_batch_norm_backward",
        "batch_norm_backward",
        "grad_out input weight running_mean running_var save_mean save_invstd train eps "
        "output_mask",
        {"train": "training"},
    ),
    _of("batch_norm_stats", "batch_norm_stats", "input eps"),
    _of("batch_norm_elemt", "batch_norm_elemt", "input weight bias mean invstd eps"),
    _of(
        "batch_norm_gather_stats_with_counts",
        "batch_norm_gather_stats_with_counts",
        "input mean invstd running_mean running_var momentum eps counts",
        changes=2,
    ),
    _of(
        "batch_norm_backward_reduce",
        "batch_norm_backward_reduce",
        "grad_out input mean invstd weight input_g weight_g bias_g",
    ),
    _of(
        "batch_norm_backward_elemt",
        "batch_norm_backward_elemt",
        "grad_out input mean invstd weight sum_dy sum_dy_xmu count",
    ),
    _of("native_group_norm", "group_norm", f"input weight bias {_SIZES} eps", _GROUP),
    _of(
        "native_group_norm_backward",
        "group_norm_backward",
        f"grad_out input mean rstd weight {_SIZES} output_mask",
        _GROUP,
    ),
    _of("native_layer_norm", "layer_norm", "input normalized_shape weight bias eps"),
    _of(
        "native_layer_norm_backward",
        "layer_norm_backward",
        "grad_out input normalized_shape mean rstd weight bias output_mask",
    ),
    _of("_fused_rms_norm", "rms_norm", "input normalized_shape weight eps"),
    _of(
        "_fused_rms_norm_backward",
        "rms_norm_backward",
        "grad_out input normalized_shape rstd weight output_mask",
    ),
    Schema(
        "sync_batch_norm",
        "Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
        "float momentum, float eps, str group_name, int key",
        "(Tensor output, Tensor mean, Tensor invstd, Tensor running_mean_out, "
        "Tensor running_var_out, Tensor count)",
        {"input": Kind.DATA, **dict.fromkeys(_BATCH.split()[1:], Kind.CHANNEL)},
        (Kind.DATA, *[Kind.CHANNEL] * 4, Kind.COUNT),
    ),
    Schema(
        "all_reduce_sum",
        "Tensor values, str group_name",
        "Tensor",
        {},
        (Kind.COUNT,),
        elementwise=True,
    ),
    Schema(
        "sync_batch_norm_backward",
        "Tensor grad_out, Tensor input, Tensor? weight, Tensor mean, Tensor invstd, Tensor count, "
        "str group_name, bool[3] output_mask",
        "(Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
        {
            **dict.fromkeys(("grad_out", "input"), Kind.DATA),
            **dict.fromkeys(("weight", "mean", "invstd"), Kind.CHANNEL),
            "count": Kind.COUNT,
        },
        (Kind.DATA, Kind.CHANNEL, Kind.CHANNEL),
    ),
)

#: The operators by name.
SCHEMAS = {schema.name: schema for schema in _SCHEMAS}
#: Those that are normgrad's operators, by normgrad's names.
ATEN = {row.operator.name: row for row in _SCHEMAS if row.operator is not None}
