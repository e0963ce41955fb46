"""Where elements are: addresses, offsets of a tile, per-channel vectors of any dtype."""

from __future__ import annotations

import triton.language as tl

from ...problem import Role
from . import config
from .arithmetic import real, rounded
from .jit import constant, helper

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The slots of per-channel vectors.
(
    MEAN, SPREAD, WEIGHT, SUM_DY, SUM_DY_XMU, OUT_SUM_DY, OUT_SUM_DY_XMU, OUT_WEIGHT, OUT_BIAS
) = (constant(role - Role.MEAN) for role in config.VECTORS)  # fmt: skip
#: The same slots in the forward pass.
BIAS, OUT_MEAN, OUT_INVSTD = SUM_DY, OUT_SUM_DY, OUT_SUM_DY_XMU
OUT_RUNNING_MEAN, OUT_RUNNING_VAR = OUT_WEIGHT, OUT_BIAS
#: Along what a tensor is contiguous.
ALONG_POSITIONS = constant(config.ALONG_POSITIONS)
ALONG_CHANNELS = constant(config.ALONG_CHANNELS)
#: What there is at a slot where there is nothing, and where addresses of vectors begin.
ABSENT, FIRST = constant(config.ABSENT), constant(int(Role.MEAN))


@helper
def pointer(address, CODE: tl.constexpr):
    """A pointer to elements of the dtype with a code (see dtypes.py)."""
    place = address.to(tl.int64)
    if CODE == 0:
        return place.to(tl.pointer_type(tl.float32))
    elif CODE == 1:
        return place.to(tl.pointer_type(tl.float64))
    elif CODE == 2:
        return place.to(tl.pointer_type(tl.float16))
    elif CODE == 3:
        return place.to(tl.pointer_type(tl.bfloat16))
    elif CODE == 4:
        return place.to(tl.pointer_type(tl.int32))
    else:
        return place.to(tl.pointer_type(tl.int64))


@helper
def doubles(a, offset):
    """A pointer to float64 in the workspace."""
    return pointer(a.at.workspace.to(tl.int64) + offset.to(tl.int64), 1)


@helper
def quotient(value, axis, C: tl.constexpr):
    """Positions divided by an axis' size: a multiplication and a shift, where 32 bits will do."""
    if C.long_positions:
        return value // axis.size.to(tl.int64)
    else:
        high = tl.umulhi(value.to(tl.uint32), axis.magic.to(tl.uint32))
        return (high >> axis.shift.to(tl.uint32)).to(tl.int32)


@helper
def stepped(index, stride, C: tl.constexpr):
    """So many steps of a stride."""
    if C.long_offsets:
        return index.to(tl.int64) * stride.to(tl.int64)
    else:
        return index.to(tl.int32) * stride.to(tl.int32)


@helper
def stride_of(axis, WHICH: tl.constexpr):
    """An axis' stride in one of (dy, x, dx)."""
    if WHICH == 0:
        return axis.dy
    elif WHICH == 1:
        return axis.x
    else:
        return axis.dx


@helper
def offset_of(p, axes, WHICH: tl.constexpr, C: tl.constexpr):
    """The offsets of positions in one of (dy, x, dx)."""
    T: tl.constexpr = C.dy if WHICH == 0 else (C.x if WHICH == 1 else C.dx)
    RANK: tl.constexpr = C.rank
    rest = p
    index = p
    if RANK > 1:
        rest = quotient(p, axes[RANK - 1], C)
        index = p - rest * axes[RANK - 1].size.to(p.dtype)
    if T.along == ALONG_POSITIONS:
        # Contiguous: a stride that is known when this is compiled.
        offset = index
        if C.long_offsets:
            offset = offset.to(tl.int64)
    else:
        # Not by a function: Triton 3.6 would have the hints below belong to its call.
        stride = stride_of(axes[RANK - 1], WHICH)
        if C.long_offsets:
            offset = index.to(tl.int64) * stride.to(tl.int64)
        else:
            offset = index.to(tl.int32) * stride.to(tl.int32)
    for k in tl.static_range(1, RANK):
        index = rest
        if k < RANK - 1:
            rest = quotient(rest, axes[RANK - 1 - k], C)
            index = index - rest * axes[RANK - 1 - k].size.to(p.dtype)
        offset += stepped(index, stride_of(axes[RANK - 1 - k], WHICH), C)
    # What a plan found of the strides, and the compiler cannot see through a division. The hints
    # belong to the last operation: one that adds nothing would be dropped, and they with it.
    V: tl.constexpr = T.vector
    if V > 1:
        offset = tl.multiple_of(offset, V)
        if T.along == ALONG_POSITIONS:
            offset = tl.max_contiguous(offset, V)
    return offset


@helper
def positions_from(start, C: tl.constexpr):
    """The positions of a tile; parts start at multiples of tiles."""
    B: tl.constexpr = C.positions
    return tl.multiple_of(start + tl.arange(0, B), B)


@helper
def inside(p, end, cmask, C: tl.constexpr):
    """Which of a tile's elements there are."""
    mask = p < end
    V: tl.constexpr = C.x.vector
    if (V > 1) & (C.x.along == ALONG_POSITIONS):
        # Parts end at multiples of what is read at once.
        mask = tl.max_constancy(mask, V)
    return mask[:, None] & cmask[None, :]


# Channels


@helper
def channels_of(block, a, C: tl.constexpr):
    """The channels of a tile: (channel, which there are, group, first channel)."""
    step = a.sizes.step.to(tl.int32)
    first = block * step
    i = tl.arange(0, C.channels)
    channel = first + i
    mask = (i < step) & (channel < a.sizes.channels.to(tl.int32))
    V: tl.constexpr = C.x.vector
    if (V > 1) & (C.x.along == ALONG_CHANNELS):
        mask = tl.max_constancy(mask, V)
    group = channel
    if not C.single:
        group = channel // a.sizes.per_group.to(tl.int32)
    return channel, mask, group, first


@helper
def channel_offset(stride, WHICH: tl.constexpr, C: tl.constexpr):
    """The offsets of a tile's channels from its first, in one of (dy, x, dx)."""
    T: tl.constexpr = C.dy if WHICH == 0 else (C.x if WHICH == 1 else C.dx)
    offset = tl.arange(0, C.channels)
    if C.long_offsets:
        offset = offset.to(tl.int64)
    if T.along != ALONG_CHANNELS:
        offset = offset * stride.to(offset.dtype)
        V: tl.constexpr = T.vector
        if V > 1:
            # As in `offset_of`.
            offset = tl.multiple_of(offset, V)
    return offset


@helper
def base_of(address, s, first, set_stride, channel_stride, WHICH: tl.constexpr, C: tl.constexpr):
    """A pointer to a tile's first channel in a set, in one of (dy, x, dx)."""
    T: tl.constexpr = C.dy if WHICH == 0 else (C.x if WHICH == 1 else C.dx)
    far = s.to(tl.int64) * set_stride.to(tl.int64)
    if T.along == ALONG_CHANNELS:
        far += first.to(tl.int64)
    else:
        far += first.to(tl.int64) * channel_stride.to(tl.int64)
    base = pointer(address, T.code) + far
    V: tl.constexpr = T.vector
    if V > 1:
        SIZE: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
        base = tl.multiple_of(base, V * SIZE)
    return base


# Per-channel vectors


@helper
def read_vector(a, s, index, mask, SLOT: tl.constexpr, DEFAULT: tl.constexpr, C: tl.constexpr):
    """Elements of a per-channel input as the arithmetic reads them, in float64."""
    CODE: tl.constexpr = (C.vectors >> (3 * SLOT)) & 7
    if CODE == ABSENT:
        return tl.full(index.shape, DEFAULT, tl.float64)
    else:
        strides = a.vectors[SLOT]
        offset = s.to(tl.int64) * strides.sets.to(tl.int64)
        offset += index.to(tl.int64) * strides.channels.to(tl.int64)
        value = tl.load(pointer(a.at[SLOT + FIRST], CODE) + offset, mask=mask, other=DEFAULT)
        return real(value, C.wide).to(tl.float64)


@helper
def write_vector(a, s, index, mask, value, SLOT: tl.constexpr, C: tl.constexpr):
    """Round numbers to a per-channel output, where there is one."""
    CODE: tl.constexpr = (C.vectors >> (3 * SLOT)) & 7
    if CODE != ABSENT:
        strides = a.vectors[SLOT]
        offset = s.to(tl.int64) * strides.sets.to(tl.int64)
        offset += index.to(tl.int64) * strides.channels.to(tl.int64)
        tl.store(pointer(a.at[SLOT + FIRST], CODE) + offset, rounded(value, CODE), mask=mask)


@helper
def count_at(a, element, mask, C: tl.constexpr):
    """Elements of the counts, by their number in order, as float64; 0 where there are none."""
    RANK: tl.constexpr = len(a.counts)
    CODE: tl.constexpr = C.counts
    rest = element.to(tl.int64)
    offset = rest * 0
    for k in tl.static_range(RANK):
        axis = a.counts[RANK - 1 - k]
        size = axis.size.to(tl.int64)
        offset += rest % size * axis.stride.to(tl.int64)
        rest = rest // size
    return tl.load(pointer(a.at.count, CODE) + offset, mask=mask, other=0).to(tl.float64)
