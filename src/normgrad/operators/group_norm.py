"""Group norm's gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import contract
from ..contract import ALL_THREE, Kind, Operator, Options, Output, Parameter, Specs
from ..plans import call
from ..problem import Problem, Role
from . import views

_OUTPUTS = ("grad_input", "grad_gamma", "grad_beta")


class GroupNormGradients(NamedTuple):
    """What :func:`group_norm_backward` returns; None where masked off."""

    grad_input: Any
    grad_gamma: Any
    grad_beta: Any


def _options(num_groups: Any, output_mask: Any, channel_axis: Any) -> Options:
    return Options(
        mask=contract.mask("output_mask", output_mask, _OUTPUTS),
        channel_axis=contract.integer("channel_axis", channel_axis),
        num_groups=contract.integer("num_groups", num_groups),
    )


def _outputs(options: Options) -> tuple[Output, ...]:
    grad_input, grad_gamma, grad_beta = options.mask
    parameters = ("gamma", "mean", "input")
    return (
        views.grad_input(grad_input),
        Output("grad_gamma", Kind.CHANNEL, grad_gamma, parameters),
        Output("grad_beta", Kind.CHANNEL, grad_beta, parameters),
    )


def _roles(options: Options) -> dict[str, Role]:
    return {
        **views.DATA_ROLES,
        "mean": Role.MEAN,
        "rstd": Role.INVSTD,
        "gamma": Role.WEIGHT,
        "grad_gamma": Role.GRAD_WEIGHT,
        "grad_beta": Role.GRAD_BIAS,
    }


def _problem(options: Options, specs: Specs, outputs: Specs) -> Problem:
    return views.group_problem(_roles(options), specs, outputs, options, grouped=True)


GROUP_NORM_BACKWARD = Operator(
    name="group_norm_backward",
    parameters=(
        Parameter("grad_out", Kind.DATA, required=True),
        Parameter("input", Kind.DATA, required=True),
        Parameter("mean", Kind.GROUP, required=True),
        Parameter("rstd", Kind.GROUP, required=True),
        Parameter("gamma", Kind.CHANNEL),
    ),
    read_options=_options,
    outputs=_outputs,
    roles=_roles,
    problem=_problem,
    result=GroupNormGradients._make,
    is_grouped=True,
)


def group_norm_backward(
    grad_out: Any,
    input: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    num_groups: int,
    output_mask: tuple[bool, bool, bool] = ALL_THREE,
    channel_axis: int = 1,
    out: tuple[Any, Any, Any] | None = None,
) -> GroupNormGradients:
    """The gradients of group norm.

    ``input`` is (N, C, ...), HxW the product of the rest, and channel c belongs to group
    c // (C / num_groups). With D = C / num_groups · HxW and x̂ = (x − mean)·rstd::

        grad_beta  = Σ dy                          over samples and positions
        grad_gamma = Σ rstd · Σ dy·(x − mean)      over samples, and over positions
        grad_input = rstd · (gamma·dy − [Σ gamma·dy + x̂·Σ gamma·dy·x̂] / D)   over the group

    (Wu and He, "Group Normalization", ECCV 2018.)

    Args:
        grad_out: dy, the gradient of the layer's output. Shape of ``input``.
        input: x, the layer's input: 2 to 8 axes, the first of N and ``channel_axis`` of C
            elements; float32, float16, bfloat16 or float64, which may differ from ``grad_out``'s.
        mean, rstd: shape (N, num_groups), each group's mean and 1/sqrt(var + eps). Any of the four
            dtypes, like ``gamma``.
        gamma: shape (C,); None for ones.
        num_groups: a divisor of C.
        output_mask: which of the three gradients to compute; the others are None, and their work is
            not done.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.
            ``grad_input`` may be the very memory of ``grad_out`` or ``input``.

    Returns:
        (grad_input, grad_gamma, grad_beta). A new grad_input has the dtype and memory layout of
        ``input``; new parameter gradients have the dtype of ``gamma``, else of ``mean``. For an
        input without elements they are 0.

    Raises:
        TypeError: a dtype, or something that is no tensor.
        ValueError: a shape, a number of groups, a device, read-only or overlapping outputs.
    """
    choices = (num_groups, output_mask, channel_axis)
    tensors = (grad_out, input, mean, rstd, gamma)
    return call(GROUP_NORM_BACKWARD, tensors, out, choices)  # type: ignore[no-any-return]
