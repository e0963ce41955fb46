"""Contracts of the dialects, as tables, and the one engine that checks them.

A dialect lists each operator's parameters: when each is needed, which dtypes, formats, ranks and
shapes it may have, and in what a product differs. The tables are data: they are checked, and they
are printed for people to read. What a broken rule means as a status is the dialect's to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from typing import Any, ClassVar, Protocol

from . import layout


class Tensor(Protocol):
    """What the rules look at."""

    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype_name(self) -> str: ...
    @property
    def format_name(self) -> str: ...


class Break(Enum):
    """How a contract is broken."""

    NULL = "null"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"


class Aspect(Enum):
    """What a rule is about; some dialects have a status for each."""

    DTYPE = "dtype"
    FORMAT = "format"
    SHAPE = "shape"
    STRIDES = "strides"


class ContractError(Exception):
    """A broken rule: how, whose, and in words what it was and what is allowed.

    ``aspect``: of a tensor's rule, or None.
    """

    def __init__(
        self, kind: Break, parameter: str, message: str, aspect: Aspect | None = None
    ) -> None:
        super().__init__(f"{parameter}: {message}")
        self.kind = kind
        self.parameter = parameter
        self.aspect = aspect


@dataclass(frozen=True)
class Product:
    """A device family: the dtypes of its tensors, and the operators it has.

    ``name`` is empty where a dialect knows no products.
    """

    name: str
    dtypes: tuple[str, ...]
    operators: frozenset[str]


@dataclass
class Call:
    """The arguments of one call, by name; and the sizes that shapes are compared with.

    ``malformed``: what is not even of the right sort, and in words what it was and may be. It is no
    null, and nothing else is asked of it.
    """

    product: Product
    tensors: Mapping[str, Tensor | None]
    scalars: Mapping[str, Any]
    malformed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


# When a parameter is needed


class When(ABC):
    """Whether a null is an error; and whether a tensor that is there is looked at."""

    @abstractmethod
    def needed(self, call: Call) -> bool:
        """Whether it must be there."""

    def looked_at(self, call: Call) -> bool:
        """Whether it is checked, if it is there."""
        return True


@dataclass(frozen=True)
class Always(When):
    """A null is an error."""

    def needed(self, call: Call) -> bool:
        return True

    def __str__(self) -> str:
        return "required"


@dataclass(frozen=True)
class MayBeNull(When):
    """A null is none."""

    def needed(self, call: Call) -> bool:
        return False

    def __str__(self) -> str:
        return "may be null"


@dataclass(frozen=True)
class IfAsked(When):
    """Needed if a flag, or an entry of a mask, is true."""

    flag: str
    entry: int | None = None
    always_looked_at: bool = False

    def needed(self, call: Call) -> bool:
        if self.flag in call.malformed:
            return False
        value = call.scalars[self.flag]
        if self.entry is not None:
            value = self.entry < len(value) and value[self.entry]
        return value is True

    def looked_at(self, call: Call) -> bool:
        return self.always_looked_at or self.needed(call)

    def __str__(self) -> str:
        asked = self.flag if self.entry is None else f"{self.flag}[{self.entry}]"
        return f"if {asked}" + (", checked if given" if self.always_looked_at else "")


# What it may be


class Rule(ABC):
    """One thing that a tensor must keep to."""

    aspect: ClassVar[Aspect] = Aspect.SHAPE

    @abstractmethod
    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        """What it was and what is allowed, or None if it keeps to the rule."""


def _one_of(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


class DtypeRule(Rule):
    """A set of dtypes, which may follow from other parameters; None for any."""

    aspect = Aspect.DTYPE

    @abstractmethod
    def allowed(self, call: Call) -> tuple[str, ...] | None: ...

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        allowed = self.allowed(call)
        if allowed is None or tensor.dtype_name in allowed:
            return None
        return f"dtype {tensor.dtype_name}", f"{_one_of(allowed)}{self.why()}"

    def why(self) -> str:
        return ""


@dataclass(frozen=True)
class OfProduct(DtypeRule):
    """What the product computes in."""

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        return call.product.dtypes

    def __str__(self) -> str:
        return "by product"


@dataclass(frozen=True)
class OneOf(DtypeRule):
    """One of a list."""

    names: tuple[str, ...]

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        return self.names

    def __str__(self) -> str:
        return _one_of(self.names)


@dataclass(frozen=True)
class DtypeOf(DtypeRule):
    """The dtype of another parameter, if that is there; with float32 beside it, if that is said.

    ``others`` are asked in their order.
    """

    others: tuple[str, ...]
    or_float32: bool = False

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        for name in self.others:
            tensor = call.tensors.get(name)
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
    """The formats a tensor may have; the dimensions that go with some of them."""

    aspect = Aspect.FORMAT
    names: tuple[str, ...]
    ranks: Mapping[str, int] = field(default_factory=dict)

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if tensor.format_name not in self.names:
            return f"format {tensor.format_name}", _one_of(self.names)
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
    """Exactly the format of another parameter."""

    aspect = Aspect.FORMAT
    other: str

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        other = call.tensors.get(self.other)
        if other is None or tensor.format_name == other.format_name:
            return None
        return f"format {tensor.format_name}", f"{other.format_name}, as {self.other}"

    def __str__(self) -> str:
        return f"as {self.other}"


@dataclass(frozen=True)
class Rank(Rule):
    """How many axes."""

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
    """The shape of another parameter, if that is there; else of one axis with a size."""

    other: str
    otherwise: str | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        other = call.tensors.get(self.other)
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
    """The shape of another parameter, or any; with at least one channel, at axis 1."""

    same: ShapeOf | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if self.same is not None:
            broken = self.same.broken(tensor, call)
            if broken is not None:
                return broken
        return None if tensor.dims[1] else (f"shape {tensor.dims}", "1 channel or more")

    def __str__(self) -> str:
        return f"{self.same or 'any'}, C ≥ 1"


@dataclass(frozen=True)
class Length(Rule):
    """One axis of a size; of length 0 too, where a flag is false."""

    size: str
    or_empty_unless: str | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        size = call.sizes[self.size]
        if tensor.dims == (size,):
            return None
        if self.or_empty_unless and tensor.dims == (0,) and not call.scalars[self.or_empty_unless]:
            return None
        return f"shape {tensor.dims}", f"({size},), the length of {self.size}"

    def __str__(self) -> str:
        empty = f", or (0,) unless {self.or_empty_unless}" if self.or_empty_unless else ""
        return f"({self.size},){empty}"


@dataclass(frozen=True)
class Elements(Rule):
    """Any shape of so many elements: a product of sizes."""

    sizes: tuple[str, ...]

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        expected = found = 1
        for name in self.sizes:
            expected *= call.sizes[name]
        for size in tensor.dims:
            found *= size
        if found == expected:
            return None
        return f"shape {tensor.dims}, {found} elements", f"{expected} elements, {self}"

    def __str__(self) -> str:
        return "·".join(self.sizes)


@dataclass(frozen=True)
class Contiguous(Rule):
    """Row-major, without gaps; an axis of one element may have any stride."""

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
    """Steps of at least one element."""

    aspect = Aspect.STRIDES

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if all(step > 0 for step in tensor.strides):
            return None
        return f"strides {tensor.strides}", f"{self}"

    def __str__(self) -> str:
        return "more than 0"


# Tables


@dataclass(frozen=True)
class Parameter:
    """A tensor's row of a table. ``exceptions``: what other rules a product has in its place."""

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
        """The row as it is for one product."""
        changes = self.exceptions.get(product)
        return replace(self, **changes, exceptions={}) if changes else self

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """All that a tensor must keep to, in the order in which they are looked at.

        The rank comes first: other rules count on it.
        """
        rules = (self.rank, *self.dtypes, *self.formats, self.shape, self.strides)
        return tuple(rule for rule in rules if rule is not None)


@dataclass(frozen=True)
class Scalar:
    """A row for an argument that is no tensor. ``broken`` says what a wrong value was and may be.

    ``is_pointer``: a null is an error of its own.
    """

    name: str
    text: str
    broken: Callable[[Any, Call], tuple[str, str] | None]
    is_pointer: bool = False


@dataclass(frozen=True, eq=False)
class Contract:
    """An operator's table, its rows in the order of its arguments.

    ``sizes``: gives shapes their sizes once the ranks, dtypes and formats of ``sized_by`` are
    right; it may find them broken. ``stages``: aspects that are looked at one after the other, in
    each all tensors; the shapes' stage is where sizes are taken.
    """

    name: str
    rows: tuple[Parameter | Scalar, ...]
    sizes: Callable[[Call], Mapping[str, int]]
    sized_by: tuple[str, ...] = ()
    stages: tuple[tuple[Aspect, ...], ...] = (tuple(Aspect),)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The tensors."""
        return tuple(row for row in self.rows if isinstance(row, Parameter))

    @cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        """What is no tensor."""
        return tuple(row for row in self.rows if isinstance(row, Scalar))

    @cache  # noqa: B019 - a few tables, which live as long as the process
    def parameters_on(self, product: str) -> tuple[Parameter, ...]:
        """The tensors' rows as they are for one product."""
        return tuple(parameter.on(product) for parameter in self.parameters)


def check(contract: Contract, call: Call, products: Sequence[Product]) -> None:
    """Raise the first broken rule of a call.

    In this order: nulls; whether the product has the operator; everything else.
    """
    for scalar in contract.scalars:
        if scalar.is_pointer and call.scalars[scalar.name] is None:
            raise ContractError(Break.NULL, scalar.name, f"null; allowed: {scalar.text}")
    for parameter in contract.parameters:
        if call.tensors[parameter.name] is None and parameter.when.needed(call):
            raise ContractError(
                Break.NULL, parameter.name, f"null; allowed: a tensor ({parameter.when})"
            )
    if contract.name not in call.product.operators:
        able = [product.name for product in products if contract.name in product.operators]
        raise ContractError(
            Break.UNSUPPORTED, "product", f"{call.product.name}; allowed: {_one_of(able)}"
        )
    for row in contract.rows:
        if row.name in call.malformed:
            raise _invalid(row.name, call.malformed[row.name], call)
    for scalar in contract.scalars:
        broken = scalar.broken(call.scalars[scalar.name], call)
        if broken is not None:
            raise _invalid(scalar.name, broken, call)
    present = [
        (row, tensor)
        for row in contract.parameters_on(call.product.name)
        if (tensor := call.tensors[row.name]) is not None and row.when.looked_at(call)
    ]
    for stage in contract.stages:
        if Aspect.SHAPE in stage:
            for row, tensor in present:
                if row.name in contract.sized_by:
                    for rule in row.rules:
                        if rule.aspect in stage and rule is not row.shape:
                            _check(row.name, rule, tensor, call)
            call.sizes.update(contract.sizes(call))
        for row, tensor in present:
            for rule in row.rules:
                if rule.aspect in stage:
                    _check(row.name, rule, tensor, call)


def _check(name: str, rule: Rule, tensor: Tensor, call: Call) -> None:
    broken = rule.broken(tensor, call)
    if broken is not None:
        raise _invalid(name, broken, call, rule.aspect)


def _invalid(
    name: str, broken: tuple[str, str], call: Call, aspect: Aspect | None = None
) -> ContractError:
    was, allowed = broken
    where = f" on {call.product.name}" if call.product.name else ""
    return ContractError(Break.INVALID, name, f"{was}; allowed{where}: {allowed}", aspect)
