"""Per-channel arithmetic, in float64: from statistics and sums to coefficients and outputs.

Everything here runs over C values (N·C for group norm). Where tensors are small that is most of the
work, so each loop has one thing to do, without a branch, for all channels: LLVM vectorises it.
"""

from __future__ import annotations

from math import isfinite, nan, sqrt
from typing import Any

from numba import types

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
    DO_STATISTICS,
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
    double_buffer,
    doubles_at,
    float16s_at,
    get,
    helper,
    int32s_at,
    integers_at,
    like,
    load,
    normal_range,
    not_inlined,
    plain,
    put,
    real_buffer,
    shift,
    singles_at,
    store,
    two_sum,
)  # fmt: skip
from .sums import add_error, clear, divided, finished, fold, kept_sum, sum_and_error, times

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Channels whose outputs are summed together, on the stack.
SOME = 128

TRAIN, EVAL, ELEMT, GROUP = map(int, (Rule.TRAIN, Rule.EVAL, Rule.ELEMT, Rule.GROUP))


@helper
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


@helper
def canonical(value):
    """The number; any NaN as the one that survives rounding to bfloat16 (see lanes.py)."""
    return value if value == value else nan


@helper
def copy_row(source, stride, count, row):
    """Numbers of any type, so many elements apart, to scratch memory."""
    if stride == 1:  # a loop that can be vectorised
        for c in range(count):
            store(row, c, canonical(double(load(source, c))))
    else:
        for c in range(count):
            store(row, c, canonical(double(load(source, c * stride))))


@helper
def read_row(block, slot, s, first, count, row):
    """A per-channel input from ``first`` on, rounded to the row's type."""
    not_inlined()
    words = shift(block, VECTORS + VECTOR_WORDS * (slot - MEAN))
    stride, code = get(words, STRIDE), get(words, CODE)
    at = s * get(words, SET_STRIDE) + first * stride
    address = get(block, slot)
    if code == 0:
        copy_row(shift(singles_at(address), at), stride, count, row)
    elif code == 1:
        copy_row(shift(doubles_at(address), at), stride, count, row)
    elif code == 2:
        copy_row(shift(float16s_at(address), at), stride, count, row)
    else:
        copy_row(shift(bfloat16s_at(address), at), stride, count, row)


@helper
def read_groups(block, slot, s, c0, c1, row):
    """A per-channel input, or one per group of channels, for channels c0 to c1 (whole groups)."""
    per_group = get(block, PER_GROUP)
    first, count = c0 // per_group, (c1 - c0) // per_group
    read_row(block, slot, s, first, count, row)
    if per_group > 1:
        # From the last on, so that none is written over before it is read.
        for g in range(count - 1, -1, -1):
            value = get(row, g)
            for c in range(g * per_group, (g + 1) * per_group):
                put(row, c, value)


@helper
def round_row(target, stride, count, totals, errors):
    """Round sums once, to numbers of any type so many elements apart."""
    if stride == 1:  # a loop that can be vectorised
        for c in range(count):
            put(target, c, kept_sum(totals, errors, c))
    else:
        for c in range(count):
            put(target, c * stride, kept_sum(totals, errors, c))


@helper
def write_row(block, slot, first, count, totals, errors):
    """Sums in scratch memory to a per-channel output from ``first`` on, if it is asked for."""
    not_inlined()
    address = get(block, slot)
    if address == 0:
        return
    words = shift(block, VECTORS + VECTOR_WORDS * (slot - MEAN))
    stride, code = get(words, STRIDE), get(words, CODE)
    at = first * stride
    if code == 0:
        round_row(shift(singles_at(address), at), stride, count, totals, errors)
    elif code == 1:
        round_row(shift(doubles_at(address), at), stride, count, totals, errors)
    elif code == 2:
        round_row(shift(float16s_at(address), at), stride, count, totals, errors)
    else:
        round_row(shift(bfloat16s_at(address), at), stride, count, totals, errors)


@helper
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


@helper
def fill(row, count, value):
    """One number for every channel."""
    for c in range(count):
        put(row, c, value)


@helper
def prepare(block, real, s, c0, c1):
    """Read a set's statistics and weights as the arithmetic reads them.

    A float64 statistic beside float32 data is rounded: it goes through the arithmetic's type.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    base = s * get(block, CHANNELS) + c0
    count = c1 - c0
    mean = shift(like(workspace + get(block, W_MEAN), real), base)
    rounded = shift(like(workspace + get(block, W_SLOPE), real), base)
    invstd = shift(doubles_at(workspace + get(block, W_INVSTD)), base)
    weight = shift(doubles_at(workspace + get(block, W_WEIGHT)), base)
    eps = bits_to_double(get(block, EPS))
    if get(block, MEAN) != 0:
        read_groups(block, plain(MEAN), s, c0, c1, mean)
    else:
        fill(mean, count, 0.0)
    if get(block, SPREAD) != 0:
        read_groups(block, plain(SPREAD), s, c0, c1, rounded)
    else:
        fill(rounded, count, 1.0)
    if get(block, SPREAD_IS_VARIANCE) != 0:
        for c in range(count):
            store(invstd, c, 1.0 / sqrt(double(load(rounded, c)) + eps))
    else:
        for c in range(count):
            store(invstd, c, double(load(rounded, c)))
    if get(block, WEIGHT) != 0:
        read_row(block, plain(WEIGHT), s, c0, count, rounded)
        for c in range(count):
            store(weight, c, double(load(rounded, c)))
    else:
        fill(weight, count, 1.0)


@helper
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
        for i in range(base, base + count):
            j = part * every + i
            fold(xmu_total, xmu_error, i, get(xmu_total, j))
            add_error(xmu_error, i, xmu_error, j)


@helper
def finish_mean(block, real, base, count):
    """The mean of x, from Σ(x − μ) about the mean so far (0 at first).

    A second round about the first result leaves no more than its last rounding, which float64
    arithmetic needs; see the plan.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    mean = like(workspace + get(block, W_MEAN), real)
    totals = doubles_at(workspace + get(block, W_SUM_DY))
    errors = like(workspace + get(block, W_SUM_DY_ERROR), real)
    m = bits_to_double(get(block, DIVISOR))
    for i in range(base, base + count):
        about = double(get(mean, i))
        change = kept_sum(totals, errors, i) / m
        # After an infinite or NaN first result there is nothing to improve.
        if isfinite(about):
            put(mean, i, canonical(about + change))


@helper
def finish_invstd(block, real, base, count):
    """1/sqrt(mean((x − μ)²) + eps), rounded to the arithmetic's type."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    rounded = like(workspace + get(block, W_SLOPE), real)
    invstd = doubles_at(workspace + get(block, W_INVSTD))
    totals = doubles_at(workspace + get(block, W_SUM_DY_XMU))
    errors = like(workspace + get(block, W_SUM_DY_XMU_ERROR), real)
    m = bits_to_double(get(block, DIVISOR))
    eps = bits_to_double(get(block, EPS))
    for i in range(base, base + count):
        put(rounded, i, 1.0 / sqrt(kept_sum(totals, errors, i) / m + eps))
        put(invstd, i, double(get(rounded, i)))


@helper
def statistics(block, real, c0, c1):
    """The mean and 1/std that are asked for, from the moments about the mean so far.

    What the moments leave of the mean corrects it, and the variance: so both are as exact as the
    sums, though the mean that x was centred about was rounded.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    mean = like(workspace + get(block, W_MEAN), real)
    totals = doubles_at(workspace + get(block, W_SUM_DY))
    errors = like(workspace + get(block, W_SUM_DY_ERROR), real)
    squares = doubles_at(workspace + get(block, W_SUM_DY_XMU))
    square_errors = like(workspace + get(block, W_SUM_DY_XMU_ERROR), real)
    m = bits_to_double(get(block, DIVISOR))
    eps = bits_to_double(get(block, EPS))
    means, mean_errors = double_buffer(SOME), real_buffer(SOME, real, real)
    invstds, invstd_errors = double_buffer(SOME), real_buffer(SOME, real, real)
    for first in range(c0, c1, SOME):
        count = min(SOME, c1 - first)
        for c in range(count):
            clear(means, mean_errors, c)
            clear(invstds, invstd_errors, c)
            about = double(get(mean, first + c))
            change = kept_sum(totals, errors, first + c) / m
            variance = kept_sum(squares, square_errors, first + c) / m - change * change
            # An infinite or NaN mean has left nothing to be improved.
            put(means, c, about + change if isfinite(about) else about)
            put(invstds, c, 1.0 / sqrt(max(variance, 0.0) + eps) if variance == variance else nan)
        write_row(block, plain(OUT_SUM_DY), first, count, means, mean_errors)
        write_row(block, plain(OUT_SUM_DY_XMU), first, count, invstds, invstd_errors)


@helper
def is_normal(value, smallest, largest):
    """Whether the arithmetic's type holds a number to full precision."""
    return (value == 0.0) | ((smallest <= abs(value)) & (abs(value) <= largest))


@helper
def coefficients_of(real, w, r, m, total, total_error, projection, projection_error, one_group):
    """Gain, shift, slope and scale of a channel, from its weight, 1/std and group's sums."""
    smallest, largest = normal_range(real)
    t, t_error = divided(real, total, total_error, m)
    p, p_error = divided(real, projection, projection_error, m)
    square, square_error = times(real, r, 0.0, r, 0.0)
    p, p_error = times(real, p, p_error, square, square_error)
    wr, wr_error = times(real, w, 0.0, r, 0.0)
    # The group's sums hold its weights already.
    o = r if one_group else wr
    o_error = 0.0 if one_group else wr_error
    ot = finished(real, *times(real, o, o_error, t, t_error))
    op = finished(real, *times(real, o, o_error, p, p_error))
    multiplied = (
        is_normal(wr, smallest, largest)
        & is_normal(ot, smallest, largest)
        & is_normal(op, smallest, largest)
        # A product may vanish though its factors do not.
        & ((ot != 0.0) | (o == 0.0) | (t == 0.0))
        & ((op != 0.0) | (o == 0.0) | (p == 0.0))
        & ((wr != 0.0) | (w == 0.0) | (r == 0.0))
    )
    g = w if one_group else 1.0
    return (
        finished(real, wr, wr_error) if multiplied else g,
        ot if multiplied else finished(real, t, t_error),
        op if multiplied else finished(real, p, p_error),
        1.0 if multiplied else o,
    )


@helper
def put_coefficients(rows, c, values):
    """Write a channel's coefficients."""
    for row, value in zip(rows, values):  # noqa: B905 - not known to Numba
        store(row, c, canonical(value))


@helper
def coefficients_of_channels(real, rows, weight, invstd, m, totals, errors, xmus, xmu_errors, n):
    """Coefficients of channels with statistics of their own, from their sums."""
    for c in range(n):
        total, total_error = sum_and_error(totals, errors, c)
        projection, projection_error = sum_and_error(xmus, xmu_errors, c)
        values = coefficients_of(
            real, load(weight, c), load(invstd, c), m, total, total_error, projection,
            projection_error, False,
        )  # fmt: skip
        put_coefficients(rows, c, values)


@helper
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
    base = s * get(block, CHANNELS) + c0
    count = c1 - c0
    gain = shift(like(workspace + get(block, W_GAIN), real), base)
    offset = shift(like(workspace + get(block, W_SHIFT), real), base)
    slope = shift(like(workspace + get(block, W_SLOPE), real), base)
    scale = shift(like(workspace + get(block, W_SCALE), real), base)
    rows = (gain, offset, slope, scale)
    invstd = shift(doubles_at(workspace + get(block, W_INVSTD)), base)
    weight = shift(doubles_at(workspace + get(block, W_WEIGHT)), base)
    totals = shift(doubles_at(workspace + get(block, W_SUM_DY)), base)
    errors = shift(like(workspace + get(block, W_SUM_DY_ERROR), real), base)
    xmus = shift(doubles_at(workspace + get(block, W_SUM_DY_XMU)), base)
    xmu_errors = shift(like(workspace + get(block, W_SUM_DY_XMU_ERROR), real), base)
    m = bits_to_double(get(block, DIVISOR))
    rule = get(block, RULE)
    if rule == EVAL:
        for c in range(count):
            store(gain, c, 1.0)
            store(offset, c, 0.0)
            store(slope, c, 0.0)
            store(
                scale,
                c,
                canonical(finished(real, *times(real, load(weight, c), 0.0, load(invstd, c), 0.0))),
            )
    elif rule == ELEMT:
        # As the arithmetic reads them: rounded to float32 beside float32 data.
        m = get(doubles_at(workspace + get(block, W_COUNT)), 0)
        read_row(block, plain(SUM_DY), plain(0), c0, count, offset)
        read_row(block, plain(SUM_DY_XMU), plain(0), c0, count, slope)
        for c in range(count):
            values = coefficients_of(
                real, load(weight, c), load(invstd, c), m, double(load(offset, c)), 0.0,
                double(load(slope, c)), 0.0, False,
            )  # fmt: skip
            put_coefficients(rows, c, values)
    elif rule == TRAIN:
        coefficients_of_channels(
            real, rows, weight, invstd, m, totals, errors, xmus, xmu_errors, count
        )
    else:
        per_group = get(block, PER_GROUP)
        for first in range(0, count, per_group):
            total, total_error, projection, projection_error = 0.0, 0.0, 0.0, 0.0
            for c in range(first, first + per_group):
                w = load(weight, c)
                total, e = two_sum(total, w * kept_sum(totals, errors, c))
                total_error += e
                projection, e = two_sum(projection, w * kept_sum(xmus, xmu_errors, c))
                projection_error += e
            r = load(invstd, first)
            for c in range(first, first + per_group):
                values = coefficients_of(
                    real, load(weight, c), r, m, total, total_error, projection,
                    projection_error, True,
                )  # fmt: skip
                put_coefficients(rows, c, values)


@helper
def outputs(block, real, c0, c1):
    """The per-channel outputs: sums over the sets, in their order; 0 if there are none."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    totals, projections = double_buffer(SOME), double_buffer(SOME)
    scaled = double_buffer(SOME)
    total_errors, projection_errors = (
        real_buffer(SOME, real, real), real_buffer(SOME, real, real)
    )  # fmt: skip
    scaled_errors = real_buffer(SOME, real, real)
    for first in range(c0, c1, SOME):
        count = min(SOME, c1 - first)
        for c in range(count):
            clear(totals, total_errors, c)
            clear(projections, projection_errors, c)
            clear(scaled, scaled_errors, c)
        for s in range(get(block, SETS)):
            base = s * get(block, CHANNELS) + first
            invstd = shift(doubles_at(workspace + get(block, W_INVSTD)), base)
            dys = shift(doubles_at(workspace + get(block, W_SUM_DY)), base)
            dy_errors = shift(like(workspace + get(block, W_SUM_DY_ERROR), real), base)
            xmus = shift(doubles_at(workspace + get(block, W_SUM_DY_XMU)), base)
            xmu_errors = shift(like(workspace + get(block, W_SUM_DY_XMU_ERROR), real), base)
            for c in range(count):
                q = kept_sum(xmus, xmu_errors, c)
                fold(totals, total_errors, c, kept_sum(dys, dy_errors, c))
                fold(projections, projection_errors, c, q)
                fold(scaled, scaled_errors, c, get(invstd, c) * q)
        write_row(block, plain(OUT_SUM_DY), first, count, totals, total_errors)
        write_row(block, plain(OUT_SUM_DY_XMU), first, count, projections, projection_errors)
        write_row(block, plain(OUT_WEIGHT), first, count, scaled, scaled_errors)
        write_row(block, plain(OUT_BIAS), first, count, totals, total_errors)


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
    if flags & DO_STATISTICS:
        statistics(block, real, c0, c1)
    if flags & DO_OUTPUTS:
        outputs(block, real, c0, c1)
    if flags & DO_COEFFICIENTS:
        coefficients(block, real, s, c0, c1)


def channel_signature(code: int) -> Any:
    """The channel kernel's type for the arithmetic's dtype code."""
    return types.void(POINTERS[code], INT_POINTER, *[types.int64] * 4)
