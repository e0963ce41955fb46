"""Calls that just keep or just break each rule of a dialect's table.

Near every rule of :mod:`..rules` a tensor can be described otherwise: another length, one more
axis, another dtype. The table itself says which descriptions it allows. A description that it does
not allow makes a wrong call; one that it allows, and that is true of the tensor's memory, makes a
legal call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from .. import rules
from ..layout import contiguous_strides
from . import libraries
from .libraries import Change, Request, Tensor, both
from .tensors import Shape

#: Other descriptions of a tensor: a word for each, and the fields that differ.
Descriptions = Iterator[tuple[str, dict[str, Any]]]

_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
_AXES = ("no axis", "one axis", *(f"{number} axes" for number in _NUMBERS))


class Neighbours(NamedTuple):
    """Changes of a legal request that keep the contract, and that break it, by their names."""

    legal: Mapping[str, Change]
    illegal: Mapping[str, Change]


def _near(rule: rules.Rule, tensor: Tensor, dtypes: Mapping[str, str]) -> Descriptions:
    """Other descriptions of a tensor near a rule of its row, some within it and some beyond."""
    dims, strides = tensor.dims, tensor.strides
    if rule.aspect is rules.Aspect.DTYPE:
        yield from ((word, {"dtype_name": name}) for word, name in dtypes.items())
    elif rule.aspect is rules.Aspect.FORMAT:
        for name in ("ND", "NC", "NCL", "NCHW", "NCDHW", "NHWC", "NDHWC", "NC1HWC0"):
            yield name, {"format_name": name}
    elif rule is rules.CONTIGUOUS:
        *outer, rows, row = dims
        yield "the last axes transposed", {"strides": (*strides[:-2], 1, rows)}
        yield "gaps between rows", {"strides": contiguous_strides((*outer, rows, row + 1))}
        yield "negative strides", {"strides": tuple(-step for step in strides)}
    elif rule is rules.POSITIVE_STRIDES:
        yield "stride 0", {"strides": (0,) * len(dims)}
        yield "a negative stride", {"strides": tuple(-step for step in strides)}
    else:  # rules of shapes
        yield "an element short", _of_dims((*dims[:-1], dims[-1] - 1))
        yield "an element long", _of_dims((*dims[:-1], dims[-1] + 1))
        if len(dims) > 1:
            yield "a sample short", _of_dims((dims[0] - 1, *dims[1:]))
            yield "no channels", _of_dims((dims[0], 0, *dims[2:]))
    if rule.ranks:
        least, most = rule.ranks[0], rule.ranks[-1]
        for axes in sorted({least - 1, least, 1, most, most + 1} - {-1}):
            yield _AXES[axes], _of_dims(_with_axes(dims, axes))


def _with_axes(dims: Shape, axes: int) -> Shape:
    """The shape with this many axes: the first are joined, or axes of length 1 are appended."""
    joined = len(dims) - axes + 1
    if axes == 0:
        return ()
    if joined > 1:
        return (math.prod(dims[:joined]), *dims[joined:])
    return (*dims, *[1] * (axes - len(dims)))


def _of_dims(dims: Shape) -> dict[str, Any]:
    return {"dims": dims, "strides": contiguous_strides(dims)}


def neighbours(
    contract: rules.Contract, product: rules.Product, base: Request, dtypes: Mapping[str, str]
) -> Neighbours:
    """The calls near a legal one, which has all optional tensors, on both sides of each rule.

    The product must have the operator. ``dtypes`` has the names of the dtypes to try, by the words
    for them in the calls' names.
    """
    legal: dict[str, Change] = {}
    illegal: dict[str, Change] = {}
    for name, change in _changes(contract, product, base, dtypes):
        changed = change(base)
        if not keeps(contract, product, changed):
            illegal[name] = both(change, libraries.check_only)
        elif _is_true(contract, base, changed):
            legal[name] = change
    return Neighbours(legal, illegal)


def keeps(contract: rules.Contract, product: rules.Product, request: Request) -> bool:
    """Whether a request's arguments keep a contract on a product that has the operator."""
    arguments: dict[str, Any] = {
        name: None if f"{name}: null" in request.mistakes else value
        for name, value in request.arguments.items()
    }
    try:
        rules.check(rules.Call(contract, product, arguments), (product,))
    except rules.ContractError:
        return False
    return True


def _changes(
    contract: rules.Contract, product: rules.Product, base: Request, dtypes: Mapping[str, str]
) -> Iterator[tuple[str, Change]]:
    tensors = base.tensors
    data = [name for name, each in tensors.items() if each.dims == tensors["input"].dims]
    for row in contract.parameters:
        if row.name not in tensors:
            continue
        yield from libraries.with_mistakes(f"{row.name}: null").items()
        tensor = tensors[row.name]
        groups = {row.name: [row.name]}
        if row.name == "input":
            groups |= {"data": data, "all": list(tensors)}
        for title, names in groups.items():
            for rule in row.on(product.name).rules:
                for word, fields in _near(rule, tensor, dtypes):
                    is_other = any(getattr(tensor, name) != fields[name] for name in fields)
                    if is_other and (title != "all" or "dtype_name" in fields):
                        yield f"{title}: {word}", partial(libraries.redescribe, names, fields)
    for scalar in contract.scalars:
        if scalar.is_pointer:
            yield from libraries.with_mistakes(f"{scalar.name}: null").items()
        for value in _near_value(base.arguments[scalar.name]):
            yield f"{scalar.name}: {value}", partial(libraries.with_argument, scalar.name, value)


def _near_value(value: Any) -> Iterator[Any]:
    """Masks and integers near this value."""
    if isinstance(value, tuple):
        yield from (value[:-1], (*value, True))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (0, -value, value - 1, value + 1)


def _is_true(contract: rules.Contract, before: Request, after: Request) -> bool:
    """Whether the changed descriptions are still true of the tensors' memory."""
    others = [scalar.name for scalar in contract.scalars]
    if after.mistakes or any(after.arguments[each] != before.arguments[each] for each in others):
        return False
    return all(
        (now.dtype_name, math.prod(now.dims)) == (was.dtype_name, math.prod(was.dims))
        and now.strides in (was.strides, contiguous_strides(now.dims))
        for now, was in zip(after.tensors.values(), before.tensors.values(), strict=True)
    )
