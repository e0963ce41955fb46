"""Batch norm's statistics, of one batch and of several ranks' batches."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..contract import INPUT, NEW_RUNNING, Kind, Operator, Output, Parameter
from ..plans import call
from ..problem import Role


class BatchNormStatistics(NamedTuple):
    """The result of :func:`batch_norm_stats`."""

    mean: Any
    invstd: Any


BATCH_NORM_STATS = Operator(
    "batch_norm_stats",
    parameters=(INPUT,),
    options=("eps", "channel_axis"),
    all_outputs=(
        Output("mean", Kind.CHANNEL, Role.OUT_MEAN, is_wide=True),
        Output("invstd", Kind.CHANNEL, Role.OUT_INVSTD, is_wide=True),
    ),
    result=BatchNormStatistics._make,
)


def batch_norm_stats(
    input: Any,
    *,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: tuple[Any, Any] | None = None,
) -> BatchNormStatistics:
    """The mean and 1/sqrt(var + eps) of every channel of a batch.

    With Σ over every axis but the channels', and m the number of elements per channel::

        mean   = Σ x / m
        invstd = 1 / sqrt(Σ (x − mean)² / m + eps)

    The variance is biased, and computed from centred values, so that it is right where the mean is
    far larger than the deviation. The operator and its names are PyTorch's ``batch_norm_stats``.

    Args:
        input: x, the layer's input: 2 to 8 axes, of which ``channel_axis`` has C elements;
            float32, float16, bfloat16 or float64.
        eps: added to the variance.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.

    Returns:
        (mean, invstd), each of shape (C,): float32, or float64 for a float64 input. Both are 0 for
        an input without elements.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape, a device, read-only or overlapping outputs.
    """
    return call(BATCH_NORM_STATS, (input,), out, (eps, channel_axis))  # type: ignore[no-any-return]


class GatheredStatistics(NamedTuple):
    """The result of :func:`batch_norm_gather_stats_with_counts`."""

    mean: Any
    invstd: Any
    running_mean: Any
    running_var: Any


BATCH_NORM_GATHER_STATS_WITH_COUNTS = Operator(
    "batch_norm_gather_stats_with_counts",
    parameters=(
        Parameter("input", Kind.DATA, required=True),
        Parameter("mean", Kind.RANKS, Role.MEAN, required=True),
        Parameter("invstd", Kind.RANKS, Role.INVSTD, required=True),
        Parameter("running_mean", Kind.CHANNEL, Role.RUNNING_MEAN),
        Parameter("running_var", Kind.CHANNEL, Role.RUNNING_VAR),
        Parameter("counts", Kind.COUNT, Role.COUNT, required=True),
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
    input: Any,
    mean: Any,
    invstd: Any,
    running_mean: Any,
    running_var: Any,
    counts: Any,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
    out: tuple[Any, Any, Any, Any] | None = None,
) -> GatheredStatistics:
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
        momentum: the weight of the new statistics in the running statistics.
        eps: the number that was added to the ranks' variances.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.

    Returns:
        (mean, invstd, running_mean, running_var), each of shape (C,): new tensors have the dtype of
        the argument with the same name. If no rank has an element, mean and invstd are 0, and the
        running statistics do not change. Running statistics that are not given are None.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape, a device, read-only or overlapping outputs.
    """
    choices = (momentum, eps)
    tensors = (input, mean, invstd, running_mean, running_var, counts)
    return call(  # type: ignore[no-any-return]
        BATCH_NORM_GATHER_STATS_WITH_COUNTS, tensors, out, choices
    )
