"""What all per-channel arithmetic begins and ends with: reading and writing vectors of any type."""

from __future__ import annotations

from math import isfinite, nan, sqrt

from .block import (
    CHANNEL_STRIDES,
    CHANNELS,
    CODE,
    COUNT,
    COUNT_CODE,
    COUNT_RANK,
    COUNT_SIZES,
    COUNT_STRIDES,
    DIVISOR,
    EPS,
    INVSTD,
    INVSTD_IS_VARIANCE,
    MEAN,
    PER_GROUP,
    SET_STRIDE,
    SET_STRIDES,
    SETS,
    SLOTS,
    STRIDE,
    VECTOR_FIELDS,
    VECTORS,
    W_INVSTD,
    W_INVSTD_ERROR,
    W_MEAN,
    W_SLOPE,
    W_SUM_DY,
    W_SUM_DY_ERROR,
    W_SUM_DY_XMU,
    W_SUM_DY_XMU_ERROR,
    W_WEIGHT,
    WEIGHT,
    WORKSPACE,
    X_CODE,
    X,
)
from .intrinsics import (
    bfloat16s_at,
    bits_to_double,
    double,
    doubles_at,
    float16s_at,
    get,
    helper,
    int32s_at,
    integers_at,
    like,
    load,
    not_inlined,
    plain,
    put,
    shift,
    singles_at,
    store,
    two_sum,
)
from .sums import add_error, corrected, fold, kept_sum, put_error

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Channels whose outputs are made together, on the stack.
SOME = 128


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
def fill(row, count, value):
    """One number for every channel."""
    for c in range(count):
        put(row, c, value)


@helper
def clear_errors(row, count):
    """No error for any channel."""
    for c in range(count):
        put_error(row, c, 0.0)


@helper
def read_row(block, slot, s, first, count, row):
    """A per-channel input from ``first`` on, rounded to the row's type."""
    not_inlined()
    words = shift(block, VECTORS + VECTOR_FIELDS * (slot - MEAN))
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
def count_of(block, element):
    """An element of ``count``, by its number in order, as float64."""
    not_inlined()
    rest = element
    offset = 0
    for axis in range(get(block, COUNT_RANK) - 1, -1, -1):
        size = get(block, COUNT_SIZES + axis)
        offset += (rest % size) * get(block, COUNT_STRIDES + axis)
        rest //= size
    return read(get(block, COUNT), get(block, COUNT_CODE), offset)


@helper
def counts(block):
    """How many elements ``count`` has."""
    elements = 1
    for axis in range(get(block, COUNT_RANK)):
        elements *= get(block, COUNT_SIZES + axis)
    return elements


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
def write_row(block, slot, s, first, count, totals, errors):
    """Sums in scratch memory to a per-channel output from ``first`` on, if it is asked for."""
    not_inlined()
    address = get(block, slot)
    if address == 0:
        return
    words = shift(block, VECTORS + VECTOR_FIELDS * (slot - MEAN))
    stride, code = get(words, STRIDE), get(words, CODE)
    at = s * get(words, SET_STRIDE) + first * stride
    if code == 0:
        round_row(shift(singles_at(address), at), stride, count, totals, errors)
    elif code == 1:
        round_row(shift(doubles_at(address), at), stride, count, totals, errors)
    elif code == 2:
        round_row(shift(float16s_at(address), at), stride, count, totals, errors)
    else:
        round_row(shift(bfloat16s_at(address), at), stride, count, totals, errors)


@helper
def prepare_statistics(block, real, s, c0, c1):
    """Read a set's given mean and 1/std as the arithmetic reads them.

    A float64 statistic beside float32 data is rounded: it goes through the arithmetic's type.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    base = s * get(block, CHANNELS) + c0
    count = c1 - c0
    mean = shift(like(workspace + get(block, W_MEAN), real), base)
    rounded = shift(like(workspace + get(block, W_SLOPE), real), base)
    invstd = shift(doubles_at(workspace + get(block, W_INVSTD)), base)
    eps = bits_to_double(get(block, EPS))
    clear_errors(shift(like(workspace + get(block, W_INVSTD_ERROR), real), base), count)
    if get(block, MEAN) != 0:
        read_groups(block, plain(MEAN), s, c0, c1, mean)
    else:
        fill(mean, count, 0.0)
    if get(block, INVSTD) != 0:
        read_groups(block, plain(INVSTD), s, c0, c1, rounded)
    else:
        fill(rounded, count, 1.0)
    if get(block, INVSTD_IS_VARIANCE) != 0:
        for c in range(count):
            store(invstd, c, 1.0 / sqrt(double(load(rounded, c)) + eps))
    else:
        for c in range(count):
            store(invstd, c, double(load(rounded, c)))


@helper
def pilots(block, real, s, c0, c1):
    """About what moments are taken: the first element that shares a statistic, or 0.

    An element is no further from the mean than sqrt(m) deviations, of which float64's sums of
    float32 data can lose m·2⁻⁵³: so one pass is enough.
    """
    not_inlined()
    per_group = get(block, PER_GROUP)
    base = s * get(block, CHANNELS)
    mean = like(get(block, WORKSPACE) + get(block, W_MEAN), real)
    at = s * get(block, SET_STRIDES + 1)
    for first in range(c0, c1, per_group):
        here = at + first * get(block, CHANNEL_STRIDES + 1)
        value = read(get(block, X), get(block, X_CODE), here)
        for c in range(first, first + per_group):
            store(mean, base + c, value if isfinite(value) else 0.0)


@helper
def prepare_weight(block, real, s, c0, c1):
    """Read the weights as the arithmetic reads them."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    base = s * get(block, CHANNELS) + c0
    count = c1 - c0
    rounded = shift(like(workspace + get(block, W_SLOPE), real), base)
    weight = shift(doubles_at(workspace + get(block, W_WEIGHT)), base)
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
def sum_of_group(totals, errors, first, per_group):
    """The sum of a group's sums, in the order of its channels."""
    total, error = 0.0, 0.0
    for c in range(first, first + per_group):
        total, e = two_sum(total, kept_sum(totals, errors, c))
        error += e
    return corrected(total, error)


@helper
def finish_mean(block, real, base, count):
    """The mean, from Σ(x − μ) about what x was centred about."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    per_group = get(block, PER_GROUP)
    mean = like(workspace + get(block, W_MEAN), real)
    totals = doubles_at(workspace + get(block, W_SUM_DY))
    errors = like(workspace + get(block, W_SUM_DY_ERROR), real)
    m = bits_to_double(get(block, DIVISOR))
    for first in range(base, base + count, per_group):
        change = sum_of_group(totals, errors, first, per_group) / m
        value = canonical(double(get(mean, first)) + change)
        for c in range(first, first + per_group):
            store(mean, c, value)
