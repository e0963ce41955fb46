"""Bringing an operator's tensors to the (set, outer, channel, inner) axes of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import contract, layout
from ..contract import Kind, Options, Output, Specs
from ..layout import Axis
from ..problem import Problem, Role, Vector

#: The roles of the data tensors, by the names they have in every operator.
DATA_ROLES = {
    "grad_out": Role.GRAD_OUT,
    "input": Role.INPUT,
    "grad_input": Role.RESULT,
}
NOT_VECTORS = {*DATA_ROLES.values(), Role.COUNT}

#: The roles of the data tensors in the forward pass.
FORWARD_ROLES = {"input": Role.INPUT, "output": Role.RESULT}


def grad_input(wanted: bool) -> Output:
    """Every gradient's first output."""
    return Output("grad_input", Kind.DATA, wanted, ("input",), in_place=("grad_out", "input"))


def output() -> Output:
    """The forward pass's first output."""
    return Output("output", Kind.DATA, True, ("input",), in_place=("input",))


def statistics(kind: Kind, wanted: bool, *names: str) -> tuple[Output, ...]:
    """Statistics of the input, in the type that they are computed in."""
    return tuple(Output(name, kind, wanted, ("input",), is_wide=True) for name in names)


#: What updated running statistics are to a problem.
RUNNING_ROLES = {
    "new_running_mean": Role.OUT_RUNNING_MEAN,
    "new_running_var": Role.OUT_RUNNING_VAR,
}


def running(wanted: bool) -> tuple[Output, ...]:
    """Running statistics, updated: where they are given, and in place if that is asked for."""
    return tuple(
        Output(f"new_{name}", Kind.CHANNEL, wanted, (name,), in_place=(name,))
        for name in ("running_mean", "running_var")
    )


#: An axis that is not there.
ONE = Axis(1, (1, 1, 1))


def problem(
    roles: Mapping[str, Role],
    specs: Specs,
    outputs: Specs,
    *,
    channel_axis: int,
    set_axis: int | None = None,
    **rest: Any,
) -> Problem:
    """The problem that specs make.

    Args:
        roles: as in the operator.
        specs, outputs: what goes in and what is wanted. Where there is no tensor for grad_out's or
            the result's role the input stands in for it.
        channel_axis: the axis of channels, from the front.
        set_axis: the axis whose every index has statistics of its own, if there is one.
        rest: the problem's other attributes: which facts hold, and its scalars.
    """
    by_role = {roles.get(name): spec for name, spec in (*specs.items(), *outputs.items())}
    data, written = specs["input"], by_role.get(Role.RESULT)
    grad_out = by_role.get(Role.GRAD_OUT, data)
    tensors = (grad_out, data, written or data)
    steps = zip(*(tensor.strides for tensor in tensors), strict=True)
    axes = [Axis(size, strides) for size, strides in zip(data.shape, steps, strict=True)]
    positions = layout.merge_axes(
        [axis for index, axis in enumerate(axes) if index not in (channel_axis, set_axis)]
    )
    return Problem(
        grad_out=grad_out.dtype,
        input=data.dtype,
        result=written.dtype if written else None,
        sets=ONE if set_axis is None else axes[set_axis],
        outer=tuple(positions[:-1]),
        channel=axes[channel_axis],
        inner=positions[-1] if positions else ONE,
        vectors=vectors(roles, specs, outputs),
        **rest,
    )


def group_problem(
    roles: Mapping[str, Role],
    specs: Specs,
    outputs: Specs,
    options: Options,
    **rest: Any,
) -> Problem:
    """The same for group norm: samples are sets, and groups of channels share statistics."""
    data = specs["input"]
    axis = contract.axis_of(options, data)
    per_group = data.shape[axis] // options.num_groups
    positions = data.elements // max(1, data.shape[0] * data.shape[axis])
    return problem(
        roles,
        specs,
        outputs,
        channel_axis=axis,
        set_axis=0,
        eps=options.eps,
        divisor=float(per_group * positions),
        per_group=max(1, per_group),
        **rest,
    )


def only(outputs: Any) -> Any:
    """The result of an operator with one output."""
    return outputs[0]


def vectors(roles: Mapping[str, Role], *specs: Specs) -> dict[Role, Vector]:
    """The per-channel vectors that are there; of two axes the first runs over sets."""
    found = {}
    for name, spec in (item for group in specs for item in group.items()):
        role = roles.get(name)
        if role is not None and role not in NOT_VECTORS:
            found[role] = Vector(spec.dtype, spec.strides[-1], spec.strides[0] * (spec.rank > 1))
    return found
