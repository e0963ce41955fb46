"""The arithmetic of channels and groups: from sums to statistics, coefficients and outputs.

All of it is float64, with the error of each rounding carried along: float64 data have nothing to
spare, and beside float32 data it costs little, since it runs over channels only. Where tensors are
small that is most of the work even so; so each loop has one thing to do, without a branch, for all
channels, and LLVM vectorises it.
"""

from __future__ import annotations

from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from numba import types

from . import block as B
from .helpers import helper
from .intrinsics import (
    INT_POINTER,
    array,
    bits_to_double,
    double_buffer,
    doubles_at,
    fma,
    get,
    not_inlined,
    plain,
    put,
    shift,
    singles_at,
    two_sum,
)
from .sums import add_sum
from .vectors import canonical, corrected, count_of, counts, fill, held, read, read_row, write_row

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Channels that are treated together, on the stack.
SOME = 128


# Numbers with their errors: two values, the second what rounding has left of the first.


@helper
def pair_at(values, errors, i):
    """A sum and its error, which is NaN where the sum is infinite and must not spoil it."""
    value = get(values, i)
    return value, get(errors, i) if isfinite(value) else 0.0


@helper
def times(a, b):
    """A product."""
    value = a[0] * b[0]
    return value, fma(a[0], b[0], -value) + a[0] * b[1] + a[1] * b[0]


@helper
def plus(a, b):
    """A sum."""
    value, error = two_sum(a[0], b[0])
    return value, error + (a[1] + b[1])


@helper
def over(a, divisor):
    """A quotient. By an infinite number of elements nothing is left over."""
    value = a[0] / divisor
    rest = (fma(-value, divisor, a[0]) + a[1]) / divisor
    return value, rest if isfinite(divisor) else 0.0


@helper
def inverse_root(a):
    """1/sqrt, by a step of Newton's: of 1 − root²·value half is what the root lacks, relatively."""
    root = 1.0 / sqrt(a[0])
    square, error = times((root, 0.0), (root, 0.0))
    lack = fma(-square, a[0], 1.0) - error * a[0] - square * a[1]
    rest = 0.5 * root * lack
    return root, rest if isfinite(rest) else 0.0


@helper
def rounded(a):
    """The number, its error added."""
    return corrected(a[0], a[1])


@helper
def of_group(values, errors, first, per_group):
    """The sum over a group's channels, in their order."""
    total = (0.0, 0.0)
    for c in range(first, first + per_group):
        total = plus(total, pair_at(values, errors, c))
    return total


@helper
def total_count(block):
    """The sum of all elements of count."""
    not_inlined()
    total = 0.0
    for element in range(counts(block)):
        total += count_of(block, element)
    put(array(block, B.W_COUNT, 0), 0, total)


@helper
def weights(block, first, count):
    """Read weight and bias of rows' elements, as the arithmetic's type; find the weights' range."""
    not_inlined()
    row = double_buffer(SOME)
    least, most = np.inf, 0.0
    for at in range(first, first + count, SOME):
        n = min(SOME, first + count - at)
        for field, slot, otherwise in ((B.W_WEIGHT, B.WEIGHT, 1.0), (B.W_BIAS, B.BIAS, 0.0)):
            read_row(block, plain(slot), plain(0), at, n, otherwise, row)
            base = get(block, B.WORKSPACE) + get(block, field)
            for c in range(n):
                if get(block, B.SINGLE) != 0:
                    put(singles_at(base), at + c, get(row, c))
                else:
                    put(doubles_at(base), at + c, get(row, c))
                if slot == B.WEIGHT and get(row, c) != 0.0:
                    least, most = min(least, abs(get(row, c))), max(most, abs(get(row, c)))
    put(array(block, B.W_COUNT, 0), 1, least)
    put(array(block, B.W_COUNT, 0), 2, most)


@helper
def prepare(block, s, bank, c0, c1):
    """Read a set's given statistics; where the mean is missing, choose what moments are about.

    That is the first element that shares a statistic, or 0. An element is no further from the mean
    than sqrt(m) deviations, of which float64's sums of float32 data can lose m·2⁻⁵³: so one pass is
    enough.
    """
    not_inlined()
    per_group = get(block, B.PER_GROUP)
    first, n = c0 // per_group, (c1 - c0) // per_group
    base = bank * (get(block, B.CHANNELS) // per_group) + first
    mean, invstd = array(block, B.W_MEAN, base), array(block, B.W_INVSTD, base)
    fill(array(block, B.W_MEAN_REST, base), n, 0.0)
    fill(array(block, B.W_INVSTD_ERROR, base), n, 0.0)
    read_row(block, plain(B.MEAN), s, first, n, 0.0, mean)
    read_row(block, plain(B.INVSTD), s, first, n, 1.0, invstd)
    if get(block, B.INVSTD_IS_VARIANCE) != 0:
        eps = bits_to_double(get(block, B.EPS))
        for g in range(n):
            put(invstd, g, 1.0 / sqrt(get(invstd, g) + eps))
    if get(block, B.MISSING_MEAN) != 0:
        at = s * get(block, B.SET_STRIDES + 1)
        step = per_group * get(block, B.CHANNEL_STRIDES + 1)
        for g in range(n):
            value = read(get(block, B.X), get(block, B.X_CODE), at + (first + g) * step)
            put(mean, g, value if isfinite(value) else 0.0)


@helper
def combine(block, bank, c0, c1):
    """Add the parts' sums into the first part's, in the order of the parts."""
    not_inlined()
    every = get(block, B.BANKS) * get(block, B.CHANNELS)
    base = bank * get(block, B.CHANNELS)
    dy, dy_error = array(block, B.W_SUM_DY, base), array(block, B.W_SUM_DY_ERROR, base)
    xmu, xmu_error = array(block, B.W_SUM_DY_XMU, base), array(block, B.W_SUM_DY_XMU_ERROR, base)
    for part in range(1, get(block, B.PARTS_OF_SUMS)):
        at = part * every
        for c in range(c0, c1):
            add_sum(dy, dy_error, c, (get(dy, at + c), get(dy_error, at + c)))
        for c in range(c0, c1):
            add_sum(xmu, xmu_error, c, (get(xmu, at + c), get(xmu_error, at + c)))


@helper
def mean_of(about, change):
    """The mean, from that of x − p and the point p: its value, and what rounding left of it.

    An infinite or NaN p has left nothing to be improved.
    """
    value, rest = plus((about, 0.0), change)
    return value if isfinite(about) else about, rest if isfinite(about) else 0.0


@helper
def means_of_groups(values, errors, first, groups, per_group, m, means, mean_errors):
    """Sums over groups of channels, from channel ``first`` on, divided by m, with their errors."""
    not_inlined()
    for g in range(groups):
        if per_group == 1:  # a loop that can be vectorised
            mean = over(pair_at(values, errors, first + g), m)
        else:
            mean = over(of_group(values, errors, first + g * per_group, per_group), m)
        put(means, g, mean[0])
        put(mean_errors, g, mean[1])


@helper
def found_mean(block, bank, c0, c1):
    """The mean, for another round of moments about it."""
    not_inlined()
    per_group = get(block, B.PER_GROUP)
    mean = array(block, B.W_MEAN, bank * (get(block, B.CHANNELS) // per_group))
    totals = array(block, B.W_SUM_DY, bank * get(block, B.CHANNELS))
    errors = array(block, B.W_SUM_DY_ERROR, bank * get(block, B.CHANNELS))
    m = bits_to_double(get(block, B.DIVISOR))
    for g in range(c0 // per_group, c1 // per_group):
        total = of_group(totals, errors, g * per_group, per_group)
        put(mean, g, held(block, canonical(rounded(mean_of(get(mean, g), over(total, m))))))


@helper
def update(block, slot, out_slot, first, count, values, errors, n, unbiased):
    """Running statistics of some channels: (1 − momentum)·old + momentum·new, if asked for.

    ``unbiased``: what makes a variance over n elements an estimate of their source's. No elements,
    no news.
    """
    not_inlined()
    if get(block, out_slot) == 0:
        return
    momentum = bits_to_double(get(block, B.MOMENTUM))
    old = double_buffer(SOME)
    read_row(block, slot, plain(0), first, count, 0.0, old)
    for c in range(count):
        new = (1.0 - momentum) * get(old, c) + momentum * (get(values, c) * unbiased)
        put(values, c, get(old, c) if n == 0.0 else new)
    write_row(block, out_slot, plain(0), first, count, values, errors)


@helper
def estimates(n):
    """The factor that makes a variance over n elements one of their source; of one it stays."""
    return n / (n - 1.0) if n > 1.0 else 1.0


@helper
def statistics(block, s, bank, c0, c1):
    """The mean and 1/std that are missing, from the moments of x.

    Moments are about the mean in use, where one is given, else about what is close to the mean.
    What they leave of the mean corrects it, and the variance: so both are as exact as the sums. A
    mean that is found is rounded to the arithmetic's type, for the loops over tensors, and what
    rounding leaves is kept beside it (see ``centre``). 1/std is not rounded for gradients; y is
    normalised with both as the arithmetic's type holds them. Without elements they are 0.
    """
    not_inlined()
    per_group = get(block, B.PER_GROUP)
    base, group = bank * get(block, B.CHANNELS), bank * (get(block, B.CHANNELS) // per_group)
    mean, rest = array(block, B.W_MEAN, group), array(block, B.W_MEAN_REST, group)
    invstd, invstd_error = array(block, B.W_INVSTD, group), array(block, B.W_INVSTD_ERROR, group)
    totals, errors = array(block, B.W_SUM_DY, base), array(block, B.W_SUM_DY_ERROR, base)
    squares = array(block, B.W_SUM_DY_XMU, base)
    square_errors = array(block, B.W_SUM_DY_XMU_ERROR, base)
    m, eps = bits_to_double(get(block, B.DIVISOR)), bits_to_double(get(block, B.EPS))
    forward = get(block, B.FORWARD) != 0
    means, invstds, none = double_buffer(SOME), double_buffer(SOME), double_buffer(SOME)
    changes, change_errors = double_buffer(SOME), double_buffer(SOME)
    variances, variance_errors = double_buffer(SOME), double_buffer(SOME)
    fill(none, SOME, 0.0)
    last = c1 // per_group
    for first in range(c0 // per_group, last, SOME):
        count = min(SOME, last - first)
        fill(means, count, 0.0)
        fill(invstds, count, 0.0)
        fill(variances, count, 0.0)
        there = count if m > 0.0 else 0
        at = first * per_group
        means_of_groups(totals, errors, at, there, per_group, m, changes, change_errors)
        means_of_groups(squares, square_errors, at, there, per_group, m, variances, variance_errors)
        for g in range(there if get(block, B.MISSING_MEAN) != 0 else 0):
            change = (get(changes, g), get(change_errors, g))
            square = times(change, change)
            variance = (get(variances, g), get(variance_errors, g))
            variance = plus(variance, (-square[0], -square[1]))
            put(variances, g, 0.0 if variance[0] < 0.0 else variance[0])
            put(variance_errors, g, 0.0 if variance[0] < 0.0 else variance[1])
            new = mean_of(get(mean, first + g), change)
            nearest = held(block, canonical(rounded(new)))
            left = new[1] + (new[0] - nearest)
            put(means, g, rounded(new))
            put(mean, first + g, nearest)
            put(rest, first + g, left if isfinite(left) else 0.0)
        for g in range(there if get(block, B.MISSING_INVSTD) != 0 else 0):
            variance = (get(variances, g), get(variance_errors, g))
            r = inverse_root(plus(variance, (eps, 0.0)))
            put(variances, g, rounded(variance))
            put(invstds, g, rounded(r))
            put(invstd, first + g, held(block, canonical(rounded(r))) if forward else r[0])
            put(invstd_error, first + g, 0.0 if forward else r[1])
        if forward:
            write_row(block, plain(B.OUT_MEAN), s, first, count, means, none)
            write_row(block, plain(B.OUT_INVSTD), s, first, count, invstds, none)
            slots = plain(B.RUNNING_MEAN), plain(B.OUT_RUNNING_MEAN)
            update(block, *slots, first, count, means, none, m, 1.0)
            slots = plain(B.RUNNING_VAR), plain(B.OUT_RUNNING_VAR)
            update(block, *slots, first, count, variances, none, m, estimates(m))


@helper
def centre(block, bank, c0, c1):
    """Σdy·(x − μ) about a mean that was found, from the sum about the mean as it was rounded.

    Elements are numbers of the arithmetic's type, and none of those is nearer to the mean than the
    one that it was rounded to. So what is taken off is no larger than the terms themselves, and
    x less the rounded mean is at most twice x − μ.
    """
    not_inlined()
    base = bank * get(block, B.CHANNELS)
    rest = array(block, B.W_MEAN_REST, base)
    totals, errors = array(block, B.W_SUM_DY, base), array(block, B.W_SUM_DY_ERROR, base)
    xmus, xmu_errors = array(block, B.W_SUM_DY_XMU, base), array(block, B.W_SUM_DY_XMU_ERROR, base)
    for c in range(c0, c1):
        term = times((get(rest, c), 0.0), pair_at(totals, errors, c))
        if isfinite(term[0]):
            add_sum(xmus, xmu_errors, c, (-term[0], -term[1]))


# The coefficients of dx or y for channels (whole groups of them) of one set.
#
# With T = Σγ·dy and P = Σγ·dy·(x − μ), taken over the channels that share a statistic and divided
# by its number of elements, and with o the weight times r for batch norm, whose γ is 1, and r for
# group norm:
#
#     dx = o · (γ·dy − (T + r²·P·(x − μ)))
#
# Multiplied out, dx = oγ·dy − (oT + or²P·(x − μ)) has two roundings fewer for each element;
# given exact sums it is within 4 roundoffs on any data. Where a factor is infinite or NaN, or
# vanishes, only the formula as it stands gives what it should, so there it is used: `scale` is
# o, and 1 otherwise. Group norm's T and P are sums of terms that hold γ and r: where one of those
# is infinite there are infinities of both signs among several terms, and the sum is NaN (γ − γ).


@helper
def is_normal(value, smallest, largest):
    """Whether the arithmetic's type holds a number to full precision."""
    return (value == 0.0) | ((smallest <= abs(value)) & (abs(value) <= largest))


@helper
def range_of(block):
    """The smallest and the largest normal number of the arithmetic's type."""
    if get(block, B.SINGLE) != 0:
        return SMALLEST_SINGLE, LARGEST_SINGLE
    return SMALLEST_DOUBLE, LARGEST_DOUBLE


SMALLEST_SINGLE, LARGEST_SINGLE = (
    float(np.finfo(np.float32).tiny),
    float(np.finfo(np.float32).max),
)
SMALLEST_DOUBLE, LARGEST_DOUBLE = (
    float(np.finfo(np.float64).tiny),
    float(np.finfo(np.float64).max),
)


@helper
def means_of(total, projection, r, m):
    """T = Σdy/m and r²·P, with P = Σdy·(x − μ)/m."""
    return over(total, m), times(over(projection, m), times(r, r))


@helper
def is_whole(product, factor, other):
    """Whether a product has not vanished though its factors have not."""
    return (product != 0.0) | (factor == 0.0) | (other == 0.0)


def batch_coefficients(block, s, bank, c0, c1):
    """The coefficients of channels with statistics of their own: o = w·r times the formula."""
    base = bank * get(block, B.CHANNELS)
    smallest, largest = range_of(block)
    w, given, given_xmu = double_buffer(SOME), double_buffer(SOME), double_buffer(SOME)
    none = double_buffer(SOME)
    fill(none, SOME, 0.0)
    is_given = get(block, B.GIVEN_SUMS) != 0
    m = get(array(block, B.W_COUNT, 0), 0) if is_given else bits_to_double(get(block, B.DIVISOR))
    for first in range(c0, c1, SOME):
        n, at = min(SOME, c1 - first), base + first
        read_row(block, plain(B.WEIGHT), plain(0), first, n, 1.0, w)
        totals, errors = array(block, B.W_SUM_DY, at), array(block, B.W_SUM_DY_ERROR, at)
        xmus, xmu_errors = array(block, B.W_SUM_DY_XMU, at), array(block, B.W_SUM_DY_XMU_ERROR, at)
        if is_given:
            read_row(block, plain(B.SUM_DY), plain(0), first, n, 0.0, given)
            read_row(block, plain(B.SUM_DY_XMU), plain(0), first, n, 0.0, given_xmu)
            totals, errors, xmus, xmu_errors = given, none, given_xmu, none
        invstd, invstd_error = array(block, B.W_INVSTD, at), array(block, B.W_INVSTD_ERROR, at)
        rest = array(block, B.W_MEAN_REST, at)
        gain, offset = array(block, B.W_GAIN, at), array(block, B.W_SHIFT, at)
        slope, scale = array(block, B.W_SLOPE, at), array(block, B.W_SCALE, at)
        for c in range(n):
            r = (get(invstd, c), get(invstd_error, c))
            t, p = means_of(pair_at(totals, errors, c), pair_at(xmus, xmu_errors, c), r, m)
            o = times((get(w, c), 0.0), r)
            wr, ot, op = rounded(o), rounded(times(o, t)), rounded(times(o, p))
            multiplied = (
                is_normal(wr, smallest, largest)
                & is_normal(ot, smallest, largest)
                & is_normal(op, smallest, largest)
                & is_whole(ot, o[0], t[0])
                & is_whole(op, o[0], p[0])
                & is_whole(wr, get(w, c), r[0])
            )
            by = op if multiplied else rounded(p)
            from_ = ot if multiplied else rounded(t)
            # The loops use a mean that was found as it was rounded.
            change = fma(-by, get(rest, c), from_)
            put(offset, c, canonical(change if isfinite(by) else from_))
            put(slope, c, canonical(by))
            put(gain, c, canonical(wr) if multiplied else 1.0)
            put(scale, c, 1.0 if multiplied else canonical(wr))


@helper
def sum_of(block, values, errors, count, total):
    """Add numbers to a sum in their order; with their errors in float64 arithmetic."""
    not_inlined()
    if get(block, B.SINGLE) != 0:
        value = total[0]
        for c in range(count):
            value += get(values, c)
        return value, 0.0
    for c in range(count):
        total = plus(total, (get(values, c), get(errors, c)))
    return total


def group_coefficients(block, s, bank, c0, c1):
    """The coefficients of groups of channels: o = r times the formula, whose sums hold γ."""
    per_group = get(block, B.PER_GROUP)
    base, group = bank * get(block, B.CHANNELS), bank * (get(block, B.CHANNELS) // per_group)
    totals, errors = array(block, B.W_SUM_DY, base), array(block, B.W_SUM_DY_ERROR, base)
    xmus, xmu_errors = array(block, B.W_SUM_DY_XMU, base), array(block, B.W_SUM_DY_XMU_ERROR, base)
    gain, offset = array(block, B.W_GAIN, base), array(block, B.W_SHIFT, base)
    slope, scale = array(block, B.W_SLOPE, group), array(block, B.W_SCALE, group)
    invstd = array(block, B.W_INVSTD, group)
    smallest, largest = range_of(block)
    w = double_buffer(SOME)
    terms, term_errors = double_buffer(SOME), double_buffer(SOME)
    xmu_terms, xmu_term_errors = double_buffer(SOME), double_buffer(SOME)
    m = bits_to_double(get(block, B.DIVISOR))
    along = get(block, B.ALONG) != 0
    for g in range(c0 // per_group, c1 // per_group):
        r = get(invstd, g)
        total, projection = (0.0, 0.0), (0.0, 0.0)
        start, end = g * per_group, (g + 1) * per_group
        multiplied = True
        for first in range(start, end, SOME):
            n = min(SOME, end - first)
            if along:  # the sums hold the weights, and gain is multiplied by them later
                fill(w, n, 1.0)
                least, most = get(array(block, B.W_COUNT, 0), 1), get(array(block, B.W_COUNT, 0), 2)
                multiplied = (most == 0.0) | (
                    (least * abs(r) >= smallest) & (most * abs(r) <= largest)
                )
            else:
                read_row(block, plain(B.WEIGHT), plain(0), first, n, 1.0, w)
            for c in range(n):  # a loop that can be vectorised
                v = get(w, c)
                wr = v * r
                multiplied &= is_normal(wr, smallest, largest) & is_whole(wr, v, r)
                v = v + (v - v) if m > per_group else v
                term = times((v, 0.0), pair_at(totals, errors, first + c))
                put(terms, c, term[0])
                put(term_errors, c, term[1])
                term = times((v, 0.0), pair_at(xmus, xmu_errors, first + c))
                put(xmu_terms, c, term[0])
                put(xmu_term_errors, c, term[1])
            total = sum_of(block, terms, term_errors, n, total)
            projection = sum_of(block, xmu_terms, xmu_term_errors, n, projection)
        if m > 1.0:
            projection = (projection[0] + (r - r), projection[1])
        o = (r, 0.0)
        t, p = means_of(
            (total[0], total[1] if isfinite(total[0]) else 0.0),
            (projection[0], projection[1] if isfinite(projection[0]) else 0.0), o, m,
        )  # fmt: skip
        ot, op = rounded(times(o, t)), rounded(times(o, p))
        multiplied &= (
            is_normal(ot, smallest, largest)
            & is_normal(op, smallest, largest)
            & is_whole(ot, r, t[0])
            & is_whole(op, r, p[0])
        )
        put(slope, g, canonical(op if multiplied else rounded(p)))
        put(scale, g, 1.0 if multiplied else canonical(r))
        shift_ = canonical(ot if multiplied else rounded(t))
        for first in range(start, end, SOME):
            n = min(SOME, end - first)
            if n < per_group:
                read_row(block, plain(B.WEIGHT), plain(0), first, n, 1.0, w)
            for c in range(n):
                put(gain, first + c, canonical(get(w, c) * r if multiplied else get(w, c)))
                put(offset, first + c, shift_)


def constant_coefficients(block, s, bank, c0, c1):
    """Those where no sum takes part: w·r, and the bias."""
    per_group, along = get(block, B.PER_GROUP), get(block, B.ALONG) != 0
    base, group = bank * get(block, B.CHANNELS), bank * (get(block, B.CHANNELS) // per_group)
    gain, offset = array(block, B.W_GAIN, base), array(block, B.W_SHIFT, base)
    invstd = array(block, B.W_INVSTD, group)
    w = double_buffer(SOME)
    for first in range(c0, c1, SOME):
        n = min(SOME, c1 - first)
        if along:
            fill(w, n, 1.0)
        else:
            read_row(block, plain(B.WEIGHT), plain(0), first, n, 1.0, w)
            read_row(block, plain(B.BIAS), plain(0), first, n, 0.0, shift(offset, first))
        for c in range(n):
            r = get(invstd, (first + c) // per_group if per_group > 1 else first + c)
            put(gain, first + c, canonical(get(w, c) * r))


@helper
def parameters(block, s, bank, c0, c1):
    """Add a set's part of the parameters' gradients to those of its bank, or begin them."""
    not_inlined()
    per_group = get(block, B.PER_GROUP)
    base, group = bank * get(block, B.CHANNELS), bank * (get(block, B.CHANNELS) // per_group)
    totals, errors = array(block, B.W_SUM_DY, base), array(block, B.W_SUM_DY_ERROR, base)
    xmus, xmu_errors = array(block, B.W_SUM_DY_XMU, base), array(block, B.W_SUM_DY_XMU_ERROR, base)
    invstd, invstd_error = array(block, B.W_INVSTD, group), array(block, B.W_INVSTD_ERROR, group)
    biases, bias_errors = array(block, B.W_BIASES, base), array(block, B.W_BIAS_ERRORS, base)
    scaled, scaled_errors = array(block, B.W_WEIGHTS, base), array(block, B.W_WEIGHT_ERRORS, base)
    begins = s % get(block, B.BANK_SETS) == 0
    for c in range(c0, c1):
        g = c // per_group if per_group > 1 else c
        r = (get(invstd, g), get(invstd_error, g))
        term = times(r, pair_at(xmus, xmu_errors, c))
        total = pair_at(totals, errors, c)
        if not begins:
            total = plus(total, (get(biases, c), get(bias_errors, c)))
            term = plus(term, (get(scaled, c), get(scaled_errors, c)))
        put(biases, c, total[0])
        put(bias_errors, c, total[1])
        put(scaled, c, term[0])
        put(scaled_errors, c, term[1])


@helper
def outputs(block, c0, c1):
    """The parameters' gradients, sums over the slots in their order, 0 if there are none."""
    not_inlined()
    every = get(block, B.PARAMETERS)
    biases, bias_errors = double_buffer(SOME), double_buffer(SOME)
    scaled, scaled_errors = double_buffer(SOME), double_buffer(SOME)
    for first in range(c0, c1, SOME):
        n = min(SOME, c1 - first)
        fill(biases, n, 0.0)
        fill(bias_errors, n, 0.0)
        fill(scaled, n, 0.0)
        fill(scaled_errors, n, 0.0)
        for slot in range(get(block, B.SLOTS)):
            at = slot * every + first
            values, errors = array(block, B.W_BIASES, at), array(block, B.W_BIAS_ERRORS, at)
            terms, term_errors = array(block, B.W_WEIGHTS, at), array(block, B.W_WEIGHT_ERRORS, at)
            for c in range(n):
                add_sum(biases, bias_errors, c, (get(values, c), get(errors, c)))
            for c in range(n):
                add_sum(scaled, scaled_errors, c, (get(terms, c), get(term_errors, c)))
        write_row(block, plain(B.OUT_SUM_DY), plain(0), first, n, biases, bias_errors)
        write_row(block, plain(B.GRAD_BIAS), plain(0), first, n, biases, bias_errors)
        write_row(block, plain(B.GRAD_WEIGHT), plain(0), first, n, scaled, scaled_errors)
        if get(block, B.SLOTS) == 0:
            write_row(block, plain(B.OUT_SUM_DY_XMU), plain(0), first, n, scaled, scaled_errors)
        else:
            xmus = array(block, B.W_SUM_DY_XMU, first)
            errors = array(block, B.W_SUM_DY_XMU_ERROR, first)
            write_row(block, plain(B.OUT_SUM_DY_XMU), plain(0), first, n, xmus, errors)


def gather(block, flags, s, bank, c0, c1):
    """The mean and 1/std of all ranks' elements, from each rank's own and how many it has.

    With 1/r² the variance and eps, their mean over all elements and the ranks' own deviations from
    the common mean make the common variance and eps: eps need not be taken off first.
    """
    eps = bits_to_double(get(block, B.EPS))
    means, mean_errors = double_buffer(SOME), double_buffer(SOME)
    variances, errors = double_buffer(SOME), double_buffer(SOME)
    row, other = double_buffer(SOME), double_buffer(SOME)
    ranks = counts(block)
    n = 0.0
    for rank in range(ranks):
        n += count_of(block, rank)
    for first in range(c0, c1, SOME):
        count = min(SOME, c1 - first)
        fill(means, count, 0.0)
        fill(mean_errors, count, 0.0)
        fill(variances, count, 0.0)
        fill(errors, count, 0.0)
        for rank in range(ranks):
            mine = count_of(block, rank)
            if mine != 0.0:
                read_row(block, plain(B.MEAN), rank, first, count, 0.0, row)
                for c in range(count):
                    add_sum(means, mean_errors, c, (mine * get(row, c), 0.0))
        for c in range(count):
            value = corrected(get(means, c), get(mean_errors, c)) / n if n != 0.0 else 0.0
            put(means, c, value)
            put(mean_errors, c, 0.0)
        for rank in range(ranks):
            mine = count_of(block, rank)
            if mine != 0.0:
                read_row(block, plain(B.MEAN), rank, first, count, 0.0, row)
                read_row(block, plain(B.INVSTD), rank, first, count, 0.0, other)
                for c in range(count):
                    r, d = get(other, c), get(row, c) - get(means, c)
                    add_sum(variances, errors, c, (mine * (1.0 / (r * r) + d * d), 0.0))
        for c in range(count):
            value = corrected(get(variances, c), get(errors, c)) / n if n != 0.0 else 0.0
            put(row, c, 1.0 / sqrt(value) if n != 0.0 else 0.0)
            value -= eps
            put(variances, c, max(value, 0.0) if value == value else nan)
            put(errors, c, 0.0)
        write_row(block, plain(B.OUT_MEAN), plain(0), first, count, means, mean_errors)
        write_row(block, plain(B.OUT_INVSTD), plain(0), first, count, row, errors)
        slots = plain(B.RUNNING_MEAN), plain(B.OUT_RUNNING_MEAN)
        update(block, *slots, first, count, means, mean_errors, n, 1.0)
        slots = plain(B.RUNNING_VAR), plain(B.OUT_RUNNING_VAR)
        update(block, *slots, first, count, variances, errors, n, estimates(n))


def arithmetic(block, flags, s, bank, c0, c1):
    """What the flags name, for channels c0 to c1 of a set, whose numbers are in a bank."""
    if flags & B.DO_COUNT:
        total_count(block)
    if flags & B.DO_WEIGHTS:
        weights(block, plain(0), get(block, B.PARAMETERS))
    if flags & B.DO_PREPARE:
        prepare(block, s, bank, c0, c1)
    if flags & B.DO_COMBINE:
        combine(block, bank, c0, c1)
    if flags & B.DO_MEAN:
        found_mean(block, bank, c0, c1)
    if flags & B.DO_STATISTICS:
        statistics(block, s, bank, c0, c1)
    if flags & B.DO_CENTRE:
        centre(block, bank, c0, c1)
    if flags & B.DO_PARAMETERS:
        parameters(block, s, bank, c0, c1)
    if flags & B.DO_OUTPUTS:
        outputs(block, c0, c1)


#: The type of this, and of ``gather``, which takes its place where there are no tensors.
SIGNATURE: Any = types.void(INT_POINTER, *[types.int64] * 5)
#: That of what makes coefficients.
COEFFICIENTS: Any = types.void(INT_POINTER, *[types.int64] * 4)
