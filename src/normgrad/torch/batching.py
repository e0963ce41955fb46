"""The operators' rules for vmap, which merge the batch axis into the channel axis.

Channels (and groups of them) are independent of each other, as the members of a batch are. So one
call with batch·C channels computes the whole batch in one pass over the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..contract import Kind
from .schemas import Schema

#: The axis of channels, or of groups of channels, by kind of tensor. COUNT has no such axis.
_AXES = {Kind.DATA: 1, Kind.CHANNEL: 0, Kind.GROUP: 1, Kind.RANKS: 1, Kind.COUNT: None}
#: The integer arguments that count channels or groups.
_COUNTED = ("C", "group")


def _fold(name: str, value: Any, dim: int | None, kind: Kind, size: int) -> Any:
    """Merge a tensor's batch axis ``dim`` into its channel axis; repeat it if it has no batch."""
    axis = _AXES[kind]
    if axis is None:
        if dim is not None:
            raise ValueError(f"{name}: batched by vmap; allowed: the same for the whole batch")
        return value
    if dim is None:
        value, dim = value.expand(size, *value.shape), 0
    return value.movedim(dim, axis).flatten(axis, axis + 1)


def _one_by_one(call: Callable[..., Any]) -> Callable[..., Any]:
    """The vmap rule of operators on rows: one call for each member of the batch.

    Their rows share parameters, so batch members with different parameters cannot share a call.
    """

    def batched(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        results = [
            call(
                *(
                    value.select(dim, index) if isinstance(dim, int) else value
                    for value, dim in zip(arguments, in_dims, strict=True)
                )
            )
            for index in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(each) for each in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return batched


def rule(schema: Schema, call: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's vmap rule, in the form that ``torch.library.register_vmap`` takes."""

    if schema.operator.statistics is Kind.ROW:
        return _even_empty(_one_by_one(call))

    def batched(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        size = info.batch_size
        call_arguments: list[Any] = []
        for name, value, dim in zip(schema.names, arguments, in_dims, strict=True):
            kind = schema.inputs.get(name)
            if value is None:
                call_arguments.append(None)
            elif kind is not None:
                call_arguments.append(_fold(f"{schema.name}: {name}", value, dim, kind, size))
            else:
                call_arguments.append(value * size if name in _COUNTED else value)
        results = call(*call_arguments)
        alone = schema.operator.out_is_tensor
        pairs = zip((results,) if alone else results, schema.operator.all_outputs, strict=True)
        unfolded = [_unfold(value, output.kind, size) for value, output in pairs]
        return unfolded[0] if alone else tuple(zip(*unfolded, strict=True))

    return _even_empty(batched)


def _even_empty(batched: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a vmap rule so that it takes a batch without members.

    Their results have the shapes of those of one member, which is made of zeros.
    """

    def any_size(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        if info.batch_size:
            return batched(info, in_dims, *arguments)
        one = [
            value.new_zeros((*value.shape[:dim], 1, *value.shape[dim + 1 :]))
            if isinstance(dim, int)
            else value
            for value, dim in zip(arguments, in_dims, strict=True)
        ]
        results, dims = batched(info._replace(batch_size=1), in_dims, *one)
        if isinstance(results, Tensor):
            return _first(results, dims), dims
        return tuple(map(_first, results, dims)), dims

    return any_size


def _first(value: Tensor, dim: int | None) -> Tensor:
    """A result of one member without that member."""
    return value if dim is None else value.narrow(dim, 0, 0)


def _unfold(value: Tensor, kind: Kind, size: int) -> tuple[Tensor, int | None]:
    """Split the batch axis from a result's channel axis; returns the result and the batch axis."""
    # An absent result is a vector of shape (0,), whatever its kind.
    axis = 0 if value.shape == (0,) else _AXES[kind]
    if axis is None:
        return value, None
    return value.unflatten(axis, (size, value.shape[axis] // max(size, 1))), axis
