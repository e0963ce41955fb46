"""The tables of contracts, and the code that checks calls against them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from .calls import Aspect, Break, Call, ContractError, Product, Tensor, one_of
from .tensors import DtypeRule, Rank, Rule

# When a parameter is needed


class When(ABC):
    """The condition under which a null is an error, and a given tensor is checked."""

    @abstractmethod
    def needed(self, call: Call) -> bool:
        """Whether the tensor must be given."""

    def checked(self, call: Call) -> bool:
        """Whether the tensor is checked if it is given."""
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
    """A null is allowed."""

    def needed(self, call: Call) -> bool:
        return False

    def __str__(self) -> str:
        return "may be null"


@dataclass(frozen=True)
class IfAsked(When):
    """A null is an error if a flag, or an entry of a mask, is true."""

    flag: str
    entry: int | None = None
    always_checked: bool = False

    def needed(self, call: Call) -> bool:
        if self.flag in call.malformed:
            return False
        value = call.scalars[self.flag]
        if self.entry is not None:
            value = self.entry < len(value) and value[self.entry]
        return value is True

    def checked(self, call: Call) -> bool:
        return self.always_checked or self.needed(call)

    def __str__(self) -> str:
        asked = self.flag if self.entry is None else f"{self.flag}[{self.entry}]"
        return f"if {asked}" + (", checked if given" if self.always_checked else "")


# Tables


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


#: The rules of each tensor, by its name.
_Rules = dict[str, list[Rule]]


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
    def rounds_on(self, product: str) -> tuple[tuple[bool, _Rules], ...]:
        """The rules for one product, in rounds in the order in which they are checked.

        A round is a pair: whether the sizes are computed before it, and the rules by tensor's name.
        """
        rounds: list[tuple[bool, _Rules]] = []
        for stage in self.stages:
            takes_sizes = Aspect.SHAPE in stage
            first: _Rules = {}
            rest: _Rules = {}
            for parameter in self.parameters:
                row = parameter.on(product)
                sizing = takes_sizes and row.name in self.sized_by
                for rule in row.rules:
                    if rule.aspect in stage:
                        early = sizing and rule is not row.shape
                        (first if early else rest).setdefault(row.name, []).append(rule)
            rounds += [(False, first), (takes_sizes, rest)]
        return tuple(rounds)


def check(contract: Contract, call: Call, products: Sequence[Product]) -> None:
    """Raise a ContractError for the first rule that a call breaks.

    Nulls are checked first, then whether the product has the operator, then everything else.
    """
    for scalar in contract.scalars:
        if scalar.is_pointer and call.scalars[scalar.name] is None:
            raise ContractError(Break.NULL, scalar.name, f"null; allowed: {scalar.text}")
    checked: dict[str, Tensor] = {}
    for parameter in contract.parameters:
        tensor, when = call.tensors[parameter.name], parameter.when
        if tensor is not None:
            if when.checked(call):
                checked[parameter.name] = tensor
        elif when.needed(call):
            raise ContractError(Break.NULL, parameter.name, f"null; allowed: a tensor ({when})")
    if contract.name not in call.product.operators:
        able = [product.name for product in products if contract.name in product.operators]
        raise ContractError(
            Break.UNSUPPORTED, "product", f"{call.product.name}; allowed: {one_of(able)}"
        )
    if call.malformed:
        name = next(row.name for row in contract.rows if row.name in call.malformed)
        raise _invalid(name, call.malformed[name], call)
    for scalar in contract.scalars:
        broken = scalar.broken(call.scalars[scalar.name], call)
        if broken is not None:
            raise _invalid(scalar.name, broken, call)
    for takes_sizes, rules in contract.rounds_on(call.product.name):
        if takes_sizes:
            call.sizes.update(contract.sizes(call))
        for name, own in rules.items():
            tensor = checked.get(name)
            if tensor is None:
                continue
            for rule in own:
                broken = rule.broken(tensor, call)
                if broken is not None:
                    raise _invalid(name, broken, call, rule.aspect)


def _invalid(
    name: str, broken: tuple[str, str], call: Call, aspect: Aspect | None = None
) -> ContractError:
    was, allowed = broken
    where = f" on {call.product.name}" if call.product.name else ""
    return ContractError(Break.INVALID, name, f"{was}; allowed{where}: {allowed}", aspect)
