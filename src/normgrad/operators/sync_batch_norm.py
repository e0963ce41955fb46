"""Synchronised batch norm's gradients: the local sums, and the element-wise rest."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import contract
from ..contract import Kind, Operator, Options, Output, Parameter, Specs
from ..plans import call
from ..problem import Problem, Role
from . import views


class BatchNormReductions(NamedTuple):
    """What :func:`batch_norm_backward_reduce` returns; None where not asked for."""

    sum_dy: Any
    sum_dy_xmu: Any
    grad_weight: Any
    grad_bias: Any


def _reduce_options(input_g: Any, weight_g: Any, bias_g: Any, channel_axis: Any) -> Options:
    return Options(
        mask=(
            contract.flag("input_g", input_g),
            contract.flag("weight_g", weight_g),
            contract.flag("bias_g", bias_g),
        ),
        channel_axis=contract.integer("channel_axis", channel_axis),
    )


def _reduce_outputs(options: Options) -> tuple[Output, ...]:
    input_g, weight_g, bias_g = options.mask
    return (
        Output("sum_dy", Kind.CHANNEL, input_g, ("mean",)),
        Output("sum_dy_xmu", Kind.CHANNEL, input_g, ("mean",)),
        Output("grad_weight", Kind.CHANNEL, weight_g, ("weight", "mean")),
        Output("grad_bias", Kind.CHANNEL, bias_g, ("weight", "mean")),
    )


def _reduce_roles(options: Options) -> dict[str, Role]:
    return {
        **views.DATA_ROLES,
        "mean": Role.MEAN,
        "invstd": Role.INVSTD,
        "sum_dy": Role.OUT_SUM_DY,
        "sum_dy_xmu": Role.OUT_SUM_DY_XMU,
        "grad_weight": Role.GRAD_WEIGHT,
        "grad_bias": Role.GRAD_BIAS,
    }


def _reduce_problem(options: Options, specs: Specs, outputs: Specs) -> Problem:
    axis = contract.axis_of(options, specs["input"])
    return views.problem(_reduce_roles(options), specs, outputs, channel_axis=axis)


BATCH_NORM_BACKWARD_REDUCE = Operator(
    name="batch_norm_backward_reduce",
    parameters=(
        Parameter("grad_out", Kind.DATA, required=True),
        Parameter("input", Kind.DATA, required=True),
        Parameter("mean", Kind.CHANNEL, required=True),
        Parameter("invstd", Kind.CHANNEL, required=True),
        Parameter("weight", Kind.CHANNEL),
    ),
    read_options=_reduce_options,
    outputs=_reduce_outputs,
    roles=_reduce_roles,
    problem=_reduce_problem,
    result=BatchNormReductions._make,
)


def batch_norm_backward_reduce(
    grad_out: Any,
    input: Any,
    mean: Any,
    invstd: Any,
    weight: Any = None,
    *,
    input_g: bool = True,
    weight_g: bool = True,
    bias_g: bool = True,
    channel_axis: int = 1,
    out: tuple[Any, Any, Any, Any] | None = None,
) -> BatchNormReductions:
    """The local half of synchronised batch norm's gradients: sums over this rank's batch.

    With Σ over every axis but the channels'::

        sum_dy      = Σ dy
        sum_dy_xmu  = Σ dy·(x − mean)
        grad_weight = sum_dy_xmu · invstd
        grad_bias   = sum_dy

    The operator and its names are PyTorch's ``batch_norm_backward_reduce``.

    Args:
        grad_out: dy, the gradient of the layer's output. Shape of ``input``.
        input: x, the layer's input: 2 to 8 axes, of which ``channel_axis`` has C elements;
            float32, float16, bfloat16 or float64, which may differ from ``grad_out``'s.
        mean, invstd: shape (C,), the whole batch's mean and 1/sqrt(var + eps).
        weight: shape (C,); it gives grad_weight and grad_bias their dtype and nothing else.
        input_g: whether to compute sum_dy and sum_dy_xmu.
        weight_g, bias_g: whether to compute grad_weight, grad_bias.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.

    Returns:
        (sum_dy, sum_dy_xmu, grad_weight, grad_bias), each of shape (C,): new sums have the dtype
        of ``mean``, new gradients that of ``weight``, else of ``mean``. All are 0 for an input
        without elements.

    Raises:
        TypeError: a dtype, or something that is no tensor.
        ValueError: a shape, a device, read-only or overlapping outputs.
    """
    choices = (input_g, weight_g, bias_g, channel_axis)
    tensors = (grad_out, input, mean, invstd, weight)
    return call(BATCH_NORM_BACKWARD_REDUCE, tensors, out, choices)  # type: ignore[no-any-return]


def _elemt_options(channel_axis: Any) -> Options:
    return Options(channel_axis=contract.integer("channel_axis", channel_axis))


def _elemt_outputs(options: Options) -> tuple[Output, ...]:
    return (views.grad_input(True),)


def _elemt_roles(options: Options) -> dict[str, Role]:
    return {
        **views.DATA_ROLES,
        "mean": Role.MEAN,
        "invstd": Role.INVSTD,
        "weight": Role.WEIGHT,
        "sum_dy": Role.SUM_DY,
        "sum_dy_xmu": Role.SUM_DY_XMU,
        "count": Role.COUNT,
    }


def _elemt_problem(options: Options, specs: Specs, outputs: Specs) -> Problem:
    return views.problem(
        _elemt_roles(options),
        specs,
        outputs,
        channel_axis=contract.axis_of(options, specs["input"]),
        count=specs["count"],
    )


BATCH_NORM_BACKWARD_ELEMT = Operator(
    name="batch_norm_backward_elemt",
    parameters=(
        Parameter("grad_out", Kind.DATA, required=True),
        Parameter("input", Kind.DATA, required=True),
        Parameter("mean", Kind.CHANNEL, required=True),
        Parameter("invstd", Kind.CHANNEL, required=True),
        Parameter("weight", Kind.CHANNEL),
        Parameter("sum_dy", Kind.CHANNEL, required=True),
        Parameter("sum_dy_xmu", Kind.CHANNEL, required=True),
        Parameter("count", Kind.COUNT, required=True),
    ),
    read_options=_elemt_options,
    outputs=_elemt_outputs,
    roles=_elemt_roles,
    problem=_elemt_problem,
    result=views.only,
    out_is_tensor=True,
)


def batch_norm_backward_elemt(
    grad_out: Any,
    input: Any,
    mean: Any,
    invstd: Any,
    weight: Any,
    sum_dy: Any,
    sum_dy_xmu: Any,
    count: Any,
    *,
    channel_axis: int = 1,
    out: Any = None,
) -> Any:
    """The element-wise half of synchronised batch norm's gradients.

    With n the sum of all elements of ``count``::

        grad_input = weight·invstd · (dy − sum_dy/n − (x − mean)·invstd²·sum_dy_xmu/n)

    The operator and its names are PyTorch's ``batch_norm_backward_elemt``.

    Args:
        grad_out: dy, the gradient of the layer's output. Shape of ``input``.
        input: x, the layer's input: 2 to 8 axes, of which ``channel_axis`` has C elements;
            float32, float16, bfloat16 or float64, which may differ from ``grad_out``'s.
        mean, invstd: shape (C,), the whole batch's mean and 1/sqrt(var + eps).
        weight: shape (C,); None for ones.
        sum_dy, sum_dy_xmu: shape (C,), already summed over all ranks.
        count: the elements per channel of each rank, in any shape; int32, int64, float16 or
            float32. Where they add up to 0, the division by zero gives what it gives in float64.
        channel_axis: 1, or -1 for channels-last shapes.
        out: a tensor to write to; it may be the very memory of ``grad_out`` or ``input``.

    Returns:
        grad_input, with the dtype and memory layout of ``input`` unless ``out`` is given.

    Raises:
        TypeError: a dtype, or something that is no tensor.
        ValueError: a shape, a device, a read-only or overlapping output.
    """
    tensors = (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count)
    return call(BATCH_NORM_BACKWARD_ELEMT, tensors, out, (channel_axis,))
