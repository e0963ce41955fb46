"""Per-channel arithmetic, in float64: from statistics and sums to coefficients and outputs.

Everything here runs over C values (N·C for group norm), so it is written for clarity; the loops
over whole tensors are elsewhere.
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

from numba import njit, types

from ...problem import Rule
from .block import (
    CHANNELS,
    CODE,
    COUNT,
    COUNT_CODE,
    COUNT_RANK,
    COUNT_SIZES,
    COUNT_STRIDES,
    DIVISOR,
    DO_COEFFICIENTS,
    DO_COMBINE,
    DO_COUNT,
    DO_INVSTD,
    DO_MEAN,
    DO_OUTPUTS,
    DO_PREPARE,
    DO_ZERO,
    EPS,
    MEAN,
    OUT_BIAS,
    OUT_SUM_DY,
    OUT_SUM_DY_XMU,
    OUT_WEIGHT,
    PER_GROUP,
    RULE,
    SET_STRIDE,
    SETS,
    SLOTS,
    SPREAD,
    SPREAD_IS_VARIANCE,
    STRIDE,
    SUM_DY,
    SUM_DY_XMU,
    VECTOR_WORDS,
    VECTORS,
    W_COUNT,
    W_GAIN,
    W_INVSTD,
    W_MEAN,
    W_SCALE,
    W_SHIFT,
    W_SLOPE,
    W_SUM_DY,
    W_SUM_DY_ERROR,
    W_SUM_DY_XMU,
    W_SUM_DY_XMU_ERROR,
    W_WEIGHT,
    WEIGHT,
    WORKSPACE,
)  # fmt: skip
from .intrinsics import (
    INT_POINTER,
    POINTERS,
    bfloat16s_at,
    bits_to_double,
    double,
    doubles_at,
    float16s_at,
    fma,
    get,
    int32s_at,
    integers_at,
    like,
    normal_range,
    not_inlined,
    put,
    shift,
    singles_at,
    two_sum,
)  # fmt: skip
from .sums import add_error, corrected, fold, kept_sum

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

TRAIN, EVAL, ELEMT, GROUP = map(int, (Rule.TRAIN, Rule.EVAL, Rule.ELEMT, Rule.GROUP))


@njit(error_model="numpy")
def read(address, code, index):
    """An element of any of the listed types, as float64."""
    not_inlined()
    if code == 0:
        return double(get(singles_at(address), index))
    if code == 1:
        return get(doubles_at(address), index)
    if code == 2:
        return double(get(float16s_at(address), index))
    if code == 3:
        return double(get(bfloat16s_at(address), index))
    if code == 4:
        return double(get(int32s_at(address), index))
    return double(get(integers_at(address), index))


@njit(error_model="numpy")
def write(address, code, index, value):
    """Round a float64 once, to the element's own type."""
    not_inlined()
    if code == 0:
        put(singles_at(address), index, value)
    elif code == 1:
        put(doubles_at(address), index, value)
    elif code == 2:
        put(float16s_at(address), index, value)
    else:
        put(bfloat16s_at(address), index, value)


@njit(error_model="numpy")
def vector_index(block, slot, s, c):
    """Where channel c of set s stands in a per-channel vector."""
    words = shift(block, VECTORS + VECTOR_WORDS * (slot - MEAN))
    return s * get(words, SET_STRIDE) + c * get(words, STRIDE)


@njit(error_model="numpy")
def vector_code(block, slot):
    """The dtype code of a per-channel vector."""
    return get(block, VECTORS + VECTOR_WORDS * (slot - MEAN) + CODE)


@njit(error_model="numpy")
def read_vector(block, slot, s, c):
    """Channel c of set s of a per-channel input."""
    return read(get(block, slot), vector_code(block, slot), vector_index(block, slot, s, c))


@njit(error_model="numpy")
def write_vector(block, slot, s, c, value):
    """Channel c of set s of a per-channel output, if it is asked for."""
    address = get(block, slot)
    if address != 0:
        write(address, vector_code(block, slot), vector_index(block, slot, s, c), value)


@njit(error_model="numpy")
def total_count(block):
    """The sum of all elements of count, in float64."""
    not_inlined()
    address = get(block, COUNT)
    code = get(block, COUNT_CODE)
    rank = get(block, COUNT_RANK)
    elements = 1
    for axis in range(rank):
        elements *= get(block, COUNT_SIZES + axis)
    total = 0.0
    for element in range(elements):
        rest = element
        offset = 0
        for axis in range(rank - 1, -1, -1):
            size = get(block, COUNT_SIZES + axis)
            offset += (rest % size) * get(block, COUNT_STRIDES + axis)
            rest //= size
        total += read(address, code, offset)
    put(doubles_at(get(block, WORKSPACE) + get(block, W_COUNT)), 0, total)


@njit(error_model="numpy")
def prepare(block, real, s, c0, c1):
    """Read a set's statistics and weights as the arithmetic reads them."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    base = s * get(block, CHANNELS)
    mean = like(workspace + get(block, W_MEAN), real)
    rounded = like(workspace + get(block, W_SLOPE), real)
    invstd = doubles_at(workspace + get(block, W_INVSTD))
    weight = doubles_at(workspace + get(block, W_WEIGHT))
    eps = bits_to_double(get(block, EPS))
    per_group = get(block, PER_GROUP)
    has_mean = get(block, MEAN) != 0
    has_spread = get(block, SPREAD) != 0
    has_weight = get(block, WEIGHT) != 0
    is_variance = get(block, SPREAD_IS_VARIANCE) != 0
    for c in range(c0, c1):
        i = base + c
        g = c // per_group
        put(mean, i, read_vector(block, MEAN, s, g) if has_mean else 0.0)
        # Through the arithmetic's type and back: a float64 statistic beside float32 data is
        # rounded.
        put(rounded, i, read_vector(block, SPREAD, s, g) if has_spread else 1.0)
        spread = double(get(rounded, i))
        put(invstd, i, 1.0 / sqrt(spread + eps) if is_variance else spread)
        put(rounded, i, read_vector(block, WEIGHT, s, c) if has_weight else 1.0)
        put(weight, i, double(get(rounded, i)))


@njit(error_model="numpy")
def combine(block, real, base, count):
    """Add the parts' sums into the first part's, in the order of the parts."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    every = get(block, SETS) * get(block, CHANNELS)
    dy_total = doubles_at(workspace + get(block, W_SUM_DY))
    dy_error = like(workspace + get(block, W_SUM_DY_ERROR), real)
    xmu_total = doubles_at(workspace + get(block, W_SUM_DY_XMU))
    xmu_error = like(workspace + get(block, W_SUM_DY_XMU_ERROR), real)
    for part in range(1, get(block, SLOTS)):
        for i in range(base, base + count):
            j = part * every + i
            fold(dy_total, dy_error, i, get(dy_total, j))
            add_error(dy_error, i, dy_error, j)
            fold(xmu_total, xmu_error, i, get(xmu_total, j))
            add_error(xmu_error, i, xmu_error, j)


@njit(error_model="numpy")
def sum_dy_of(block, real, index):
    """Σdy of one (set, channel)."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    return kept_sum(
        doubles_at(workspace + get(block, W_SUM_DY)),
        like(workspace + get(block, W_SUM_DY_ERROR), real),
        index,
    )


@njit(error_model="numpy")
def sum_dy_xmu_of(block, real, index):
    """Σdy·(x − μ) of one (set, channel)."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    return kept_sum(
        doubles_at(workspace + get(block, W_SUM_DY_XMU)),
        like(workspace + get(block, W_SUM_DY_XMU_ERROR), real),
        index,
    )


@njit(error_model="numpy")
def finish_mean(block, real, base, count):
    """The mean of x, from Σ(x − μ) about the mean so far (0 at first).

    A second round about the first result leaves no more than its last rounding, which float64
    arithmetic needs; see the plan.
    """
    not_inlined()
    mean = like(get(block, WORKSPACE) + get(block, W_MEAN), real)
    m = bits_to_double(get(block, DIVISOR))
    for i in range(base, base + count):
        about = double(get(mean, i))
        change = sum_dy_of(block, real, i) / m
        # After an infinite or NaN first result there is nothing to improve.
        if isfinite(about):
            put(mean, i, about + change)


@njit(error_model="numpy")
def finish_invstd(block, real, base, count):
    """1/sqrt(mean((x − μ)²) + eps), rounded to the arithmetic's type."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    rounded = like(workspace + get(block, W_SLOPE), real)
    invstd = doubles_at(workspace + get(block, W_INVSTD))
    m = bits_to_double(get(block, DIVISOR))
    eps = bits_to_double(get(block, EPS))
    for i in range(base, base + count):
        put(rounded, i, 1.0 / sqrt(sum_dy_xmu_of(block, real, i) / m + eps))
        put(invstd, i, double(get(rounded, i)))


@njit(error_model="numpy")
def times(value, error, factor, factor_error):
    """A product of two numbers and their errors, with the error of the product."""
    product = value * factor
    rounding = fma(value, factor, -product)
    return product, rounding + value * factor_error + error * factor


@njit(error_model="numpy")
def divided(value, error, divisor):
    """A quotient, with its error."""
    quotient = value / divisor
    return quotient, (fma(-quotient, divisor, value) + error) / divisor


@njit(error_model="numpy")
def is_normal(value, smallest, largest):
    """Whether the arithmetic's type holds a number to full precision."""
    return value == 0.0 or smallest <= abs(value) <= largest


@njit(error_model="numpy")
def coefficients(block, real, s, c0, c1):
    """The coefficients of dx for channels (whole groups of them) of one set.

    One formula serves every rule. With T = Σγ·dy and P = Σγ·dy·(x − μ), taken over the channels
    that share a statistic and divided by its number of elements, and with o the weight times r for
    batch norm, whose γ is 1, and r for group norm:

        dx = o · (γ·dy − (T + r²·P·(x − μ)))

    Multiplied out, dx = oγ·dy − (oT + or²P·(x − μ)) has two roundings fewer for each element;
    given exact sums it is within 4 roundoffs on any data. Where a factor is infinite or NaN, or
    vanishes, only the formula as it stands gives what it should, so there it is used: `scale` is
    o, and 1 otherwise.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    gain = like(workspace + get(block, W_GAIN), real)
    offset = like(workspace + get(block, W_SHIFT), real)
    slope = like(workspace + get(block, W_SLOPE), real)
    scale = like(workspace + get(block, W_SCALE), real)
    invstd = doubles_at(workspace + get(block, W_INVSTD))
    weight = doubles_at(workspace + get(block, W_WEIGHT))
    count = doubles_at(workspace + get(block, W_COUNT))
    rule = get(block, RULE)
    per_group = get(block, PER_GROUP)
    m = get(count, 0) if rule == ELEMT else bits_to_double(get(block, DIVISOR))
    smallest, largest = normal_range(real)
    base = s * get(block, CHANNELS)
    for first in range(base + c0, base + c1, per_group):
        r = get(invstd, first)
        total, total_error, projection, projection_error = 0.0, 0.0, 0.0, 0.0
        if rule == ELEMT:
            # As the arithmetic reads them: rounded to float32 beside float32 data.
            put(slope, first, read_vector(block, SUM_DY, 0, first))
            total = double(get(slope, first))
            put(slope, first, read_vector(block, SUM_DY_XMU, 0, first))
            projection = double(get(slope, first))
        elif rule == TRAIN:
            total = sum_dy_of(block, real, first)
            projection = sum_dy_xmu_of(block, real, first)
        elif rule == GROUP:
            for i in range(first, first + per_group):
                w = get(weight, i)
                total, e = two_sum(total, w * sum_dy_of(block, real, i))
                total_error += e
                projection, e = two_sum(projection, w * sum_dy_xmu_of(block, real, i))
                projection_error += e
        t, t_error = divided(total, total_error, m)
        p, p_error = divided(projection, projection_error, m)
        square, square_error = times(r, 0.0, r, 0.0)
        p, p_error = times(p, p_error, square, square_error)
        for i in range(first, first + per_group):
            w = get(weight, i)
            wr, wr_error = times(w, 0.0, r, 0.0)
            o, o_error, g = wr, wr_error, 1.0
            if rule == GROUP:
                o, o_error, g = r, 0.0, w
            ot = corrected(*times(o, o_error, t, t_error))
            op = corrected(*times(o, o_error, p, p_error))
            if (
                rule != EVAL
                and is_normal(wr, smallest, largest)
                and is_normal(ot, smallest, largest)
                and is_normal(op, smallest, largest)
                # A product may vanish though its factors do not.
                and (ot != 0.0 or o == 0.0 or t == 0.0)
                and (op != 0.0 or o == 0.0 or p == 0.0)
                and (wr != 0.0 or w == 0.0 or r == 0.0)
            ):
                put(gain, i, corrected(wr, wr_error))
                put(offset, i, ot)
                put(slope, i, op)
                put(scale, i, 1.0)
            else:
                put(gain, i, g)
                put(offset, i, corrected(t, t_error))
                put(slope, i, corrected(p, p_error))
                put(scale, i, o)


@njit(error_model="numpy")
def outputs(block, real, c0, c1):
    """The per-channel outputs: sums over the sets, in their order."""
    not_inlined()
    invstd = doubles_at(get(block, WORKSPACE) + get(block, W_INVSTD))
    channels = get(block, CHANNELS)
    for c in range(c0, c1):
        total, total_error, projection, projection_error = 0.0, 0.0, 0.0, 0.0
        scaled, scaled_error = 0.0, 0.0
        for s in range(get(block, SETS)):
            i = s * channels + c
            q = sum_dy_xmu_of(block, real, i)
            total, e = two_sum(total, sum_dy_of(block, real, i))
            total_error += e
            projection, e = two_sum(projection, q)
            projection_error += e
            scaled, e = two_sum(scaled, get(invstd, i) * q)
            scaled_error += e
        write_vector(block, OUT_SUM_DY, 0, c, corrected(total, total_error))
        write_vector(block, OUT_SUM_DY_XMU, 0, c, corrected(projection, projection_error))
        write_vector(block, OUT_WEIGHT, 0, c, corrected(scaled, scaled_error))
        write_vector(block, OUT_BIAS, 0, c, corrected(total, total_error))


@njit(error_model="numpy")
def write_zeros(block, c0, c1):
    """The per-channel outputs of a tensor without elements."""
    not_inlined()
    for c in range(c0, c1):
        write_vector(block, OUT_SUM_DY, 0, c, 0.0)
        write_vector(block, OUT_SUM_DY_XMU, 0, c, 0.0)
        write_vector(block, OUT_WEIGHT, 0, c, 0.0)
        write_vector(block, OUT_BIAS, 0, c, 0.0)


def channel_kernel(real, block, flags, s, c0, c1):
    """What the flags name, for channels c0 to c1 of set s; compiled once for each arithmetic."""
    base = s * get(block, CHANNELS) + c0
    if flags & DO_COUNT:
        total_count(block)
    if flags & DO_PREPARE:
        prepare(block, real, s, c0, c1)
    if flags & DO_COMBINE:
        combine(block, real, base, c1 - c0)
    if flags & DO_MEAN:
        finish_mean(block, real, base, c1 - c0)
    if flags & DO_INVSTD:
        finish_invstd(block, real, base, c1 - c0)
    if flags & DO_OUTPUTS:
        outputs(block, real, c0, c1)
    if flags & DO_COEFFICIENTS:
        coefficients(block, real, s, c0, c1)
    if flags & DO_ZERO:
        write_zeros(block, c0, c1)


def channel_signature(code: int) -> Any:
    """The channel kernel's type for the arithmetic's dtype code."""
    return types.void(POINTERS[code], INT_POINTER, *[types.int64] * 4)
