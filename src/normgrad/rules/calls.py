"""What is checked: the arguments of one call, and how they may break a contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


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


def one_of(names: Sequence[str]) -> str:
    """Names as a sentence lists them."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
