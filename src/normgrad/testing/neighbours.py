"""Calls that just keep or just break each rule of a dialect's table.

Near every rule of :mod:`..rules` a tensor can be described otherwise: another length, one more
axis, another dtype. The table itself says which descriptions it allows. A description that it does
not allow makes a wrong call; one that it allows, and that is true of the tensor's memory, makes a
legal call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from .. import rules
from ..layout import contiguous_strides
from .libraries import Changes, Mistake, Request, Tensor
from .tensors import Shape

_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
_AXES = ("no axis", "one axis", *(f"{number} axes" for number in _NUMBERS))


def breach(
    contract: rules.Contract, product: rules.Product, request: Request
) -> rules.ContractError | None:
    """How a request first breaks a contract; None if its arguments keep it."""
    try:
        rules.check(rules.Call(contract, product, request.arguments), (product,))
    except rules.ContractError as error:
        return error
    return None


class Neighbours:
    """The calls near a legal one, which has all optional tensors, on both sides of each rule.

    Args:
        contract, product: the rules; the product must have the operator.
        base: the legal call.
        dtypes: the names of the dtypes to try, by the words for them in the calls' names.
        statuses: the dialect's statuses, by what a broken rule is about.

    Attributes:
        legal: changes that keep the contract, and are true of the tensors' memory, by their names.
        illegal: mistakes: the changes that break the contract, by their names.
    """

    def __init__(
        self,
        contract: rules.Contract,
        product: rules.Product,
        base: Request,
        dtypes: Mapping[str, str],
        statuses: Mapping[rules.Aspect, IntEnum],
    ) -> None:
        self._contract, self._product, self._base = contract, product, base
        self._dtypes, self._statuses = dtypes, statuses
        self.legal: dict[str, Changes] = {}
        self.illegal: dict[str, Mistake] = {}
        for name, changes in self._changes():
            if mistake := self._mistake(changes):
                self.illegal[name] = mistake
            elif all(self._is_true(each, changes[each]) for each in changes):
                self.legal[name] = changes

    def both(self, *pairs: tuple[str, str]) -> dict[str, Mistake]:
        """Calls with two of the mistakes, of which the first in the order of checks counts."""
        found = {}
        for first, second in pairs:
            changes = {**self.illegal[first].changes, **self.illegal[second].changes}
            if mistake := self._mistake(changes):
                found[f"{first}, and {second}"] = mistake
        return found

    def _mistake(self, changes: Changes) -> Mistake | None:
        """The mistake that changes make; None if they keep the contract."""
        error = breach(self._contract, self._product, self._base.changed(changes))
        return None if error is None else Mistake(self._statuses[error.aspect], changes)

    def _changes(self) -> Iterator[tuple[str, Changes]]:
        """Changes on both sides of each rule, by names."""
        tensors = self._base.tensors
        data = [name for name, each in tensors.items() if each.dims == tensors["input"].dims]
        for row in self._contract.parameters:
            if row.name not in tensors:
                continue
            yield f"{row.name}: null", {row.name: None}
            tensor, groups = tensors[row.name], {row.name: [row.name]}
            if row.name == "input":
                groups |= {"data": data, "all": list(tensors)}
            for title, names in groups.items():
                for rule in row.on(self._product.name).rules:
                    for word, fields in self._near(rule, tensor):
                        is_other = not fields.items() <= vars(tensor).items()
                        if is_other and (title != "all" or "dtype_name" in fields):
                            yield f"{title}: {word}", dict.fromkeys(names, fields)
        for scalar in self._contract.scalars:
            if scalar.is_pointer:
                yield f"{scalar.name}: null", {scalar.name: None}
            for value in _near_value(self._base.arguments[scalar.name]):
                yield f"{scalar.name}: {value}", {scalar.name: value}

    def _near(self, rule: rules.Rule, tensor: Tensor) -> Iterator[tuple[str, dict[str, Any]]]:
        """Other descriptions of a tensor near a rule: a word for each, and the other fields."""
        dims, strides = tensor.dims, tensor.strides
        if rule.aspect is rules.Aspect.DTYPE:
            yield from ((word, {"dtype_name": name}) for word, name in self._dtypes.items())
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

    def _is_true(self, name: str, change: Any) -> bool:
        """Whether a changed description is still true of the tensor's memory."""
        was = self._base.tensors.get(name)
        if was is None or change is None:
            return False
        dims = change.get("dims", was.dims)
        return (
            change.get("dtype_name", was.dtype_name) == was.dtype_name
            and math.prod(dims) == math.prod(was.dims)
            and change.get("strides", was.strides) in (was.strides, contiguous_strides(dims))
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
