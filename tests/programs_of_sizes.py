"""An evaluator of the programs that compute a plan's numbers from open sizes."""

from __future__ import annotations

import math

from normgrad.tensors.symbolic import Op, bits

COMPUTED = {
    Op.ADD: lambda x, y: x + y,
    Op.SUBTRACT: lambda x, y: x - y,
    Op.MULTIPLY: lambda x, y: x * y,
    Op.DIVIDE: lambda x, y: x // y,
    Op.REMAINDER: lambda x, y: x % y,
    Op.GCD: math.gcd,
    Op.REAL: lambda x, y: bits(x),
}
HOLDS = {
    Op.LESS: lambda x, y: x < y,
    Op.NOT_LESS: lambda x, y: x >= y,
    Op.EQUAL: lambda x, y: x == y,
    Op.NOT_EQUAL: lambda x, y: x != y,
}


def evaluate(program, sizes):
    """The value of each instruction, or None if the program is for other sizes."""
    values = []
    for at in range(0, len(program), 3):
        op, first, second = Op(program[at]), *program[at + 1 : at + 3]
        if op is Op.CONSTANT:
            values.append(first)
        elif op is Op.OPEN:
            values.append(sizes[first])
        elif op in COMPUTED:
            if op in (Op.DIVIDE, Op.REMAINDER) and values[second] <= 0:
                return None
            values.append(COMPUTED[op](values[first], values[second]))
        elif HOLDS[op](values[first], values[second]):
            values.append(0)
        else:
            return None
    return values
