"""Requests: descriptions of one call of a library's operator, and the mistakes in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from ..operators.reference import Array
from ..tensors.strides import contiguous_strides


@dataclass(frozen=True)
class Tensor:
    """A tensor's memory, and its description for a library, in the words of :mod:`..rules`.

    Strides are in elements; ``null`` says which pointer is null: "strides", "memory" or neither.
    """

    array: Array
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype_name: str
    format_name: str = ""
    null: str = ""

    @classmethod
    def of(cls, array: Array, format_name: str = "", null: str = "") -> Tensor:
        """Describe an array as it is, with a null pointer where one means the same."""
        is_contiguous = array.flags.c_contiguous  # also if empty, where NumPy's strides are any
        strides = tuple(step // array.itemsize for step in array.strides)
        if is_contiguous:
            strides = contiguous_strides(array.shape)
        may_be_null = {"strides": is_contiguous, "memory": not array.size}.get(null)
        null = null if may_be_null else ""
        return cls(array, array.shape, strides, array.dtype.name, format_name, null)


#: What differs from a request, by argument: a dict of the fields of a tensor, or another value.
Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """The description of one call of an operator: its arguments, and its mistake.

    Attributes:
        operator: the C function that computes.
        arguments: tensors, masks, numbers, or None for null pointers, by name, in the order of the
            C function that checks them.
        outputs: the tensors that are written to.
        mistake: the mistake's words, for which the steps look.
        computes: whether the call computes, rather than only checks the arguments.
        runs: how often the call computes.
    """

    operator: str
    arguments: Mapping[str, Any]
    outputs: tuple[str, ...]
    mistake: str = ""
    computes: bool = True
    runs: int = 1

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the arguments."""
        return {name: each for name, each in self.arguments.items() if isinstance(each, Tensor)}

    @property
    def inputs(self) -> list[Array]:
        """The arrays that are not written to."""
        return [each.array for name, each in self.tensors.items() if name not in self.outputs]

    def changed(self, changes: Changes, **fields: Any) -> Request:
        """The request with these changes, over the same memory, and with other fields."""
        new = {
            name: replace(self.tensors[name], **each) if isinstance(each, dict) else each
            for name, each in changes.items()
        }
        return replace(self, arguments={**self.arguments, **new}, **fields)


class Mistake(NamedTuple):
    """What makes a legal request wrong, beside what the steps do at the mistake's words.

    ``status`` is what the dialect demands; ``computes`` is as in :class:`Request`.
    """

    status: IntEnum
    changes: Changes = MappingProxyType({})
    computes: bool = False
