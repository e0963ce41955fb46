"""Pointers to the elements of tiles and of per-channel vectors, of any dtype."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from ...declarations import problem
from ...declarations.problem import DATA, VECTORS, Role
from . import config
from .pairs import constant, helper, real, rounded

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The places of addresses: of the data tensors, the vector in the first slot, the counts, and the
#: workspace.
DY, X, DX, FIRST_VECTOR, COUNT = (constant(int(role)) for role in (*DATA, Role.MEAN, Role.COUNT))
WORKSPACE = constant(problem.WORKSPACE)
#: The slots of per-channel vectors.
(
    MEAN, INVSTD, WEIGHT, BIAS, SUM_DY, SUM_DY_XMU, RUNNING_MEAN, RUNNING_VAR, OUT_SUM_DY,
    OUT_SUM_DY_XMU, GRAD_WEIGHT, GRAD_BIAS, OUT_MEAN, OUT_INVSTD, OUT_RUNNING_MEAN,
    OUT_RUNNING_VAR,
) = (constant(config.slot(role)) for role in VECTORS)  # fmt: skip
#: The codes of the axes along which a tensor may be contiguous.
ALONG_POSITIONS = constant(config.ALONG_POSITIONS)
ALONG_CHANNELS = constant(config.ALONG_CHANNELS)
#: The code of an absent vector.
ABSENT = constant(config.ABSENT)


@helper
def pointer(address, CODE: tl.constexpr):
    """A pointer to elements of the dtype that has this code (see dtypes.py)."""
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
def in_workspace(a, offset, row, s, width, index, CODE: tl.constexpr):
    """Pointers into an array of the workspace at an offset in bytes: by row, set and index.

    Each row has ``width`` elements for each set.
    """
    base = pointer(a.at[WORKSPACE].to(tl.int64) + offset.to(tl.int64), CODE)
    row = row * a.sizes.sets.to(tl.int64) + s
    return base + (row * width.to(tl.int64) + index)


@helper
def offset_of(index, axes):
    """The offset of the element with a row-major index over several axes."""
    RANK: tl.constexpr = len(axes.strides)
    rest = index.to(tl.int64)
    offset = rest * 0
    for k in tl.static_range(1, RANK):
        size = axes.sizes[RANK - 1 - k].to(tl.int64)
        offset += rest % size * axes.strides[RANK - k].to(tl.int64)
        rest = rest // size
    return offset + rest * axes.strides[0].to(tl.int64)


# Tiles


class Channels(NamedTuple):
    """The channels of a tile, with a mask of those that exist."""

    set: Any
    channel: Any
    group: Any
    there: Any


@helper
def channels_of(s, block, a, C: tl.constexpr):
    """The channels of a tile, and the index of the first."""
    step = a.sizes.step.to(tl.int32)
    first = block * step
    i = tl.arange(0, C.channels)
    channel = first + i
    there = (i < step) & (channel < a.sizes.channels.to(tl.int32))
    V: tl.constexpr = C.x.vector
    if (V > 1) & (C.x.along == ALONG_CHANNELS):
        there = tl.max_constancy(there, V)
    group = channel
    if C.sharing == 0:  # a line is a group
        group = channel // a.sizes.per_group.to(tl.int32)
    return Channels(s, channel, group, there), first


@helper
def channels_in_group(s, group, k, a, C: tl.constexpr):
    """The channels of a group from its channel k on, and the index of the first."""
    per_group = a.sizes.per_group.to(tl.int32)
    first = group * per_group + k
    i = tl.arange(0, C.channels)
    there = k + i < per_group
    V: tl.constexpr = C.x.vector
    if (V > 1) & (C.x.along == ALONG_CHANNELS):
        there = tl.max_constancy(there, V)
    return Channels(s, first + i, group + i * 0, there), first


@helper
def positions_from(a, start, end, at, WHOLE: tl.constexpr, C: tl.constexpr):
    """The positions of a tile, and a mask of the elements that exist.

    In lines, the positions that share a parameter are padded to a power of two. A mask of a WHOLE
    tile, which ends before ``end``, only says which channels exist.
    """
    B: tl.constexpr = C.positions
    # A part starts at a multiple of the tile's size.
    p = tl.multiple_of(start + tl.arange(0, B), B)
    there = tl.full([B], 1, tl.int1) if WHOLE else p < end
    if C.sharing > 1:
        index = p % C.sharing
        there = there & (index < a.sizes.sharing)
        p = p // C.sharing * a.sizes.sharing.to(p.dtype) + index
    V: tl.constexpr = C.x.vector
    if (V > 1) & (C.x.along == ALONG_POSITIONS):
        # A part ends at a multiple of the vector that a thread reads at once.
        there = tl.max_constancy(there, V)
    return p, there[:, None] & at.there[None, :]


@helper
def quotient(value, axis, C: tl.constexpr):
    """Divide positions by an axis' size; if 32 bits suffice, by a multiplication and a shift."""
    if C.long_positions:
        return value // axis.size.to(tl.int64)
    else:
        high = tl.umulhi(value.to(tl.uint32), axis.magic.to(tl.uint32))
        return (high >> axis.shift.to(tl.uint32)).to(tl.int32)


@helper
def pointers(address, steps, s, first, p, axes, T: tl.constexpr, C: tl.constexpr):
    """Pointers to a tile of a tensor: positions by channels.

    The hints tell the compiler what the plan knows about the strides. Triton attaches a hint to an
    operation, and loses it if the operation adds 0 or is in a called function.
    """
    RANK: tl.constexpr = C.rank
    V: tl.constexpr = T.vector
    if C.long_offsets:
        i = tl.arange(0, C.channels).to(tl.int64)
    else:
        i = tl.arange(0, C.channels)
    far = offset_of(s, steps.sets)
    if T.along == ALONG_CHANNELS:
        far += first.to(tl.int64)
    else:
        far += first.to(tl.int64) * steps.channels.to(tl.int64)
        i = i * steps.channels.to(i.dtype)
        if V > 1:
            i = tl.multiple_of(i, V)
    base = pointer(address, T.code) + far
    if V > 1:
        SIZE: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
        base = tl.multiple_of(base, V * SIZE)
    rest = p
    index = p
    if RANK > 1:
        rest = quotient(p, axes[RANK - 1], C)
        index = p - rest * axes[RANK - 1].size.to(p.dtype)
    offset = index.to(i.dtype)
    if T.along != ALONG_POSITIONS:
        offset = offset * steps.axes[RANK - 1].to(i.dtype)
    for k in tl.static_range(1, RANK):
        index = rest
        if k < RANK - 1:
            rest = quotient(rest, axes[RANK - 1 - k], C)
            index = index - rest * axes[RANK - 1 - k].size.to(p.dtype)
        offset += index.to(i.dtype) * steps.axes[RANK - 1 - k].to(i.dtype)
    if V > 1:
        offset = tl.multiple_of(offset, V)
        if T.along == ALONG_POSITIONS:
            offset = tl.max_contiguous(offset, V)
    return base + (offset[:, None] + i[None, :])


# Per-channel vectors


@helper
def vector_at(a, s, index, SLOT: tl.constexpr, CODE: tl.constexpr):
    """Pointers to elements of a per-channel vector."""
    steps = a.vectors[SLOT]
    offset = offset_of(s, steps.sets) + offset_of(index, steps.channels)
    return pointer(a.at[FIRST_VECTOR + SLOT], CODE) + offset


@helper
def read(a, s, index, there, SLOT: tl.constexpr, DEFAULT: tl.constexpr, C: tl.constexpr):
    """Read a per-channel input as float64.

    Statistics are used as given; other values are rounded to the arithmetic's type.
    """
    CODE: tl.constexpr = (C.vectors >> (3 * SLOT)) & 7
    if CODE == ABSENT:
        return tl.full(index.shape, DEFAULT, tl.float64)
    else:
        value = tl.load(vector_at(a, s, index, SLOT, CODE), mask=there, other=DEFAULT)
        AS_GIVEN: tl.constexpr = (CODE == 1) & ((SLOT == MEAN) | (SLOT == INVSTD))
        return real(value, C.wide or AS_GIVEN).to(tl.float64)


@helper
def read_parameter(a, at, SLOT: tl.constexpr, DEFAULT: tl.constexpr, C: tl.constexpr):
    """Read the channels' parameters, which all sets share; in lines, only positions have any."""
    if C.sharing > 0:
        return tl.full(at.channel.shape, DEFAULT, tl.float64)
    else:
        return read(a, at.channel * 0, at.channel, at.there, SLOT, DEFAULT, C)


@helper
def read_along(a, s, start, SLOT: tl.constexpr, DEFAULT: tl.constexpr, C: tl.constexpr):
    """Read the parameters of the positions of a tile of lines, which begins at ``start``.

    Where they are adjacent, all have the same address but for constants.
    """
    CODE: tl.constexpr = (C.vectors >> (3 * SLOT)) & 7
    parameter = (start + tl.arange(0, C.positions)) // C.sharing
    there = parameter < a.sizes.positions // C.sharing
    if C.adjoining and CODE != ABSENT:
        first = pointer(a.at[FIRST_VECTOR + SLOT], CODE) + offset_of(s, a.vectors[SLOT].sets)
        value = tl.load(first + parameter, mask=there, other=DEFAULT)
    else:
        value = read(a, s, parameter, there, SLOT, DEFAULT, C)
    return real(value, C.wide)[:, None]


@helper
def exists(SLOT: tl.constexpr, C: tl.constexpr):
    """Whether there is a vector in this slot, as a constant of the compilation."""
    return ((C.vectors >> (3 * SLOT)) & 7) != ABSENT


@helper
def write(a, s, index, there, value, SLOT: tl.constexpr, C: tl.constexpr):
    """Round and write numbers to a per-channel output, if it is wanted."""
    CODE: tl.constexpr = (C.vectors >> (3 * SLOT)) & 7
    if CODE != ABSENT:
        tl.store(vector_at(a, s, index, SLOT, CODE), rounded(value, CODE), mask=there)


@helper
def write_parameter(a, at, value, SLOT: tl.constexpr, C: tl.constexpr):
    """Round and write numbers to an output of parameters, which all sets share."""
    write(a, at.channel * 0, at.channel, at.there, value, SLOT, C)


@helper
def count_at(a, element, there, C: tl.constexpr):
    """Read elements of the counts, by their row-major index, as float64; 0 outside the mask."""
    place = pointer(a.at[COUNT], C.counts) + offset_of(element, a.counts)
    return tl.load(place, mask=there, other=0).to(tl.float64)
