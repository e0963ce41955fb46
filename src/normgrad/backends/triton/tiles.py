"""The loops over whole tensors: sums of a part, and what is written to it."""

from __future__ import annotations

import triton.language as tl

from ...problem import Rule
from . import config
from .access import base_of, channel_offset, inside, offset_of, pointer, positions_from
from .arithmetic import added, is_finite, real, rounded, sum_along, two_sum
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


@helper
def terms(dy, x, about, mask, C: tl.constexpr):
    """What is summed, of a tile: dy and dy·(x − μ), or x − p and its square; and their errors."""
    if C.rule == FORWARD:
        if C.wide:
            d, d_error = two_sum(x, -about)
            square = d * d
            error = tl.fma(d, d, -square) + 2.0 * d * d_error
            return (
                tl.where(mask, d, 0.0), tl.where(mask, square, 0.0),
                tl.where(mask, d_error, 0.0), tl.where(mask, error, 0.0),
            )  # fmt: skip
        else:
            # float64 at once: a square in float32 would lose what a distant pilot leaves.
            d = tl.where(mask, x.to(tl.float64) - about, 0.0)
            zero = tl.zeros_like(d)
            return d, d * d, zero, zero
    else:
        if C.wide:
            xmu, xmu_error = two_sum(x, -about)
            product = dy * xmu
            error = tl.fma(dy, xmu, -product) + dy * xmu_error
            return (
                dy, tl.where(mask, product, 0.0), tl.zeros_like(dy), tl.where(mask, error, 0.0)
            )  # fmt: skip
        else:
            product = tl.where(mask, dy * (x - about), 0.0)
            zero = tl.zeros_like(dy)
            return dy, product, zero, zero


@helper
def sums_of_part(a, s, channel, first, cmask, about, scale, start, end, C: tl.constexpr):
    """Both sums over the positions of a part, for the channels of a tile, and their errors.

    In float32 arithmetic a few tiles are added up in float32, and carried in float64. In
    evaluation dx is written by the way, with a scale for each channel.
    """
    B: tl.constexpr = C.positions
    W: tl.constexpr = C.groups * C.members
    UNROLL: tl.constexpr = C.unroll
    x_base = base_of(a.at.x, s, first, a.sizes.x_sets, a.sizes.x_channels, 1, C)
    x_channels = channel_offset(channel, first, a.sizes.x_channels, 1, C)
    dy_base = base_of(a.at.dy, s, first, a.sizes.dy_sets, a.sizes.dy_channels, 0, C)
    dy_channels = channel_offset(channel, first, a.sizes.dy_channels, 0, C)
    if C.writes:
        dx_base = base_of(a.at.dx, s, first, a.sizes.dx_sets, a.sizes.dx_channels, 2, C)
        dx_channels = channel_offset(channel, first, a.sizes.dx_channels, 2, C)
    total = tl.zeros([B, W], tl.float64)
    projection = tl.zeros([B, W], tl.float64)
    total_error = tl.zeros([B, W], tl.float64)
    projection_error = tl.zeros([B, W], tl.float64)
    for here in range(start, end, B * UNROLL):
        t_sum = tl.zeros([B, W], tl.float32)
        q_sum = tl.zeros([B, W], tl.float32)
        for k in tl.static_range(UNROLL):
            p = positions_from(here + k * B, C)
            mask = inside(p, end, cmask, C)
            x = load(x_base, offset_of(p, a.axes, 1, C), x_channels, mask, C)
            if C.rule == FORWARD:
                dy = x
            else:
                dy = load(dy_base, offset_of(p, a.axes, 0, C), dy_channels, mask, C)
            t, q, t_error, q_error = terms(dy, x, about[None, :], mask, C)
            if C.writes:
                at = offset_of(p, a.axes, 2, C)[:, None] + dx_channels[None, :]
                value = rounded(dy * scale[None, :], C.dx.code)
                tl.store(dx_base + at, value, mask=mask)
            if C.rule == FORWARD or C.wide:
                # These terms are float64 already.
                total, total_error = added(total, total_error, t, t_error, C.wide)
                projection, projection_error = added(
                    projection, projection_error, q, q_error, C.wide
                )
            else:
                t_sum += t
                q_sum += q
        if C.rule != FORWARD and not C.wide:
            total += t_sum.to(tl.float64)
            projection += q_sum.to(tl.float64)
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
def write_part(
    a, s, channel, first, cmask, mean, gain, shift, slope, scale, start, end, C: tl.constexpr
):
    """Write dx or y at the positions of a part."""
    B: tl.constexpr = C.positions
    UNROLL: tl.constexpr = C.unroll
    x_base = base_of(a.at.x, s, first, a.sizes.x_sets, a.sizes.x_channels, 1, C)
    x_channels = channel_offset(channel, first, a.sizes.x_channels, 1, C)
    dy_base = base_of(a.at.dy, s, first, a.sizes.dy_sets, a.sizes.dy_channels, 0, C)
    dy_channels = channel_offset(channel, first, a.sizes.dy_channels, 0, C)
    dx_base = base_of(a.at.dx, s, first, a.sizes.dx_sets, a.sizes.dx_channels, 2, C)
    dx_channels = channel_offset(channel, first, a.sizes.dx_channels, 2, C)
    for here in range(start, end, B * UNROLL):
        for k in tl.static_range(UNROLL):
            p = positions_from(here + k * B, C)
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
