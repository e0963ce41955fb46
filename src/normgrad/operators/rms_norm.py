"""The forward pass and gradients of RMS norm, which is layer norm without mean and bias."""

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

_WEIGHT = Input("weight", Kind.POSITION, Role.WEIGHT)


class RmsNormOutput(NamedTuple, Generic[TensorT]):
    """The result of :func:`rms_norm`."""

    output: TensorT
    rstd: TensorT


RMS_NORM = Operator(
    "rms_norm",
    inputs=(INPUT, _WEIGHT),
    options=("normalized_shape", "eps"),
    all_outputs=(OUTPUT, Output("rstd", Kind.ROW, Role.OUT_INVSTD, is_wide=True)),
    result=RmsNormOutput._make,
    statistics=Kind.ROW,
    is_centred=False,
    has_own_eps=True,
)


def rms_norm(
    input: TensorT,
    normalized_shape: int | tuple[int, ...],
    weight: Tensor | None = None,
    *,
    eps: float | None = None,
    out: Sequence[Tensor | None] | None = None,
) -> RmsNormOutput[TensorT]:
    """RMS norm's forward pass.

    With Σ over a row's M elements, as in :func:`layer_norm`::

        rstd   = 1 / sqrt(Σ x² / M + eps)
        output = weight·rstd·x

    (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.) x is
    normalised with rstd as computed, in float64; the one that is returned is rounded.

    Args:
        input: x: 1 to 8 axes; float32, float16, bfloat16 or float64.
        normalized_shape: the sizes of the last axes of ``input``, or the size of the last one.
        weight: shape ``normalized_shape``; None for ones.
        eps: added to the mean of squares: 0 or more; None for the machine epsilon of the
            arithmetic's type: float32's, or float64's for a float64 ``input``, whatever the dtype
            of ``weight``.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``output`` may have exactly the memory of ``input``.

    Returns:
        (output, rstd). A new output has the dtype and memory layout of ``input``; rstd has the
        shape of ``input`` with ones in the place of ``normalized_shape``, in float32, or float64
        for a float64 input, and is 0 for rows without elements.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape or eps, a device, read-only or overlapping outputs, a PyTorch
            tensor that requires a gradient, which would be lost.
    """
    return call(RMS_NORM, (input, weight), out, (normalized_shape, eps))


class RmsNormGradients(NamedTuple, Generic[TensorT]):
    """The result of :func:`rms_norm_backward`; entries that are masked off are None."""

    grad_input: TensorT | MaybeNone
    grad_weight: TensorT | MaybeNone


RMS_NORM_BACKWARD = Operator(
    "rms_norm_backward",
    inputs=(GRAD_OUT, INPUT, Input("rstd", Kind.ROW, Role.INVSTD, required=True), _WEIGHT),
    options=("normalized_shape", "output_mask"),
    all_outputs=(
        GRAD_INPUT,
        Output("grad_weight", Kind.POSITION, Role.GRAD_WEIGHT, ("weight", "rstd"), mask=1),
    ),
    result=RmsNormGradients._make,
    statistics=Kind.ROW,
    is_centred=False,
)


def rms_norm_backward(
    grad_out: Tensor,
    input: TensorT,
    rstd: Tensor,
    weight: Tensor | None = None,
    *,
    normalized_shape: int | tuple[int, ...],
    output_mask: tuple[bool, bool] = (True, True),
    out: Sequence[Tensor | None] | None = None,
) -> RmsNormGradients[TensorT]:
    """The gradients of RMS norm.

    With Σ over a row's M elements (see :func:`rms_norm`) and x̂ = x·rstd::

        grad_weight = Σ dy·x̂        over rows
        grad_input  = rstd · (weight·dy − x̂·Σ(weight·dy·x̂) / M)

    (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.)

    Args:
        grad_out: dy, the gradient of the layer's output. Shape of ``input``.
        input: x, the layer's input: 1 to 8 axes; float32, float16, bfloat16 or float64, which may
            differ from ``grad_out``'s.
        rstd: each row's 1/sqrt(Σ x² / M + eps), in the shape of ``input`` with ones in the place of
            ``normalized_shape``. Any of the four dtypes, like ``weight``.
        weight: shape ``normalized_shape``; None for ones.
        normalized_shape: the sizes of the last axes of ``input``, or the size of the last one.
        output_mask: which of the two gradients to compute; the other is None, and its work is not
            done.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``grad_input`` may have exactly the memory of ``grad_out`` or ``input``.

    Returns:
        (grad_input, grad_weight). A new grad_input has the dtype and memory layout of ``input``; a
        new grad_weight has the dtype of ``weight``, else of ``rstd``. For an input without elements
        they are 0.

    Raises:
        TypeError, ValueError: as :func:`rms_norm`.
    """
    choices = (normalized_shape, output_mask)
    tensors = (grad_out, input, rstd, weight)
    return call(RMS_NORM_BACKWARD, tensors, out, choices)
