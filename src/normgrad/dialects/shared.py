"""The common parts of the dialects: the errors of failed calls, and the uses of memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

from ..support.values import represent
from ..tensors.blocks import Memory, memory_of
from ..tensors.strides import Region, overlap


class DialectError(ValueError):
    """The error of a failed call, of which each dialect has a class.

    Attributes:
        status: the status that the C function returns.
        function: the function's name.
        parameter: the name of the wrong argument, or None.
        wrong_argument: the dialect's status for wrong arguments.
    """

    wrong_argument: ClassVar[IntEnum]

    def __init__(
        self, status: IntEnum, function: str, message: str, parameter: str | None = None
    ) -> None:
        super().__init__(f"{function}: {message}")
        self.status = status
        self.function = function
        self.parameter = parameter

    @classmethod
    def of(
        cls, function: str, name: str, message: str, status: IntEnum | None = None
    ) -> DialectError:
        """The error for an argument that is not allowed."""
        status = cls.wrong_argument if status is None else status
        return cls(status, function, f"{name}: {message}", name)

    @classmethod
    def integers(
        cls, function: str, name: str, values: Any, allowed: str = "a sequence of integers"
    ) -> tuple[int, ...]:
        """Read integers of any type; raises the error for other arguments."""
        try:
            return tuple([operator.index(value) for value in values])
        except Exception:  # iterating over a caller's object may raise any type of exception
            raise cls.of(function, name, f"{represent(values)}; allowed: {allowed}") from None

    @classmethod
    def sizes(cls, function: str, name: str, values: Any) -> tuple[int, ...]:
        """Read integers that are not negative."""
        sizes = cls.integers(function, name, values)
        if any(size < 0 for size in sizes):
            raise cls.of(function, name, f"{sizes} has a negative size; allowed: 0 or more")
        return sizes

    @classmethod
    def member(cls, function: str, name: str, kind: type[IntEnum], value: Any) -> Any:
        """Read a member of an enumeration."""
        try:
            return kind(value)
        except ValueError:
            message = f"{represent(value)}; allowed: an {kind.__name__}"
            raise cls.of(function, name, message) from None

    @classmethod
    def memory(cls, function: str, name: str, value: Any, writing: bool) -> Memory:
        """The memory of a caller's object."""
        try:
            return memory_of(name, value, writing)
        except (TypeError, ValueError) as error:
            raise cls(cls.wrong_argument, function, str(error), name) from None


class Use(NamedTuple):
    """A use of memory by a call.

    Attributes:
        name: the parameter's name.
        verb: the kind of use, such as "reads".
        region: the bytes.
        in_place: the parameters of the same call that may have exactly this region.
    """

    name: str
    verb: str
    region: Region
    in_place: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether the use changes the bytes."""
        return self.verb != "reads"

    def collides(self, other: Use) -> bool:
        """Whether one of two uses writes bytes of the other."""
        return (self.writes or other.writes) and overlap(self.region, other.region)


def span(name: str, verb: str, address: int, count: int) -> Use:
    """A use of contiguous bytes."""
    return Use(name, verb, Region(address, (count,), (1,), 1))


def shared_memory(uses: Sequence[Use]) -> str | None:
    """The message on a use of memory that another use by the same call must not share."""
    for index, use in enumerate(uses):
        for earlier in uses[:index]:
            mine, other = (use, earlier) if use.writes else (earlier, use)
            in_place = other.name in mine.in_place and mine.region == other.region
            if not in_place and mine.collides(other):
                return f"{mine.name}: shares memory with {other.name}; allowed: memory of its own"
    return None
