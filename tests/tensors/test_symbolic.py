"""Symbols of sizes: what they compute, and what they record."""

from __future__ import annotations

import math

import numpy as np
import pytest
from programs_of_sizes import evaluate

from normgrad.tensors.strides import ceil_div, channels_last_strides, contiguous_strides, round_up
from normgrad.tensors.symbolic import Program, bits, gcd

FUNCTIONS = {
    "sum": lambda a, b: a + b + 3 + (2 + a),
    "difference": lambda a, b: (100 - a) - b - 1,
    "product": lambda a, b: a * b * 5 * (7 * a),
    "negative": lambda a, b: -a * b,
    "quotient": lambda a, b: a // b + 1000 // a + b // 3,
    "negative quotient": lambda a, b: -a // 7 - (-b // 4),
    "remainder": lambda a, b: a % b + 1000 % a + b % 3,
    "divisor": lambda a, b: gcd(6 * a, 64) + gcd(b, 48),
    "rounded up": lambda a, b: round_up(a, 32) + ceil_div(b, 5),
    "real": lambda a, b: bits(a * b),
    "least": lambda a, b: min(a, b, 50) + max(a, 60),
    "magnitude": lambda a, b: abs(a - b),
    "strides": lambda a, b: contiguous_strides((3, a, b, 5))[0],
    "channels-last": lambda a, b: sum(channels_last_strides((3, 5, a, b))),
    "branch": lambda a, b: a if a > 40 or a * b == 1200 else b,
    "quarters": lambda a, b: [a, b][a >= b] if a % 4 == 0 else 7,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_computes_what_was_recorded(name):
    """It does so for every size that takes the same branches, and refuses the others."""
    function, sizes = FUNCTIONS[name], [(a, b) for a in range(1, 90, 4) for b in range(1, 90, 7)]
    programs: dict[tuple[int, ...], int] = {}
    for pair in sizes:
        expected = function(*pair)
        fits = [
            values[index]
            for words, index in programs.items()
            if (values := evaluate(words, pair)) is not None
        ]
        assert fits == [expected] * len(fits)
        if not fits:
            program = Program()
            found = function(*map(program.open, pair))
            index = program.index_of(found)
            assert evaluate(program.words, pair)[index] == expected
            programs[tuple(program.words)] = index
    assert len(programs) <= 12


def test_uses_as_an_index_record_the_value():
    for use in (lambda n: range(n)[-1], lambda n: "abcdefgh"[n - 1], lambda n: {4: 0}.get(n), int):
        program = Program()
        use(program.open(4))
        assert evaluate(program.words, [4]) is not None
        assert evaluate(program.words, [5]) is None


def test_comparisons_record_how_they_turned_out():
    program = Program()
    n = program.open(4)
    assert n < 5
    assert not n < 4
    assert n <= 4
    assert n > 3
    assert not n > 4
    assert n >= 4
    assert n != 0
    assert n
    assert [m for m in range(-2, 9) if evaluate(program.words, [m]) is not None] == [4]
    assert n != "4"


def test_equal_expressions_are_one_instruction():
    program = Program()
    n = program.open(4)
    size = len(program.words)
    assert n * 3 == n * 3
    assert len(program.words) == size + 6  # the constant and the product, without a guard


def test_divisors_that_are_not_positive_are_other_sizes():
    program = Program()
    n = program.open(4)
    _ = 8 // (n - 3), 8 % (n - 3)
    assert evaluate(program.words, [3]) is None
    assert evaluate(program.words, [2]) is None
    assert evaluate(program.words, [5]) is not None


def test_numbers_that_are_no_symbols():
    assert gcd(12, 18) == math.gcd(12, 18)
    assert bits(3) == np.float64(3).view(np.int64)
    assert f"{(Program().open(5), 3)}" == "(5, 3)"  # as in messages
