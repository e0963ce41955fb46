"""Accumulators: how sums and moments in the arithmetic's type are folded into sums in float64.

Three kinds of accumulators take sums from the lanes to channels. A *total* is in registers, for
rows. A *batch* holds the totals of up to eight channels, whose lanes are added up together. *Column
sums* are in memory, one for each element of a row.

*Moments* are Σ(x − mean) and Σ(x − mean)². In float64 they are added in lanes, which are in
*vectors* that the processor adds in one go. Moments in float32 are about a pilot, a number
near the mean; ``move_moments`` moves them to another.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..target import halves_vectors
from ..vector.conversions import F32, F64, I32, I64, HalfStorage, narrow, shaped, widen
from ..vector.helpers import Emitter, by_types, helper, instruction
from ..vector.intrinsics import double_buffer, get, not_inlined, shift
from ..vector.lanes import (
    EIGHT,
    HALF,
    LANES,
    Lanes,
    add_lanes,
    concatenated,
    constants,
    double_lanes,
    in_sequence,
    lanes_of,
    llvm_function,
    load_doubles,
    put_lanes,
    shuffled,
    splat_doubles,
    sums_of_eight,
    total_of,
    vector_at,
)
from ..vector.segments import first_of, load_segment, masked, merge_segment
from .sums import add, add_array, sum_of

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The size of a batch of sums in the arithmetic's type, which is twice that of one in float64.
BATCH = EIGHT * LANES


@helper
def add_chains(totals, a, b):
    """Add two chains of two sums each to two totals."""
    return totals[0] + total_of(a[0], b[0]), totals[1] + total_of(a[1], b[1])


@helper
def put_in_batch(batch, i, totals):
    """Put two totals into a batch."""
    put_lanes(batch[0], i * HALF, totals[0])
    put_lanes(batch[1], i * HALF, totals[1])


@helper
def add_batch(batch, n, sums, first, step):
    """Add a batch of n channels to the sums of every ``step``-th channel from ``first`` on."""
    numbers = double_buffer(LANES)
    put_lanes(numbers, 0, sums_of_eight(batch[0]))
    put_lanes(shift(numbers, EIGHT), 0, sums_of_eight(batch[1]))
    for i in range(n):
        add(sums[0], first + i * step, get(numbers, i))
        add(sums[1], first + i * step, get(numbers, EIGHT + i))


@helper
def start_sums(columns, width, tensor):
    """Set two arrays of a tensor's column sums to zero, in whole lanes."""
    for i in range(0, width, lanes_of(tensor)):
        put_lanes(columns[0], i, splat_doubles(tensor, 0.0))
        put_lanes(columns[1], i, splat_doubles(tensor, 0.0))


@helper
def fold(sums, index, lanes):
    """Add lanes to column sums."""
    add_lanes(sums, index, double_lanes(lanes))


@helper
def add_columns(row, channels, run, repeat, sums, first):
    """Add a row of column sums to the sums of their channels, from ``first`` on.

    The row repeats all channels ``repeat`` times, with ``run`` elements of each.
    """
    if run > 1:
        for c in range(channels):
            add(sums, first + c, sum_of(row, c * run, run))
    else:
        while repeat > 1:
            half = (repeat + 1) // 2
            add_array(row, shift(row, half * channels), (repeat - half) * channels)
            repeat = half
        add_array(shift(sums, first), row, channels)


@helper
def order_sums(columns, width, tensor):
    """Bring two arrays of column sums, in the order in which a tensor is loaded, into sequence."""
    not_inlined()
    for i in range(0, width, lanes_of(tensor)):
        put_lanes(columns[0], i, in_sequence(tensor, load_doubles(tensor, columns[0], i)))
        put_lanes(columns[1], i, in_sequence(tensor, load_doubles(tensor, columns[1], i)))


@helper
def gather_sums(columns, first, channels, run, repeat, tensor, sums):
    """Add two arrays of column sums, in the order in which a tensor is loaded, to channels'."""
    not_inlined()
    order_sums(columns, channels * run * repeat, tensor)
    add_columns(columns[0], channels, run, repeat, sums[0], first)
    add_columns(columns[1], channels, run, repeat, sums[1], first)


def _width() -> int:
    """The lanes of a vector of AVX-512, or of AVX2.

    A Zen 4 takes three cycles for four operations on a vector of AVX-512, two on its halves.
    """
    return 4 if halves_vectors() else 8


def _vectors_type(count: int) -> Any:
    return types.UniTuple(Lanes(types.float64, _width()), count)


def _vectors(emit: Emitter, values: Any) -> Any:
    return emit.context.make_tuple(emit.builder, _vectors_type(len(values)), values)


@instruction(lambda lanes: _vectors_type(lanes.count // _width())(lanes))
def split_lanes(emit: Emitter, lanes: Any) -> Any:
    """Lanes of float64, in vectors."""
    starts = range(0, lanes.type.count, _width())
    return _vectors(
        emit, [shuffled(emit.builder, lanes, lanes, range(i, i + _width())) for i in starts]
    )


@instruction(lambda vectors: Lanes(types.float64, len(vectors) * _width())(vectors))
def join_lanes(emit: Emitter, vectors: Any) -> Any:
    """Lanes of float64, out of vectors."""
    return concatenated(emit.builder, cgutils.unpack_tuple(emit.builder, vectors))


@instruction(lambda pointer, index, mean: mean(pointer, types.intp, mean))
def deviations(emit: Emitter, pointer: Any, index: Any, mean: Any) -> Any:
    """x − mean of elements ``index`` and following of float32 or float64 data, in vectors."""
    builder, vectors = emit.builder, []
    element = F64 if emit.types[0].dtype == types.float64 else F32
    for i, about in enumerate(cgutils.unpack_tuple(builder, mean)):
        place = builder.add(index, I64(i * _width()))
        at = vector_at(builder, pointer, place, ir.VectorType(element, _width()))
        value = builder.load(at, align=1)
        if element is F32:
            value = builder.fpext(value, about.type)
        vectors.append(builder.fsub(value, about))
    return _vectors(emit, vectors)


def _accumulate(emit: Emitter, moments: Any, d: list[ir.Value]) -> Any:
    """Add d and d² to the first vectors of moments.

    d is added by a multiplication with 1, which a fence hides from LLVM: processors multiply and
    add elsewhere than they convert and subtract.
    """
    builder, letters = emit.builder, f"v{_width()}f64"
    one = constants(F64, [1.0] * _width())
    one = llvm_function(builder, f"llvm.arithmetic.fence.{letters}", one.type, [one])
    sums = [cgutils.unpack_tuple(builder, each) for each in cgutils.unpack_tuple(builder, moments)]
    for i, value in enumerate(d):
        for vectors, factor in zip(sums, (one, value), strict=True):
            arguments = [value, factor, vectors[i]]
            vectors[i] = llvm_function(builder, f"llvm.fma.{letters}", value.type, arguments)
    kind = types.UniTuple(_vectors_type(len(sums[0])), 2)
    return emit.context.make_tuple(builder, kind, [_vectors(emit, vectors) for vectors in sums])


@instruction(lambda d, moments: moments(d, moments))
def add_deviations(emit: Emitter, d: Any, moments: Any) -> Any:
    """Add d and d², in vectors, to moments."""
    return _accumulate(emit, moments, cgutils.unpack_tuple(emit.builder, d))


@instruction(
    lambda pointer, index, mean, moments, count: moments(
        pointer, types.intp, mean, moments, types.intp
    )
)
def add_eight(emit: Emitter, pointer: Any, index: Any, mean: Any, moments: Any, count: Any) -> Any:
    """Add eight elements of float32 data, or the first ``count`` of them, to moments."""
    builder, kind, vectors = emit.builder, ir.VectorType(F32, EIGHT), []
    mask = first_of(builder, count, range(EIGHT))
    arguments = [vector_at(builder, pointer, index, kind), I32(1), mask, ir.Constant(kind, None)]
    values = masked(builder, "load", kind, kind, arguments)
    about = cgutils.unpack_tuple(builder, mean)
    for i, first in enumerate(range(0, EIGHT, _width())):
        lanes = range(first, first + _width())
        value = builder.fpext(shuffled(builder, values, values, lanes), about[i].type)
        d = builder.fsub(value, about[i])
        is_element = shuffled(builder, mask, mask, lanes)
        vectors.append(builder.select(is_element, d, ir.Constant(d.type, None)))
    return _accumulate(emit, moments, vectors)


@instruction(lambda pointer, index, lanes: types.void(pointer, types.intp, lanes))
def put_halves(emit: Emitter, pointer: Any, index: Any, lanes: Any) -> None:
    """Write the sums of the lower and the upper half of the lanes to scratch memory."""
    builder, vectors = emit.builder, cgutils.unpack_tuple(emit.builder, lanes)
    half = len(vectors) // 2
    for i in range(half):
        at = vector_at(builder, pointer, builder.add(index, I64(i * _width())), vectors[i].type)
        builder.store(builder.fadd(vectors[i], vectors[half + i]), at, align=1)


@helper
def start_moments(x):
    """Moments of a tensor that start at zero."""
    zero = split_lanes(splat_doubles(x, 0.0))
    return zero, zero


@by_types
def add_segment(x, i, mean, moments, segment):
    """Add the moments of a segment of a row about a mean, which is in vectors."""

    def whole(x, i, mean, moments, segment):
        return add_deviations(deviations(x, i, mean), moments)

    def some(x, i, mean, moments, segment):
        d = double_lanes(load_segment(x, i, segment)) - join_lanes(mean)
        return add_deviations(
            split_lanes(merge_segment(x, d, splat_doubles(x, 0.0), segment)), moments
        )

    is_whole = not (isinstance(x.dtype, HalfStorage) or isinstance(segment, types.Integer))
    return whole if is_whole else some


@by_types
def add_end(x, i, mean, moments, count):
    """Add the moments of a row's last elements, about one mean in all lanes."""
    if x.dtype != types.float32:
        return lambda x, i, mean, moments, count: add_segment(x, i, mean, moments, count)

    def by_eights(x, i, mean, moments, count):
        for k in range(0, count, EIGHT):
            moments = add_eight(x, i + k, mean, moments, count - k)
        return moments

    return by_eights


@helper
def put_moments(batch, i, moments):
    """Put moments into a batch."""
    put_halves(batch[0], i * HALF, moments[0])
    put_halves(batch[1], i * HALF, moments[1])


@helper
def move_moments(total, squares, n, away):
    """Moments of n elements about a pilot, from those about one that is greater by ``away``."""
    return total + n * away, squares + away * (total + total + n * away)


@instruction(lambda pointer, value: value(pointer, value))
def nearest_element(emit: Emitter, pointer: Any, value: Any) -> Any:
    """The number that a tensor can have which is nearest to a float64, or lanes of them; or 0.

    The difference of an element and such a number has few bits, and sums of several lose next to
    none.
    """
    builder, storage, kind = emit.builder, emit.types[0].dtype, value.type
    element = value
    if storage != types.float64:
        element = narrow(builder, builder.fptrunc(value, shaped(kind, F32)), storage)
        element = builder.fpext(widen(builder, element, storage), kind)
    # A number minus itself is NaN if it is not finite.
    zero = ir.Constant(kind, None)
    is_finite = builder.fcmp_ordered("==", builder.fsub(element, element), zero)
    return builder.select(is_finite, element, zero)
