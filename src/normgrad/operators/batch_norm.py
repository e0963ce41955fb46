"""Batch norm: the forward pass, and the gradients."""

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


class BatchNormOutput(NamedTuple, Generic[TensorT]):
    """The result of :func:`batch_norm`; in evaluation all entries but the output are None."""

    output: TensorT
    mean: TensorT | MaybeNone
    invstd: TensorT | MaybeNone
    running_mean: TensorT | MaybeNone
    running_var: TensorT | MaybeNone


BATCH_NORM = Operator(
    "batch_norm",
    inputs=(
        INPUT,
        Input("weight", Kind.CHANNEL, Role.WEIGHT),
        Input("bias", Kind.CHANNEL, Role.BIAS),
        # Training updates the running statistics; evaluation normalises x with them.
        Input("running_mean", Kind.CHANNEL, (Role.RUNNING_MEAN, Role.MEAN)),
        Input("running_var", Kind.CHANNEL, (Role.RUNNING_VAR, Role.INVSTD), is_variance=True),
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
    input: TensorT,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
    | None = None,
) -> BatchNormOutput[TensorT]:
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

    (Ioffe and Szegedy, "Batch Normalization", 2015.) x is normalised with the mean and invstd as
    computed, before they are rounded to the dtypes of what is returned. On the CPU they are bitwise
    those of :func:`batch_norm_stats`; on a GPU the order of the sums may differ.

    Args:
        input: x: 2 to 8 axes, of which ``channel_axis`` has C elements; float32, float16, bfloat16
            or float64.
        weight, bias: shape (C,); None for ones and for zeros.
        running_mean, running_var: shape (C,). In training the old values, or None; to update them
            in place, pass them as outputs too: ``out=(None, None, None, running_mean,
            running_var)``. In evaluation None stands for zeros and for ones.
        training: whether the batch's own statistics are used.
        momentum: the weight of the new statistics in the running statistics: any number, of which 0
            to 1 gives a mean of old and new.
        eps: added to the variance: 0 or more.
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
        ValueError: a wrong shape or eps, a device, read-only or overlapping outputs, a PyTorch
            tensor that requires a gradient, which would be lost.
    """
    choices = (training, momentum, eps, channel_axis)
    tensors = (input, weight, bias, running_mean, running_var)
    return call(BATCH_NORM, tensors, out, choices)


class BatchNormGradients(NamedTuple, Generic[TensorT]):
    """The result of :func:`batch_norm_backward`; entries that are masked off are None."""

    grad_input: TensorT | MaybeNone
    grad_weight: TensorT | MaybeNone
    grad_bias: TensorT | MaybeNone


#: The parameter gradients take the dtype of the first of these inputs that is present.
_PARAMETERS = ("weight", "save_mean", "running_mean", "input")

BATCH_NORM_BACKWARD = Operator(
    "batch_norm_backward",
    inputs=(
        GRAD_OUT,
        INPUT,
        Input("weight", Kind.CHANNEL, Role.WEIGHT),
        Input("running_mean", Kind.CHANNEL, (None, Role.MEAN)),
        Input("running_var", Kind.CHANNEL, (None, Role.INVSTD), is_variance=True),
        Input("save_mean", Kind.CHANNEL, (Role.MEAN, None), may_be_empty=True),
        Input("save_invstd", Kind.CHANNEL, (Role.INVSTD, None), may_be_empty=True),
    ),
    options=("training", "eps", "output_mask", "channel_axis"),
    all_outputs=(
        GRAD_INPUT,
        Output("grad_weight", Kind.CHANNEL, Role.GRAD_WEIGHT, _PARAMETERS, mask=1),
        Output("grad_bias", Kind.CHANNEL, Role.GRAD_BIAS, _PARAMETERS, mask=2),
    ),
    result=BatchNormGradients._make,
)


def batch_norm_backward(
    grad_out: Tensor,
    input: TensorT,
    weight: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    save_mean: Tensor | None = None,
    save_invstd: Tensor | None = None,
    *,
    training: bool,
    eps: float = 1e-5,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    channel_axis: int = 1,
    out: Sequence[Tensor | None] | None = None,
) -> BatchNormGradients[TensorT]:
    """The gradients of batch norm.

    With Σ over every axis but the channels', and m elements per channel, in training, where
    μ = save_mean and r = save_invstd = 1/sqrt(var + eps) are the batch's own::

        grad_bias   = Σ dy
        grad_weight = r · Σ dy·(x − μ)
        grad_input  = weight·r · (dy − Σdy/m − (x − μ)·r²·Σ(dy·(x − μ))/m)

    and in evaluation, where μ = running_mean and r = 1/sqrt(running_var + eps)::

        grad_bias   = Σ dy
        grad_weight = r · Σ dy·(x − μ)
        grad_input  = dy·r·weight

    (Ioffe and Szegedy, "Batch Normalization", ICML 2015, section 3.)

    Args:
        grad_out: dy, the gradient of the layer's output. Shape of ``input``.
        input: x, the layer's input: 2 to 8 axes, of which ``channel_axis`` has C elements;
            float32, float16, bfloat16 or float64, which may differ from ``grad_out``'s.
        weight: shape (C,); None for ones. Per-channel tensors have any of the four dtypes.
        running_mean, running_var: shape (C,), used in evaluation; None for 0 and for 1.
        save_mean, save_invstd: shape (C,), used in training; None for those of ``input``, which are
            computed in float64 and not rounded. The variance in 1/std is then about the mean in
            use.
        training: whether the forward pass used the batch's statistics.
        eps: added to a variance: 0 or more.
        output_mask: which of the three gradients to compute; the others are None, and their work is
            not done.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``grad_input`` may have exactly the memory of ``grad_out`` or ``input``.

    Returns:
        (grad_input, grad_weight, grad_bias). A new grad_input has the dtype and memory layout of
        ``input``; new parameter gradients have the dtype of ``weight``, else of the mean in use,
        else of ``input``. For an input without elements they are 0.

    Raises:
        TypeError, ValueError: as :func:`batch_norm`.
    """
    choices = (training, eps, output_mask, channel_axis)
    tensors = (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd)
    return call(BATCH_NORM_BACKWARD, tensors, out, choices)
