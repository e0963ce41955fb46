"""The contracts of the vendors' APIs (dialects) as tables, and the code that checks calls by them.

A dialect lists each operator's parameters: when each is needed, which dtypes, formats, ranks and
shapes it may have, and how products differ. The tables are data: calls are checked against them,
and they can be printed for people to read. The dialect decides which status a broken rule returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from math import prod
from typing import Any, ClassVar, Protocol

from . import layout

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
    """What a broken rule is about: what a dialect chooses the status by.

    The last four are the properties of a tensor that rules check.
    """

    NULL = "null"
    PRODUCT = "product"
    VALUE = "value"
    DTYPE = "dtype"
    FORMAT = "format"
    SHAPE = "shape"
    STRIDES = "strides"


class ContractError(Exception):
    """A broken rule; the message names the parameter, what it was, and what is allowed."""

    def __init__(self, parameter: str, message: str, aspect: Aspect = Aspect.VALUE) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter
        self.aspect = aspect


@dataclass(frozen=True)
class Product:
    """A device family: the dtypes of its tensors, and its operators.

    ``name`` is empty in a dialect that does not distinguish products.
    """

    name: str
    dtypes: tuple[str, ...]
    operators: frozenset[str]


@dataclass
class Call:
    """The arguments of one call, by name, and the sizes that shapes are compared with.

    ``malformed`` holds the arguments of a wrong type, each with a description of what it was and of
    what is allowed. They do not count as nulls, and are not checked further.
    """

    product: Product
    arguments: Mapping[str, Any]
    malformed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


# Rules for tensors


def one_of(names: Sequence[str]) -> str:
    """A list of names as part of a sentence."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


class Rule(ABC):
    """One condition on a tensor."""

    aspect: ClassVar[Aspect] = Aspect.SHAPE

    @abstractmethod
    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        """Descriptions of the tensor and of what is allowed; None if it obeys the rule."""


class DtypeRule(Rule):
    """The dtype must be in a set, which may depend on other parameters; None allows any dtype."""

    aspect = Aspect.DTYPE

    @abstractmethod
    def allowed(self, call: Call) -> tuple[str, ...] | None: ...

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        allowed = self.allowed(call)
        if allowed is None or tensor.dtype_name in allowed:
            return None
        return f"dtype {tensor.dtype_name}", f"{one_of(allowed)}{self.why()}"

    def why(self) -> str:
        return ""


@dataclass(frozen=True)
class OneOf(DtypeRule):
    """The dtype must be in a list, or without one, be one that the product computes with."""

    names: tuple[str, ...] = ()

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        return self.names or call.product.dtypes

    def __str__(self) -> str:
        return one_of(self.names) if self.names else "by product"


@dataclass(frozen=True)
class DtypeOf(DtypeRule):
    """The dtype must be that of the first of ``others`` that is given, or maybe float32."""

    others: tuple[str, ...]
    or_float32: bool = False

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        for name in self.others:
            tensor = call.arguments.get(name)
            if tensor is not None:
                more = ("float32",) if self.or_float32 and tensor.dtype_name != "float32" else ()
                return (tensor.dtype_name, *more)
        return None

    def why(self) -> str:
        return f", {self}"

    def __str__(self) -> str:
        first, *rest = self.others
        text = f"as {first}" + "".join(f", else {name}" for name in rest)
        return text + (", or float32" if self.or_float32 else "")


@dataclass(frozen=True)
class Formats(Rule):
    """The format must be in a list; ``ranks`` are the numbers of axes that some formats require."""

    aspect = Aspect.FORMAT
    names: tuple[str, ...]
    ranks: Mapping[str, int] = field(default_factory=dict)

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if tensor.format_name not in self.names:
            return f"format {tensor.format_name}", one_of(self.names)
        rank = self.ranks.get(tensor.format_name)
        if rank is not None and len(tensor.dims) != rank:
            was = f"format {tensor.format_name} with {len(tensor.dims)} axes"
            return was, f"{rank} axes for {tensor.format_name}"
        return None

    def __str__(self) -> str:
        return ", ".join(
            f"{name} ({self.ranks[name]} axes)" if name in self.ranks else name
            for name in self.names
        )


@dataclass(frozen=True)
class FormatOf(Rule):
    """The format must be that of another parameter."""

    aspect = Aspect.FORMAT
    other: str

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        other = call.arguments.get(self.other)
        if other is None or tensor.format_name == other.format_name:
            return None
        return f"format {tensor.format_name}", f"{other.format_name}, as {self.other}"

    def __str__(self) -> str:
        return f"as {self.other}"


@dataclass(frozen=True)
class Rank(Rule):
    """The number of axes must be in a range."""

    least: int
    most: int

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        rank = len(tensor.dims)
        if self.least <= rank <= self.most:
            return None
        return f"{rank} axes", f"{self}" + (" axes" if self.most > 1 else " axis")

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class ShapeOf(Rule):
    """The shape must be that of another parameter; if that is null, one axis of a named size."""

    other: str
    otherwise: str | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        other = call.arguments.get(self.other)
        if other is not None:
            if tensor.dims == other.dims:
                return None
            return f"shape {tensor.dims}", f"{other.dims}, as {self.other}"
        if self.otherwise is None or tensor.dims == (call.sizes[self.otherwise],):
            return None
        return f"shape {tensor.dims}", f"({call.sizes[self.otherwise]},), {self.otherwise}"

    def __str__(self) -> str:
        return f"as {self.other}" + (f", else ({self.otherwise},)" if self.otherwise else "")


@dataclass(frozen=True)
class WithChannels(Rule):
    """Axis 1, the channels, must not be empty; the shape must maybe be another parameter's."""

    same: ShapeOf | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        broken = self.same.broken(tensor, call) if self.same else None
        if broken is None and not tensor.dims[1]:
            return f"shape {tensor.dims}", "1 channel or more"
        return broken

    def __str__(self) -> str:
        return f"{self.same or 'any'}, C ≥ 1"


@dataclass(frozen=True)
class Length(Rule):
    """The shape must be one axis of a named size, or maybe of length 0 while a flag is false."""

    size: str
    or_empty_unless: str | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        size = call.sizes[self.size]
        may_be_empty = self.or_empty_unless and not call.arguments[self.or_empty_unless]
        if tensor.dims == (size,) or (may_be_empty and tensor.dims == (0,)):
            return None
        return f"shape {tensor.dims}", f"({size},), the length of {self.size}"

    def __str__(self) -> str:
        empty = f", or (0,) unless {self.or_empty_unless}" if self.or_empty_unless else ""
        return f"({self.size},){empty}"


@dataclass(frozen=True)
class Elements(Rule):
    """The number of elements must be the product of named sizes, in any shape."""

    sizes: tuple[str, ...]

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        expected = prod(map(call.sizes.__getitem__, self.sizes))
        found = prod(tensor.dims)
        if found == expected:
            return None
        return f"shape {tensor.dims}, {found} elements", f"{expected} elements, {self}"

    def __str__(self) -> str:
        return "·".join(self.sizes)


@dataclass(frozen=True)
class Contiguous(Rule):
    """The tensor must be row-major without gaps; an axis of one element may have any stride."""

    aspect = Aspect.STRIDES

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        expected = layout.contiguous_strides(tensor.dims)
        if 0 in tensor.dims or all(
            size == 1 or step == right
            for size, step, right in zip(tensor.dims, tensor.strides, expected, strict=True)
        ):
            return None
        return f"strides {tensor.strides}", f"{expected}"

    def __str__(self) -> str:
        return "contiguous"


@dataclass(frozen=True)
class PositiveStrides(Rule):
    """Every stride must be positive."""

    aspect = Aspect.STRIDES

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if all(step > 0 for step in tensor.strides):
            return None
        return f"strides {tensor.strides}", f"{self}"

    def __str__(self) -> str:
        return "more than 0"


# Tables


@dataclass(frozen=True)
class When:
    """The condition under which a null is an error, and a given tensor is checked.

    Attributes:
        flag: a constant, or the name of a flag, or of a mask.
        entry: the index of the mask's entry that counts.
        always_checked: whether a given tensor is checked even if it is not needed.
    """

    flag: bool | str
    entry: int | None = None
    always_checked: bool = False

    def needed(self, call: Call) -> bool:
        """Whether the tensor must be given."""
        if isinstance(self.flag, bool):
            return self.flag
        if self.flag in call.malformed:
            return False
        value = call.arguments[self.flag]
        if self.entry is not None:
            value = self.entry < len(value) and value[self.entry]
        return value is True

    def __str__(self) -> str:
        if isinstance(self.flag, bool):
            return "required" if self.flag else "may be null"
        asked = self.flag if self.entry is None else f"{self.flag}[{self.entry}]"
        return f"if {asked}" + (", checked if given" if self.always_checked else "")


ALWAYS, MAY_BE_NULL = When(True), When(False, always_checked=True)


@dataclass(frozen=True)
class Parameter:
    """A tensor's row of a table; ``exceptions`` are the fields that differ, by product."""

    name: str
    when: When
    dtypes: tuple[DtypeRule, ...]
    formats: tuple[Rule, ...] = ()
    rank: Rank | None = None
    shape: Rule | None = None
    strides: Rule | None = None
    is_output: bool = False
    exceptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def on(self, product: str) -> Parameter:
        """The row for one product."""
        changes = self.exceptions.get(product)
        return replace(self, **changes, exceptions={}) if changes else self

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The tensor's rules, in the order in which they are checked.

        The rank comes first, since other rules rely on it.
        """
        rules = (self.rank, *self.dtypes, *self.formats, self.shape, self.strides)
        return tuple(rule for rule in rules if rule is not None)


@dataclass(frozen=True)
class Scalar:
    """The row of a table for an argument that is not a tensor.

    ``broken`` returns None, or descriptions of a wrong value and of what is allowed. If
    ``is_pointer`` is true, a null is reported before other errors.
    """

    name: str
    text: str
    broken: Callable[[Any, Call], tuple[str, str] | None]
    is_pointer: bool = False


@dataclass(frozen=True, eq=False)
class Contract:
    """An operator's table, whose rows have the order of its arguments.

    ``sizes`` computes the sizes that shapes are compared with, after the ranks, dtypes and formats
    of the tensors ``sized_by`` have passed their checks; it may raise an error. ``stages`` are
    groups of aspects: each stage checks its aspects for all tensors before the next begins. The
    stage with the shapes computes the sizes.
    """

    name: str
    rows: tuple[Parameter | Scalar, ...]
    sizes: Callable[[Call], Mapping[str, int]]
    sized_by: tuple[str, ...] = ()
    stages: tuple[tuple[Aspect, ...], ...] = (tuple(Aspect),)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The rows of tensors."""
        return tuple(row for row in self.rows if isinstance(row, Parameter))

    @cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        """The rows of the other arguments."""
        return tuple(row for row in self.rows if isinstance(row, Scalar))

    @cache  # noqa: B019 - a few tables, which live as long as the process
    def steps_on(self, product: str) -> tuple[tuple[str, list[Rule]] | None, ...]:
        """The rules for one product, in the order of the checks, with their tensors' names.

        None stands where the sizes are computed.
        """
        steps: list[tuple[str, list[Rule]] | None] = []
        for stage in self.stages:
            has_shapes = Aspect.SHAPE in stage
            early: dict[str, list[Rule]] = {}
            late: dict[str, list[Rule]] = {}
            for parameter in self.parameters:
                row = parameter.on(product)
                sizing = has_shapes and row.name in self.sized_by
                for rule in row.rules:
                    if rule.aspect in stage:
                        when = early if sizing and rule is not row.shape else late
                        when.setdefault(row.name, []).append(rule)
            steps += early.items()
            steps += [None, *late.items()] if has_shapes else late.items()
        return tuple(steps)


def check(contract: Contract, call: Call, products: Sequence[Product]) -> None:
    """Raise a ContractError for the first rule that a call breaks.

    Nulls are checked first, then whether the product has the operator, then everything else.
    """
    for scalar in contract.scalars:
        if scalar.is_pointer and call.arguments[scalar.name] is None:
            raise ContractError(scalar.name, f"null; allowed: {scalar.text}", Aspect.NULL)
    checked: dict[str, Tensor] = {}
    for parameter in contract.parameters:
        tensor, when = call.arguments[parameter.name], parameter.when
        if tensor is not None:
            if when.always_checked or when.needed(call):
                checked[parameter.name] = tensor
        elif when.needed(call):
            message = f"null; allowed: a tensor ({when})"
            raise ContractError(parameter.name, message, Aspect.NULL)
    if contract.name not in call.product.operators:
        able = [product.name for product in products if contract.name in product.operators]
        message = f"{call.product.name}; allowed: {one_of(able)}"
        raise ContractError("product", message, Aspect.PRODUCT)
    if call.malformed:
        name = next(row.name for row in contract.rows if row.name in call.malformed)
        raise _invalid(name, call.malformed[name], call)
    for scalar in contract.scalars:
        broken = scalar.broken(call.arguments[scalar.name], call)
        if broken is not None:
            raise _invalid(scalar.name, broken, call)
    for step in contract.steps_on(call.product.name):
        if step is None:
            call.sizes.update(contract.sizes(call))
            continue
        name, rules = step
        tensor = checked.get(name)
        if tensor is None:
            continue
        for rule in rules:
            broken = rule.broken(tensor, call)
            if broken is not None:
                raise _invalid(name, broken, call, rule.aspect)


def _invalid(
    name: str, broken: tuple[str, str], call: Call, aspect: Aspect = Aspect.VALUE
) -> ContractError:
    was, allowed = broken
    where = f" on {call.product.name}" if call.product.name else ""
    return ContractError(name, f"{was}; allowed{where}: {allowed}", aspect)
