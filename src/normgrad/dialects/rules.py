"""The parts of contracts, which are tables of what a vendor's API allows, and the check of calls.

A contract has a row for each argument of an operator: when it is needed, which dtypes, formats,
ranks and shapes it may have, and how products differ. The tables are data: calls are checked
against them, and they can be printed for people to read. The dialect decides which status a broken
rule returns. A dialect's contracts (:mod:`.aclnn.contracts`, and CONTRACT in :mod:`.infiniop`) are
not the declarations of normgrad's own operators (:mod:`normgrad.declarations.contract`): they say
what the vendor's documents allow, and allow nothing that a declaration does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from math import prod
from typing import Any, Protocol

from ..tensors.strides import contiguous_strides, used_strides

#: How a value breaks a rule: what it was, and what is allowed.
Breach = tuple[str, str]

# Calls


class Tensor(Protocol):
    """The properties of a tensor that rules check."""

    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype_name(self) -> str: ...
    @property
    def format_name(self) -> str: ...


class Aspect(Enum):
    """What a broken rule is about, by which a dialect chooses the status."""

    NULL = "null"
    PRODUCT = "product"
    VALUE = "value"
    DTYPE = "dtype"
    FORMAT = "format"
    SHAPE = "shape"
    STRIDES = "strides"


EVERY = tuple(Aspect)


class ContractError(Exception):
    """A broken rule; the message names the parameter, what it was, and what is allowed."""

    def __init__(self, parameter: str, message: str, aspect: Aspect = Aspect.VALUE) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter
        self.aspect = aspect


@dataclass(frozen=True)
class Product:
    """A device family: its name, "" in a dialect without products, its dtypes and operators."""

    name: str
    dtypes: tuple[str, ...]
    operators: frozenset[str]


@dataclass
class BoundArguments:
    """The arguments of one call, by name, with the contract and the product that count.

    ``unusable`` has the arguments of a wrong type, and what is wrong with each. They do not count
    as nulls, and are not checked further.
    """

    contract: Contract
    product: Product
    arguments: Mapping[str, Any]
    unusable: Mapping[str, Breach] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that shapes are compared with, from arguments that passed their checks."""
        return self.contract.sizes(self)


# Rules for tensors


def one_of(names: Sequence[str]) -> str:
    """A list of names as part of a sentence."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@dataclass(frozen=True, eq=False)
class Rule:
    """One condition on a tensor.

    Attributes:
        aspect: what the condition is about.
        text: the condition in a table.
        breach: how a tensor breaks the rule; None if it obeys.
        ranks: the numbers of axes that are allowed, if the rule is about them.
    """

    aspect: Aspect
    text: str
    breach: Callable[[Tensor, BoundArguments], Breach | None]
    ranks: range = range(0)

    def __str__(self) -> str:
        return self.text


def dtype_in(*names: str) -> Rule:
    """The dtype must be one of these; without names, one that the product computes with."""

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        allowed = names or call.product.dtypes
        if tensor.dtype_name in allowed:
            return None
        return f"dtype {tensor.dtype_name}", one_of(allowed)

    return Rule(Aspect.DTYPE, one_of(names) if names else "by product", breach)


def dtype_of(*others: str, or_float32: bool = False) -> Rule:
    """The dtype must be that of the first of ``others`` that is given, or maybe float32."""
    text = f"as {', else '.join(others)}{', or float32' if or_float32 else ''}"

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        tensors = filter(None, map(call.arguments.get, others))
        allowed = [other.dtype_name for other in tensors][:1]
        if allowed and or_float32 and "float32" not in allowed:
            allowed.append("float32")
        if not allowed or tensor.dtype_name in allowed:
            return None
        return f"dtype {tensor.dtype_name}", f"{one_of(allowed)}, {text}"

    return Rule(Aspect.DTYPE, text, breach)


def format_in(names: Sequence[str], ranks: Mapping[str, int]) -> Rule:
    """The format must be in a list; ``ranks`` are the numbers of axes that some formats require."""

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        name, rank = tensor.format_name, len(tensor.dims)
        if name not in names:
            return f"format {name}", one_of(names)
        if ranks.get(name, rank) != rank:
            return f"format {name} with {rank} axes", f"{ranks[name]} axes for {name}"
        return None

    texts = (f"{name} ({ranks[name]} axes)" if name in ranks else name for name in names)
    return Rule(Aspect.FORMAT, ", ".join(texts), breach)


def format_of(other: str) -> Rule:
    """The format must be that of another parameter."""

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        peer = call.arguments.get(other)
        if peer is None or tensor.format_name == peer.format_name:
            return None
        return f"format {tensor.format_name}", f"{peer.format_name}, as {other}"

    return Rule(Aspect.FORMAT, f"as {other}", breach)


def rank_in(least: int, most: int) -> Rule:
    """The number of axes must be in a range."""
    text = f"{least}" if least == most else f"{least} to {most}"

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        rank = len(tensor.dims)
        if least <= rank <= most:
            return None
        return f"{rank} axes", text + (" axes" if most > 1 else " axis")

    return Rule(Aspect.SHAPE, text, breach, range(least, most + 1))


def shape_of(other: str, otherwise: str | None = None) -> Rule:
    """The shape must be that of another parameter; if that is null, one axis of a named size."""
    text = f"as {other}" + (f", else ({otherwise},)" if otherwise else "")

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        peer = call.arguments.get(other)
        if peer is not None:
            expected, reason = peer.dims, f"as {other}"
        elif otherwise is not None:
            expected, reason = (call.sizes[otherwise],), otherwise
        else:
            return None
        if tensor.dims == expected:
            return None
        return f"shape {tensor.dims}", f"{expected}, {reason}"

    return Rule(Aspect.SHAPE, text, breach)


def with_channels(same: Rule | None = None) -> Rule:
    """Axis 1, the channels, must not be empty; the shape must maybe obey another rule too."""

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        found = same.breach(tensor, call) if same else None
        if found is None and not tensor.dims[1]:
            return f"shape {tensor.dims}", "1 channel or more"
        return found

    return Rule(Aspect.SHAPE, f"{same or 'any'}, C ≥ 1", breach)


def length(size: str, or_empty_unless: str | None = None) -> Rule:
    """The shape must be one axis of a named size, or maybe of length 0 while a flag is false."""
    empty = f", or (0,) unless {or_empty_unless}" if or_empty_unless else ""

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        expected = call.sizes[size]
        may_be_empty = or_empty_unless and not call.arguments[or_empty_unless]
        if tensor.dims == (expected,) or (may_be_empty and tensor.dims == (0,)):
            return None
        return f"shape {tensor.dims}", f"({expected},), the length of {size}"

    return Rule(Aspect.SHAPE, f"({size},){empty}", breach)


def derived_shape(text: str, shape: Callable[[BoundArguments], tuple[int, ...]]) -> Rule:
    """The shape must be one that a function computes from the call; ``text`` describes it."""

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        expected = shape(call)
        return None if tensor.dims == expected else (f"shape {tensor.dims}", f"{expected}, {text}")

    return Rule(Aspect.SHAPE, text, breach)


def elements(*sizes: str) -> Rule:
    """The number of elements must be the product of named sizes, in any shape."""
    text = "·".join(sizes)

    def breach(tensor: Tensor, call: BoundArguments) -> Breach | None:
        expected = prod(map(call.sizes.__getitem__, sizes))
        count = prod(tensor.dims)
        if count == expected:
            return None
        return f"shape {tensor.dims}, {count} elements", f"{expected} elements, {text}"

    return Rule(Aspect.SHAPE, text, breach)


def _not_contiguous(tensor: Tensor, call: BoundArguments) -> Breach | None:
    dims, expected = tensor.dims, contiguous_strides(tensor.dims)
    if 0 in dims or used_strides(dims, tensor.strides) == used_strides(dims, expected):
        return None
    return f"strides {tensor.strides}", f"{expected}"


def _not_positive(tensor: Tensor, call: BoundArguments) -> Breach | None:
    if all(step > 0 for step in tensor.strides):
        return None
    return f"strides {tensor.strides}", "more than 0"


def _empty(tensor: Tensor, call: BoundArguments) -> Breach | None:
    return (f"shape {tensor.dims}", "1 element or more") if 0 in tensor.dims else None


#: The tensor must have an element.
FILLED = Rule(Aspect.SHAPE, "not empty", _empty)
#: The tensor must be row-major without gaps; an axis of one element may have any stride.
CONTIGUOUS = Rule(Aspect.STRIDES, "contiguous", _not_contiguous)
#: Every stride must be positive.
POSITIVE_STRIDES = Rule(Aspect.STRIDES, "more than 0", _not_positive)


# Tables


@dataclass(frozen=True)
class When:
    """The condition under which a null is an error, and a given tensor is checked.

    Attributes:
        flag: a constant, or the name of a flag, or of a mask.
        entry: the index of the mask's entry that counts.
        checked: the aspects of a given tensor that are checked even if it is not needed.
    """

    flag: bool | str
    entry: int | None = None
    checked: tuple[Aspect, ...] = ()

    def needed(self, call: BoundArguments) -> bool:
        """Whether the tensor must be given."""
        if isinstance(self.flag, bool):
            return self.flag
        if self.flag in call.unusable:
            return False
        value = call.arguments[self.flag]
        if self.entry is not None:
            value = self.entry < len(value) and value[self.entry]
        return value is True

    def __str__(self) -> str:
        if isinstance(self.flag, bool):
            return "required" if self.flag else "may be null"
        condition = self.flag if self.entry is None else f"{self.flag}[{self.entry}]"
        aspects = "" if self.checked == EVERY else "".join(f"{a.value} " for a in self.checked)
        return f"if {condition}" + (f", {aspects}checked if given" if self.checked else "")


ALWAYS, MAY_BE_NULL = When(True), When(False, checked=EVERY)


@dataclass(frozen=True)
class TensorRow:
    """A tensor's row of a table.

    ``is_updated`` is for inputs that the operator also writes; ``exceptions`` are the fields that
    differ, by product.
    """

    name: str
    when: When
    dtypes: tuple[Rule, ...]
    formats: tuple[Rule, ...] = ()
    rank: Rule | None = None
    shape: Rule | None = None
    strides: Rule | None = None
    is_output: bool = False
    is_updated: bool = False
    exceptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def on(self, product: str) -> TensorRow:
        """The row for one product."""
        changes = self.exceptions.get(product)
        return replace(self, **changes, exceptions={}) if changes else self

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The tensor's rules in the order of the checks; other rules rely on the rank."""
        rules = (self.rank, *self.dtypes, *self.formats, self.shape, self.strides)
        return tuple(rule for rule in rules if rule is not None)


@dataclass(frozen=True)
class ScalarRow:
    """The row of a table for an argument that is not a tensor.

    ``breach`` tells how a value breaks the rule. If ``is_pointer`` is true, a null is
    reported before other errors.
    """

    name: str
    text: str
    breach: Callable[[Any, BoundArguments], Breach | None]
    is_pointer: bool = False


@dataclass(frozen=True, eq=False)
class Contract:
    """An operator's table, whose rows have the order of its arguments.

    ``sizes`` computes the sizes that shapes are compared with, after the ranks, dtypes and formats
    of the tensors ``sized_by`` have passed their checks. ``stages`` are groups of aspects: each
    stage checks its aspects for all tensors before the next begins.
    """

    name: str
    rows: tuple[TensorRow | ScalarRow, ...]
    sizes: Callable[[BoundArguments], Mapping[str, int]]
    sized_by: tuple[str, ...] = ()
    stages: tuple[tuple[Aspect, ...], ...] = (EVERY,)

    @cached_property
    def tensors(self) -> tuple[TensorRow, ...]:
        """The rows of tensors."""
        return tuple(row for row in self.rows if isinstance(row, TensorRow))

    @cached_property
    def scalars(self) -> tuple[ScalarRow, ...]:
        """The rows of the other arguments."""
        return tuple(row for row in self.rows if isinstance(row, ScalarRow))

    @cache  # noqa: B019 - a few tables, which live as long as the process
    def steps_on(self, product: str) -> tuple[tuple[str, Rule], ...]:
        """The rules for one product, in the order of the checks, with their tensors' names."""
        steps: list[tuple[str, Rule]] = []
        for stage in self.stages:
            late: list[tuple[str, Rule]] = []
            for row in (tensor.on(product) for tensor in self.tensors):
                # The others' rules compare with these tensors.
                is_sizing = row.name in self.sized_by
                for rule in row.rules:
                    if rule.aspect in stage:
                        is_early = is_sizing and rule is not row.shape
                        (steps if is_early else late).append((row.name, rule))
            steps += late
        return tuple(steps)


def check(call: BoundArguments, products: Sequence[Product]) -> None:
    """Raise a ContractError for the first rule that a call breaks.

    Nulls are checked first, then whether the product has the operator, then everything else.
    """
    contract = call.contract
    for scalar in contract.scalars:
        if scalar.is_pointer and call.arguments[scalar.name] is None:
            raise ContractError(scalar.name, f"null; allowed: {scalar.text}", Aspect.NULL)
    checked: dict[str, tuple[Tensor, Sequence[Aspect]]] = {}
    for row in contract.tensors:
        tensor, when = call.arguments[row.name], row.when
        if tensor is not None:
            checked[row.name] = tensor, EVERY if when.needed(call) else when.checked
        elif when.needed(call):
            message = f"null; allowed: a tensor ({when})"
            raise ContractError(row.name, message, Aspect.NULL)
    if contract.name not in call.product.operators:
        able = [product.name for product in products if contract.name in product.operators]
        message = f"{call.product.name}; allowed: {one_of(able)}"
        raise ContractError("product", message, Aspect.PRODUCT)
    if call.unusable:
        name = next(row.name for row in contract.rows if row.name in call.unusable)
        raise _error(name, call.unusable[name], call)
    for scalar in contract.scalars:
        if found := scalar.breach(call.arguments[scalar.name], call):
            raise _error(scalar.name, found, call)
    for name, rule in contract.steps_on(call.product.name):
        tensor, aspects = checked.get(name, (None, ()))
        if tensor is not None and rule.aspect in aspects and (found := rule.breach(tensor, call)):
            raise _error(name, found, call, rule.aspect)


def _error(
    name: str, breach: Breach, call: BoundArguments, aspect: Aspect = Aspect.VALUE
) -> ContractError:
    was, allowed = breach
    where = f" on {call.product.name}" if call.product.name else ""
    return ContractError(name, f"{was}; allowed{where}: {allowed}", aspect)
