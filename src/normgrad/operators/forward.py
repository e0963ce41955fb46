"""The forward passes of batch norm and group norm, and batch norm's element-wise part."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..contract import INPUT, NEW_RUNNING, OUTPUT, Kind, Operator, Output, Parameter, only
from ..plans import call
from ..problem import Role


class BatchNormOutput(NamedTuple):
    """The result of :func:`batch_norm`; in evaluation all entries but the output are None."""

    output: Any
    mean: Any
    invstd: Any
    running_mean: Any
    running_var: Any


BATCH_NORM = Operator(
    "batch_norm",
    parameters=(
        INPUT,
        Parameter("weight", Kind.CHANNEL, Role.WEIGHT),
        Parameter("bias", Kind.CHANNEL, Role.BIAS),
        # Training updates the running statistics; evaluation normalises x with them.
        Parameter("running_mean", Kind.CHANNEL, (Role.RUNNING_MEAN, Role.MEAN)),
        Parameter("running_var", Kind.CHANNEL, (Role.RUNNING_VAR, Role.INVSTD), is_variance=True),
    ),
    options=("training", "momentum", "eps", "channel_axis"),
    all_outputs=(
        OUTPUT,
        Output("mean", Kind.CHANNEL, Role.OUT_MEAN, in_evaluation=False, is_wide=True),
        Output("invstd", Kind.CHANNEL, Role.OUT_INVSTD, in_evaluation=False, is_wide=True),
        *(output._replace(in_evaluation=False) for output in NEW_RUNNING),
    ),
    result=BatchNormOutput._make,
)


def batch_norm(
    input: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: tuple[Any, Any, Any, Any, Any] | None = None,
) -> BatchNormOutput:
    """Batch norm's forward pass.

    In training, with Σ over every axis but the channels' and m the number of elements per channel::

        mean   = Σ x / m
        var    = Σ (x − mean)² / m
        invstd = 1 / sqrt(var + eps)
        output = weight·invstd·(x − mean) + bias

        running_mean = (1 − momentum)·running_mean + momentum·mean
        running_var  = (1 − momentum)·running_var  + momentum·var·m/(m − 1)    (m where it is 1)

    and in evaluation::

        output = weight·(x − running_mean)/sqrt(running_var + eps) + bias

    (Ioffe and Szegedy, "Batch Normalization", 2015.) The batch's mean and invstd are rounded to the
    arithmetic's type before x is normalised with them. So the output is bitwise that of
    :func:`batch_norm_elemt` with the same mean and invstd. On the CPU these are bitwise those of
    :func:`batch_norm_stats`; on a GPU the order of the sums may differ.

    Args:
        input: x: 2 to 8 axes, of which ``channel_axis`` has C elements; float32, float16, bfloat16
            or float64.
        weight, bias: shape (C,); None for ones and for zeros.
        running_mean, running_var: shape (C,). In training the old values, or None; to update them
            in place, pass them as outputs too: ``out=(None, None, None, running_mean,
            running_var)``. In evaluation None stands for zeros and for ones.
        training: whether the batch's own statistics are used.
        momentum: the weight of the new statistics in the running statistics.
        eps: added to the variance.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``output`` may have exactly the memory of ``input``. Entries for results that are not
            computed (all but ``output`` in evaluation) are ignored.

    Returns:
        (output, mean, invstd, running_mean, running_var). A new output has the dtype and memory
        layout of ``input``. The others exist in training only: mean and invstd in float32, or
        float64 for a float64 input (0 for an input without elements), and new running statistics
        if the old ones are given, in their dtype.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape, a device, read-only or overlapping outputs.
    """
    choices = (training, momentum, eps, channel_axis)
    tensors = (input, weight, bias, running_mean, running_var)
    return call(BATCH_NORM, tensors, out, choices)  # type: ignore[no-any-return]


BATCH_NORM_ELEMT = Operator(
    "batch_norm_elemt",
    parameters=(
        INPUT,
        Parameter("weight", Kind.CHANNEL, Role.WEIGHT),
        Parameter("bias", Kind.CHANNEL, Role.BIAS),
        Parameter("mean", Kind.CHANNEL, Role.MEAN, required=True),
        Parameter("invstd", Kind.CHANNEL, Role.INVSTD, required=True),
    ),
    options=("channel_axis",),
    all_outputs=(OUTPUT,),
    result=only,
    out_is_tensor=True,
)


def batch_norm_elemt(
    input: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    invstd: Any,
    *,
    channel_axis: int = 1,
    out: Any = None,
) -> Any:
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
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape, a device, a read-only or overlapping output.
    """
    return call(BATCH_NORM_ELEMT, (input, weight, bias, mean, invstd), out, (channel_axis,))


class GroupNormOutput(NamedTuple):
    """The result of :func:`group_norm`."""

    output: Any
    mean: Any
    rstd: Any


GROUP_NORM = Operator(
    "group_norm",
    parameters=(
        INPUT,
        Parameter("gamma", Kind.CHANNEL, Role.WEIGHT),
        Parameter("beta", Kind.CHANNEL, Role.BIAS),
    ),
    options=("num_groups", "eps", "channel_axis"),
    all_outputs=(
        OUTPUT,
        Output("mean", Kind.GROUP, Role.OUT_MEAN, is_wide=True),
        Output("rstd", Kind.GROUP, Role.OUT_INVSTD, is_wide=True),
    ),
    result=GroupNormOutput._make,
    statistics=Kind.GROUP,
)


def group_norm(
    input: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    num_groups: int,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: tuple[Any, Any, Any] | None = None,
) -> GroupNormOutput:
    """Group norm's forward pass.

    ``input`` is (N, C, ...), HxW the product of the rest, and channel c belongs to group
    c // (C / num_groups). With Σ over a group's channels and positions of one sample, and
    D = C / num_groups · HxW::

        mean   = Σ x / D
        rstd   = 1 / sqrt(Σ (x − mean)² / D + eps)
        output = gamma·rstd·(x − mean) + beta

    (Wu and He, "Group Normalization", ECCV 2018.) mean and rstd are rounded to the arithmetic's
    type before x is normalised with them.

    Args:
        input: x: 2 to 8 axes, the first of N and ``channel_axis`` of C elements; float32, float16,
            bfloat16 or float64.
        gamma, beta: shape (C,); None for ones and for zeros.
        num_groups: a divisor of C.
        eps: added to the variance.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``output`` may have exactly the memory of ``input``.

    Returns:
        (output, mean, rstd). A new output has the dtype and memory layout of ``input``; mean and
        rstd have shape (N, num_groups), in float32, or float64 for a float64 input, and are 0 for
        an input without elements.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape, a number of groups, a device, read-only or overlapping outputs.
    """
    choices = (num_groups, eps, channel_axis)
    return call(GROUP_NORM, (input, gamma, beta), out, choices)  # type: ignore[no-any-return]
