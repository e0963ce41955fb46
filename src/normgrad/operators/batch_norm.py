"""Batch norm's gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import contract
from ..contract import ALL_THREE, Kind, Operator, Options, Output, Parameter, Specs
from ..plans import call
from ..problem import Problem, Role
from . import views

_OUTPUTS = ("grad_input", "grad_weight", "grad_bias")


class BatchNormGradients(NamedTuple):
    """What :func:`batch_norm_backward` returns; None where masked off."""

    grad_input: Any
    grad_weight: Any
    grad_bias: Any


def _options(training: Any, eps: Any, output_mask: Any, channel_axis: Any) -> Options:
    return Options(
        training=contract.flag("training", training),
        eps=contract.real("eps", eps),
        mask=contract.mask("output_mask", output_mask, _OUTPUTS),
        channel_axis=contract.integer("channel_axis", channel_axis),
    )


def _outputs(options: Options) -> tuple[Output, ...]:
    mean = "save_mean" if options.training else "running_mean"
    parameters = ("weight", mean, "input")
    grad_input, grad_weight, grad_bias = options.mask
    return (
        views.grad_input(grad_input),
        Output("grad_weight", Kind.CHANNEL, grad_weight, parameters),
        Output("grad_bias", Kind.CHANNEL, grad_bias, parameters),
    )


def _roles(options: Options) -> dict[str, Role]:
    statistics = (
        {"save_mean": Role.MEAN, "save_invstd": Role.INVSTD}
        if options.training
        else {"running_mean": Role.MEAN, "running_var": Role.INVSTD}
    )
    return {
        **views.DATA_ROLES,
        **statistics,
        "weight": Role.WEIGHT,
        "grad_weight": Role.GRAD_WEIGHT,
        "grad_bias": Role.GRAD_BIAS,
    }


def _problem(options: Options, specs: Specs, outputs: Specs) -> Problem:
    data = specs["input"]
    axis = contract.axis_of(options, data)
    return views.problem(
        _roles(options),
        specs,
        outputs,
        channel_axis=axis,
        constant=not options.training,
        eps=options.eps,
        divisor=float(data.elements // max(1, data.shape[axis])),
        invstd_is_variance=options.saved_variance or not options.training,
        missing_mean=options.training and "save_mean" not in specs,
        missing_invstd=options.training and "save_invstd" not in specs,
    )


def _in_evaluation(options: Options) -> bool:
    return not options.training


BATCH_NORM_BACKWARD = Operator(
    name="batch_norm_backward",
    parameters=(
        Parameter("grad_out", Kind.DATA, required=True),
        Parameter("input", Kind.DATA, required=True),
        Parameter("weight", Kind.CHANNEL),
        Parameter("running_mean", Kind.CHANNEL),
        Parameter("running_var", Kind.CHANNEL),
        Parameter("save_mean", Kind.CHANNEL, may_be_empty=_in_evaluation),
        Parameter("save_invstd", Kind.CHANNEL, may_be_empty=_in_evaluation),
    ),
    read_options=_options,
    outputs=_outputs,
    roles=_roles,
    problem=_problem,
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
    output_mask: tuple[bool, bool, bool] = ALL_THREE,
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
            found in float64 and not rounded (for float64 tensors, with their errors): 1/std is then
            about the mean in use.
        training: whether the forward pass used the batch's statistics.
        eps: added to a variance.
        output_mask: which of the three gradients to compute; the others are None, and their work is
            not done.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``grad_input`` may be the very memory of ``grad_out`` or ``input``.

    Returns:
        (grad_input, grad_weight, grad_bias). A new grad_input has the dtype and memory layout of
        ``input``; new parameter gradients have the dtype of ``weight``, else of the mean in use,
        else of ``input``. For an input without elements they are 0.

    Raises:
        TypeError: a dtype, or something that is no tensor.
        ValueError: a shape, a device, read-only or overlapping outputs.
    """
    choices = (training, eps, output_mask, channel_axis)
    tensors = (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd)
    return call(BATCH_NORM_BACKWARD, tensors, out, choices)  # type: ignore[no-any-return]
