"""Bringing an operator's tensors to the (set, outer, channel, inner) axes of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import layout
from ..contract import Specs
from ..layout import Axis
from ..problem import Problem, Role, Rule, Vector

#: The roles of the data tensors, by the names they have in every operator.
DATA_ROLES = {
    "grad_out": Role.GRAD_OUT,
    "input": Role.INPUT,
    "grad_input": Role.GRAD_INPUT,
}
NOT_VECTORS = {*DATA_ROLES.values(), Role.COUNT}


_ONE = Axis(1, (1, 1, 1))


def problem(
    rule: Rule,
    roles: Mapping[str, Role],
    specs: Specs,
    outputs: Specs,
    *,
    channel_axis: int,
    set_axis: int | None = None,
    **rest: Any,
) -> Problem:
    """The problem that specs make under a rule.

    Args:
        rule, roles: as in the operator.
        specs, outputs: what goes in and what is wanted. In the absence of grad_out or grad_input
            the input stands in for them.
        channel_axis: the axis of channels, from the front.
        set_axis: the axis whose every index has statistics of its own, if there is one.
        rest: the problem's other attributes.
    """
    data, grad_input = specs["input"], outputs.get("grad_input")
    grad_out = specs.get("grad_out", data)
    tensors = (grad_out, data, grad_input or data)
    axes = [
        Axis(size, tuple(tensor.strides[index] for tensor in tensors))
        for index, size in enumerate(data.shape)
    ]
    positions = layout.merge_axes(
        [axis for index, axis in enumerate(axes) if index not in (channel_axis, set_axis)]
    )
    return Problem(
        rule=rule,
        grad_out=grad_out.dtype,
        input=data.dtype,
        grad_input=grad_input.dtype if grad_input else None,
        sets=_ONE if set_axis is None else axes[set_axis],
        outer=tuple(positions[:-1]),
        channel=axes[channel_axis],
        inner=positions[-1] if positions else _ONE,
        vectors=_vectors(roles, specs, outputs),
        **rest,
    )


def _vectors(roles: Mapping[str, Role], *specs: Specs) -> dict[Role, Vector]:
    """The per-channel vectors that are there; of two axes the first runs over sets."""
    found = {}
    for name, spec in (item for group in specs for item in group.items()):
        role = roles.get(name)
        if role is not None and role not in NOT_VECTORS:
            found[role] = Vector(spec.dtype, spec.strides[-1], spec.strides[0] * (spec.rank > 1))
    return found
