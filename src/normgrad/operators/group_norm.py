"""Group norm: the forward pass, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from typing_extensions import NamedTuple

from ..declarations.contract import (
    GRAD_INPUT,
    GRAD_OUT,
    INPUT,
    OUTPUT,
    Input,
    Kind,
    Operator,
    Output,
)
from ..declarations.problem import Role
from ..plans.calls import call
from ..tensors.specs import MaybeNone, Tensor, TensorT


class GroupNormOutput(NamedTuple, Generic[TensorT]):
    """The result of :func:`group_norm`."""

    output: TensorT
    mean: TensorT
    rstd: TensorT


GROUP_NORM = Operator(
    "group_norm",
    inputs=(
        INPUT,
        Input("weight", Kind.CHANNEL, Role.WEIGHT),
        Input("bias", Kind.CHANNEL, Role.BIAS),
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
    input: TensorT,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    num_groups: int,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: Sequence[Tensor | None] | None = None,
) -> GroupNormOutput[TensorT]:
    """Group norm's forward pass.

    ``input`` is (N, C, ...), HxW the product of the rest, and channel c belongs to group
    c // (C / num_groups). With Σ over a group's channels and positions of one sample, and
    D = C / num_groups · HxW::

        mean   = Σ x / D
        rstd   = 1 / sqrt(Σ (x − mean)² / D + eps)
        output = weight·rstd·(x − mean) + bias

    (Wu and He, "Group Normalization", ECCV 2018.) x is normalised with mean and rstd as computed,
    before they are rounded to the dtypes of what is returned.

    Args:
        input: x: 2 to 8 axes, the first of N and ``channel_axis`` of C elements; float32, float16,
            bfloat16 or float64.
        weight, bias: of shape (C,); None for ones and for zeros.
        num_groups: a divisor of C.
        eps: added to the variance: 0 or more.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``output`` may have exactly the memory of ``input``.

    Returns:
        (output, mean, rstd). A new output has the dtype and memory layout of ``input``; mean and
        rstd have shape (N, num_groups), in float32, or float64 for a float64 input, and are 0 for
        an input without elements.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape or eps, a number of groups, a device, read-only or overlapping
            outputs, a PyTorch tensor that requires a gradient, which would be lost.
    """
    choices = (num_groups, eps, channel_axis)
    return call(GROUP_NORM, (input, weight, bias), out, choices)


class GroupNormGradients(NamedTuple, Generic[TensorT]):
    """The result of :func:`group_norm_backward`; entries that are masked off are None."""

    grad_input: TensorT | MaybeNone
    grad_weight: TensorT | MaybeNone
    grad_bias: TensorT | MaybeNone


#: The parameter gradients take the dtype of the first of these inputs that is present.
_PARAMETERS = ("weight", "mean", "input")

GROUP_NORM_BACKWARD = Operator(
    "group_norm_backward",
    inputs=(
        GRAD_OUT,
        INPUT,
        Input("mean", Kind.GROUP, Role.MEAN, required=True),
        Input("rstd", Kind.GROUP, Role.INVSTD, required=True),
        Input("weight", Kind.CHANNEL, Role.WEIGHT),
    ),
    options=("num_groups", "output_mask", "channel_axis"),
    all_outputs=(
        GRAD_INPUT,
        Output("grad_weight", Kind.CHANNEL, Role.GRAD_WEIGHT, _PARAMETERS, mask=1),
        Output("grad_bias", Kind.CHANNEL, Role.GRAD_BIAS, _PARAMETERS, mask=2),
    ),
    result=GroupNormGradients._make,
    statistics=Kind.GROUP,
)


def group_norm_backward(
    grad_out: Tensor,
    input: TensorT,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    *,
    num_groups: int,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    channel_axis: int = 1,
    out: Sequence[Tensor | None] | None = None,
) -> GroupNormGradients[TensorT]:
    """The gradients of group norm.

    With C, D and groups as in :func:`group_norm`, and x̂ = (x − mean)·rstd::

        grad_bias   = Σ dy                         over samples and positions
        grad_weight = Σ rstd · Σ dy·(x − mean)     over samples, and over positions
        grad_input  = rstd · (weight·dy − [Σ weight·dy + x̂·Σ weight·dy·x̂] / D)   over the group

    (Wu and He, "Group Normalization", ECCV 2018.)

    Args:
        grad_out: dy, the gradient of the layer's output. Shape of ``input``.
        input: x, the layer's input: 2 to 8 axes, the first of N and ``channel_axis`` of C
            elements; float32, float16, bfloat16 or float64, which may differ from ``grad_out``'s.
        mean, rstd: shape (N, num_groups), each group's mean and 1/sqrt(var + eps). Any of the four
            dtypes, like ``weight``.
        weight: of shape (C,); None for ones.
        num_groups: a divisor of C.
        output_mask: which of the three gradients to compute; the others are None, and their work is
            not done.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``grad_input`` may have exactly the memory of ``grad_out`` or ``input``.

    Returns:
        (grad_input, grad_weight, grad_bias). A new grad_input has the dtype and memory layout of
        ``input``; new parameter gradients have the dtype of ``weight``, else of ``mean``. For an
        input without elements they are 0.

    Raises:
        TypeError, ValueError: as :func:`group_norm`.
    """
    choices = (num_groups, output_mask, channel_axis)
    tensors = (grad_out, input, mean, rstd, weight)
    return call(GROUP_NORM_BACKWARD, tensors, out, choices)
