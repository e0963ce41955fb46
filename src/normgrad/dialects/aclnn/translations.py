"""What the dialect's operators are in normgrad: operators, options, and names of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ...declarations.contract import Operator
from ...declarations.options import Options, real
from ...operators import batch_norm, group_norm, rms_norm, sync_batch_norm
from ..rules import BoundArguments, Contract
from . import contracts
from .contracts import CHANNEL_LAST

Dims = tuple[int, ...]

#: The names of normgrad's options, by the contracts' names of the scalars.
OPTIONS = {
    "training": "training",
    "eps": "eps",
    "epsilon": "eps",
    "momentum": "momentum",
    "outputMask": "output_mask",
    "inputG": "input_g",
    "weightG": "weight_g",
    "biasG": "bias_g",
    "group": "num_groups",
}


def _channel_axis(call: BoundArguments) -> Mapping[str, Any]:
    return {"channel_axis": -1 if call.arguments["input"].format_name in CHANNEL_LAST else 1}


class Form(NamedTuple):
    """The operator of a call, its options, and the outputs' names, "" for unwanted ones."""

    operator: Operator
    options: Options
    results: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Translation:
    """The translation of an aclnn operator's arguments to those of normgrad's operator.

    Attributes:
        contract: the aclnn operator's contract.
        operator: normgrad's operator, whose parameters and outputs have the contract's order.
        dims: computes, from a call, the shapes of parameters that are read with another shape than
            their own.
        saving_variance: normgrad's operator on devices whose saveInvstd holds variances.
        more_options: computes, from a call, the options that are no scalars of the contract.
        data: the contract's name of the data, without whose elements nothing is computed.
    """

    contract: Contract
    operator: Operator
    dims: Callable[[BoundArguments], Mapping[str, Dims]] = lambda call: {}
    saving_variance: Operator | None = None
    more_options: Callable[[BoundArguments], Mapping[str, Any]] = _channel_axis
    data: str = "input"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The contract's names of the inputs."""
        return tuple(row.name for row in self.contract.tensors if not row.is_output)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The contract's names of the outputs, and then of the inputs that are updated."""
        rows = self.contract.tensors
        return (
            *(row.name for row in rows if row.is_output),
            *(row.name for row in rows if row.is_updated),
        )

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The contract's names, by the names of normgrad's operator."""
        ours = (*self.operator.names, *(each.name for each in self.operator.all_outputs))
        return dict(zip(ours, (*self.inputs, *self.outputs), strict=True))

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """The contract's names of the scalars that become options."""
        return tuple(row.name for row in self.contract.scalars if row.name in OPTIONS)

    def form(self, call: BoundArguments, saved_variance: bool) -> Form:
        """The form of a call; ``saved_variance`` is as in :class:`.products.Device`."""
        operator = (self.saving_variance if saved_variance else None) or self.operator
        options = {OPTIONS[name]: call.arguments[name] for name in self.scalars}
        # CANN's contract allows negative numbers and NaN, and so the formula's result.
        eps = real("eps", options.pop("eps", 0.0))
        values = operator.read_options(**self.more_options(call), **options)._replace(eps=eps)
        outputs = zip(operator.outputs(values), self.outputs, strict=True)
        results = tuple(theirs if ours.is_wanted else "" for ours, theirs in outputs)
        return Form(operator, values, results)


BATCH_NORM = Translation(
    contracts.BATCH_NORM,
    batch_norm.BATCH_NORM_BACKWARD,
    saving_variance=batch_norm.BATCH_NORM_BACKWARD.of_variance("save_invstd"),
)
REDUCE = Translation(contracts.REDUCE, sync_batch_norm.BATCH_NORM_BACKWARD_REDUCE)
ELEMT = Translation(contracts.ELEMT, sync_batch_norm.BATCH_NORM_BACKWARD_ELEMT)
STATS = Translation(contracts.STATS, sync_batch_norm.BATCH_NORM_STATS)
GATHER = Translation(contracts.GATHER, sync_batch_norm.BATCH_NORM_GATHER_STATS_WITH_COUNTS)
FORWARD_ELEMT = Translation(contracts.FORWARD_ELEMT, sync_batch_norm.BATCH_NORM_ELEMT)
RMS_NORM = Translation(
    contracts.RMS_NORM,
    rms_norm.RMS_NORM,
    more_options=lambda call: {"normalized_shape": call.arguments["gamma"].dims},
    data="x",
)


def _grouped_dims(call: BoundArguments) -> Mapping[str, Dims]:
    """The shapes by which tensors are read, since a tensor of any shape counts as (N, C, HxW)."""
    sizes = call.arguments
    data = sizes["N"], sizes["C"], sizes["HxW"]
    statistic, parameter = (sizes["N"], sizes["group"]), (sizes["C"],)
    return {
        **dict.fromkeys(("gradOut", "input", "gradInput"), data),
        **dict.fromkeys(("mean", "rstd"), statistic),
        **dict.fromkeys(("gamma", "gradGammaOut", "gradBetaOut"), parameter),
    }


GROUP_NORM = Translation(contracts.GROUP_NORM, group_norm.GROUP_NORM_BACKWARD, _grouped_dims)

#: All translations, by the names of the aclnn operators.
BY_NAME = {
    each.contract.name: each
    for each in (BATCH_NORM, REDUCE, ELEMT, GROUP_NORM, STATS, GATHER, FORWARD_ELEMT, RMS_NORM)
}
