"""The operators' schemas, and what each tensor of theirs is: one table for all rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

#: The namespace of ``torch.ops`` that the operators are in.
NAMESPACE = "normgrad"


class Kind(Enum):
    """What a tensor is about."""

    DATA = "(N, C, ...)"
    CHANNEL = "(C,)"
    GROUP = "(N, groups)"
    RANKS = "(ranks, C)"
    COUNT = "any shape, the same for all channels"

    @property
    def axis(self) -> int | None:
        """The axis of the channels, or of the groups that they are in."""
        return {Kind.CHANNEL: 0, Kind.COUNT: None}.get(self, 1)


@dataclass(frozen=True)
class Schema:
    """An operator.

    Attributes:
        name: in the namespace; ATen's where ATen has it.
        arguments, results: in the words of PyTorch's schemas.
        inputs: the kinds of the tensors among the arguments, by name.
        outputs: the results' kinds, in order.
        channels: the integers among the arguments that count channels or groups.
        elementwise: whether the result is the first tensor's, element by element.
    """

    name: str
    arguments: str
    results: str
    inputs: Mapping[str, Kind]
    outputs: tuple[Kind, ...]
    channels: tuple[str, ...] = ()
    elementwise: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What the arguments are called."""
        return tuple(entry.split()[-1] for entry in self.arguments.split(", "))

    @property
    def text(self) -> str:
        """The schema as ``torch.library`` takes it."""
        return f"{self.name}({self.arguments}) -> {self.results}"


def _kinds(**names: Kind) -> Mapping[str, Kind]:
    return names


_AFFINE = _kinds(weight=Kind.CHANNEL, bias=Kind.CHANNEL)
_RUNNING = _kinds(running_mean=Kind.CHANNEL, running_var=Kind.CHANNEL)
_GIVEN = _kinds(mean=Kind.CHANNEL, invstd=Kind.CHANNEL)
_BOTH = _kinds(grad_out=Kind.DATA, input=Kind.DATA)

_SCHEMAS = (
    Schema(
        "native_batch_norm",
        "Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
        "bool training, float momentum, float eps",
        "(Tensor output, Tensor save_mean, Tensor save_invstd, Tensor running_mean_out, "
        "Tensor running_var_out)",
        {"input": Kind.DATA, **_AFFINE, **_RUNNING},
        (Kind.DATA, *[Kind.CHANNEL] * 4),
    ),
    Schema(
        "native_batch_norm_backward",
        "Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, "
        "Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, "
        "bool[3] output_mask",
        "(Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
        {
            **_BOTH,
            "weight": Kind.CHANNEL,
            **_RUNNING,
            "save_mean": Kind.CHANNEL,
            "save_invstd": Kind.CHANNEL,
        },
        (Kind.DATA, Kind.CHANNEL, Kind.CHANNEL),
    ),
    Schema(
        "batch_norm_stats",
        "Tensor input, float eps",
        "(Tensor mean, Tensor invstd)",
        {"input": Kind.DATA},
        (Kind.CHANNEL, Kind.CHANNEL),
    ),
    Schema(
        "batch_norm_elemt",
        "Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor invstd, float eps",
        "Tensor",
        {"input": Kind.DATA, **_AFFINE, **_GIVEN},
        (Kind.DATA,),
    ),
    Schema(
        "batch_norm_gather_stats_with_counts",
        "Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, Tensor? running_var, "
        "float momentum, float eps, Tensor counts",
        "(Tensor mean_out, Tensor invstd_out, Tensor running_mean_out, Tensor running_var_out)",
        {
            "input": Kind.DATA,
            "mean": Kind.RANKS,
            "invstd": Kind.RANKS,
            **_RUNNING,
            "counts": Kind.COUNT,
        },
        (Kind.CHANNEL,) * 4,
    ),
    Schema(
        "batch_norm_backward_reduce",
        "Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight, "
        "bool input_g, bool weight_g, bool bias_g",
        "(Tensor sum_dy, Tensor sum_dy_xmu, Tensor grad_weight, Tensor grad_bias)",
        {**_BOTH, **_GIVEN, "weight": Kind.CHANNEL},
        (Kind.CHANNEL,) * 4,
    ),
    Schema(
        "batch_norm_backward_elemt",
        "Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight, "
        "Tensor sum_dy, Tensor sum_dy_xmu, Tensor count",
        "Tensor",
        {
            **_BOTH,
            **_GIVEN,
            "weight": Kind.CHANNEL,
            "sum_dy": Kind.CHANNEL,
            "sum_dy_xmu": Kind.CHANNEL,
            "count": Kind.COUNT,
        },
        (Kind.DATA,),
    ),
    Schema(
        "native_group_norm",
        "Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, "
        "float eps",
        "(Tensor output, Tensor mean, Tensor rstd)",
        {"input": Kind.DATA, **_AFFINE},
        (Kind.DATA, Kind.GROUP, Kind.GROUP),
        ("C", "group"),
    ),
    Schema(
        "native_group_norm_backward",
        "Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, "
        "SymInt C, SymInt HxW, int group, bool[3] output_mask",
        "(Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
        {**_BOTH, "mean": Kind.GROUP, "rstd": Kind.GROUP, "weight": Kind.CHANNEL},
        (Kind.DATA, Kind.CHANNEL, Kind.CHANNEL),
        ("C", "group"),
    ),
    Schema(
        "sync_batch_norm",
        "Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
        "float momentum, float eps, str group_name, int key",
        "(Tensor output, Tensor mean, Tensor invstd, Tensor running_mean_out, "
        "Tensor running_var_out, Tensor count)",
        {"input": Kind.DATA, **_AFFINE, **_RUNNING},
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
        {**_BOTH, "weight": Kind.CHANNEL, **_GIVEN, "count": Kind.COUNT},
        (Kind.DATA, Kind.CHANNEL, Kind.CHANNEL),
    ),
)

#: The operators by name.
SCHEMAS = {schema.name: schema for schema in _SCHEMAS}
