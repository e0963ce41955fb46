"""The arithmetic of channels and statistics groups, between the loops over tensors.

This file has the mean and 1/std, the sums, the parameters' gradients, and the unit that does a
step's arithmetic; `coefficients.py` has the coefficients of dx and y. All is in float64. Loops run
over channels only, but for small tensors that is most of the work. Each loop therefore does one
thing for all channels, without a branch, and LLVM vectorises it.
"""

from __future__ import annotations

from math import isfinite, sqrt

from ..schedule import block as B
from ..vector.helpers import helper
from ..vector.intrinsics import (
    as_int64,
    bits_to_double,
    double_buffer,
    fma,
    get,
    not_inlined,
    put,
    shift,
    smaller,
)
from .channel_vectors import (
    SPREAD,
    STRIP,
    as_arithmetic,
    canonical,
    count_of,
    fill,
    offset_along,
    read_elements,
    read_statistics,
    read_vector,
    spread,
    total_count,
    write_parameters,
    write_vector,
)
from .coefficients import shifted
from .sums import add, add_copies, array, carry, clear, join_neighbours, sum_of

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The channels whose statistics are gathered at once, which need little of the stack; the levels of
#: their sums over ranks (see sums.py), and the size of the sums' buffers.
GATHERED, RANK_LEVELS = 32, 6
RANKS = RANK_LEVELS * GATHERED


@helper
def prepare(block, s, base, c0, c1):
    """Read a set's given statistics and sums; choose the point for moments if there is no mean.

    The point is the statistics group's first element, or 0 if that is not finite. An element is at
    most sqrt(m) standard deviations from the mean, so sums of float32 data in float64 lose at most
    m·2⁻⁵³, and one pass is enough.
    """
    not_inlined()
    per_group = get(block, B.PER_GROUP)
    first, n = c0 // per_group, (c1 - c0) // per_group
    at = base // per_group + first
    mean = array(block, B.W_MEAN, at), array(block, B.W_MEAN + 1, at)
    invstd = array(block, B.W_INVSTD, at)
    read_statistics(block, B.MEAN, s, first, n, 0.0, mean[0])
    read_statistics(block, B.INVSTD, s, first, n, 1.0, invstd)
    if get(block, B.GIVEN_SUMS) != 0:
        read_vector(block, B.SUM_DY, as_int64(0), first, n, 0.0, array(block, B.W_SUM_DY, at))
        xmus = array(block, B.W_SUM_DY_XMU, at)
        read_vector(block, B.SUM_DY_XMU, as_int64(0), first, n, 0.0, xmus)
    if get(block, B.INVSTD_IS_VARIANCE) != 0:
        eps = bits_to_double(get(block, B.EPS))
        for g in range(n):
            put(invstd, g, 1.0 / sqrt(get(invstd, g) + eps))
    if get(block, B.MISSING_MEAN) != 0:
        element = s * get(block, B.SET_STRIDES + 1)
        if get(block, B.VECTORS_OUTER) != 0:
            steps = shift(block, B.OUTER_STRIDES + B.OUTER_MAX)
            element += offset_along(block, B.OUTER_RANK, steps, s * get(block, B.POSITIONS))
        step, code = per_group * get(block, B.CHANNEL_STRIDES + 1), get(block, B.X_CODE)
        read_elements(get(block, B.X), code, element + first * step, step, n, mean[1])
        for g in range(n):  # from another array: conditional stores are slow on some processors
            value = get(mean[1], g)
            put(mean[0], g, value if isfinite(value) else 0.0)
    for g in range(n):  # as ``statistics`` does with computed means
        put_mean(block, mean, g, get(mean[0], g), 0.0)


@helper
def put_mean(block, mean, g, about, change):
    """Keep about + change as the arithmetic's nearest number, and what that is off by; return it.

    The error has the precision of the change, which may be a correction of a mean.
    """
    value = canonical(about + change if isfinite(about) else about)
    nearest = as_arithmetic(block, value)
    rest = change - (nearest - about)
    put(mean[0], g, nearest)
    put(mean[1], g, rest if isfinite(rest) else 0.0)
    return value


@helper
def means_of_groups(sums, groups, per_group, m, means):
    """Add the sums of each group's channels, and divide by m."""
    not_inlined()
    one = 1.0 / m
    if per_group == 1:  # a loop that can be vectorised
        for g in range(groups):
            put(means, g, get(sums, g) * one)
    else:
        for g in range(groups):
            put(means, g, sum_of(sums, g * per_group, per_group) * one)


@helper
def update(block, slot, out_slot, first, count, new, n, factor):
    """Update running statistics, if wanted: (1 − momentum)·old + momentum·factor·new.

    The result replaces ``new``. Without elements (n = 0) the old statistics stay.
    """
    not_inlined()
    if get(block, out_slot) == 0:
        return
    momentum = bits_to_double(get(block, B.MOMENTUM))
    old = double_buffer(STRIP)
    read_vector(block, slot, as_int64(0), first, count, 0.0, old)
    for c in range(count):
        value = (1.0 - momentum) * get(old, c) + momentum * (get(new, c) * factor)
        put(new, c, get(old, c) if n == 0.0 else value)
    write_vector(block, out_slot, as_int64(0), first, count, new)


@helper
def write_statistics(block, s, first, count, mean, invstd, variance, n):
    """Write statistics over n elements to the outputs, and update the running statistics.

    The variance for these is unbiased, over n − 1 elements; over one element it stays biased.
    """
    write_vector(block, B.OUT_MEAN, s, first, count, mean)
    write_vector(block, B.OUT_INVSTD, s, first, count, invstd)
    factor = n / (n - 1.0) if n > 1.0 else 1.0
    update(block, B.RUNNING_MEAN, B.OUT_RUNNING_MEAN, first, count, mean, n, 1.0)
    update(block, B.RUNNING_VAR, B.OUT_RUNNING_VAR, first, count, variance, n, factor)


@helper
def statistics(block, flags, s, base, c0, c1):
    """Compute the missing mean and invstd from the moments of x; or the mean, for a second round.

    Moments are about the given mean, or else about a point near the mean. The first moment corrects
    the mean and the variance, so that both are as exact as the sums. The mean is rounded to the
    arithmetic's type for the loops over tensors, and its rounding error is kept beside it (see
    ``centre`` and coefficients.py). 1/std is not rounded. Without elements both are 0.
    """
    not_inlined()
    per_group = get(block, B.PER_GROUP)
    m, eps = bits_to_double(get(block, B.DIVISOR)), bits_to_double(get(block, B.EPS))
    changes, variances = double_buffer(STRIP), double_buffer(STRIP)
    means, invstds = double_buffer(STRIP), double_buffer(STRIP)
    last = c1 // per_group
    for first in range(c0 // per_group, last, STRIP):
        count = smaller(STRIP, last - first)
        there = count if m > 0.0 else 0
        at = base + first * per_group
        group = at // per_group
        mean = array(block, B.W_MEAN, group), array(block, B.W_MEAN + 1, group)
        invstd = array(block, B.W_INVSTD, group)
        fill(means, count, 0.0)
        fill(invstds, count, 0.0)
        fill(variances, count, 0.0)
        means_of_groups(array(block, B.W_SUM_DY, at), there, per_group, m, changes)
        means_of_groups(array(block, B.W_SUM_DY_XMU, at), there, per_group, m, variances)
        for g in range(there if get(block, B.MISSING_MEAN) != 0 else 0):
            change = get(changes, g)
            variance = fma(-change, change, get(variances, g))
            put(variances, g, 0.0 if variance < 0.0 else variance)
            put(means, g, put_mean(block, mean, g, get(mean[0], g), change))
        for g in range(there if get(block, B.MEAN) != 0 else 0):
            # Of a given mean the variance is about what it is, rather than about its rounded value.
            rest = get(mean[1], g)
            excess = rest * (2.0 * get(changes, g) - rest)
            variance = get(variances, g) - (excess if isfinite(excess) else 0.0)
            put(variances, g, 0.0 if variance < 0.0 else variance)
        if not flags & B.DO_STATISTICS:
            continue
        for g in range(there if get(block, B.MISSING_INVSTD) != 0 else 0):
            r = 1.0 / sqrt(get(variances, g) + eps)
            put(invstds, g, r)
            put(invstd, g, r)
        write_statistics(block, s, first, count, means, invstds, variances, m)


@helper
def combine(block, base, c0, c1):
    """Add the sums of all parts, and of their levels, to the first part's."""
    not_inlined()
    apart, copies = get(block, B.SUMS_APART), get(block, B.PARTS_OF_SUMS) * get(block, B.LEVELS)
    for i in range(2):
        add_copies(array(block, B.W_SUM_DY + i, base + c0), apart, copies, c1 - c0)


@helper
def centre(block, base, c0, c1):
    """Correct Σdy·(x − μ), which was summed about the rounded mean, for the rounding of the mean.

    Elements are numbers of the arithmetic's type, and none of these is nearer to the mean than the
    rounded mean. So the correction is no larger than the terms themselves, and the distance of x
    from the rounded mean is at most twice x − μ.
    """
    not_inlined()
    per_group, row = get(block, B.PER_GROUP), double_buffer(SPREAD)
    rests = array(block, B.W_MEAN + 1, base // per_group)
    for first in range(c0, c1, STRIP):
        n, at = smaller(STRIP, c1 - first), base + first
        rest = spread(rests, first, n, per_group, row)
        sums, xmus = array(block, B.W_SUM_DY, at), array(block, B.W_SUM_DY_XMU, at)
        for c in range(n):
            put(xmus, c, shifted(get(xmus, c), get(sums, c), get(rest, c)))


@helper
def add_parameters(block, s, base, c0, c1):
    """Add a set's contribution to the parameter gradients of its bank, or start them with it."""
    not_inlined()
    per_group, every = get(block, B.PER_GROUP), get(block, B.PARAMETERS)
    levels, turn = get(block, B.SLOT_LEVELS), s % get(block, B.BANK_SETS)
    bank = s // get(block, B.BANK_SETS) * levels
    one = get(block, B.SETS) == 1 and every == get(block, B.CHANNELS)
    invstd, row = array(block, B.W_INVSTD, base // per_group), double_buffer(SPREAD)
    first = c0
    while first < c1:
        # Of samples that are treated as one, all have the same parameters.
        sample = first // every
        at = first - sample * every
        n = smaller(smaller(STRIP, c1 - first), every - at)
        sums = array(block, B.W_SUM_DY, base + first)
        xmus = array(block, B.W_SUM_DY_XMU, base + first)
        at = base + first if one else at + bank * every
        biases, scaled = array(block, B.W_BIASES, at), array(block, B.W_WEIGHTS, at)
        if turn == 0 and sample == 0:
            for level in range(levels):
                clear(shift(biases, level * every), n)
                clear(shift(scaled, level * every), n)
        r = spread(invstd, first, n, per_group, row)
        for c in range(n):
            put(biases, c, get(biases, c) + get(sums, c))
            put(scaled, c, get(scaled, c) + get(r, c) * get(xmus, c))
        terms = turn * (get(block, B.CHANNELS) // every) + sample + 1
        carry(biases, every, levels, terms, n)
        carry(scaled, every, levels, terms, n)
        first += n


@helper
def outputs(block, base, c0, c1):
    """Write the parameter gradients: the sums over the slots, 0 without slots."""
    not_inlined()
    slots, every, zeros = get(block, B.SLOTS), get(block, B.PARAMETERS), double_buffer(STRIP)
    shared = get(block, B.SHARED)
    if slots == 0:
        fill(zeros, STRIP, 0.0)
    for first in range(c0, c1, STRIP):
        n, at = smaller(STRIP, c1 - first), base + first
        biases, scaled, xmus = zeros, zeros, zeros
        if slots > 0:
            biases = array(block, B.W_BIASES, at * shared)
            scaled = array(block, B.W_WEIGHTS, at * shared)
            add_copies(biases, every, slots, n * shared)
            add_copies(scaled, every, slots, n * shared)
            if shared > 1:
                join_neighbours(biases, n, shared)
                join_neighbours(scaled, n, shared)
            xmus = array(block, B.W_SUM_DY_XMU, at)
        write_parameters(block, B.OUT_SUM_DY, first, n, biases)
        write_parameters(block, B.OUT_SUM_DY_XMU, first, n, xmus)
        write_parameters(block, B.GRAD_BIAS, first, n, biases)
        write_parameters(block, B.GRAD_WEIGHT, first, n, scaled)


def gather(block, flags, s, base, c0, c1):
    """Combine the ranks' means and invstds, weighted by their numbers of elements.

    1/r² is a rank's variance plus eps. Its mean over all elements, plus that of the ranks' squared
    deviations from the common mean, is the common variance plus eps; so eps need not be subtracted
    first. Without elements the statistics are 0.
    """
    eps = bits_to_double(get(block, B.EPS))
    means, variances, invstds = double_buffer(RANKS), double_buffer(RANKS), double_buffer(GATHERED)
    mean, invstd = double_buffer(GATHERED), double_buffer(GATHERED)
    n = total_count(block)
    ranks = get(block, B.COUNTS) if n != 0.0 else 0
    for first in range(c0, c1, GATHERED):
        count = smaller(GATHERED, c1 - first)
        there = count if n != 0.0 else 0
        clear(means, RANKS)
        clear(variances, RANKS)
        fill(invstds, count, 0.0)
        for rank in range(ranks):
            mine = count_of(block, rank)
            if mine != 0.0:
                read_vector(block, B.MEAN, rank, first, count, 0.0, mean)
                for c in range(count):
                    add(means, c, mine * get(mean, c))
            carry(means, GATHERED, RANK_LEVELS, rank + 1, count)
        add_copies(means, GATHERED, RANK_LEVELS, count)
        for c in range(there):
            put(means, c, get(means, c) / n)
        for rank in range(ranks):
            mine = count_of(block, rank)
            if mine != 0.0:
                read_vector(block, B.MEAN, rank, first, count, 0.0, mean)
                read_vector(block, B.INVSTD, rank, first, count, 0.0, invstd)
                for c in range(count):
                    r, d = get(invstd, c), get(mean, c) - get(means, c)
                    add(variances, c, mine * (1.0 / (r * r) + d * d))
            carry(variances, GATHERED, RANK_LEVELS, rank + 1, count)
        add_copies(variances, GATHERED, RANK_LEVELS, count)
        for c in range(there):
            value = get(variances, c) / n
            put(invstds, c, 1.0 / sqrt(value))
            value -= eps
            put(variances, c, 0.0 if value < 0.0 else value)
        write_statistics(block, as_int64(0), first, count, means, invstds, variances, n)


def channels(block, flags, s, base, c0, c1):
    """Do the kinds of arithmetic that the flags name (see coefficients.py for the arguments)."""
    if flags & B.DO_PREPARE:
        prepare(block, s, base, c0, c1)
    if flags & B.DO_COMBINE:
        combine(block, base, c0, c1)
    if flags & (B.DO_MEAN | B.DO_STATISTICS):
        statistics(block, flags, s, base, c0, c1)
    if flags & B.DO_CENTRE:
        centre(block, base, c0, c1)
    if flags & B.DO_PARAMETERS:
        add_parameters(block, s, base, c0, c1)
    if flags & B.DO_OUTPUTS:
        outputs(block, base, c0, c1)
