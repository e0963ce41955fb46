"""Per-channel arithmetic, in float64: from statistics and sums to coefficients and outputs.

The formulas are those of the CPU's kernels, which say why they are as they are.
"""

from __future__ import annotations

import triton.language as tl

from ...problem import Rule
from . import config
from .access import (
    MEAN,
    OUT_INVSTD,
    OUT_MEAN,
    OUT_RUNNING_MEAN,
    OUT_RUNNING_VAR,
    SPREAD,
    WEIGHT,
    count_at,
    doubles,
    pointer,
    read_vector,
    write_vector,
)
from .arithmetic import (
    added,
    divided,
    is_finite,
    is_normal,
    kept,
    number,
    real,
    sum_along,
    times,
    two_sum,
)
from .jit import constant, helper
from .tiles import FORWARD, GROUP, PILOT, pilot

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

ELEMT = constant(int(Rule.ELEMT))
#: What moments are taken about; see config.py.
SAVED = constant(config.SAVED)
#: Which statistics are left in the workspace.
SAVES_MEAN, SAVES_SPREAD = constant(config.MEAN), constant(config.SPREAD)


@helper
def group_at(a, s, group):
    """The index of a group's statistics in the workspace."""
    return s.to(tl.int64) * a.sizes.groups.to(tl.int64) + group


# Statistics


@helper
def given_mean(a, s, group, mask, C: tl.constexpr):
    """The mean that x is centred about: given, or computed before."""
    if C.about == SAVED:
        return tl.load(doubles(a, a.work.mean) + group_at(a, s, group), mask=mask, other=0.0)
    else:
        return read_vector(a, s, group, mask, MEAN, 0.0, C)


@helper
def given_invstd(a, s, group, mask, C: tl.constexpr):
    """1/std: given, or computed before, or of a variance."""
    if C.saved_spread:
        return tl.load(doubles(a, a.work.spread) + group_at(a, s, group), mask=mask, other=1.0)
    else:
        spread = read_vector(a, s, group, mask, SPREAD, 1.0, C)
        if C.variance:
            return tl.rsqrt(spread + number(a.numbers.eps))
        else:
            return spread


@helper
def invstd_error(a, s, group, mask, C: tl.constexpr):
    """The error of 1/std, where it was computed and the arithmetic keeps one."""
    if C.saved_spread and C.wide:
        at = doubles(a, a.work.spread_error) + group_at(a, s, group)
        return tl.load(at, mask=mask, other=0.0)
    else:
        return tl.zeros_like(group.to(tl.float64))


@helper
def mean_rest(a, s, group, mask, C: tl.constexpr):
    """What rounding has left of a mean that was computed."""
    if C.about == SAVED:
        return tl.load(doubles(a, a.work.mean_rest) + group_at(a, s, group), mask=mask, other=0.0)
    else:
        return tl.zeros_like(group.to(tl.float64))


@helper
def centred(a, s, group, mask, t, t_error, q, q_error, C: tl.constexpr):
    """Σdy·(x − μ) and its error about a computed mean, from sums about it as it was rounded."""
    if C.about == SAVED:
        rest = mean_rest(a, s, group, mask, C)
        term, term_error = times(rest, tl.zeros_like(rest), t, t_error, C.wide)
        there = is_finite(term)
        return added(
            q, q_error, tl.where(there, -term, 0.0), tl.where(there, -term_error, 0.0), C.wide
        )
    else:
        return q, q_error


@helper
def about(a, s, group, mask, C: tl.constexpr):
    """What x is centred about when it is summed, in float64, for each channel.

    A pilot is the first element of a group, so that its channels' moments can be added.
    """
    if C.about == PILOT:
        return pilot(a, s, group * a.sizes.per_group.to(tl.int32), mask, C)
    else:
        return given_mean(a, s, group, mask, C)


@helper
def about_sums(a, s, group, mask, C: tl.constexpr):
    """What x was centred about when sums in the workspace were made.

    A pilot was left there as well: y may be x's own memory, where the element is by now.
    """
    if C.about == PILOT:
        at = doubles(a, a.work.pilot) + group_at(a, s, group)
        return tl.load(at, mask=mask, other=0.0)
    else:
        return given_mean(a, s, group, mask, C)


# Sums


@helper
def slot_of(a, part, s, channel):
    """The index of a channel's sums in the workspace."""
    rows = part.to(tl.int64) * a.sizes.sets.to(tl.int64) + s
    return rows * a.sizes.channels.to(tl.int64) + channel


@helper
def sums_at(a, offset, C: tl.constexpr):
    """A pointer to sums in the workspace."""
    CODE: tl.constexpr = 0 if C.short_sums else 1
    return pointer(a.at.workspace.to(tl.int64) + offset.to(tl.int64), CODE)


@helper
def put_sums(a, part, s, channel, mask, group, centre, t, t_error, q, q_error, C: tl.constexpr):
    """Write a part's sums to their own place, and the first part the pilots that they are about."""
    if C.about == PILOT:
        # One of a group's channels writes for all.
        if part == 0:
            first = mask & (channel == group * a.sizes.per_group.to(tl.int32))
            tl.store(doubles(a, a.work.pilot) + group_at(a, s, group), centre, mask=first)
    at = slot_of(a, part, s, channel)
    tl.store(sums_at(a, a.work.sum_dy, C) + at, t, mask=mask)
    tl.store(sums_at(a, a.work.sum_dy_xmu, C) + at, q, mask=mask)
    if C.wide:
        tl.store(sums_at(a, a.work.sum_dy_error, C) + at, t_error, mask=mask)
        tl.store(sums_at(a, a.work.sum_dy_xmu_error, C) + at, q_error, mask=mask)


@helper
def load_sums(a, offset, error_offset, at, mask, C: tl.constexpr):
    """Sums from the workspace, and their errors."""
    value = tl.load(sums_at(a, offset, C) + at, mask=mask, other=0.0).to(tl.float64)
    if C.wide:
        return value, tl.load(sums_at(a, error_offset, C) + at, mask=mask, other=0.0)
    else:
        return value, tl.zeros_like(value)


@helper
def combined(a, s, channel, mask, C: tl.constexpr):
    """Both sums of channels over all parts, in the order of the parts, and their errors."""
    ROWS: tl.constexpr = C.rows
    t = channel.to(tl.float64) * 0.0
    q, t_error, q_error = t, t, t
    parts = a.sizes.parts.to(tl.int32)
    for row in range(0, parts, ROWS):
        part = row + tl.arange(0, ROWS)
        there = (part < parts)[:, None] & mask[None, :]
        at = slot_of(a, part[:, None], s, channel[None, :])
        value, error = load_sums(a, a.work.sum_dy, a.work.sum_dy_error, at, there, C)
        value, error = sum_along(value, error, 0, C.wide)
        t, t_error = added(t, t_error, value, error, C.wide)
        value, error = load_sums(a, a.work.sum_dy_xmu, a.work.sum_dy_xmu_error, at, there, C)
        value, error = sum_along(value, error, 0, C.wide)
        q, q_error = added(q, q_error, value, error, C.wide)
    return t, t_error, q, q_error


@helper
def by_group(value, error, FAN: tl.constexpr, C: tl.constexpr):
    """Sums of so many channels of each of some groups, added up."""
    v = tl.reshape(value, [C.groups, FAN])
    e = tl.reshape(error, [C.groups, FAN])
    return sum_along(v, e, 1, C.wide)


@helper
def to_members(value, FAN: tl.constexpr, C: tl.constexpr):
    """A value for each of some groups, for so many channels of each."""
    spread = tl.broadcast_to(value[:, None], [C.groups, FAN])
    return tl.reshape(spread, [C.groups * FAN])


@helper
def shared(value, error, member, C: tl.constexpr):
    """Sums of a tile's channels, added up over each group, for each of its channels.

    ``member`` says which channel belongs to which of the tile's groups: groups may be of any size.
    """
    v = tl.where(member, value[:, None], 0.0)
    e = tl.where(member, error[:, None], 0.0)
    v, e = sum_along(v, e, 0, C.wide)
    return tl.sum(tl.where(member, v[None, :], 0.0), 1), tl.sum(
        tl.where(member, e[None, :], 0.0), 1
    )


@helper
def weighted(a, channel, mask, t, t_error, q, q_error, C: tl.constexpr):
    """Sums of channels as a group adds them up: the gradients' are multiplied by the weights."""
    if C.rule == GROUP:
        w = read_vector(a, channel * 0, channel, mask, WEIGHT, 1.0, C)
        # Among several terms with an infinite weight are infinities of both signs: no number.
        w += tl.where(number(a.numbers.divisor) > a.sizes.per_group.to(tl.float64), w - w, 0.0)
        t = tl.where(mask, w * kept(t, t_error, C.wide), 0.0)
        q = tl.where(mask, w * kept(q, q_error, C.wide), 0.0)
        return t, tl.zeros_like(t), q, tl.zeros_like(q)
    else:
        return t, t_error, q, q_error


@helper
def group_sums(a, s, first_group, C: tl.constexpr):
    """Both sums over all that share a statistic, for some groups of a set, and their errors."""
    FAN: tl.constexpr = C.fan
    per_group = a.sizes.per_group.to(tl.int32)
    i = tl.arange(0, C.groups * FAN)
    group = first_group + i // FAN
    t = tl.zeros([C.groups], tl.float64)
    q, t_error, q_error = t, t, t
    for j in range(0, per_group, FAN):
        member = j + i % FAN
        there = (group < a.sizes.groups.to(tl.int32)) & (member < per_group)
        channel = group * per_group + member
        v, v_error, u, u_error = combined(a, s, channel, there, C)
        v, v_error, u, u_error = weighted(a, channel, there, v, v_error, u, u_error, C)
        v, v_error = by_group(v, v_error, FAN, C)
        u, u_error = by_group(u, u_error, FAN, C)
        t, t_error = added(t, t_error, v, v_error, C.wide)
        q, q_error = added(q, q_error, u, u_error, C.wide)
    return t, t_error, q, q_error


# Coefficients


@helper
def gradient_coefficients(w, r, r_error, rest, m, inverse, t, t_error, q, q_error, C: tl.constexpr):
    """Gain, shift, slope and scale of dx = scale·(gain·dy − (shift + slope·(x − μ))).

    Multiplied out where that keeps every factor's precision; else as the formula stands. The loops
    use the mean as it was rounded: what the slope makes of the rest is taken off the shift.
    """
    W: tl.constexpr = C.wide
    t, t_error = divided(t, t_error, m, inverse, W)
    p, p_error = divided(q, q_error, m, inverse, W)
    zero = tl.zeros_like(r)
    square, square_error = times(r, r_error, r, r_error, W)
    p, p_error = times(p, p_error, square, square_error, W)
    wr, wr_error = times(w, zero, r, r_error, W)
    if C.rule == GROUP:
        # The group's sums hold its weights already. Their terms hold r: see `weighted`.
        p += tl.where(m > 1.0, r - r, 0.0)
        o, o_error = r, zero
        g = w
    else:
        o, o_error = wr, wr_error
        g = zero + 1.0
    ot, ot_error = times(o, o_error, t, t_error, W)
    op, op_error = times(o, o_error, p, p_error, W)
    ot = kept(ot, ot_error, W)
    op = kept(op, op_error, W)
    multiplied = is_normal(wr, W) & is_normal(ot, W) & is_normal(op, W)
    # A product may vanish though its factors do not.
    multiplied = multiplied & ((ot != 0.0) | (o == 0.0) | (t == 0.0))
    multiplied = multiplied & ((op != 0.0) | (o == 0.0) | (p == 0.0))
    multiplied = multiplied & ((wr != 0.0) | (w == 0.0) | (r == 0.0))
    gain = tl.where(multiplied, kept(wr, wr_error, W), g)
    shift = tl.where(multiplied, ot, kept(t, t_error, W))
    slope = tl.where(multiplied, op, kept(p, p_error, W))
    scale = tl.where(multiplied, 1.0, o)
    moved = (rest != 0.0) & is_finite(slope)
    return gain, tl.where(moved, tl.fma(-slope, rest, shift), shift), slope, scale


@helper
def coefficients_at(a, s, channel, WHICH: tl.constexpr, C: tl.constexpr):
    """A pointer to one of the five coefficients of channels, in the workspace."""
    CODE: tl.constexpr = 1 if C.wide else 0
    channels = a.sizes.channels.to(tl.int64)
    row = WHICH * a.sizes.sets.to(tl.int64) + s.to(tl.int64)
    base = pointer(a.at.workspace.to(tl.int64) + a.work.coefficients.to(tl.int64), CODE)
    return base + (row * channels + channel)


@helper
def put_coefficients(a, s, channel, mask, mean, gain, shift, slope, scale, C: tl.constexpr):
    """Leave coefficients in the workspace, those that the rule has."""
    tl.store(coefficients_at(a, s, channel, 0, C), mean, mask=mask)
    tl.store(coefficients_at(a, s, channel, 1, C), shift, mask=mask)
    tl.store(coefficients_at(a, s, channel, 2, C), scale, mask=mask)
    if C.rule != FORWARD:
        tl.store(coefficients_at(a, s, channel, 3, C), gain, mask=mask)
        tl.store(coefficients_at(a, s, channel, 4, C), slope, mask=mask)


@helper
def load_coefficients(a, s, channel, mask, C: tl.constexpr):
    """Mean, gain, shift, slope and scale from the workspace."""
    mean = tl.load(coefficients_at(a, s, channel, 0, C), mask=mask, other=0.0)
    shift = tl.load(coefficients_at(a, s, channel, 1, C), mask=mask, other=0.0)
    scale = tl.load(coefficients_at(a, s, channel, 2, C), mask=mask, other=0.0)
    gain, slope = shift, shift
    if C.rule != FORWARD:
        gain = tl.load(coefficients_at(a, s, channel, 3, C), mask=mask, other=0.0)
        slope = tl.load(coefficients_at(a, s, channel, 4, C), mask=mask, other=0.0)
    return mean, gain, shift, slope, scale


@helper
def total_count(a, C: tl.constexpr):
    """The sum of all counts."""
    N: tl.constexpr = 64
    total = tl.zeros([N], tl.float64)
    counts = a.numbers.counts.to(tl.int32)
    for first in range(0, counts, N):
        element = first + tl.arange(0, N)
        total += count_at(a, element, element < counts, C)
    return tl.sum(total, 0)


@helper
def statistics(a, about, t, t_error, q, q_error, C: tl.constexpr):
    """Mean, 1/std and variance from moments about something.

    What the moments leave of the mean corrects it, and the variance.
    """
    m, inverse = number(a.numbers.divisor), number(a.numbers.inverse)
    t, t_error = divided(t, t_error, m, inverse, C.wide)
    q, q_error = divided(q, q_error, m, inverse, C.wide)
    change = kept(t, t_error, C.wide)
    variance = kept(q, q_error, C.wide) - change * change
    variance = tl.where(variance < 0.0, 0.0, variance)
    mean = tl.where(is_finite(about), about + change, about)
    r = tl.rsqrt(variance + number(a.numbers.eps))
    # Without elements there are no statistics.
    there = m > 0.0
    return tl.where(there, mean, 0.0), tl.where(there, r, 0.0), tl.where(there, variance, 0.0)


@helper
def save_statistics(a, s, group, mask, about, t, t_error, q, q_error, C: tl.constexpr):
    """Leave statistics in the workspace for gradients, from moments about something.

    A mean is rounded to the arithmetic's type, and what rounding leaves stands beside it. 1/std is
    not rounded; in float64 arithmetic its error stands beside it.
    """
    m, inverse = number(a.numbers.divisor), number(a.numbers.inverse)
    variance, error = divided(q, q_error, m, inverse, C.wide)
    at = group_at(a, s, group)
    if C.saves != SAVES_SPREAD:
        change, change_error = divided(t, t_error, m, inverse, C.wide)
        new, left = two_sum(about, change)
        rounded_mean = real(new, C.wide).to(tl.float64)
        rest = left + (new - rounded_mean) + change_error
        # It may stand where what x was centred about was read, by several threads.
        tl.debug_barrier()
        # An infinite or NaN mean has left nothing to be improved.
        tl.store(
            doubles(a, a.work.mean) + at, tl.where(is_finite(about), rounded_mean, about), mask=mask
        )
        tl.store(doubles(a, a.work.mean_rest) + at, tl.where(is_finite(rest), rest, 0.0), mask=mask)
        square, square_error = times(change, change_error, change, change_error, C.wide)
        variance, left = two_sum(variance, -square)
        error += left - square_error
        negative = variance < 0.0
        variance = tl.where(negative, 0.0, variance)
        error = tl.where(negative, 0.0, error)
    if C.saves != SAVES_MEAN:
        value, left = two_sum(variance, number(a.numbers.eps))
        r = tl.rsqrt(value)
        tl.store(doubles(a, a.work.spread) + at, r, mask=mask)
        if C.wide:
            # By a step of Newton's: of 1 − r²·value half is what r lacks, relative to it.
            zero = tl.zeros_like(r)
            square, square_error = times(r, zero, r, zero, C.wide)
            lack = tl.fma(-square, value, 1.0) - square_error * value - square * (left + error)
            r_error = 0.5 * r * lack
            tl.store(
                doubles(a, a.work.spread_error) + at,
                tl.where(is_finite(r_error), r_error, 0.0), mask=mask,
            )  # fmt: skip


@helper
def write_statistics(a, s, group, mask, mean, invstd, variance, C: tl.constexpr):
    """Statistics that are asked for, and running ones brought up to date."""
    write_vector(a, s, group, mask, mean, OUT_MEAN, C)
    write_vector(a, s, group, mask, invstd, OUT_INVSTD, C)
    m = number(a.numbers.divisor)
    unbiased = variance * number(a.numbers.unbiased)
    update_running(a, group, mask, mean, unbiased, m, MEAN, SPREAD, C)


@helper
def update_running(
    a,
    channel,
    mask,
    mean,
    variance,
    n,
    OLD_MEAN: tl.constexpr,
    OLD_VAR: tl.constexpr,
    C: tl.constexpr,
):
    """Running statistics at two slots, brought up to date: (1 − momentum)·old + momentum·new.

    No elements, no news.
    """
    momentum = number(a.numbers.momentum)
    zero = channel * 0
    old_mean = read_vector(a, zero, channel, mask, OLD_MEAN, 0.0, C)
    old_variance = read_vector(a, zero, channel, mask, OLD_VAR, 0.0, C)
    # They may be written where they are read, and several threads may hold the same one.
    tl.debug_barrier()
    new = tl.where(n == 0.0, old_mean, (1.0 - momentum) * old_mean + momentum * mean)
    write_vector(a, zero, channel, mask, new, OUT_RUNNING_MEAN, C)
    new = tl.where(n == 0.0, old_variance, (1.0 - momentum) * old_variance + momentum * variance)
    write_vector(a, zero, channel, mask, new, OUT_RUNNING_VAR, C)
