"""What tensors are to a backend: the (set, outer, channel, inner) axes of a problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import contract, layout
from .contract import Kind, Operator, Options, Specs
from .layout import Axis
from .problem import DATA, Problem, Role, Vector

#: An axis that is not there.
ONE = Axis(1, (1, 1, 1))


def problem(operator: Operator, options: Options, specs: Specs, outputs: Specs) -> Problem:
    """The problem that an operator makes of the specs of the inputs and outputs that are there."""
    roles = operator.roles(options)
    by_role = {
        roles[name]: spec for name, spec in (*specs.items(), *outputs.items()) if name in roles
    }
    vectors = {
        # Of two axes the first runs over sets.
        role: Vector(spec.dtype, spec.strides[-1], spec.strides[0] * (spec.rank > 1))
        for role, spec in by_role.items()
        if role not in DATA and role is not Role.COUNT
    }
    gathers = any(parameter.kind is Kind.RANKS for parameter in operator.parameters)
    forward = Role.GRAD_OUT not in by_role and not gathers
    facts: dict[str, Any] = {
        "vectors": vectors,
        "forward": forward,
        "constant": not forward and not options.training,
        "grouped": not forward and operator.statistics is Kind.GROUP,
        "gathers": gathers,
        "count": by_role.get(Role.COUNT),
        "eps": options.eps,
        "momentum": options.momentum,
        "invstd_is_variance": any(
            parameter.is_variance and parameter.role_in(options) is Role.INVSTD
            for parameter in operator.parameters
        ),
        "missing_mean": options.training and Role.MEAN not in vectors,
        "missing_invstd": options.training and Role.INVSTD not in vectors,
    }
    if gathers:
        # Of the input nothing is read.
        return Problem(
            grad_out=by_role[Role.MEAN].dtype,
            input=by_role[Role.INVSTD].dtype,
            result=None,
            sets=ONE,
            outer=(),
            channel=Axis(specs["mean"].shape[1], (1, 1, 1)),
            inner=ONE,
            **facts,
        )
    return _of_data(operator, options, by_role, facts)


def _of_data(
    operator: Operator, options: Options, by_role: dict[Role, Any], facts: dict[str, Any]
) -> Problem:
    """The problem of data tensors: where one is not there, the input stands in for it."""
    data, written = by_role[Role.INPUT], by_role.get(Role.RESULT)
    grad_out = by_role.get(Role.GRAD_OUT, data)
    steps = zip(*(each.strides for each in (grad_out, data, written or data)), strict=True)
    axes = [Axis(size, strides) for size, strides in zip(data.shape, steps, strict=True)]
    grouped = operator.statistics is Kind.GROUP
    channel_axis = contract.axis_of(options, data)
    set_axis = 0 if grouped else None
    channels = data.shape[channel_axis]
    per_group = channels // options.num_groups if grouped else 1
    positions = layout.merge_axes(
        [axis for index, axis in enumerate(axes) if index not in (channel_axis, set_axis)]
    )
    sets = axes[0] if grouped else ONE
    found = Problem(
        grad_out=grad_out.dtype,
        input=data.dtype,
        result=written.dtype if written else None,
        sets=sets,
        outer=tuple(positions[:-1]),
        channel=axes[channel_axis],
        inner=positions[-1] if positions else ONE,
        divisor=float(per_group * (data.elements // max(1, sets.size * channels))),
        per_group=max(1, per_group),
        **facts,
    )
    if grouped and found.forward and channels == 0:
        # Groups there are even so, of a channel each, which has no elements.
        none, groups = Axis(0, (1, 1, 1)), Axis(options.num_groups, (1, 1, 1))
        found = replace(found, outer=(), channel=groups, inner=none)
    return found
