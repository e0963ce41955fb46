"""The forward pass and gradients of layer norm."""

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


class LayerNormOutput(NamedTuple, Generic[TensorT]):
    """The result of :func:`layer_norm`."""

    output: TensorT
    mean: TensorT
    rstd: TensorT


LAYER_NORM = Operator(
    "layer_norm",
    inputs=(
        INPUT,
        Input("weight", Kind.POSITION, Role.WEIGHT),
        Input("bias", Kind.POSITION, Role.BIAS),
    ),
    options=("normalized_shape", "eps"),
    all_outputs=(
        OUTPUT,
        Output("mean", Kind.ROW, Role.OUT_MEAN, is_wide=True),
        Output("rstd", Kind.ROW, Role.OUT_INVSTD, is_wide=True),
    ),
    result=LayerNormOutput._make,
    statistics=Kind.ROW,
)


def layer_norm(
    input: TensorT,
    normalized_shape: int | tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    out: Sequence[Tensor | None] | None = None,
) -> LayerNormOutput[TensorT]:
    """Layer norm's forward pass.

    The last axes of ``input`` have the sizes ``normalized_shape``; a *row* consists of their
    elements at one index of the other axes. With Σ over a row's M elements::

        mean   = Σ x / M
        rstd   = 1 / sqrt(Σ (x − mean)² / M + eps)
        output = weight·rstd·(x − mean) + bias

    (Ba, Kiros and Hinton, "Layer Normalization", 2016.) x is normalised with mean and
    rstd as computed, before they are rounded to the dtypes of what is returned.

    Args:
        input: x: 1 to 8 axes; float32, float16, bfloat16 or float64.
        normalized_shape: the sizes of the last axes of ``input``, or the size of the last one.
        weight, bias: shape ``normalized_shape``; None for ones and for zeros.
        eps: added to the variance: 0 or more.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``output`` may have exactly the memory of ``input``.

    Returns:
        (output, mean, rstd). A new output has the dtype and memory layout of ``input``; mean and
        rstd have the shape of ``input`` with ones in the place of ``normalized_shape``, in float32,
        or float64 for a float64 input, and are 0 for rows without elements.

    Raises:
        TypeError: an unsupported dtype, or something that is not a tensor.
        ValueError: a wrong shape or eps, a device, read-only or overlapping outputs, a PyTorch
            tensor that requires a gradient, which would be lost.
    """
    choices = (normalized_shape, eps)
    return call(LAYER_NORM, (input, weight, bias), out, choices)


class LayerNormGradients(NamedTuple, Generic[TensorT]):
    """The result of :func:`layer_norm_backward`; entries that are masked off are None."""

    grad_input: TensorT | MaybeNone
    grad_weight: TensorT | MaybeNone
    grad_bias: TensorT | MaybeNone


#: The parameter gradients take the dtype of the first of these inputs that is present.
_PARAMETERS = ("weight", "mean")

LAYER_NORM_BACKWARD = Operator(
    "layer_norm_backward",
    inputs=(
        GRAD_OUT,
        INPUT,
        Input("mean", Kind.ROW, Role.MEAN, required=True),
        Input("rstd", Kind.ROW, Role.INVSTD, required=True),
        Input("weight", Kind.POSITION, Role.WEIGHT),
    ),
    options=("normalized_shape", "output_mask"),
    all_outputs=(
        GRAD_INPUT,
        Output("grad_weight", Kind.POSITION, Role.GRAD_WEIGHT, _PARAMETERS, mask=1),
        Output("grad_bias", Kind.POSITION, Role.GRAD_BIAS, _PARAMETERS, mask=2),
    ),
    result=LayerNormGradients._make,
    statistics=Kind.ROW,
)


def layer_norm_backward(
    grad_out: Tensor,
    input: TensorT,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    *,
    normalized_shape: int | tuple[int, ...],
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    out: Sequence[Tensor | None] | None = None,
) -> LayerNormGradients[TensorT]:
    """The gradients of layer norm.

    With Σ over a row's M elements (see :func:`layer_norm`) and x̂ = (x − mean)·rstd::

        grad_bias   = Σ dy          over rows
        grad_weight = Σ dy·x̂        over rows
        grad_input  = rstd · (weight·dy − [Σ weight·dy + x̂·Σ weight·dy·x̂] / M)

    (Ba, Kiros and Hinton, "Layer Normalization", 2016.)

    Args:
        grad_out: dy, the gradient of the layer's output. Shape of ``input``.
        input: x, the layer's input: 1 to 8 axes; float32, float16, bfloat16 or float64, which may
            differ from ``grad_out``'s.
        mean, rstd: each row's mean and 1/sqrt(var + eps), in the shape of ``input`` with ones in
            the place of ``normalized_shape``. Any of the four dtypes, like ``weight``.
        weight: shape ``normalized_shape``; None for ones.
        normalized_shape: the sizes of the last axes of ``input``, or the size of the last one.
        output_mask: which of the three gradients to compute; the others are None, and their work is
            not done.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``grad_input`` may have exactly the memory of ``grad_out`` or ``input``.

    Returns:
        (grad_input, grad_weight, grad_bias). A new grad_input has the dtype and memory layout of
        ``input``; new parameter gradients have the dtype of ``weight``, else of ``mean``. For an
        input without elements they are 0.

    Raises:
        TypeError, ValueError: as :func:`layer_norm`.
    """
    choices = (normalized_shape, output_mask)
    tensors = (grad_out, input, mean, rstd, weight)
    return call(LAYER_NORM_BACKWARD, tensors, out, choices)
