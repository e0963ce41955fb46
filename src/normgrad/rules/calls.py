"""The arguments of a call that is checked, and the ways in which a call can break a contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


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


class Break(Enum):
    """The ways in which a contract can be broken."""

    NULL = "null"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"


class Aspect(Enum):
    """The property of a tensor that a rule checks; some dialects have a status for each."""

    DTYPE = "dtype"
    FORMAT = "format"
    SHAPE = "shape"
    STRIDES = "strides"


class ContractError(Exception):
    """A broken rule; the message names the parameter, what it was, and what is allowed.

    ``aspect`` is the rule's if it is a tensor's rule, otherwise None.
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
    tensors: Mapping[str, Tensor | None]
    scalars: Mapping[str, Any]
    malformed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


def one_of(names: Sequence[str]) -> str:
    """A list of names as part of a sentence."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
