"""The kernels: what a program of each does. See program.py for how they follow each other."""

from __future__ import annotations

import triton
import triton.language as tl

from .access import (
    BIAS,
    MEAN,
    OUT_BIAS,
    OUT_INVSTD,
    OUT_MEAN,
    OUT_SUM_DY,
    OUT_SUM_DY_XMU,
    OUT_WEIGHT,
    SPREAD,
    SUM_DY,
    SUM_DY_XMU,
    WEIGHT,
    base_of,
    channel_offset,
    channels_of,
    count_at,
    inside,
    offset_of,
    positions_from,
    read_vector,
    write_vector,
)
from .arithmetic import added, kept, number, real, rounded, sum_along
from .channels import (
    ELEMT,
    about,
    about_sums,
    centred,
    given_invstd,
    given_mean,
    gradient_coefficients,
    group_sums,
    invstd_error,
    load_coefficients,
    load_sums,
    mean_rest,
    put_coefficients,
    put_sums,
    save_statistics,
    shared,
    statistics,
    to_members,
    total_count,
    update_running,
    weighted,
    write_statistics,
)
from .jit import helper
from .tiles import EVAL, FORWARD, load, sums_of_part, sums_of_tile, write_part, written

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def task_of(number_, a):
    """A task's set, block of channels and part, from its number."""
    parts = a.sizes.parts.to(tl.int32)
    step = a.sizes.step.to(tl.int32)
    blocks = (a.sizes.channels.to(tl.int32) + step - 1) // step
    part = number_ % parts
    unit = number_ // parts
    return unit // blocks, unit % blocks, part


@helper
def bounds(part, a, C: tl.constexpr):
    """The positions of a part."""
    if C.long_positions:
        size = a.sizes.part.to(tl.int64)
        end = a.sizes.positions.to(tl.int64)
    else:
        size = a.sizes.part.to(tl.int32)
        end = a.sizes.positions.to(tl.int32)
    start = part * size
    # start + size may be more than 32 bits hold.
    return start, start + tl.minimum(size, end - start)


@helper
def coefficients(a, s, channel, mask, group, centre, t, t_error, q, q_error, C: tl.constexpr):
    """Mean, gain, shift, slope and scale of a tile's channels, in the arithmetic's type.

    From the sums over all that share a statistic, where coefficients depend on them; in the forward
    pass they are about ``centre``. Also what the outputs need: in the forward pass the statistics
    before they are rounded, else 1/std.
    """
    zero_set = channel * 0
    w = read_vector(a, zero_set, channel, mask, WEIGHT, 1.0, C)
    nothing = tl.zeros_like(w)
    variance = nothing
    if C.rule == FORWARD:
        if C.sums:
            mean, r, variance = statistics(a, centre, t, t_error, q, q_error, C)
        else:
            mean = given_mean(a, s, group, mask, C)
            r = given_invstd(a, s, group, mask, C)
        bias = read_vector(a, zero_set, channel, mask, BIAS, 0.0, C)
        # As the arithmetic's type holds 1/std.
        product = w * real(r, C.wide).to(tl.float64)
        return (
            real(mean, C.wide), real(nothing, C.wide), real(bias, C.wide), real(nothing, C.wide),
            real(product, C.wide), mean, r, variance,
        )  # fmt: skip
    else:
        mean = given_mean(a, s, group, mask, C)
        r = given_invstd(a, s, group, mask, C)
        if C.rule == EVAL:
            gain, shift, slope = nothing, nothing, nothing
            scale = w * r
        else:
            m = number(a.numbers.divisor)
            inverse = number(a.numbers.inverse)
            if C.rule == ELEMT:
                m = total_count(a, C)
                inverse = 1.0 / m
                t = read_vector(a, zero_set, channel, mask, SUM_DY, 0.0, C)
                q = read_vector(a, zero_set, channel, mask, SUM_DY_XMU, 0.0, C)
                t_error, q_error = nothing, nothing
            gain, shift, slope, scale = gradient_coefficients(
                w, r, invstd_error(a, s, group, mask, C), mean_rest(a, s, group, mask, C), m,
                inverse, t, t_error, q, q_error, C,
            )  # fmt: skip
        return (
            real(mean, C.wide), real(gain, C.wide), real(shift, C.wide), real(slope, C.wide),
            real(scale, C.wide), mean, r, variance,
        )  # fmt: skip


@helper
def outputs_of(
    a, s, channel, mask, group, t, t_error, q, q_error, mean, r, variance, C: tl.constexpr
):
    """Write the per-channel outputs that follow from one set alone."""
    if C.rule == FORWARD:
        # One of a group's channels writes for all.
        first = mask & (channel == group * a.sizes.per_group.to(tl.int32))
        write_statistics(a, s, group, first, mean, r, variance, C)
    else:
        zero_set = channel * 0
        total = kept(t, t_error, C.wide)
        projection = kept(q, q_error, C.wide)
        scaled = kept(r * projection, invstd_error(a, s, group, mask, C) * projection, C.wide)
        # Without elements nothing is scaled, not even by infinity.
        scaled = tl.where(a.sizes.parts.to(tl.int32) > 0, scaled, 0.0)
        write_vector(a, zero_set, channel, mask, total, OUT_SUM_DY, C)
        write_vector(a, zero_set, channel, mask, projection, OUT_SUM_DY_XMU, C)
        write_vector(a, zero_set, channel, mask, scaled, OUT_WEIGHT, C)
        write_vector(a, zero_set, channel, mask, total, OUT_BIAS, C)


@triton.jit
def sums(a, C: tl.constexpr):
    """A program for each part of each tile: its sums, to their own place in the workspace.

    Or straight to the outputs, where the part is all there is. In evaluation dx, which does not
    depend on the sums, is written by the way.
    """
    s, block, part = task_of(tl.program_id(0), a)
    channel, mask, group, first = channels_of(block, a, C)
    centre = real(about(a, s, group, mask, C), C.wide)
    if (C.rule == FORWARD) & (not C.wide):
        centre = centre.to(tl.float64)
    start, end = bounds(part, a, C)
    scale = centre
    if C.rule == EVAL:
        w = read_vector(a, channel * 0, channel, mask, WEIGHT, 1.0, C)
        scale = real(w * given_invstd(a, s, group, mask, C), C.wide)
    t, t_error, q, q_error = sums_of_part(a, s, channel, first, mask, centre, scale, start, end, C)
    if not C.outputs:
        put_sums(a, part, s, channel, mask, group, centre, t, t_error, q, q_error, C)
    elif C.rule == FORWARD:
        mean, r, variance = statistics(a, centre.to(tl.float64), t, t_error, q, q_error, C)
        outputs_of(a, s, channel, mask, group, t, t_error, q, q_error, mean, r, variance, C)
    else:
        q, q_error = centred(a, s, group, mask, t, t_error, q, q_error, C)
        r = given_invstd(a, s, group, mask, C)
        outputs_of(a, s, channel, mask, group, t, t_error, q, q_error, r, r, r, C)


@triton.jit
def finish(a, C: tl.constexpr):
    """A program for some groups of a set: what follows from the sums of all their parts.

    Statistics for gradients, the coefficients that dx or y is written from, per-channel outputs.
    """
    FAN: tl.constexpr = C.fan
    blocks = (a.sizes.groups.to(tl.int32) + C.groups - 1) // C.groups
    s = tl.program_id(0) // blocks
    first_group = tl.program_id(0) % blocks * C.groups
    i = tl.arange(0, C.groups * FAN)
    group = first_group + i // FAN
    per_group = a.sizes.per_group.to(tl.int32)
    t, t_error, q, q_error = group_sums(a, s, first_group, C)
    t, t_error = to_members(t, FAN, C), to_members(t_error, FAN, C)
    q, q_error = to_members(q, FAN, C), to_members(q_error, FAN, C)
    there = group < a.sizes.groups.to(tl.int32)
    centre = t
    if C.rule == FORWARD:
        centre = about_sums(a, s, group, there, C)
    else:
        q, q_error = centred(a, s, group, there, t, t_error, q, q_error, C)
    if C.saves:
        # One of a group's channels stands for all.
        first = there & (i % FAN == 0)
        save_statistics(a, s, group, first, centre, t, t_error, q, q_error, C)
    else:
        for j in range(0, per_group, FAN):
            member = j + i % FAN
            channel = group * per_group + member
            mask = there & (member < per_group)
            mean, gain, shift, slope, scale, mu, r, variance = coefficients(
                a, s, channel, mask, group, centre, t, t_error, q, q_error, C
            )
            if C.coefficients:
                put_coefficients(a, s, channel, mask, mean, gain, shift, slope, scale, C)
            if C.outputs:
                outputs_of(a, s, channel, mask, group, t, t_error, q, q_error, mu, r, variance, C)


@triton.jit
def write(a, C: tl.constexpr):
    """A program for each part of each tile: dx or y, of given statistics or coefficients."""
    task = tl.program_id(0)
    if C.reverse:
        task = tl.num_programs(0) - 1 - task
    s, block, part = task_of(task, a)
    channel, mask, group, first = channels_of(block, a, C)
    if C.sums:
        mean, gain, shift, slope, scale = load_coefficients(a, s, channel, mask, C)
    else:
        zero = channel.to(tl.float64) * 0.0
        mean, gain, shift, slope, scale, _, _, _ = coefficients(
            a, s, channel, mask, group, zero, zero, zero, zero, zero, C
        )
    start, end = bounds(part, a, C)
    write_part(a, s, first, mask, mean, gain, shift, slope, scale, start, end, C)


@helper
def persistent_tile(task, a, C: tl.constexpr):
    """A tile of all that shares a statistic, from sums to dx or y."""
    s, block, part = task_of(task, a)
    channel, mask, group, first = channels_of(block, a, C)
    start, end = bounds(part, a, C)
    p = positions_from(start, C)
    there = inside(p, end, mask, C)
    x_base = base_of(a.at.x, s, first, a.sizes.x_sets, a.sizes.x_channels, 1, C)
    x_channels = channel_offset(a.sizes.x_channels, 1, C)
    x = load(x_base, offset_of(p, a.axes, 1, C), x_channels, there, C)
    if C.rule == FORWARD:
        dy = x
    else:
        dy_base = base_of(a.at.dy, s, first, a.sizes.dy_sets, a.sizes.dy_channels, 0, C)
        dy_channels = channel_offset(a.sizes.dy_channels, 0, C)
        dy = load(dy_base, offset_of(p, a.axes, 0, C), dy_channels, there, C)
    centre = real(about(a, s, group, mask, C), C.wide)
    if (C.rule == FORWARD) & (not C.wide):
        centre = centre.to(tl.float64)
    t, t_error, q, q_error = sums_of_tile(dy, x, centre, there, C)
    t, t_error = sum_along(t, t_error, 0, C.wide)
    q, q_error = sum_along(q, q_error, 0, C.wide)
    if C.keeps_sums:
        # The parameters' gradients are sums over the samples, made by another kernel.
        put_sums(a, part, s, channel, mask, group, centre, t, t_error, q, q_error, C)
    if not C.single:
        t, t_error, q, q_error = weighted(a, channel, mask, t, t_error, q, q_error, C)
        of_tile = (channel - first) // a.sizes.per_group.to(tl.int32)
        member = of_tile[:, None] == tl.arange(0, C.groups)[None, :]
        t, t_error = shared(t, t_error, member, C)
        q, q_error = shared(q, q_error, member, C)
    if C.rule != FORWARD:
        q, q_error = centred(a, s, group, mask, t, t_error, q, q_error, C)
    mean, gain, shift, slope, scale, mu, r, variance = coefficients(
        a, s, channel, mask, group, centre, t, t_error, q, q_error, C
    )
    if C.outputs:
        outputs_of(a, s, channel, mask, group, t, t_error, q, q_error, mu, r, variance, C)
    base = base_of(a.at.dx, s, first, a.sizes.dx_sets, a.sizes.dx_channels, 2, C)
    channels = channel_offset(a.sizes.dx_channels, 2, C)
    value = written(dy, x, mean, gain, shift, slope, scale, C)
    at = base + (offset_of(p, a.axes, 2, C)[:, None] + channels[None, :])
    tl.store(at, rounded(value, C.dx.code), mask=there)


@triton.jit
def persistent(a, C: tl.constexpr):
    """A program for some tiles, each of all that shares a statistic: read once, summed, written."""
    start = tl.program_id(0) * a.sizes.each.to(tl.int32)
    end = tl.minimum(start + a.sizes.each.to(tl.int32), a.sizes.tasks.to(tl.int32))
    for task in range(start, end):
        persistent_tile(task, a, C)


@triton.jit
def outputs(a, C: tl.constexpr):
    """A program for some channels: the gradients' outputs, summed over all sets and parts."""
    WIDTH: tl.constexpr = C.channels
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    mask = channel < a.sizes.channels.to(tl.int32)
    group = channel // a.sizes.per_group.to(tl.int32)
    ROWS: tl.constexpr = C.rows
    sets = a.sizes.sets.to(tl.int32)
    rows = a.sizes.parts.to(tl.int32) * sets
    t = channel.to(tl.float64) * 0.0
    t_error, q, q_error, scaled, scaled_error = t, t, t, t, t
    for row in range(0, rows, ROWS):
        k = row + tl.arange(0, ROWS)
        there = (k < rows)[:, None] & mask[None, :]
        s = (k % sets)[:, None]
        at = k[:, None].to(tl.int64) * a.sizes.channels.to(tl.int64) + channel[None, :]
        dys, dy_errors = load_sums(a, a.work.sum_dy, a.work.sum_dy_error, at, there, C)
        value, error = sum_along(dys, dy_errors, 0, C.wide)
        t, t_error = added(t, t_error, value, error, C.wide)
        value, error = load_sums(a, a.work.sum_dy_xmu, a.work.sum_dy_xmu_error, at, there, C)
        g = group[None, :] + s * 0
        value, error = centred(a, s, g, there, dys, dy_errors, value, error, C)
        projection = kept(value, error, C.wide)
        product = tl.where(there, given_invstd(a, s, g, there, C) * projection, 0.0)
        product_error = tl.where(there, invstd_error(a, s, g, there, C) * projection, 0.0)
        value, error = sum_along(value, error, 0, C.wide)
        q, q_error = added(q, q_error, value, error, C.wide)
        product, error = sum_along(product, product_error, 0, C.wide)
        scaled, scaled_error = added(scaled, scaled_error, product, error, C.wide)
    zero_set = channel * 0
    total = kept(t, t_error, C.wide)
    write_vector(a, zero_set, channel, mask, total, OUT_SUM_DY, C)
    write_vector(a, zero_set, channel, mask, kept(q, q_error, C.wide), OUT_SUM_DY_XMU, C)
    write_vector(a, zero_set, channel, mask, kept(scaled, scaled_error, C.wide), OUT_WEIGHT, C)
    write_vector(a, zero_set, channel, mask, total, OUT_BIAS, C)


@triton.jit
def gather(a, C: tl.constexpr):
    """A program for some channels: all ranks' statistics, combined.

    1/r² is a variance and eps, whose mean over all elements, with the ranks' own deviations from
    the common mean, makes the common variance and eps.
    """
    WIDTH: tl.constexpr = C.channels
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    mask = channel < a.sizes.channels.to(tl.int32)
    ROWS: tl.constexpr = C.rows
    ranks = a.numbers.counts.to(tl.int32)
    n = total_count(a, C)
    mean = channel.to(tl.float64) * 0.0
    mean_error, spread, spread_error = mean, mean, mean
    for row in range(0, ranks, ROWS):
        rank = row + tl.arange(0, ROWS)
        share = count_at(a, rank, rank < ranks, C)[:, None]
        there = (share != 0.0) & mask[None, :]
        index = channel[None, :] + rank[:, None] * 0
        value = read_vector(a, rank[:, None], index, there, MEAN, 0.0, C)
        value = tl.where(there, share * value, 0.0)
        value, error = sum_along(value, tl.zeros_like(value), 0, C.wide)
        mean, mean_error = added(mean, mean_error, value, error, C.wide)
    mean = tl.where(n != 0.0, kept(mean, mean_error, C.wide) / n, 0.0)
    for row in range(0, ranks, ROWS):
        rank = row + tl.arange(0, ROWS)
        share = count_at(a, rank, rank < ranks, C)[:, None]
        there = (share != 0.0) & mask[None, :]
        index = channel[None, :] + rank[:, None] * 0
        d = read_vector(a, rank[:, None], index, there, MEAN, 0.0, C) - mean[None, :]
        r = read_vector(a, rank[:, None], index, there, SPREAD, 1.0, C)
        value = tl.where(there, share * (1.0 / (r * r) + d * d), 0.0)
        value, error = sum_along(value, tl.zeros_like(value), 0, C.wide)
        spread, spread_error = added(spread, spread_error, value, error, C.wide)
    spread = tl.where(n != 0.0, kept(spread, spread_error, C.wide) / n, 0.0)
    zero_set = channel * 0
    write_vector(a, zero_set, channel, mask, mean, OUT_MEAN, C)
    write_vector(
        a, zero_set, channel, mask, tl.where(n != 0.0, 1.0 / tl.sqrt(spread), 0.0), OUT_INVSTD, C
    )
    variance = spread - number(a.numbers.eps)
    variance = tl.where(variance < 0.0, 0.0, variance)
    variance = variance * tl.where(n > 1.0, n / (n - 1.0), 1.0)
    update_running(a, channel, mask, mean, variance, n, SUM_DY, SUM_DY_XMU, C)
