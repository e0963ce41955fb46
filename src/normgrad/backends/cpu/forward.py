"""The forward pass's per-channel arithmetic, in float64: from moments to statistics, and to
coefficients of y = scale·(x − μ) + shift; and the statistics of ranks, combined.

Like :mod:`.channels`, over C values, or N·C for group norm, whose groups of channels share a
statistic.
"""

from __future__ import annotations

from math import isfinite, nan, sqrt

from .block import (
    BIAS,
    CHANNELS,
    DIVISOR,
    DO_COEFFICIENTS,
    DO_COMBINE,
    DO_GATHER,
    DO_MEAN,
    DO_PREPARE,
    DO_STATISTICS,
    EPS,
    INVSTD,
    MEAN,
    MISSING_MEAN,
    MOMENTUM,
    OUT_INVSTD,
    OUT_MEAN,
    OUT_RUNNING_MEAN,
    OUT_RUNNING_VAR,
    PER_GROUP,
    RUNNING_MEAN,
    RUNNING_VAR,
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
    WORKSPACE,
)
from .intrinsics import (
    bits_to_double,
    double,
    double_buffer,
    doubles_at,
    get,
    helper,
    like,
    load,
    not_inlined,
    plain,
    put,
    real_buffer,
    shift,
    store,
)
from .sums import clear, finished, fold, kept_sum, times
from .vectors import (
    SOME,
    canonical,
    combine,
    count_of,
    counts,
    fill,
    finish_mean,
    pilots,
    prepare_statistics,
    prepare_weight,
    read_row,
    sum_of_group,
    write_row,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def updated(block, real, slot, out_slot, first, count, values, errors, n):
    """Running statistics of some channels: (1 − momentum)·old + momentum·new, if asked for.

    No elements, no news.
    """
    not_inlined()
    if get(block, out_slot) == 0:
        return
    momentum = bits_to_double(get(block, MOMENTUM))
    old = real_buffer(SOME, real, real)
    read_row(block, slot, plain(0), first, count, old)
    for c in range(count):
        before = double(get(old, c))
        new = (1.0 - momentum) * before + momentum * get(values, c)
        put(values, c, before if n == 0.0 else new)
    write_row(block, out_slot, plain(0), first, count, values, errors)


@helper
def unbiased(values, count, n):
    """Variances over n elements, as estimates of their source's; of one element as they are."""
    factor = n / (n - 1.0) if n > 1.0 else 1.0
    for c in range(count):
        put(values, c, get(values, c) * factor)


@helper
def statistics(block, real, s, c0, c1):
    """The mean and 1/std of channels, from the moments about the mean so far.

    What the moments leave of the mean corrects it, and the variance: so both are as exact as the
    sums, whatever x was centred about. y is normalised with them as the arithmetic's type holds
    them. Without elements they are 0.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    per_group = get(block, PER_GROUP)
    base = s * get(block, CHANNELS)
    mean = like(workspace + get(block, W_MEAN), real)
    rounded = like(workspace + get(block, W_SLOPE), real)
    invstd = doubles_at(workspace + get(block, W_INVSTD))
    totals = doubles_at(workspace + get(block, W_SUM_DY))
    errors = like(workspace + get(block, W_SUM_DY_ERROR), real)
    squares = doubles_at(workspace + get(block, W_SUM_DY_XMU))
    square_errors = like(workspace + get(block, W_SUM_DY_XMU_ERROR), real)
    m = bits_to_double(get(block, DIVISOR))
    eps = bits_to_double(get(block, EPS))
    means, invstds, variances = double_buffer(SOME), double_buffer(SOME), double_buffer(SOME)
    none = real_buffer(SOME, real, real)
    fill(none, SOME, 0.0)
    for group in range(c0 // per_group, c1 // per_group, SOME):
        count = min(SOME, c1 // per_group - group)
        fill(means, count, 0.0)
        fill(invstds, count, 0.0)
        fill(variances, count, 0.0)
        for g in range(count if m > 0.0 else 0):
            first = base + (group + g) * per_group
            about = double(get(mean, first))
            change = sum_of_group(totals, errors, first, per_group) / m
            variance = sum_of_group(squares, square_errors, first, per_group) / m
            variance -= change * change
            variance = max(variance, 0.0) if variance == variance else nan
            # An infinite or NaN mean has left nothing to be improved.
            new = about + change if isfinite(about) else about
            put(means, g, new)
            put(invstds, g, 1.0 / sqrt(variance + eps))
            put(variances, g, variance)
            for c in range(first, first + per_group):
                store(mean, c, canonical(new))
                store(rounded, c, get(invstds, g))
                put(invstd, c, double(load(rounded, c)))
        write_row(block, plain(OUT_MEAN), s, group, count, means, none)
        write_row(block, plain(OUT_INVSTD), s, group, count, invstds, none)
        unbiased(variances, count, m)
        updated(
            block, real, plain(RUNNING_MEAN), plain(OUT_RUNNING_MEAN), group, count, means, none, m
        )
        updated(
            block, real, plain(RUNNING_VAR), plain(OUT_RUNNING_VAR), group, count, variances, none,
            m,
        )  # fmt: skip


@helper
def coefficients(block, real, s, c0, c1):
    """Scale and shift of y = scale·(x − μ) + shift."""
    not_inlined()
    workspace = get(block, WORKSPACE)
    base = s * get(block, CHANNELS) + c0
    count = c1 - c0
    offset = shift(like(workspace + get(block, W_SHIFT), real), base)
    scale = shift(like(workspace + get(block, W_SCALE), real), base)
    invstd = shift(doubles_at(workspace + get(block, W_INVSTD)), base)
    weight = shift(doubles_at(workspace + get(block, W_WEIGHT)), base)
    if get(block, BIAS) != 0:
        read_row(block, plain(BIAS), plain(0), c0, count, offset)
    else:
        fill(offset, count, 0.0)
    for c in range(count):
        product = finished(real, *times(real, load(weight, c), 0.0, load(invstd, c), 0.0))
        store(scale, c, canonical(product))


@helper
def gather(block, real, c0, c1):
    """The mean and 1/std of all ranks' elements, from each rank's own and how many it has.

    With 1/r² the variance and eps, their mean over all elements and the ranks' own deviations from
    the common mean make the common variance and eps: eps need not be taken off first.
    """
    not_inlined()
    eps = bits_to_double(get(block, EPS))
    means, spreads = double_buffer(SOME), double_buffer(SOME)
    mean_errors, spread_errors = real_buffer(SOME, real, real), real_buffer(SOME, real, real)
    row, other = real_buffer(SOME, real, real), real_buffer(SOME, real, real)
    ranks = counts(block)
    n = 0.0
    for rank in range(ranks):
        n += count_of(block, rank)
    for first in range(c0, c1, SOME):
        count = min(SOME, c1 - first)
        for c in range(count):
            clear(means, mean_errors, c)
            clear(spreads, spread_errors, c)
        for rank in range(ranks):
            mine = count_of(block, rank)
            if mine != 0.0:
                read_row(block, plain(MEAN), rank, first, count, row)
                for c in range(count):
                    fold(means, mean_errors, c, mine * double(get(row, c)))
        for c in range(count):
            value = kept_sum(means, mean_errors, c) / n if n != 0.0 else 0.0
            clear(means, mean_errors, c)
            put(means, c, value)
        for rank in range(ranks):
            mine = count_of(block, rank)
            if mine != 0.0:
                read_row(block, plain(MEAN), rank, first, count, row)
                read_row(block, plain(INVSTD), rank, first, count, other)
                for c in range(count):
                    r, d = double(get(other, c)), double(get(row, c)) - get(means, c)
                    fold(spreads, spread_errors, c, mine * (1.0 / (r * r) + d * d))
        write_row(block, plain(OUT_MEAN), plain(0), first, count, means, mean_errors)
        updated(
            block, real, plain(RUNNING_MEAN), plain(OUT_RUNNING_MEAN), first, count,
            means, mean_errors, n,
        )  # fmt: skip
        for c in range(count):
            value = kept_sum(spreads, spread_errors, c) / n if n != 0.0 else 0.0
            clear(spreads, spread_errors, c)
            put(spreads, c, value)
            put(means, c, 1.0 / sqrt(value) if n != 0.0 else 0.0)
        write_row(block, plain(OUT_INVSTD), plain(0), first, count, means, mean_errors)
        for c in range(count):
            value = get(spreads, c) - eps
            put(spreads, c, max(value, 0.0) if value == value else nan)
        unbiased(spreads, count, n)
        updated(
            block, real, plain(RUNNING_VAR), plain(OUT_RUNNING_VAR), first, count,
            spreads, spread_errors, n,
        )  # fmt: skip


def forward_kernel(real, block, flags, s, c0, c1):
    """What the flags name, for channels c0 to c1 of set s; compiled once for each arithmetic."""
    base = s * get(block, CHANNELS) + c0
    if flags & DO_PREPARE:
        if get(block, MISSING_MEAN) != 0:
            pilots(block, real, s, c0, c1)
        else:
            prepare_statistics(block, real, s, c0, c1)
        prepare_weight(block, real, s, c0, c1)
    if flags & DO_COMBINE:
        combine(block, real, base, c1 - c0)
    if flags & DO_MEAN:
        finish_mean(block, real, base, c1 - c0)
    if flags & DO_STATISTICS:
        statistics(block, real, s, c0, c1)
    if flags & DO_GATHER:
        gather(block, real, c0, c1)
    if flags & DO_COEFFICIENTS:
        coefficients(block, real, s, c0, c1)
