"""The coefficients of dx or y for some channels of one set, in whole statistics groups.

T = Σγ·dy and P = Σγ·dy·(x − μ) are sums over the channels that share a statistic, divided by its
number of elements. Batch norm has γ = 1 and o = weight·r; group norm has o = r. Without a mean, as
in RMS norm, μ and T are 0. Then:

    dx = o · (γ·dy − (T + r²·P·(x − μ)))
    y  = w·r · (x − μ) + b

The loops over tensors have x − h, where h is μ rounded to the arithmetic's type. The difference,
l = μ − h, is a part of what they add: of T − r²·P·l, or of b − w·r·l.

Multiplied out, dx = oγ·dy − (oT + or²P·(x − μ)) has two roundings fewer for each element; given
exact sums it is within 4 roundoffs on any data. Where a product of the factors is infinite, NaN or
too small, only the first form gives the right value, and is used: `scale` is o, and 1 otherwise.
Group norm's T and P are sums of terms that hold γ and r. Where one of these is infinite, several
terms are infinities of both signs, and the sum is NaN (γ − γ).

Units of arithmetic, here and in arithmetic.py, take the parameter block; flags, where a unit does
several kinds of work; the number ``s`` of a set; the index ``base`` of the set's channel 0 in the
workspace's arrays of channels, which is negative where a task's first channel has index 0; and the
first channel ``c0`` and the one after the last, ``c1``, counted in the set.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from ..schedule import block as B
from ..vector.helpers import helper
from ..vector.intrinsics import (
    address_of,
    as_int64,
    bits_to_double,
    double,
    double_buffer,
    doubles_at,
    fma,
    get,
    inlined,
    int32s_at,
    int_buffer,
    integers_at,
    larger,
    not_inlined,
    put,
    singles_at,
    smaller,
)
from .channel_vectors import (
    SPREAD,
    STRIP,
    canonical,
    fill,
    place_of,
    read_parameters,
    spread,
    total_count,
)
from .sums import add, add_copies, array, carry, clear, sum_of

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The smallest and the largest normal number of each type of arithmetic.
NORMAL_SINGLES = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
NORMAL_DOUBLES = float(np.finfo(np.float64).tiny), float(np.finfo(np.float64).max)
#: The bits of a float64 but its sign.
MAGNITUDE = (1 << 63) - 1
#: The levels of a group's sums over strips (see sums.py): the group is alone, so that they have the
#: places of others.
STRIP_LEVELS = 8


@helper
def normal_numbers(block):
    """The smallest and the largest normal number of the arithmetic's type."""
    return NORMAL_SINGLES if get(block, B.SINGLE) != 0 else NORMAL_DOUBLES


@helper
def holds(product, factor, other, normal):
    """Whether a product keeps full precision: it is normal, or 0 because one of its factors is."""
    vanishes = (factor == 0.0) | (other == 0.0)
    size = abs(product)
    return ((product == 0.0) & vanishes) | ((normal[0] <= size) & (size <= normal[1]))


@helper
def shift_and_slope(total, projection, m, o, r, multiplied, normal):
    """Compute T and r²·P from sums; multiplied by o if ``multiplied`` and no precision is lost."""
    inlined()
    one = 1.0 / m
    t, p = total * one, projection * one * (r * r)
    ot, op = o * t, o * p
    multiplied &= holds(ot, o, t, normal) & holds(op, o, p, normal)
    return ot if multiplied else t, op if multiplied else p, multiplied


@helper
def shifted(offset, factor, rest):
    """What to add to the factor's product with x − h, that it be the product with x − h − l."""
    return fma(-factor, rest, offset) if isfinite(factor) else offset


@helper
def read_weights(block, first, count, w):
    """Read the weights of some channels; or 1 where weights lie along rows: the sums have them."""
    if get(block, B.ALONG) != 0:
        fill(w, count, 1.0)
    else:
        read_parameters(block, B.WEIGHT, first, count, 1.0, w)


def batch(block, s, base, c0, c1):
    """Batch norm's coefficients: each channel has its own statistics, and o is w·r."""
    centred, normal = get(block, B.CENTRED) != 0, normal_numbers(block)
    m = bits_to_double(get(block, B.DIVISOR))
    if get(block, B.GIVEN_SUMS) != 0:
        m = get(array(block, B.W_COUNT, as_int64(0)), 0)
    w = double_buffer(STRIP)
    for first in range(c0, c1, STRIP):
        n, at = smaller(STRIP, c1 - first), base + first
        read_weights(block, first, n, w)
        sums, xmus = array(block, B.W_SUM_DY, at), array(block, B.W_SUM_DY_XMU, at)
        rests, invstd = array(block, B.W_MEAN + 1, at), array(block, B.W_INVSTD, at)
        gain, offset = array(block, B.W_GAIN, at), array(block, B.W_SHIFT, at)
        slope, scale = array(block, B.W_SLOPE, at), array(block, B.W_SCALE, at)
        for c in range(n):
            weight, r = get(w, c), get(invstd, c)
            o = weight * r
            total, multiplied = get(sums, c) if centred else 0.0, holds(o, weight, r, normal)
            t, p, multiplied = shift_and_slope(total, get(xmus, c), m, o, r, multiplied, normal)
            put(offset, c, canonical(shifted(t, p, get(rests, c))))
            put(slope, c, canonical(p))
            put(gain, c, canonical(o) if multiplied else 1.0)
            put(scale, c, 1.0 if multiplied else canonical(o))


def channel_groups(block, s, base, c0, c1):
    """The coefficients where channels share statistics: o is r, and γ is in the sums.

    The weights of several small groups are read together, those of a large group some channels at
    a time. So loops over channels and groups are long enough to be vectorised.
    """
    per_group = get(block, B.PER_GROUP)
    at_once = larger(1, STRIP // per_group)
    group, left = base // per_group, (c1 - c0) // per_group
    group += c0 // per_group
    w, precise = double_buffer(STRIP), double_buffer(STRIP)
    totals, projections = double_buffer(STRIP), double_buffer(STRIP)
    c = c0
    while left > 0:
        count = smaller(at_once, left)
        invstd = array(block, B.W_INVSTD, group)
        slope, scale = array(block, B.W_SLOPE, group), array(block, B.W_SCALE, group)
        start_groups(block, invstd, count, totals, projections, precise)
        end, strips = c + count * per_group, 0
        for first in range(c, end, STRIP):
            n = smaller(STRIP, end - first)
            read_weights(block, first, n, w)
            add_weighted(block, base + first, n, w, invstd, count, totals, projections, precise)
            strips += 1
            carry(totals, 1, STRIP_LEVELS, strips, 1)
            carry(projections, 1, STRIP_LEVELS, strips, 1)
        if strips > 1:
            add_copies(totals, 1, STRIP_LEVELS, 1)
            add_copies(projections, 1, STRIP_LEVELS, 1)
        rests = array(block, B.W_MEAN + 1, group)
        finish_groups(block, invstd, rests, count, totals, projections, precise, slope, scale)
        for first in range(c, end, STRIP):
            n = smaller(STRIP, end - first)
            if n < end - c:
                read_weights(block, first, n, w)
            spread_groups(block, base + first, n, w, totals, precise)
        c, group, left = end, group + count, left - count


@helper
def keep_precision(least, most, invstd, normal):
    """Whether 1/std times any weight along rows, which have this range, is a normal number."""
    size = abs(invstd)
    return (most == 0.0) | ((least * size >= normal[0]) & (most * size <= normal[1]))


@helper
def start_groups(block, invstd, count, totals, projections, precise):
    """Set sums to zero, and find whether products with the weights along rows keep precision."""
    weight_range, normal = array(block, B.W_COUNT, as_int64(0)), normal_numbers(block)
    least, most, along = get(weight_range, 1), get(weight_range, 2), get(block, B.ALONG) != 0
    for g in range(count):
        fits = keep_precision(least, most, get(invstd, g), normal) | (not along)
        put(precise, g, 1.0 if fits else 0.0)
    clear(totals, larger(count, STRIP_LEVELS))
    clear(projections, larger(count, STRIP_LEVELS))


@helper
def add_weighted(block, at, count, w, invstd, many, totals, projections, precise):
    """Add the sums of channels, times their weights, to the sums of their groups, in order."""
    not_inlined()
    per_group = get(block, B.PER_GROUP)
    normal, several = normal_numbers(block), bits_to_double(get(block, B.DIVISOR)) > per_group
    sums, xmus = array(block, B.W_SUM_DY, at), array(block, B.W_SUM_DY_XMU, at)
    terms, xmu_terms, fits = double_buffer(STRIP), double_buffer(STRIP), double_buffer(STRIP)
    invstds = spread(invstd, as_int64(0), count, per_group, double_buffer(SPREAD))
    for c in range(count):
        v, r = get(w, c), get(invstds, c)
        put(fits, c, 1.0 if holds(v * r, v, r, normal) else 0.0)
        v = v + (v - v) if several else v
        put(terms, c, v * get(sums, c))
        put(xmu_terms, c, v * get(xmus, c))
    for g in range(many):
        first = g * per_group
        end, fit = smaller(first + per_group, count), get(precise, g)
        for c in range(first, end):
            fit *= get(fits, c)
        add(totals, g, sum_of(terms, first, end - first))
        add(projections, g, sum_of(xmu_terms, first, end - first))
        put(precise, g, fit)


@helper
def finish_groups(block, invstd, rests, count, totals, projections, precise, slope, scale):
    """Compute the groups' slopes and scales; ``totals`` and ``precise`` become shifts, factors."""
    m, normal = bits_to_double(get(block, B.DIVISOR)), normal_numbers(block)
    centred = get(block, B.CENTRED) != 0
    for g in range(count):
        r, fits = get(invstd, g), get(precise, g) != 0.0
        total, projection = get(totals, g) if centred else 0.0, get(projections, g)
        projection = projection + (r - r) if m > 1.0 else projection
        t, p, multiplied = shift_and_slope(total, projection, m, r, r, fits, normal)
        put(slope, g, canonical(p))
        put(scale, g, 1.0 if multiplied else canonical(r))
        put(totals, g, canonical(shifted(t, p, get(rests, g))))
        put(precise, g, r if multiplied else 1.0)


@helper
def spread_groups(block, at, count, w, totals, factors):
    """Write the gain and shift of each channel, from its group's factor and shift."""
    not_inlined()
    per_group, row = get(block, B.PER_GROUP), (double_buffer(SPREAD), double_buffer(SPREAD))
    factor = spread(factors, as_int64(0), count, per_group, row[0])
    change = spread(totals, as_int64(0), count, per_group, row[1])
    gain, offset = array(block, B.W_GAIN, at), array(block, B.W_SHIFT, at)
    for c in range(count):
        put(gain, c, canonical(get(w, c) * get(factor, c)))
        put(offset, c, get(change, c))


def constant(block, s, base, c0, c1):
    """The coefficients where they depend on no sums: w·r and the bias; or 1/std, for rows.

    Rows, along which weights and biases lie, are statistics groups. They have ``slope`` instead of
    a bias: what to add to (x − h)/std.
    """
    per_group, along = get(block, B.PER_GROUP), get(block, B.ALONG) != 0
    group = base // per_group
    gain, slope = array(block, B.W_GAIN, base), array(block, B.W_SLOPE, group)
    offset = slope if along else array(block, B.W_SHIFT, base)
    invstd, rests = array(block, B.W_INVSTD, group), array(block, B.W_MEAN + 1, group)
    w, b, rows = (
        double_buffer(STRIP),
        double_buffer(STRIP),
        (double_buffer(SPREAD), double_buffer(SPREAD)),
    )
    for first in range(c0, c1, STRIP):
        n = smaller(STRIP, c1 - first)
        read_weights(block, first, n, w)
        if along:
            fill(b, n, 0.0)
        else:
            read_parameters(block, B.BIAS, first, n, 0.0, b)
        r = spread(invstd, first, n, per_group, rows[0])
        rest = spread(rests, first, n, per_group, rows[1])
        for c in range(n):
            factor = get(w, c) * get(r, c)
            put(gain, first + c, canonical(factor))
            put(offset, first + c, canonical(shifted(get(b, c), factor, get(rest, c))))


def count(block, flags, s, base, c0, c1):
    """Store the number of elements of all ranks, which the given sums are over."""
    put(array(block, B.W_COUNT, as_int64(0)), 0, total_count(block))


@helper
def copy_along(block, slot, at, count, otherwise, copy):
    """Copy some weights or biases along rows to an address, in the arithmetic's type."""
    not_inlined()
    if get(block, B.SINGLE) != 0:
        read_parameters(block, slot, at, count, otherwise, singles_at(copy))
    else:
        read_parameters(block, slot, at, count, otherwise, doubles_at(copy))


@helper
def repeat_each(numbers, count, times):
    """Repeat each of an array's first numbers some times, to ``count`` in all, in its place."""
    not_inlined()
    for i in range(count - 1, -1, -1):
        put(numbers, i, get(numbers, i // times))


@helper
def along_rows(block, slot, field, otherwise):
    """The address of the weight or bias along rows, in the arithmetic's type.

    It is the tensor's own where kernels read tensors of that type, and a copy's in the workspace
    otherwise: for half types NaNs have to be canonical. Long rows have 0 instead, and each task
    copies what it reads.
    """
    address, single = get(block, slot), get(block, B.SINGLE) != 0
    _, stride, code = place_of(block, slot, as_int64(0), as_int64(0))
    own = code == (0 if single else 1) and code == get(block, B.X_CODE)
    shared = get(block, B.SHARED)
    if address != 0 and stride == 1 and own and get(block, B.VECTORS_OUTER) == 0 and shared == 1:
        return address
    if get(block, B.COPIES) == 0:
        return as_int64(0)
    copy = get(block, B.WORKSPACE) + get(block, field)
    copy_along(block, slot, as_int64(0), get(block, B.PARAMETERS) // shared, otherwise, copy)
    if shared > 1 and single:
        repeat_each(singles_at(copy), get(block, B.PARAMETERS), shared)
    return copy


@helper
def range_of(words, count, magnitude):
    """The bits of the least and the largest nonzero magnitude, whose order is that of the bits.

    ``magnitude`` has all bits but the sign. The least is all of these if all numbers are 0.
    """
    smallest, largest = magnitude, 0
    for c in range(count):
        size = get(words, c) & magnitude
        before = (size - 1) & magnitude  # of 0 it is the largest number
        smallest = before if before < smallest else smallest
        largest = size if size > largest else largest
    return smallest + (smallest < magnitude), largest


def weights(block, flags, s, base, c0, c1):
    """Find the weight and bias along rows, and for gradients the weights' range."""
    weight, count = along_rows(block, B.WEIGHT, B.W_WEIGHT, 1.0), get(block, B.PARAMETERS)
    put(block, B.ROW_WEIGHT, weight)
    if get(block, B.FORWARD) != 0:
        put(block, B.ROW_BIAS, along_rows(block, B.BIAS, B.W_BIAS, 0.0))
        return
    weight_range = array(block, B.W_COUNT, as_int64(0))
    if get(block, B.WEIGHT) == 0:
        put(weight_range, 1, 1.0)
        put(weight_range, 2, 1.0)
    elif weight != 0 and get(block, B.SINGLE) != 0:
        least, most = range_of(int32s_at(weight), count, MAGNITUDE >> 32)
        bits = int_buffer(1)
        for i, size in ((1, least), (2, most)):
            put(bits, 0, size)
            put(weight_range, i, double(get(singles_at(address_of(bits)), 0)))
    else:
        least, most, row = MAGNITUDE, 0, double_buffer(STRIP)
        for first in range(0, count, STRIP):
            n = smaller(STRIP, count - first)
            read_parameters(block, B.WEIGHT, first, n, 1.0, row)
            smallest, largest = range_of(integers_at(address_of(row)), n, MAGNITUDE)
            least = smallest if smallest < least else least
            most = largest if largest > most else most
        put(weight_range, 1, bits_to_double(least))
        put(weight_range, 2, bits_to_double(most))
