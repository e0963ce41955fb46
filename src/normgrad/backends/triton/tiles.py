"""The loops over whole tensors: sums of a part, and what is written to it."""

from __future__ import annotations

import triton.language as tl

from ...problem import Rule
from . import config
from .access import base_of, channel_offset, inside, offset_of, pointer, positions_from
from .arithmetic import added, corrected, is_finite, real, rounded, sum_along, times, two_sum
from .jit import constant, helper

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The rules that kernels tell apart; see normgrad.problem.
EVAL, GROUP, FORWARD = (constant(int(rule)) for rule in (Rule.EVAL, Rule.GROUP, Rule.FORWARD))
#: What moments are taken about; see config.py.
PILOT = constant(config.PILOT)


@helper
def pilot(a, s, channel, mask, C: tl.constexpr):
    """The first element of each channel, in float64; 0 for one that is infinite or NaN.

    An element is no further from the mean than sqrt(m) deviations, of which float64's sums of
    float32 data can lose m·2⁻⁵³: so moments about it are exact enough in one pass.
    """
    offset = s.to(tl.int64) * a.sizes.x_sets.to(tl.int64)
    offset += channel.to(tl.int64) * a.sizes.x_channels.to(tl.int64)
    value = tl.load(pointer(a.at.x, C.x.code) + offset, mask=mask, other=0.0).to(tl.float64)
    return tl.where(is_finite(value), value, 0.0)


@helper
def load(base, offset, channels, mask, C: tl.constexpr):
    """A tile of a tensor, in the arithmetic's type; 0 where there is nothing."""
    value = tl.load(base + (offset[:, None] + channels[None, :]), mask=mask, other=0.0)
    return real(value, C.wide)


# What one thread has of a tile


@helper
def halves(value, SIDE_BY_SIDE: tl.constexpr):
    """Two halves of a tile's positions: every other one each, or the first and the last."""
    B: tl.constexpr = value.shape[0] // 2
    W: tl.constexpr = value.shape[1]
    if SIDE_BY_SIDE:
        return tl.split(tl.permute(tl.reshape(value, [B, 2, W]), [0, 2, 1]))
    else:
        return tl.split(tl.permute(tl.reshape(value, [2, B, W]), [1, 2, 0]))


@helper
def halved(value, error, COUNT: tl.constexpr, SIDE_BY_SIDE: tl.constexpr, ERRORS: tl.constexpr):
    """Sums of so many of a tile's positions, and their errors where these are kept."""
    if COUNT == 1:
        return value, error
    else:
        a, b = halves(value, SIDE_BY_SIDE)
        if ERRORS:
            s, e = two_sum(a, b)
            c, d = halves(error, SIDE_BY_SIDE)
            e += c + d
        else:
            s = a + b
            e = s
        return halved(s, e, COUNT // 2, SIDE_BY_SIDE, ERRORS)


@helper
def folded(value, error, ERRORS: tl.constexpr, C: tl.constexpr):
    """What each thread has of a tile's positions, added up as a tree: in registers."""
    value, error = halved(value, error, C.adjacent, True, ERRORS)
    return halved(value, error, C.leading, False, ERRORS)


@helper
def unfolded(value, C: tl.constexpr):
    """The same number for all that was added up to it."""
    F: tl.constexpr = C.leading
    V: tl.constexpr = C.adjacent
    R: tl.constexpr = C.positions // (F * V)
    W: tl.constexpr = C.channels
    spread = tl.broadcast_to(tl.reshape(value, [1, R, 1, W]), [F, R, V, W])
    return tl.reshape(spread, [F * R * V, W])


@helper
def moments_about(x, about, mask, C: tl.constexpr):
    """Σ(x − p) and Σ(x − p)² of what each thread has, in float64, from float32's arithmetic.

    Squares are taken about a mean of the thread's own, so that a distant p costs them nothing. The
    first sum keeps its errors where x is float32, since an element may be closer to the mean than
    float32's sums are exact; halves have digits to spare.
    """
    N: tl.constexpr = C.leading * C.adjacent
    centre = about.to(tl.float32)[None, :]
    # What is not there is p itself, and adds nothing.
    x = tl.where(mask, x, centre)
    if C.x.code == 0:
        d, error = two_sum(x, -centre)
        d, error = folded(d, error, True, C)
        total = corrected(d.to(tl.float64), error.to(tl.float64))
    else:
        d = x - centre
        d, _ = folded(d, d, False, C)
        total = d.to(tl.float64)
    own = centre + d * (1.0 / N)
    d = x - unfolded(own, C)
    d = d * d
    squares, _ = folded(d, d, False, C)
    away = own.to(tl.float64) - about[None, :]
    return total, squares.to(tl.float64) + away * (2.0 * total - N * away)


@helper
def sums_of_tile(dy, x, about, mask, C: tl.constexpr):
    """What is summed, of what each thread has of a tile, in float64; and the sums' errors.

    Σdy and Σdy·(x − μ), or in the forward pass Σ(x − p) and Σ(x − p)².
    """
    if C.wide:
        xmu, xmu_error = two_sum(x, -about[None, :])
        if C.rule == FORWARD:
            t, t_error = tl.where(mask, xmu, 0.0), tl.where(mask, xmu_error, 0.0)
            factor, factor_error = xmu, xmu_error
        else:
            t, t_error = dy, tl.zeros_like(dy)
            factor, factor_error = dy, tl.zeros_like(dy)
        product, error = times(factor, factor_error, xmu, xmu_error, True)
        q, q_error = tl.where(mask, product, 0.0), tl.where(mask, error, 0.0)
        t, t_error = folded(t, t_error, True, C)
        q, q_error = folded(q, q_error, True, C)
        return t, t_error, q, q_error
    else:
        if C.rule == FORWARD:
            t, q = moments_about(x, about, mask, C)
        else:
            t, _ = folded(dy, dy, False, C)
            product = tl.where(mask, dy * (x - about[None, :]), 0.0)
            q, _ = folded(product, product, False, C)
        zero = tl.zeros(t.shape, tl.float64)
        return t.to(tl.float64), zero, q.to(tl.float64), zero


@helper
def sums_of_part(a, s, channel, first, cmask, about, scale, start, end, C: tl.constexpr):
    """Both sums over the positions of a part, for the channels of a tile, and their errors.

    In evaluation dx is written by the way, with a scale for each channel.
    """
    B: tl.constexpr = C.positions
    W: tl.constexpr = C.channels
    R: tl.constexpr = B // (C.leading * C.adjacent)
    x_base = base_of(a.at.x, s, first, a.sizes.x_sets, a.sizes.x_channels, 1, C)
    x_channels = channel_offset(a.sizes.x_channels, 1, C)
    dy_base = base_of(a.at.dy, s, first, a.sizes.dy_sets, a.sizes.dy_channels, 0, C)
    dy_channels = channel_offset(a.sizes.dy_channels, 0, C)
    if C.writes:
        dx_base = base_of(a.at.dx, s, first, a.sizes.dx_sets, a.sizes.dx_channels, 2, C)
        dx_channels = channel_offset(a.sizes.dx_channels, 2, C)
    total = tl.zeros([R, W], tl.float64)
    total_error, projection, projection_error = total, total, total
    for here in range(start, end, B):
        p = positions_from(here, C)
        mask = inside(p, end, cmask, C)
        x = load(x_base, offset_of(p, a.axes, 1, C), x_channels, mask, C)
        if C.rule == FORWARD:
            dy = x
        else:
            dy = load(dy_base, offset_of(p, a.axes, 0, C), dy_channels, mask, C)
        t, t_error, q, q_error = sums_of_tile(dy, x, about, mask, C)
        total, total_error = added(total, total_error, t, t_error, C.wide)
        projection, projection_error = added(projection, projection_error, q, q_error, C.wide)
        if C.writes:
            at = offset_of(p, a.axes, 2, C)[:, None] + dx_channels[None, :]
            tl.store(dx_base + at, rounded(dy * scale[None, :], C.dx.code), mask=mask)
    t, t_error = sum_along(total, total_error, 0, C.wide)
    q, q_error = sum_along(projection, projection_error, 0, C.wide)
    return t, t_error, q, q_error


@helper
def written(dy, x, mean, gain, shift, slope, scale, C: tl.constexpr):
    """dx or y of a tile, from coefficients that are given for each channel."""
    if C.rule == FORWARD:
        return tl.fma(scale[None, :], x - mean[None, :], shift[None, :])
    elif C.rule == EVAL:
        return dy * scale[None, :]
    else:
        inner = tl.fma(slope[None, :], x - mean[None, :], shift[None, :])
        return scale[None, :] * tl.fma(gain[None, :], dy, -inner)


@helper
def write_part(a, s, first, cmask, mean, gain, shift, slope, scale, start, end, C: tl.constexpr):
    """Write dx or y at the positions of a part."""
    B: tl.constexpr = C.positions
    x_base = base_of(a.at.x, s, first, a.sizes.x_sets, a.sizes.x_channels, 1, C)
    x_channels = channel_offset(a.sizes.x_channels, 1, C)
    dy_base = base_of(a.at.dy, s, first, a.sizes.dy_sets, a.sizes.dy_channels, 0, C)
    dy_channels = channel_offset(a.sizes.dy_channels, 0, C)
    dx_base = base_of(a.at.dx, s, first, a.sizes.dx_sets, a.sizes.dx_channels, 2, C)
    dx_channels = channel_offset(a.sizes.dx_channels, 2, C)
    for here in range(start, end, B):
        p = positions_from(here, C)
        mask = inside(p, end, cmask, C)
        if C.rule == EVAL:
            dy = load(dy_base, offset_of(p, a.axes, 0, C), dy_channels, mask, C)
            x = dy
        else:
            x = load(x_base, offset_of(p, a.axes, 1, C), x_channels, mask, C)
            if C.rule == FORWARD:
                dy = x
            else:
                dy = load(dy_base, offset_of(p, a.axes, 0, C), dy_channels, mask, C)
        value = written(dy, x, mean, gain, shift, slope, scale, C)
        at = dx_base + (offset_of(p, a.axes, 2, C)[:, None] + dx_channels[None, :])
        tl.store(at, rounded(value, C.dx.code), mask=mask)
