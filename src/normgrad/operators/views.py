"""Bringing an operator's tensors to the (set, outer, channel, inner) axes of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .. import layout
from ..layout import Axis
from ..problem import Role, Vector
from ..tensor import TensorSpec
from .contract import Specs

#: The roles of the data tensors, by the names they have in every operator.
DATA_ROLES = {
    "grad_out": Role.GRAD_OUT,
    "input": Role.INPUT,
    "grad_input": Role.GRAD_INPUT,
}
NOT_VECTORS = {*DATA_ROLES.values(), Role.COUNT}


@dataclass(frozen=True)
class Axes:
    """The axes of a problem's data tensors."""

    sets: Axis
    outer: tuple[Axis, ...]
    channel: Axis
    inner: Axis


_ONE = Axis(1, (1, 1, 1))


def split(
    grad_out: TensorSpec,
    data: TensorSpec,
    grad_input: TensorSpec | None,
    channel_axis: int,
    set_axis: int | None = None,
) -> Axes:
    """The axes of grad_out, input and grad_input (in whose absence input's stand in)."""
    tensors = (grad_out, data, grad_input or data)
    axes = [
        Axis(size, tuple(tensor.strides[index] for tensor in tensors))
        for index, size in enumerate(data.shape)
    ]
    rest = [axis for index, axis in enumerate(axes) if index not in (channel_axis, set_axis)]
    merged = layout.merge_axes(rest)
    return Axes(
        sets=_ONE if set_axis is None else axes[set_axis],
        outer=tuple(merged[:-1]),
        channel=axes[channel_axis],
        inner=merged[-1] if merged else _ONE,
    )


def vectors(roles: Mapping[str, Role], *specs: Specs) -> dict[Role, Vector]:
    """The per-channel vectors that are there; of two axes the first runs over sets."""
    found = {}
    for name, spec in (item for group in specs for item in group.items()):
        role = roles.get(name)
        if role is not None and role not in NOT_VECTORS:
            found[role] = Vector(spec.dtype, spec.strides[-1], spec.strides[0] * (spec.rank > 1))
    return found
