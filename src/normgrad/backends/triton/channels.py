"""Per-channel arithmetic in float64, from statistics and sums to coefficients and outputs.

The formulas are those of the CPU backend's kernels, whose comments explain them.
"""

from __future__ import annotations

import triton.language as tl

from . import access, config
from .pairs import Pair, constant, exact, helper, is_finite, masked, number, real
from .tiles import Coefficients, Sums

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The sources of the point for moments and of 1/std; see config.py.
PILOT, SAVED = constant(config.PILOT), constant(config.SAVED)
VARIANCE = constant(config.VARIANCE)
#: What a kernel stores.
MEAN, INVSTD, OUTPUTS = (constant(each) for each in (config.MEAN, config.INVSTD, config.OUTPUTS))


#: The order of the statistics in the workspace.
SAVED_MEAN, SAVED_REST, SAVED_INVSTD = (constant(index) for index in range(3))


# Statistics


@helper
def firsts(a, at):
    """A mask of the first channels of groups, which write their group's statistics."""
    return at.there & (at.channel == at.group * a.sizes.per_group.to(tl.int32))


@helper
def only_firsts(a, at):
    """The same channels, masked but for the first of each group."""
    return access.Channels(at.set, at.channel, at.group, firsts(a, at))


@helper
def firsts_of_groups(a, at):
    """The first channel of each channel's group, where the sums of the whole group stand."""
    first = at.group * a.sizes.per_group.to(tl.int32)
    return access.Channels(at.set, first, at.group, at.there)


@helper
def of_group(a, at, offset, WHICH: tl.constexpr):
    """Pointers to the groups' elements of one of the workspace's arrays."""
    return access.in_workspace(a, offset, WHICH, at.set, a.sizes.groups, at.group, 1)


@helper
def load_saved(a, at, WHICH: tl.constexpr, DEFAULT: tl.constexpr):
    """Read one of the statistics from the workspace."""
    return tl.load(of_group(a, at, a.work.statistics, WHICH), mask=at.there, other=DEFAULT)


@helper
def save(a, at, value, WHICH: tl.constexpr):
    """Store one of the statistics in the workspace."""
    tl.store(of_group(a, at, a.work.statistics, WHICH), value, mask=at.there)


@helper
def read_mean(a, at, C: tl.constexpr):
    """Read the mean that x is centred about: the argument, or the one in the workspace."""
    if C.about == SAVED:
        return load_saved(a, at, SAVED_MEAN, 0.0)
    else:
        return access.read(a, at.set, at.group, at.there, access.MEAN, 0.0, C)


@helper
def read_invstd(a, at, C: tl.constexpr):
    """Read 1/std: the argument, or one from it if it is a variance, or the one in the workspace."""
    if C.invstd == SAVED:
        return load_saved(a, at, SAVED_INVSTD, 1.0)
    else:
        value = access.read(a, at.set, at.group, at.there, access.INVSTD, 1.0, C)
        if C.invstd == VARIANCE:
            return tl.rsqrt(value + number(a.numbers.eps))
        else:
            return value


@helper
def in_two(about, change, C: tl.constexpr):
    """about + change, rounded to the arithmetic's type, and what that is off by.

    The error has the precision of the change; an infinite or NaN mean has none.
    """
    mean = tl.where(is_finite(about), about + change, about)
    value = real(mean, C.wide).to(tl.float64)
    rest = change - (value - about)
    return Pair(value, tl.where(is_finite(rest), rest, 0.0))


@helper
def mean_rest(a, at, C: tl.constexpr):
    """The rounding error of the mean that x is centred about."""
    if C.about == SAVED:
        return load_saved(a, at, SAVED_REST, 0.0)
    elif C.rest:
        mean = read_mean(a, at, C)
        return in_two(mean, tl.zeros_like(mean), C).error
    else:
        return tl.zeros_like(at.group.to(tl.float64))


@helper
def about(a, at, C: tl.constexpr):
    """The point that x is centred about in sums: a pilot or a mean.

    A pilot is the first element of a group, or 0 if that is infinite or NaN. All channels of a
    group have the same one, so that their moments can be added. The distance of an element from the
    mean is at most sqrt(m) standard deviations, so float64 sums of float32 data lose at most m·2⁻⁵³
    of the variance.
    """
    if C.about == PILOT:
        offset = access.offset_of(at.set, a.x.sets)
        first = at.group * a.sizes.per_group.to(tl.int32)
        offset += first.to(tl.int64) * a.x.channels.to(tl.int64)
        value = tl.load(access.pointer(a.at[access.X], C.x.code) + offset, mask=at.there, other=0.0)
        value = value.to(tl.float64)
        centre = tl.where(is_finite(value), value, 0.0)
    else:
        centre = read_mean(a, at, C)
    # The point is rounded to the type in which it is subtracted from x; moments use it as float64.
    if C.forward:
        return real(centre, C.wide).to(tl.float64)
    else:
        return real(centre, C.wide)


@helper
def about_sums(a, at, C: tl.constexpr):
    """The point that x was centred about in the sums in the workspace.

    A pilot is read from the workspace, since y may have overwritten the element of x.
    """
    if C.about == PILOT:
        return tl.load(of_group(a, at, a.work.pilots, 0), mask=at.there, other=0.0)
    else:
        return read_mean(a, at, C)


@helper
def moments(a, at, sums, C: tl.constexpr):
    """The correction of the mean, and the variance, from moments.

    If only 1/std is wanted the variance is about the given mean, rather than about its rounded
    value as the moments are.
    """
    inverse = number(a.numbers.inverse)
    change, variance = sums.total * inverse, sums.projection * inverse
    if C.centred and C.stores != INVSTD:
        variance = variance - change * change
    elif C.rest:
        rest = mean_rest(a, at, C)
        excess = rest * (2.0 * change - rest)
        variance = variance - tl.where(is_finite(excess), excess, 0.0)
    return change, tl.where(variance < 0.0, 0.0, variance)


@helper
def statistics(a, at, about, sums, C: tl.constexpr):
    """The mean in two parts, 1/std and variance, from moments about a point."""
    change, variance = moments(a, at, sums, C)
    mean = exact(about)
    if C.centred:
        mean = in_two(about, change, C)
    r = tl.rsqrt(variance + number(a.numbers.eps))
    # Without elements there are no statistics.
    there = number(a.numbers.divisor) > 0.0
    return masked(mean, there), tl.where(there, r, 0.0), tl.where(there, variance, 0.0)


@helper
def save_statistics(a, at, about, sums, C: tl.constexpr):
    """Store statistics for gradients in the workspace, from moments about a point.

    A mean is stored in two parts, and 1/std is not rounded.
    """
    change, variance = moments(a, at, sums, C)
    if C.stores & MEAN:
        mean = in_two(about, change, C)
        # This may overwrite the mean that other threads read as the point for moments.
        tl.debug_barrier()
        save(a, at, mean.value, SAVED_MEAN)
        save(a, at, mean.error, SAVED_REST)
    if C.stores & INVSTD:
        save(a, at, tl.rsqrt(variance + number(a.numbers.eps)), SAVED_INVSTD)


@helper
def update_running(a, at, mean, variance, n, C: tl.constexpr):
    """Update running statistics: (1 − momentum)·old + momentum·new.

    Without elements they do not change.
    """
    if access.exists(access.OUT_RUNNING_MEAN, C) or access.exists(access.OUT_RUNNING_VAR, C):
        momentum = number(a.numbers.momentum)
        old_mean = access.read_parameter(a, at, access.RUNNING_MEAN, 0.0, C)
        old_variance = access.read_parameter(a, at, access.RUNNING_VAR, 0.0, C)
        # The update may be in place, and several threads may have the same channel.
        tl.debug_barrier()
        new = tl.where(n == 0.0, old_mean, (1.0 - momentum) * old_mean + momentum * mean)
        access.write_parameter(a, at, new, access.OUT_RUNNING_MEAN, C)
        new = tl.where(
            n == 0.0, old_variance, (1.0 - momentum) * old_variance + momentum * variance
        )
        access.write_parameter(a, at, new, access.OUT_RUNNING_VAR, C)


# Sums


@helper
def sums_at(a, part, at, WHICH: tl.constexpr, C: tl.constexpr):
    """Pointers to one of the channels' sums in the workspace."""
    CODE: tl.constexpr = 0 if C.short and not C.wide else 1
    row = WHICH * a.sizes.summed.to(tl.int64) + part
    width = a.sizes.channels
    return access.in_workspace(a, a.work.sums, row, at.set, width, at.channel, CODE)


@helper
def put_sums(a, part, at, centre, sums, C: tl.constexpr):
    """Store a part's sums in the workspace; the first part also stores the pilots."""
    if C.about == PILOT:
        if part == 0:
            tl.store(of_group(a, at, a.work.pilots, 0), centre, mask=firsts(a, at))
    tl.store(sums_at(a, part, at, 0, C), sums.total, mask=at.there)
    tl.store(sums_at(a, part, at, 1, C), sums.projection, mask=at.there)


@helper
def put_totals(a, at, sums):
    """Store the sums of whole groups in the workspace, as those of one part and one channel."""
    width = a.sizes.channels
    for k in tl.static_range(2):
        place = access.in_workspace(a, a.work.totals, k, at.set, width, at.channel, 1)
        tl.store(place, sums[k], mask=at.there)


@helper
def load_sums(a, part, at, C: tl.constexpr):
    """Read the channels' two sums from the workspace."""
    total = tl.load(sums_at(a, part, at, 0, C), mask=at.there, other=0.0).to(tl.float64)
    projection = tl.load(sums_at(a, part, at, 1, C), mask=at.there, other=0.0).to(tl.float64)
    return Sums(total, projection)


@helper
def all_columns(a, C: tl.constexpr):
    """A pointer to the programs' sums for the parameters."""
    address = a.at[access.WORKSPACE].to(tl.int64) + a.work.columns.to(tl.int64)
    SHORT: tl.constexpr = (C.short or C.sharing > 0) and not C.wide
    return access.pointer(address, 0 if SHORT else 1)


@helper
def load_columns(a, place, count, there, C: tl.constexpr):
    """Read programs' two sums for parameters, of which there are ``count`` each."""
    base = all_columns(a, C)
    total = tl.load(base + place, mask=there, other=0.0).to(tl.float64)
    projection = tl.load(base + (count + place), mask=there, other=0.0).to(tl.float64)
    return Sums(total, projection)


@helper
def put_columns(a, slot, s, start, columns, folds, C: tl.constexpr):
    """Store a chain's sums for the parameters of a tile of lines in the workspace.

    They are added to those of the ``folds`` chains before it that have the same slot.
    """
    S: tl.constexpr = C.sharing
    ALONE: tl.constexpr = (S == 1) & (C.x.along == access.ALONG_POSITIONS)
    V: tl.constexpr = C.x.vector if ALONE else 1
    tl.debug_barrier()  # since other threads may have stored what this one reads
    for WHICH in tl.static_range(2):
        value = tl.sum(columns[WHICH].to(tl.float64), 1)
        of_set = a.sizes.positions.to(start.dtype) // S
        parameter = start // S + tl.arange(0, C.positions // S)
        row = (WHICH * a.sizes.slots.to(tl.int64) + slot) * a.sizes.sets.to(tl.int64) + s
        base = tl.multiple_of(all_columns(a, C), 16)
        first = base + tl.multiple_of(row * of_set + start // S, V)
        place = first + tl.arange(0, C.positions // S)
        there = tl.max_constancy(parameter < of_set, V)
        if folds > 0:
            value += tl.load(place, mask=there, other=0.0).to(tl.float64)
        tl.store(place, value.to(place.dtype.element_ty), mask=there)


@helper
def weigh(a, at, sums, C: tl.constexpr):
    """The terms of a group's sums: in gradients, the channels' sums times their weights.

    In lines, whose positions have the weights, the sums include them.
    """
    if C.grouped and C.sharing == 0:
        w = access.read_parameter(a, at, access.WEIGHT, 1.0, C)
        # With an infinite weight and several terms, the terms include infinities of both signs, so
        # that their sum is NaN.
        w += tl.where(number(a.numbers.divisor) > a.sizes.per_group.to(tl.float64), w - w, 0.0)
        total = tl.where(at.there, w * sums.total, 0.0)
        return Sums(total, tl.where(at.there, w * sums.projection, 0.0))
    else:
        return sums


@helper
def correct_sums(a, at, sums, C: tl.constexpr):
    """Correct Σdy·(x − μ), which was summed about a rounded mean, for the mean's rounding error."""
    if C.rest:
        term = mean_rest(a, at, C) * sums.total
        return Sums(sums.total, sums.projection - tl.where(is_finite(term), term, 0.0))
    else:
        return sums


@helper
def total_count(a, C: tl.constexpr):
    """The sum of all counts."""
    N: tl.constexpr = 64
    total = tl.zeros([N], tl.float64)
    counts = a.numbers.counts.to(tl.int32)
    for first in range(0, counts, N):
        element = first + tl.arange(0, N)
        total += access.count_at(a, element, element < counts, C)
    return tl.sum(total, 0)


# Coefficients and outputs


@helper
def coefficients_of_y(a, at, mean, r, C: tl.constexpr):
    """The coefficients of y, from a mean in two parts.

    Loops use the rounded mean, so its rounding error times the scale is subtracted from the shift.
    """
    scale = access.read_parameter(a, at, access.WEIGHT, 1.0, C) * r
    shift = access.read_parameter(a, at, access.BIAS, 0.0, C)
    if C.rest:
        change = scale * mean.error
        shift = tl.where(is_finite(change), tl.fma(-scale, mean.error, shift), shift)
    scale = real(scale, C.wide)
    return Coefficients(real(mean.value, C.wide), real(shift, C.wide), scale, scale, scale)


@helper
def coefficients_in_evaluation(a, at, C: tl.constexpr):
    """The coefficients of dx in evaluation."""
    scale = access.read_parameter(a, at, access.WEIGHT, 1.0, C) * read_invstd(a, at, C)
    scale = real(scale, C.wide)
    return Coefficients(scale, scale, scale, scale, scale)


@helper
def coefficients_of_dx(a, at, sums, m, inverse, C: tl.constexpr):
    """The coefficients of dx, from sums over m elements: those of the formula in `result_of_tile`.

    They are not multiplied out, since a product may underflow or overflow. The loops use the
    rounded mean, so the slope times its rounding error is subtracted from the shift.
    """
    W: tl.constexpr = C.wide
    w = access.read_parameter(a, at, access.WEIGHT, 1.0, C)
    r = read_invstd(a, at, C)
    t = sums.total * inverse
    if not C.centred:
        t = tl.zeros_like(t)
    p = sums.projection * inverse * (r * r)
    scale, gain = w * r, tl.full(w.shape, 1.0, tl.float64)
    if C.grouped:
        # The group's sums already include the weights; see `weigh`. With several terms and an
        # infinite r, p is NaN as in the formula.
        p += tl.where(m > 1.0, r - r, 0.0)
        scale, gain = r, w
    rest = mean_rest(a, at, C)
    is_inexact = (rest != 0.0) & is_finite(p)
    t = tl.where(is_inexact, tl.fma(-p, rest, t), t)
    return Coefficients(
        real(read_mean(a, at, C), W), real(t, W), real(scale, W), real(gain, W), real(p, W)
    )


@helper
def finish(a, at, centre, sums, part, C: tl.constexpr):
    """Compute the coefficients from all sums; for the first part, write the per-channel outputs."""
    m = number(a.numbers.divisor)
    own = access.Channels(at.set, at.channel, at.group, at.there & (at.group * 0 + part == 0))
    if C.forward:
        mean, r, variance = statistics(a, at, centre, sums, C)
        if C.stores & OUTPUTS:
            first = firsts(a, own)
            whole = mean.value + mean.error
            access.write(a, at.set, at.group, first, whole, access.OUT_MEAN, C)
            access.write(a, at.set, at.group, first, r, access.OUT_INVSTD, C)
            update_running(a, own, whole, variance * number(a.numbers.unbiased), m, C)
        return coefficients_of_y(a, at, mean, r, C)
    else:
        sums = correct_sums(a, at, sums, C)
        if C.stores & OUTPUTS:
            # Without elements the gradient is 0, even if 1/std is infinite.
            there = a.sizes.parts.to(tl.int32) > 0
            scaled = tl.where(there, read_invstd(a, at, C) * sums.projection, 0.0)
            access.write_parameter(a, own, sums.total, access.OUT_SUM_DY, C)
            access.write_parameter(a, own, sums.projection, access.OUT_SUM_DY_XMU, C)
            access.write_parameter(a, own, scaled, access.GRAD_WEIGHT, C)
            access.write_parameter(a, own, sums.total, access.GRAD_BIAS, C)
        return coefficients_of_dx(a, at, sums, m, number(a.numbers.inverse), C)


@helper
def from_arguments(a, at, C: tl.constexpr):
    """Compute the coefficients from given statistics and sums."""
    if C.forward:
        mean = read_mean(a, at, C)
        mean = in_two(mean, tl.zeros_like(mean), C)
        return coefficients_of_y(a, at, mean, read_invstd(a, at, C), C)
    elif C.constant:
        return coefficients_in_evaluation(a, at, C)
    else:
        total = access.read_parameter(a, at, access.SUM_DY, 0.0, C)
        projection = access.read_parameter(a, at, access.SUM_DY_XMU, 0.0, C)
        m = total_count(a, C)
        return coefficients_of_dx(a, at, Sums(total, projection), m, 1.0 / m, C)
