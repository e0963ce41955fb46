"""The arithmetic of channels and statistics groups, between the loops over tensors.

`statistics.py` computes the mean and 1/std, `coefficients.py` the coefficients of dx and y. This
file has the sums, the parameters' gradients, and the unit that does a step's arithmetic. All is in
float64, most of it with the error of each rounding carried along (`pairs.py`): float64 data need
it, and beside float32 data it costs little, since loops run over channels only. For small tensors
that is most of the work even so. Each loop therefore does one thing for all channels, without a
branch, and LLVM vectorises it.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from numba import types

from . import block as B
from .helpers import helper
from .intrinsics import INT_POINTER, get, not_inlined, pairs_buffer, put, smaller
from .pairs import add_array, add_pair, array, clear_pairs, get_pair, pairs, plus, put_pair, times
from .statistics import prepare, statistics
from .vectors import SPREAD, STRIP, spread, write_parameters

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def combine(block, base, c0, c1):
    """Add all parts' sums to the first part's sums, in the order of the parts.

    In float32 arithmetic only the first part has errors (see ``run_task``).
    """
    not_inlined()
    every, at = get(block, B.BANKS) * get(block, B.CHANNELS), base + c0
    sums, xmus = pairs(block, B.W_SUM_DY, at), pairs(block, B.W_SUM_DY_XMU, at)
    for _ in range(1, get(block, B.PARTS_OF_SUMS)):
        at += every
        add_array(block, sums, B.W_SUM_DY, at, c1 - c0)
        add_array(block, xmus, B.W_SUM_DY_XMU, at, c1 - c0)


@helper
def centre(block, base, c0, c1):
    """Correct Σdy·(x − μ), which was summed about the rounded mean, for the rounding of the mean.

    Elements are numbers of the arithmetic's type, and none of these is nearer to the mean than the
    rounded mean. So the correction is no larger than the terms themselves, and the distance of x
    from the rounded mean is at most twice x − μ.
    """
    not_inlined()
    rest = pairs(block, B.W_MEAN, base)[1]
    sums, xmus = pairs(block, B.W_SUM_DY, base), pairs(block, B.W_SUM_DY_XMU, base)
    for c in range(c0, c1):
        value, error = times((-get(rest, c), 0.0), get_pair(sums, c))
        is_finite = isfinite(value)
        add_pair(xmus, c, (value if is_finite else 0.0, error if is_finite else 0.0))


@helper
def parameters(block, s, base, c0, c1):
    """Add a set's contribution to the parameter gradients of its bank, or start them with it.

    In float32 arithmetic errors are not carried, here and in ``outputs``: even those of many sets
    are smaller than the rounding of the gradients themselves.
    """
    not_inlined()
    per_group, every = get(block, B.PER_GROUP), get(block, B.PARAMETERS)
    bank = s // get(block, B.BANK_SETS)
    one = get(block, B.SETS) == 1 and every == get(block, B.CHANNELS)
    invstd, row = pairs(block, B.W_INVSTD, base // per_group), pairs_buffer(SPREAD)
    first = c0
    while first < c1:
        # Of samples that are treated as one, all have the same parameters.
        at = first % every
        n = smaller(smaller(STRIP, c1 - first), every - at)
        begins = s % get(block, B.BANK_SETS) == 0 and first < every
        sums = pairs(block, B.W_SUM_DY, base + first)
        xmus = pairs(block, B.W_SUM_DY_XMU, base + first)
        at = base + first if one else at + bank * every
        biases, scaled = pairs(block, B.W_BIASES, at), pairs(block, B.W_WEIGHTS, at)
        values = spread(invstd[0], first, n, per_group, row[0])
        if get(block, B.SINGLE) != 0:
            for c in range(n):
                total, number = get(sums[0], c), get(values, c) * get(xmus[0], c)
                put(biases[0], c, total if begins else get(biases[0], c) + total)
                put(scaled[0], c, number if begins else get(scaled[0], c) + number)
        else:
            r = values, spread(invstd[1], first, n, per_group, row[1])
            for c in range(n):
                total, term = get_pair(sums, c), times(get_pair(r, c), get_pair(xmus, c))
                if not begins:
                    total, term = plus(total, get_pair(biases, c)), plus(term, get_pair(scaled, c))
                put_pair(biases, c, total)
                put_pair(scaled, c, term)
        first += n


@helper
def outputs(block, base, c0, c1):
    """Write the parameter gradients: the sums over the slots in their order, 0 without slots."""
    not_inlined()
    slots, every = get(block, B.SLOTS), get(block, B.PARAMETERS)
    buffers = pairs_buffer(STRIP), pairs_buffer(STRIP)
    clear_pairs(buffers[0], STRIP)
    clear_pairs(buffers[1], STRIP)
    for first in range(c0, c1, STRIP):
        n, biases, scaled = smaller(STRIP, c1 - first), buffers[0], buffers[1]
        if slots == 1 and get(block, B.SINGLE) != 0:  # nothing is added, and errors are 0
            biases = array(block, B.W_BIASES, base + first), biases[1]
            scaled = array(block, B.W_WEIGHTS, base + first), scaled[1]
        else:
            clear_pairs(biases, n)
            clear_pairs(scaled, n)
            for slot in range(slots):
                at = slot * every + base + first
                add_array(block, biases, B.W_BIASES, at, n)
                add_array(block, scaled, B.W_WEIGHTS, at, n)
        xmus = pairs(block, B.W_SUM_DY_XMU, base + first) if slots > 0 else scaled
        write_parameters(block, B.OUT_SUM_DY, first, n, biases)
        write_parameters(block, B.OUT_SUM_DY_XMU, first, n, xmus)
        write_parameters(block, B.GRAD_BIAS, first, n, biases)
        write_parameters(block, B.GRAD_WEIGHT, first, n, scaled)


def arithmetic(block, flags, s, base, c0, c1):
    """Do the kinds of arithmetic that the flags name, for channels c0 to c1 of a set.

    ``base`` is the index of channel 0 in the workspace's arrays of channels.
    """
    if flags & B.DO_PREPARE:
        prepare(block, s, base, c0, c1)
    if flags & B.DO_COMBINE:
        combine(block, base, c0, c1)
    if flags & (B.DO_MEAN | B.DO_STATISTICS):
        statistics(block, flags, s, base, c0, c1)
    if flags & B.DO_CENTRE:
        centre(block, base, c0, c1)
    if flags & B.DO_PARAMETERS:
        parameters(block, s, base, c0, c1)
    if flags & B.DO_OUTPUTS:
        outputs(block, base, c0, c1)


#: The type of this unit, and of the units that replace it where a step does one kind alone.
SIGNATURE: Any = types.void(INT_POINTER, *[types.int64] * 5)
#: The type of the units that compute coefficients.
COEFFICIENTS: Any = types.void(INT_POINTER, *[types.int64] * 4)
