"""Batch norm's statistics: what its forward pass begins with."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import contract
from ..contract import Kind, Operator, Options, Output, Parameter, Specs
from ..plans import call
from ..problem import Problem, Role, Rule
from . import views


class BatchNormStatistics(NamedTuple):
    """What :func:`batch_norm_stats` returns."""

    mean: Any
    invstd: Any


def _options(*, eps: Any, channel_axis: Any) -> Options:
    return Options(
        eps=contract.real("eps", eps),
        channel_axis=contract.integer("channel_axis", channel_axis),
    )


def _outputs(options: Options) -> tuple[Output, ...]:
    return tuple(
        Output(name, Kind.CHANNEL, True, ("input",), is_wide=True) for name in ("mean", "invstd")
    )


def _roles(options: Options) -> dict[str, Role]:
    return {"input": Role.INPUT, "mean": Role.OUT_MEAN, "invstd": Role.OUT_INVSTD}


def _problem(options: Options, specs: Specs, outputs: Specs) -> Problem:
    data = specs["input"]
    axis = contract.axis_of(options, data)
    return views.problem(
        Rule.STATS,
        _roles(options),
        specs,
        outputs,
        channel_axis=axis,
        eps=options.eps,
        divisor=float(data.elements // max(1, data.shape[axis])),
        missing_mean=True,
        missing_spread=True,
    )


BATCH_NORM_STATS = Operator(
    name="batch_norm_stats",
    parameters=(Parameter("input", Kind.DATA, required=True),),
    read_options=_options,
    outputs=_outputs,
    roles=_roles,
    problem=_problem,
    result=BatchNormStatistics._make,
)


def batch_norm_stats(
    input: Any,
    *,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: tuple[Any, Any] | None = None,
) -> BatchNormStatistics:
    """The mean of each channel, and 1 over its standard deviation.

    With Σ over every axis but the channels', and m elements per channel::

        mean   = Σ x/m
        invstd = 1/sqrt(Σ (x − mean)²/m + eps)

    The sums are of centred values, so that a mean far larger than the deviation costs nothing. The
    operator and its names are PyTorch's ``batch_norm_stats``.

    Args:
        input: x, the layer's input: 2 to 8 axes, of which ``channel_axis`` has C elements;
            float32, float16, bfloat16 or float64.
        eps: added to the (biased) variance.
        channel_axis: 1, or -1 for channels-last shapes.
        out: tensors to write to, in the order of the result; None, or None entries, for new ones.

    Returns:
        (mean, invstd), each of shape (C,): float32, or float64 for a float64 input. Both are 0 for
        an input without elements.

    Raises:
        TypeError: a dtype, or something that is no tensor.
        ValueError: a shape, a device, read-only or overlapping outputs.
    """
    options = _options(eps=eps, channel_axis=channel_axis)
    return call(BATCH_NORM_STATS, options, (input,), out)  # type: ignore[no-any-return]
