"""Calls that just keep or just break each rule of a dialect's table.

Near every rule of :mod:`..rules` a tensor can be described otherwise: another length, one more
axis, another dtype. The table itself says which descriptions it allows. A description that it does
not allow makes a wrong call; one that it allows, and that is true of the tensor's memory, makes a
legal call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ..dialects import rules
from ..dialects.rules import Aspect, Contract, Product
from ..tensors.strides import contiguous_strides
from .requests import Changes, Mistake, Request, Tensor

Shape = tuple[int, ...]

_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
_AXES = ("no axis", "one axis", *(f"{number} axes" for number in _NUMBERS))


def breach(contract: Contract, product: Product, request: Request) -> Aspect | None:
    """In which respect a request first breaks a contract; None if its arguments keep it."""
    try:
        rules.check(rules.BoundArguments(contract, product, request.arguments), (product,))
    except rules.ContractError as error:
        return error.aspect
    return None


@dataclass(frozen=True)
class Neighbours:
    """The calls near a legal one on both sides of each rule, by names.

    Attributes:
        contract, product: the rules; the product has the operator.
        base: the legal call, with all optional tensors.
        dtypes: the dtypes to try, by the words for them in the calls' names.
        statuses: the dialect's statuses, by what a broken rule is about.
        legal: changes that keep the contract, and are true of the tensors' memory.
        illegal: mistakes: the changes that break the contract.
    """

    contract: Contract
    product: Product
    base: Request
    dtypes: Mapping[str, str]
    statuses: Mapping[Aspect, IntEnum]
    legal: dict[str, Changes] = field(default_factory=dict)
    illegal: dict[str, Mistake] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, changes in self._changes():
            new = self.base.changed(changes).arguments
            if mistake := self._mistake(changes):
                self.illegal[name] = mistake
            elif all(_is_true(new[each]) for each in changes):
                self.legal[name] = changes

    def both(self, *pairs: tuple[str, str]) -> dict[str, Mistake]:
        """Calls with two of the mistakes, of which the first in the order of checks counts."""
        found = {}
        for pair in pairs:
            first, second = (self.illegal[each].changes for each in pair)
            if mistake := self._mistake({**first, **second}):
                found[", and ".join(pair)] = mistake
        return found

    def _mistake(self, changes: Changes) -> Mistake | None:
        """The mistake that changes make; None if they keep the contract."""
        aspect = breach(self.contract, self.product, self.base.changed(changes))
        return Mistake(self.statuses[aspect], changes) if aspect else None

    def _changes(self) -> Iterator[tuple[str, Changes]]:
        """Changes on both sides of each rule, by names."""
        contract, tensors = self.contract, self.base.tensors
        data = [name for name, each in tensors.items() if each.dims == tensors["input"].dims]
        for row in (each for each in contract.tensors if each.name in tensors):
            yield f"{row.name}: null", {row.name: None}
            tensor, groups = tensors[row.name], {row.name: [row.name]}
            if row.name == "input":
                groups |= {"data": data, "all": [*tensors]}
            for title, names in groups.items():
                for rule in row.on(self.product.name).rules:
                    for word, fields in self._near(rule, tensor):
                        is_other = not fields.items() <= vars(tensor).items()
                        if is_other and (title != "all" or "dtype_name" in fields):
                            yield f"{title}: {word}", dict.fromkeys(names, fields)
        for scalar in contract.scalars:
            if scalar.is_pointer:
                yield f"{scalar.name}: null", {scalar.name: None}
            for value in _near_value(self.base.arguments[scalar.name]):
                yield f"{scalar.name}: {value}", {scalar.name: value}

    def _near(self, rule: rules.Rule, tensor: Tensor) -> Iterator[tuple[str, dict[str, Any]]]:
        """Other descriptions of a tensor near a rule: a word for each, and the other fields."""
        dims, (*outer, row) = tensor.dims, tensor.dims
        reverse = {"strides": tuple(-step for step in tensor.strides)}
        if rule.aspect is Aspect.DTYPE:
            yield from ((word, {"dtype_name": each}) for word, each in self.dtypes.items())
        elif rule.aspect is Aspect.FORMAT:
            for name in ("ND", "NC", "NCL", "NCHW", "NCDHW", "NHWC", "NDHWC", "NC1HWC0"):
                yield name, {"format_name": name}
        elif rule is rules.CONTIGUOUS:
            yield "the last axes transposed", {"strides": (*tensor.strides[:-2], 1, dims[-2])}
            yield "gaps between rows", {"strides": contiguous_strides((*outer, row + 1))}
            yield "negative strides", reverse
        elif rule is rules.POSITIVE_STRIDES:
            yield "stride 0", {"strides": (0,) * len(dims)}
            yield "a negative stride", reverse
        else:  # rules of shapes
            yield "an element short", _of_dims((*outer, row - 1))
            yield "an element long", _of_dims((*outer, row + 1))
            if outer:
                yield "a sample short", _of_dims((dims[0] - 1, *dims[1:]))
                yield "no channels", _of_dims((dims[0], 0, *dims[2:]))
        if rule.ranks:
            least, most = rule.ranks[0], rule.ranks[-1]
            for axes in sorted({least - 1, least, 1, most, most + 1} - {-1}):
                yield _AXES[axes], _of_dims(_with_axes(dims, axes))


def _is_true(value: Any) -> bool:
    """Whether a tensor is described as it lies in its memory, which is contiguous."""
    return isinstance(value, Tensor) and (
        (value.dtype_name, math.prod(value.dims), value.strides)
        == (value.array.dtype.name, value.array.size, contiguous_strides(value.dims))
    )


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


def _near_value(value: Any) -> Iterator[Any]:
    """Masks and integers near this value."""
    if isinstance(value, tuple):
        yield from (value[:-1], (*value, True))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (0, -value, value - 1, value + 1)
