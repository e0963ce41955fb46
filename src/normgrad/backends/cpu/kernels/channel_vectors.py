"""Reading and writing per-channel vectors of any dtype, as float64."""

from __future__ import annotations

from math import nan

import numpy as np

from ..schedule import block as B
from ..schedule.layout import DOUBLE_LANES
from ..vector.helpers import helper
from ..vector.intrinsics import (
    as_int64,
    bfloat16s_at,
    double,
    doubles_at,
    float16s_at,
    get,
    int32s_at,
    integers_at,
    load,
    not_inlined,
    put,
    shift,
    singles_at,
    smaller,
    store,
)
from ..vector.lanes import put_lanes, splat

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The number of channels in a strip, which are treated together, in arrays on the stack.
STRIP = 128
#: The size of the buffers that ``spread`` fills with a strip's numbers.
SPREAD = STRIP + DOUBLE_LANES


@helper
def as_arithmetic(block, value):
    """A number rounded to the arithmetic's type."""
    return double(np.float32(value)) if get(block, B.SINGLE) != 0 else value


@helper
def canonical(value):
    """A number; any NaN becomes one that survives rounding to bfloat16 (see lanes.py)."""
    return value if value == value else nan


@helper
def read(address, code, index):
    """Read an element of the dtype with this code, as float64."""
    not_inlined()
    if code == 0:
        return double(get(singles_at(address), index))
    if code == 1:
        return get(doubles_at(address), index)
    if code == 2:
        return double(get(float16s_at(address), index))
    if code == 3:
        return double(get(bfloat16s_at(address), index))
    if code == 4:
        return double(get(int32s_at(address), index))
    return double(get(integers_at(address), index))


@helper
def next_group(group, left, per_group):
    """The next channel's group and the number of its channels left, without a division."""
    if left == 1:
        return group + 1, per_group
    return group, left - 1


@helper
def fill(row, count, value):
    """Set the numbers of all channels to one value."""
    for c in range(count):
        put(row, c, value)


@helper
def spread(numbers, first, count, per_group, row):
    """Give each channel its group's number; a copy is made only if groups have several channels.

    ``row`` has room for a vector after ``count`` numbers, since a group's numbers are written in
    whole vectors. What one writes beyond its group, the next group's numbers overwrite.
    """
    not_inlined()
    if per_group == 1:
        return shift(numbers, first)
    group = first // per_group
    end = per_group - first % per_group
    c = 0
    if end == per_group and per_group <= DOUBLE_LANES:  # a whole group takes one store
        while c < count:
            put_lanes(row, c, splat(get(numbers, group)))
            c, group = c + per_group, group + 1
    while c < count:
        value = splat(get(numbers, group))
        put_lanes(row, c, value)
        for k in range(c + DOUBLE_LANES, smaller(end, count), DOUBLE_LANES):
            put_lanes(row, k, value)
        c, group, end = end, group + 1, end + per_group
    return row


@helper
def offset_along(block, axes, steps, index):
    """The offset along some axes of an index that counts through all their indices.

    ``axes`` is the block's field of the axes' number, which their sizes follow.
    """
    not_inlined()
    offset, sizes = 0, shift(block, axes + 1)
    for axis in range(get(block, axes) - 1, -1, -1):
        size = get(sizes, axis)
        offset += (index % size) * get(steps, axis)
        index //= size
    return offset


@helper
def place_of(block, slot, s, first):
    """The offset of a vector's element ``first``, the vector's stride, and its dtype's code."""
    words = shift(block, B.VECTORS + B.VECTOR_FIELDS * (slot - B.MEAN))
    stride = get(words, B.STRIDE)
    at = s * get(words, B.SET_STRIDE) + first * stride
    if get(block, B.VECTORS_OUTER) != 0:
        index = s * get(words, B.OUTER_SET)
        at += offset_along(block, B.OUTER_RANK, shift(words, B.OUTER_STEPS), index)
    return at, stride, get(words, B.CODE)


@helper
def read_every(source, stride, count, row):
    """Read every ``stride``-th element; adjacent ones in a loop that can be vectorised."""
    if stride == 1:
        for c in range(count):
            store(row, c, canonical(double(load(source, c))))
    else:
        for c in range(count):
            store(row, c, canonical(double(load(source, c * stride))))


@helper
def read_elements(address, code, at, stride, count, row):
    """Read elements of the floating-point dtype with this code, from ``at`` on."""
    not_inlined()
    if code == 0:
        read_every(shift(singles_at(address), at), stride, count, row)
    elif code == 1:
        read_every(shift(doubles_at(address), at), stride, count, row)
    elif code == 2:
        read_every(shift(float16s_at(address), at), stride, count, row)
    else:
        read_every(shift(bfloat16s_at(address), at), stride, count, row)


@helper
def read_statistics(block, slot, s, first, count, otherwise, row):
    """Read a per-channel input from ``first`` on as it is, or a constant if it is absent."""
    not_inlined()
    address = get(block, slot)
    if address == 0:
        fill(row, count, otherwise)
        return
    at, stride, code = place_of(block, slot, s, first)
    read_elements(address, code, at, stride, count, row)


@helper
def read_vector(block, slot, s, first, count, otherwise, row):
    """Read a per-channel input as ``read_statistics``, rounded to the arithmetic's type."""
    not_inlined()
    read_statistics(block, slot, s, first, count, otherwise, row)
    if get(block, B.SINGLE) != 0:
        for c in range(count):
            put(row, c, double(np.float32(get(row, c))))


@helper
def read_parameters(block, slot, first, count, otherwise, row):
    """Read weight or bias, as ``read_vector``.

    Samples that are treated as one repeat them; those along rows may have outer axes.
    """
    outer = get(block, B.VECTORS_OUTER) != 0
    every, c = get(block, B.RUN) if outer else get(block, B.PARAMETERS), 0
    while c < count:
        s = (first + c) // every
        at = first + c - s * every
        n = smaller(count - c, every - at)
        read_vector(block, slot, s if outer else 0, at, n, otherwise, shift(row, c))
        c += n


@helper
def write_every(target, stride, count, numbers):
    """Write numbers to every ``stride``-th element, rounded to its type."""
    if stride == 1:  # a loop that can be vectorised
        for c in range(count):
            store(target, c, load(numbers, c))
    else:
        for c in range(count):
            store(target, c * stride, load(numbers, c))


@helper
def write_vector(block, slot, s, first, count, numbers):
    """Write numbers to a per-channel output from ``first`` on, if wanted."""
    not_inlined()
    address = get(block, slot)
    if address == 0:
        return
    at, stride, code = place_of(block, slot, s, first)
    if code == 0:
        write_every(shift(singles_at(address), at), stride, count, numbers)
    elif code == 1:
        write_every(shift(doubles_at(address), at), stride, count, numbers)
    elif code == 2:
        write_every(shift(float16s_at(address), at), stride, count, numbers)
    else:
        write_every(shift(bfloat16s_at(address), at), stride, count, numbers)


@helper
def write_parameters(block, slot, first, count, numbers):
    """Write numbers to a vector of parameters, which may have outer axes."""
    if get(block, B.VECTORS_OUTER) == 0:
        write_vector(block, slot, as_int64(0), first, count, numbers)
        return
    every, c = get(block, B.RUN), 0
    while c < count:
        s = (first + c) // every
        at = first + c - s * every
        n = smaller(count - c, every - at)
        write_vector(block, slot, s, at, n, shift(numbers, c))
        c += n


@helper
def count_of(block, element):
    """Read an element of ``count``, by its number in row-major order."""
    offset = offset_along(block, B.COUNT_RANK, shift(block, B.COUNT_STRIDES), element)
    return read(get(block, B.COUNT), get(block, B.COUNT_CODE), offset)


@helper
def total_count(block):
    """The sum of all elements of ``count``."""
    total = 0.0
    for element in range(get(block, B.COUNTS)):
        total += count_of(block, element)
    return total
