"""Synchronised batch norm: what each rank computes, and what it does with the others' results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from typing_extensions import NamedTuple

from ..declarations.contract import (
    GRAD_INPUT,
    GRAD_OUT,
    INPUT,
    NEW_RUNNING,
    OUTPUT,
    Input,
    Kind,
    Operator,
    Output,
)
from ..declarations.problem import Role
from ..plans.calls import call
from ..tensors.specs import MaybeNone, Tensor, TensorT


class BatchNormStatistics(NamedTuple, Generic[TensorT]):
    """The result of :func:`batch_norm_stats`."""

    mean: TensorT
    invstd: TensorT


BATCH_NORM_STATS = Operator(
    "batch_norm_stats",
    inputs=(INPUT,),
    options=("eps", "channel_axis"),
    all_outputs=(
        Output("mean", Kind.CHANNEL, Role.OUT_MEAN, is_wide=True),
        Output("invstd", Kind.CHANNEL, Role.OUT_INVSTD, is_wide=True),
    ),
    result=BatchNormStatistics._make,
)


def batch_norm_stats(
    input: TensorT,
    *,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: Sequence[Tensor | None] | None = None,
) -> BatchNormStatistics[TensorT]:
    """The mean and 1/sqrt(var + eps) of every channel of a batch.

    With Σ over every axis but the channels', and m the number of elements per channel::

        mean   = Σ x / m
        invstd = 1 / sqrt(Σ (x − mean)² / m + eps)

    The variance is biased, and computed from centred values, so that it is right where the mean is
    far larger than the deviation. The operator and its names are PyTorch's ``batch_norm_stats``.

    Args:
        input: x, the layer's input: 2 to 8 axes, of which ``channel_axis`` has C elements;
            float32, float16, bfloat16 or float64.
        eps: added to the variance: 0 or more.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.

    Returns:
        (mean, invstd), each of shape (C,): float32, or float64 for a float64 input. Both are 0 for
        an input without elements.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape or eps, a device, read-only or overlapping outputs, a PyTorch
            tensor that requires a gradient, which would be lost.
    """
    return call(BATCH_NORM_STATS, (input,), out, (eps, channel_axis))


class GatheredStatistics(NamedTuple, Generic[TensorT]):
    """The result of :func:`batch_norm_gather_stats_with_counts`."""

    mean: TensorT
    invstd: TensorT
    running_mean: TensorT | MaybeNone
    running_var: TensorT | MaybeNone


BATCH_NORM_GATHER_STATS_WITH_COUNTS = Operator(
    "batch_norm_gather_stats_with_counts",
    inputs=(
        Input("input", Kind.DATA, required=True),
        Input("mean", Kind.RANKS, Role.MEAN, required=True),
        Input("invstd", Kind.RANKS, Role.INVSTD, required=True),
        Input("running_mean", Kind.CHANNEL, Role.RUNNING_MEAN),
        Input("running_var", Kind.CHANNEL, Role.RUNNING_VAR),
        Input("counts", Kind.COUNT, Role.COUNT, required=True),
    ),
    options=("momentum", "eps"),
    all_outputs=(
        Output("global_mean", Kind.CHANNEL, Role.OUT_MEAN, ("mean",)),
        Output("global_invstd", Kind.CHANNEL, Role.OUT_INVSTD, ("invstd",)),
        *NEW_RUNNING,
    ),
    result=GatheredStatistics._make,
)


def batch_norm_gather_stats_with_counts(
    input: TensorT,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    counts: Tensor,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
    out: Sequence[Tensor | None] | None = None,
) -> GatheredStatistics[TensorT]:
    """The mean and 1/sqrt(var + eps) of a batch that is spread over ranks, from those of each rank.

    With n the sum of the ranks' counts nₖ, and μₖ and rₖ their statistics::

        mean   = Σ nₖ·μₖ / n
        invstd = 1 / sqrt(Σ nₖ·(1/rₖ² + (μₖ − mean)²) / n)

    and, with the variance over n − 1 rather than n elements (n where it is 1)::

        running_mean = (1 − momentum)·running_mean + momentum·mean
        running_var  = (1 − momentum)·running_var  + momentum·(1/invstd² − eps)·n/(n − 1)

    The operator and its names are PyTorch's ``batch_norm_gather_stats_with_counts`` (Chan, Golub
    and LeVeque, "Algorithms for computing the sample variance", 1983), but the running statistics
    are results, and are not updated in place.

    Args:
        input: the layer's input on this rank, from which only C is taken: 2 to 8 axes, the second
            of C elements. It may be empty.
        mean, invstd: shape (ranks, C), each rank's :func:`batch_norm_stats`.
        running_mean, running_var: shape (C,), or None. To update them in place, pass them as
            outputs too: ``out=(None, None, running_mean, running_var)``.
        counts: the number of elements per channel of each rank, in any shape with one element for
            each rank; int32, int64, float16 or float32. A rank with 0 elements does not affect the
            result, whatever its statistics.
        momentum: the weight of the new statistics in the running statistics, as in
            :func:`batch_norm`.
        eps: the number that was added to the ranks' variances: 0 or more.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.

    Returns:
        (mean, invstd, running_mean, running_var), each of shape (C,): new tensors have the dtype of
        the argument with the same name. If no rank has an element, mean and invstd are 0, and the
        running statistics do not change. Running statistics that are not given are None.

    Raises:
        TypeError, ValueError: as :func:`batch_norm_stats`.
    """
    choices = (momentum, eps)
    tensors = (input, mean, invstd, running_mean, running_var, counts)
    return call(BATCH_NORM_GATHER_STATS_WITH_COUNTS, tensors, out, choices)


BATCH_NORM_ELEMT = Operator(
    "batch_norm_elemt",
    inputs=(
        INPUT,
        Input("weight", Kind.CHANNEL, Role.WEIGHT),
        Input("bias", Kind.CHANNEL, Role.BIAS),
        Input("mean", Kind.CHANNEL, Role.MEAN, required=True),
        Input("invstd", Kind.CHANNEL, Role.INVSTD, required=True),
    ),
    options=("channel_axis",),
    all_outputs=(OUTPUT,),
)


def batch_norm_elemt(
    input: TensorT,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    *,
    channel_axis: int = 1,
    out: Tensor | None = None,
) -> TensorT:
    """The element-wise part of batch norm's forward pass::

        output = weight·invstd·(x − mean) + bias

    The operator and its names are PyTorch's ``batch_norm_elemt``.

    Args:
        input: x: 2 to 8 axes, of which ``channel_axis`` has C elements; float32, float16, bfloat16
            or float64.
        weight, bias: shape (C,); None for ones and for zeros.
        mean, invstd: shape (C,), the batch's mean and 1/sqrt(var + eps).
        channel_axis: 1, or -1 for channels-last shapes.
        out: a tensor to write to; it may have exactly the memory of ``input``.

    Returns:
        The output, with the dtype and memory layout of ``input`` unless ``out`` is given.

    Raises:
        TypeError, ValueError: as :func:`batch_norm_stats`.
    """
    return call(BATCH_NORM_ELEMT, (input, weight, bias, mean, invstd), out, (channel_axis,))


class BatchNormReductions(NamedTuple, Generic[TensorT]):
    """The result of :func:`batch_norm_backward_reduce`; entries not computed are None."""

    sum_dy: TensorT | MaybeNone
    sum_dy_xmu: TensorT | MaybeNone
    grad_weight: TensorT | MaybeNone
    grad_bias: TensorT | MaybeNone


#: The parameter gradients take the dtype of the first of these inputs that is present.
_PARAMETERS = ("weight", "mean")

BATCH_NORM_BACKWARD_REDUCE = Operator(
    "batch_norm_backward_reduce",
    inputs=(
        GRAD_OUT,
        INPUT,
        Input("mean", Kind.CHANNEL, Role.MEAN, required=True),
        Input("invstd", Kind.CHANNEL, Role.INVSTD, required=True),
        Input("weight", Kind.CHANNEL),
    ),
    options=("input_g", "weight_g", "bias_g", "channel_axis"),
    all_outputs=(
        Output("sum_dy", Kind.CHANNEL, Role.OUT_SUM_DY, ("mean",), mask=0),
        Output("sum_dy_xmu", Kind.CHANNEL, Role.OUT_SUM_DY_XMU, ("mean",), mask=0),
        Output("grad_weight", Kind.CHANNEL, Role.GRAD_WEIGHT, _PARAMETERS, mask=1),
        Output("grad_bias", Kind.CHANNEL, Role.GRAD_BIAS, _PARAMETERS, mask=2),
    ),
    result=BatchNormReductions._make,
)


def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: TensorT,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None = None,
    *,
    input_g: bool = True,
    weight_g: bool = True,
    bias_g: bool = True,
    channel_axis: int = 1,
    out: Sequence[Tensor | None] | None = None,
) -> BatchNormReductions[TensorT]:
    """The local part of synchronised batch norm's gradients: sums over this rank's batch.

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
        weight: shape (C,); only its dtype is used, as that of grad_weight and grad_bias.
        input_g: whether to compute sum_dy and sum_dy_xmu.
        weight_g, bias_g: whether to compute grad_weight, grad_bias.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.

    Returns:
        (sum_dy, sum_dy_xmu, grad_weight, grad_bias), each of shape (C,): new sums have the dtype
        of ``mean``, new gradients that of ``weight``, else of ``mean``. All are 0 for an input
        without elements.

    Raises:
        TypeError, ValueError: as :func:`batch_norm_stats`.
    """
    choices = (input_g, weight_g, bias_g, channel_axis)
    tensors = (grad_out, input, mean, invstd, weight)
    return call(BATCH_NORM_BACKWARD_REDUCE, tensors, out, choices)


BATCH_NORM_BACKWARD_ELEMT = Operator(
    "batch_norm_backward_elemt",
    inputs=(
        GRAD_OUT,
        INPUT,
        Input("mean", Kind.CHANNEL, Role.MEAN, required=True),
        Input("invstd", Kind.CHANNEL, Role.INVSTD, required=True),
        Input("weight", Kind.CHANNEL, Role.WEIGHT),
        Input("sum_dy", Kind.CHANNEL, Role.SUM_DY, required=True),
        Input("sum_dy_xmu", Kind.CHANNEL, Role.SUM_DY_XMU, required=True),
        Input("count", Kind.COUNT, Role.COUNT, required=True),
    ),
    options=("channel_axis",),
    all_outputs=(GRAD_INPUT._replace(mask=None),),
)


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: TensorT,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
    *,
    channel_axis: int = 1,
    out: Tensor | None = None,
) -> TensorT:
    """The element-wise part of synchronised batch norm's gradients.

    With n the sum of all elements of ``count``::

        grad_input = weight·invstd · (dy − sum_dy/n − (x − mean)·invstd²·sum_dy_xmu/n)

    The operator and its names are PyTorch's ``batch_norm_backward_elemt``.

    Args:
        grad_out, input, mean, invstd, channel_axis: as for :func:`batch_norm_backward_reduce`.
        weight: shape (C,); None for ones.
        sum_dy, sum_dy_xmu: shape (C,), already summed over all ranks.
        count: the elements per channel of each rank, in any shape; int32, int64, float16 or
            float32. If their sum is 0, the results are those of a division by zero in float64.
        out: a tensor to write to; it may have exactly the memory of ``grad_out`` or ``input``.

    Returns:
        grad_input, with the dtype and memory layout of ``input`` unless ``out`` is given.

    Raises:
        TypeError, ValueError: as :func:`batch_norm_stats`.
    """
    tensors = (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count)
    return call(BATCH_NORM_BACKWARD_ELEMT, tensors, out, (channel_axis,))
