"""The gradients' per-channel arithmetic, in float64: from statistics and sums to coefficients.

Everything here runs over C values (N·C for group norm). Where tensors are small that is most of the
work, so each loop has one thing to do, without a branch, for all channels: LLVM vectorises it.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from numba import types

from .block import (
    CHANNELS,
    DIVISOR,
    DO_CENTRE,
    DO_COEFFICIENTS,
    DO_COMBINE,
    DO_COUNT,
    DO_MEAN,
    DO_OUTPUTS,
    DO_PREPARE,
    DO_STATISTICS,
    ELEMT,
    EPS,
    EVAL,
    GRAD_BIAS,
    GRAD_WEIGHT,
    MISSING_INVSTD,
    MISSING_MEAN,
    OUT_SUM_DY,
    OUT_SUM_DY_XMU,
    PER_GROUP,
    RULE,
    SETS,
    SUM_DY,
    SUM_DY_XMU,
    TRAIN,
    W_COUNT,
    W_GAIN,
    W_INVSTD,
    W_INVSTD_ERROR,
    W_MEAN,
    W_MEAN_REST,
    W_SCALE,
    W_SHIFT,
    W_SLOPE,
    W_SUM_DY,
    W_SUM_DY_ERROR,
    W_SUM_DY_XMU,
    W_SUM_DY_XMU_ERROR,
    W_WEIGHT,
    WORKSPACE,
)  # fmt: skip
from .intrinsics import (
    INT_POINTER,
    POINTERS,
    bits_to_double,
    double,
    double_buffer,
    doubles_at,
    fma,
    get,
    helper,
    like,
    load,
    normal_range,
    not_inlined,
    plain,
    put,
    real_buffer,
    shift,
    store,
    two_sum,
)  # fmt: skip
from .sums import (
    clear,
    divided,
    error_of,
    finished,
    fold,
    inverse_root,
    kept_sum,
    put_error,
    sum_and_error,
    times,
)
from .vectors import (
    SOME,
    canonical,
    combine,
    count_of,
    counts,
    finish_mean,
    pilots,
    prepare_statistics,
    prepare_weight,
    read_row,
    write_row,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def total_count(block):
    """The sum of all elements of count, in float64."""
    not_inlined()
    total = 0.0
    for element in range(counts(block)):
        total += count_of(block, element)
    put(doubles_at(get(block, WORKSPACE) + get(block, W_COUNT)), 0, total)


@helper
def statistics(block, real, base, count):
    """The mean and 1/std that are missing, from the moments of x.

    Moments are about the mean in use, where one is given, else about what is close to the mean. A
    mean that is found is rounded to the arithmetic's type, for the loops over tensors, and what
    rounding leaves is kept beside it (see ``centre``); 1/std is not rounded.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    mean = like(workspace + get(block, W_MEAN), real)
    rest = doubles_at(workspace + get(block, W_MEAN_REST))
    invstd = doubles_at(workspace + get(block, W_INVSTD))
    invstd_errors = like(workspace + get(block, W_INVSTD_ERROR), real)
    totals = doubles_at(workspace + get(block, W_SUM_DY))
    errors = like(workspace + get(block, W_SUM_DY_ERROR), real)
    squares = doubles_at(workspace + get(block, W_SUM_DY_XMU))
    square_errors = like(workspace + get(block, W_SUM_DY_XMU_ERROR), real)
    m = bits_to_double(get(block, DIVISOR))
    eps = bits_to_double(get(block, EPS))
    for i in range(base, base + count):
        square, square_error = sum_and_error(squares, square_errors, i)
        variance, error = divided(real, square, square_error, m)
        if get(block, MISSING_MEAN) != 0:
            about = double(get(mean, i))
            total, total_error = sum_and_error(totals, errors, i)
            change, change_error = divided(real, total, total_error, m)
            new, left = two_sum(about, change)
            # An infinite or NaN mean has left nothing to be improved.
            put(mean, i, canonical(new if isfinite(about) else about))
            left += new - double(get(mean, i)) + change_error
            put(rest, i, left if isfinite(left) else 0.0)
            square, square_error = times(real, change, change_error, change, change_error)
            variance, left = two_sum(variance, -square)
            error += left - square_error
            if variance < 0.0:
                variance, error = 0.0, 0.0
        if get(block, MISSING_INVSTD) != 0:
            value, left = two_sum(variance, eps)
            r, r_error = inverse_root(real, value, left + error)
            put(invstd, i, r)
            put_error(invstd_errors, i, r_error)


@helper
def centre(block, real, base, count):
    """Σdy·(x − μ) about a mean that was found, from the sum about the mean as it was rounded.

    Elements are numbers of the arithmetic's type, and none of those is nearer to the mean than the
    one that it was rounded to. So what is taken off is no larger than the terms themselves, and
    x less the rounded mean is at most twice x − μ.
    """
    not_inlined()
    workspace = get(block, WORKSPACE)
    rest = doubles_at(workspace + get(block, W_MEAN_REST))
    totals = doubles_at(workspace + get(block, W_SUM_DY))
    errors = like(workspace + get(block, W_SUM_DY_ERROR), real)
    xmus = doubles_at(workspace + get(block, W_SUM_DY_XMU))
    xmu_errors = like(workspace + get(block, W_SUM_DY_XMU_ERROR), real)
    for i in range(base, base + count):
        total, total_error = sum_and_error(totals, errors, i)
        term, term_error = times(real, get(rest, i), 0.0, total, total_error)
        if isfinite(term):
            xmu, left = two_sum(get(xmus, i), -term)
            put(xmus, i, xmu)
            put_error(xmu_errors, i, error_of(xmu_errors, i) + left - term_error)


@helper
def is_normal(value, smallest, largest):
    """Whether the arithmetic's type holds a number to full precision."""
    return (value == 0.0) | ((smallest <= abs(value)) & (abs(value) <= largest))


@helper
def coefficients_of(
    real, w, r, r_error, m, total, total_error, projection, projection_error, one_group
):
    """Gain, shift, slope and scale of a channel, from its weight, 1/std and group's sums."""
    smallest, largest = normal_range(real)
    t, t_error = divided(real, total, total_error, m)
    p, p_error = divided(real, projection, projection_error, m)
    square, square_error = times(real, r, r_error, r, r_error)
    p, p_error = times(real, p, p_error, square, square_error)
    wr, wr_error = times(real, w, 0.0, r, r_error)
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
def coefficients_of_channels(
    block, real, rows, weight, invstd, invstd_errors, rest, m, totals, errors, xmus, xmu_errors, n
):
    """Coefficients of channels with statistics of their own, from their sums.

    The loops use a mean that was found as it was rounded: shift + slope·(x − μ) is of that mean
    with what the slope makes of the rest taken off the shift.
    """
    for c in range(n):
        total, total_error = sum_and_error(totals, errors, c)
        projection, projection_error = sum_and_error(xmus, xmu_errors, c)
        gain, offset, slope, scale = coefficients_of(
            real, load(weight, c), load(invstd, c), error_of(invstd_errors, c), m, total,
            total_error, projection, projection_error, False,
        )  # fmt: skip
        if get(block, MISSING_MEAN) != 0 and isfinite(slope):
            offset = fma(-slope, get(rest, c), offset)
        put_coefficients(rows, c, (gain, offset, slope, scale))


@helper
def coefficients(block, real, s, c0, c1):
    """The coefficients of dx for channels (whole groups of them) of one set.

    One formula serves every operator. With T = Σγ·dy and P = Σγ·dy·(x − μ), taken over the channels
    that share a statistic and divided by its number of elements, and with o the weight times r for
    batch norm, whose γ is 1, and r for group norm:

        dx = o · (γ·dy − (T + r²·P·(x − μ)))

    Multiplied out, dx = oγ·dy − (oT + or²P·(x − μ)) has two roundings fewer for each element;
    given exact sums it is within 4 roundoffs on any data. Where a factor is infinite or NaN, or
    vanishes, only the formula as it stands gives what it should, so there it is used: `scale` is
    o, and 1 otherwise. Group norm's T and P are sums of terms that hold γ and r: where one of those
    is infinite there are infinities of both signs among several terms, and the sum is NaN (γ − γ).
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
    rest = shift(doubles_at(workspace + get(block, W_MEAN_REST)), base)
    invstd = shift(doubles_at(workspace + get(block, W_INVSTD)), base)
    invstd_errors = shift(like(workspace + get(block, W_INVSTD_ERROR), real), base)
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
                real, load(weight, c), load(invstd, c), 0.0, m, double(load(offset, c)), 0.0,
                double(load(slope, c)), 0.0, False,
            )  # fmt: skip
            put_coefficients(rows, c, values)
    elif rule == TRAIN:
        coefficients_of_channels(
            block, real, rows, weight, invstd, invstd_errors, rest, m, totals, errors, xmus,
            xmu_errors, count,
        )  # fmt: skip
    else:
        per_group = get(block, PER_GROUP)
        for first in range(0, count, per_group):
            total, total_error, projection, projection_error = 0.0, 0.0, 0.0, 0.0
            r = load(invstd, first)
            for c in range(first, first + per_group):
                w = load(weight, c)
                if m > per_group:
                    w += w - w
                term, term_error = times(real, w, 0.0, *sum_and_error(totals, errors, c))
                total, e = two_sum(total, term)
                total_error += e + term_error
                term, term_error = times(real, w, 0.0, *sum_and_error(xmus, xmu_errors, c))
                projection, e = two_sum(projection, term)
                projection_error += e + term_error
            if m > 1.0:
                projection += r - r
            for c in range(first, first + per_group):
                values = coefficients_of(
                    real, load(weight, c), r, 0.0, m, total, total_error, projection,
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
            invstd_errors = shift(like(workspace + get(block, W_INVSTD_ERROR), real), base)
            dys = shift(doubles_at(workspace + get(block, W_SUM_DY)), base)
            dy_errors = shift(like(workspace + get(block, W_SUM_DY_ERROR), real), base)
            xmus = shift(doubles_at(workspace + get(block, W_SUM_DY_XMU)), base)
            xmu_errors = shift(like(workspace + get(block, W_SUM_DY_XMU_ERROR), real), base)
            for c in range(count):
                q = kept_sum(xmus, xmu_errors, c)
                fold(totals, total_errors, c, kept_sum(dys, dy_errors, c))
                fold(projections, projection_errors, c, q)
                fold(scaled, scaled_errors, c, get(invstd, c) * q)
                left = error_of(invstd_errors, c) * q
                put_error(scaled_errors, c, error_of(scaled_errors, c) + left)
        write_row(block, plain(OUT_SUM_DY), plain(0), first, count, totals, total_errors)
        write_row(
            block, plain(OUT_SUM_DY_XMU), plain(0), first, count, projections, projection_errors
        )
        write_row(block, plain(GRAD_WEIGHT), plain(0), first, count, scaled, scaled_errors)
        write_row(block, plain(GRAD_BIAS), plain(0), first, count, totals, total_errors)


def channel_kernel(real, block, flags, s, c0, c1):
    """What the flags name, for channels c0 to c1 of set s; compiled once for each arithmetic."""
    base = s * get(block, CHANNELS) + c0
    if flags & DO_COUNT:
        total_count(block)
    if flags & DO_PREPARE:
        prepare_statistics(block, real, s, c0, c1)
        if get(block, MISSING_MEAN) != 0:
            pilots(block, real, s, c0, c1)
        prepare_weight(block, real, s, c0, c1)
    if flags & DO_COMBINE:
        combine(block, real, base, c1 - c0)
    if flags & DO_MEAN:
        finish_mean(block, real, base, c1 - c0)
    if flags & DO_STATISTICS:
        statistics(block, real, base, c1 - c0)
    if flags & DO_CENTRE:
        centre(block, real, base, c1 - c0)
    if flags & DO_OUTPUTS:
        outputs(block, real, c0, c1)
    if flags & DO_COEFFICIENTS:
        coefficients(block, real, s, c0, c1)


def channel_signature(code: int) -> Any:
    """The channel kernel's type for the arithmetic's dtype code."""
    return types.void(POINTERS[code], INT_POINTER, *[types.int64] * 4)
