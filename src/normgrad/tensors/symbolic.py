"""Integers that stand for sizes which a plan leaves open.

A plan is made for shapes. Where one of their sizes differs from call to call, the plan is made with
a :class:`SymInt` in its place, as PyTorch does: a number that records what is computed from it, and
how each comparison of it turned out. All that planning does is to compute and to compare, so the
same plan holds for every size with which all comparisons turn out the same. Its numbers follow from
the record, which a program of a few hundred instructions holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np


class Op(IntEnum):
    """The instructions of a program, each with two operands.

    CONSTANT has a number as its first operand, and OPEN the index of an open size. The operands of
    all others are the indices of earlier instructions. From LESS on, instructions are guards: the
    program is for other sizes if one does not hold, or if a divisor is not positive.
    """

    CONSTANT = 0
    OPEN = 1
    ADD = 2
    SUBTRACT = 3
    MULTIPLY = 4
    DIVIDE = 5
    REMAINDER = 6
    GCD = 7
    REAL = 8
    LESS = 9
    NOT_LESS = 10
    EQUAL = 11
    NOT_EQUAL = 12


class Program:
    """The record of all that is computed from some open sizes.

    Attributes:
        words: the instructions, of three numbers each: an :class:`Op` and its operands.
        sizes: the number of open sizes.
    """

    def __init__(self) -> None:
        self.words: list[int] = []
        self.sizes = 0
        self._indices: dict[tuple[int, int, int], int] = {}

    def open(self, value: int) -> SymInt:
        """The symbol of a further size, which has this value while the program is recorded."""
        self.sizes += 1
        return SymInt(self, self.add(Op.OPEN, self.sizes - 1), value)

    def add(self, op: Op, first: int, second: int = 0) -> int:
        """The index of an instruction, which is added if it is not there yet."""
        instruction = int(op), first, second
        if instruction not in self._indices:
            self._indices[instruction] = len(self._indices)
            self.words += instruction
        return self._indices[instruction]

    def index_of(self, number: Any) -> int:
        """The index of the instruction that computes a number."""
        if isinstance(number, SymInt):
            return number.index
        return self.add(Op.CONSTANT, int(number))

    def compute(self, op: Op, first: Any, second: Any, value: int) -> SymInt:
        """The symbol of a result that has this value now."""
        return SymInt(self, self.add(op, self.index_of(first), self.index_of(second)), value)

    def guard(self, op: Op, first: Any, second: Any, holds: bool) -> bool:
        """Record how a comparison turned out; the operation after ``op`` is its opposite."""
        here, there = self.index_of(first), self.index_of(second)
        if here != there:
            self.add(op if holds else Op(op + 1), here, there)
        return holds


def _value(number: Any) -> int:
    return number.value if isinstance(number, SymInt) else number


def _computes(op: Op, function: Callable[[int, int], int]) -> tuple[Any, Any]:
    """The methods for an operator, with a symbol as the first or as the second operand."""

    def forward(self: SymInt, other: Any) -> SymInt:
        return self.program.compute(op, self, other, function(self.value, _value(other)))

    def reflected(self: SymInt, other: Any) -> SymInt:
        return self.program.compute(op, other, self, function(other, self.value))

    return forward, reflected


class SymInt:
    """A size that is open, or a number that is computed from such sizes.

    Used as an index, in a range or as a key, it is compared with its value.

    Attributes:
        program, index: the record, and the instruction in it that computes the number.
        value: the number while the program is recorded.
    """

    __slots__ = ("index", "program", "value")

    def __init__(self, program: Program, index: int, value: int) -> None:
        self.program = program
        self.index = index
        self.value = value

    __add__, __radd__ = _computes(Op.ADD, lambda a, b: a + b)
    __sub__, __rsub__ = _computes(Op.SUBTRACT, lambda a, b: a - b)
    __mul__, __rmul__ = _computes(Op.MULTIPLY, lambda a, b: a * b)
    __floordiv__, __rfloordiv__ = _computes(Op.DIVIDE, lambda a, b: a // b)
    __mod__, __rmod__ = _computes(Op.REMAINDER, lambda a, b: a % b)
    __gcd__, _ = _computes(Op.GCD, math.gcd)

    def __neg__(self) -> SymInt:
        return 0 - self  # type: ignore[no-any-return]

    def __abs__(self) -> SymInt:
        return -self if self < 0 else self

    def __lt__(self, other: Any) -> bool:
        return self.program.guard(Op.LESS, self, other, self.value < _value(other))

    def __gt__(self, other: Any) -> bool:
        return self.program.guard(Op.LESS, other, self, _value(other) < self.value)

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (int, SymInt)):
            return False
        return self.program.guard(Op.EQUAL, self, other, self.value == _value(other))

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        self.program.guard(Op.EQUAL, self, self.value, True)
        return self.value

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __repr__(self) -> str:
        return repr(self.value)


def gcd(first: Any, second: int) -> int:
    """The greatest common divisor of a number that may be a symbol, and one that is not."""
    return first.__gcd__(second) if isinstance(first, SymInt) else math.gcd(first, second)


def bits(number: Any) -> Any:
    """The bits of a float64, as which kernels take real numbers; a symbol for a symbol's."""
    if isinstance(number, SymInt):
        return number.program.compute(Op.REAL, number, 0, bits(number.value))
    return int(np.float64(number).view(np.int64))
