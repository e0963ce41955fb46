"""The gradients of batch norm."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..contract import GRAD_INPUT, GRAD_OUT, INPUT, Kind, Operator, Output, Parameter
from ..plans import call
from ..problem import Role


class BatchNormGradients(NamedTuple):
    """The result of :func:`batch_norm_backward`; entries that are masked off are None."""

    grad_input: Any
    grad_weight: Any
    grad_bias: Any


#: The parameter gradients take the dtype of the first of these inputs that is present.
_PARAMETERS = ("weight", "save_mean", "running_mean", "input")

BATCH_NORM_BACKWARD = Operator(
    "batch_norm_backward",
    parameters=(
        GRAD_OUT,
        INPUT,
        Parameter("weight", Kind.CHANNEL, Role.WEIGHT),
        Parameter("running_mean", Kind.CHANNEL, (None, Role.MEAN)),
        Parameter("running_var", Kind.CHANNEL, (None, Role.INVSTD), is_variance=True),
        Parameter("save_mean", Kind.CHANNEL, (Role.MEAN, None), may_be_empty=True),
        Parameter("save_invstd", Kind.CHANNEL, (Role.INVSTD, None), may_be_empty=True),
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
    grad_out: Any,
    input: Any,
    weight: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    save_mean: Any = None,
    save_invstd: Any = None,
    *,
    training: bool,
    eps: float = 1e-5,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    channel_axis: int = 1,
    out: tuple[Any, Any, Any] | None = None,
) -> BatchNormGradients:
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
            computed in float64 and not rounded (for float64 tensors, with their errors). The
            variance in 1/std is then about the mean in use.
        training: whether the forward pass used the batch's statistics.
        eps: added to a variance.
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
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape, a device, read-only or overlapping outputs.
    """
    choices = (training, eps, output_mask, channel_axis)
    tensors = (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd)
    return call(BATCH_NORM_BACKWARD, tensors, out, choices)  # type: ignore[no-any-return]
