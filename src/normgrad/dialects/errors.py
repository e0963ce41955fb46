"""The errors of failed calls, and the reading of arguments, which raises them."""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Any, ClassVar

from ..support.values import represent
from ..tensors.blocks import Memory, memory_of


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
