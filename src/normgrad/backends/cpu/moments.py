"""Moments in lanes of float64: Σ(x − mean), in float64 arithmetic with its error, and Σ(x − mean)².

Beside float32 data the lanes are in *pieces*, vectors that the processor adds in one go.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .conversions import F32, F64, I32, I64, narrow, shaped, widen
from .helpers import Emitter, by_types, helper, instruction
from .intrinsics import double_buffer, get, put, two_sum
from .lanes import (
    EIGHT,
    HALF,
    LANES,
    Lanes,
    concatenated,
    constants,
    double_lanes,
    fused,
    llvm_function,
    minus,
    put_lanes,
    shuffled,
    splat,
    sum_and_error_of_lanes,
    sum_of_lanes,
    vector_at,
    vector_type,
)
from .pairs import add_pair
from .parts import first_of, load_part, masked, merge_part
from .target import halves_vectors

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


def _piece() -> int:
    """The lanes of a piece: a vector of AVX-512, or of AVX2.

    A Zen 4 takes three cycles for four operations on a vector of AVX-512, two on its halves.
    """
    return 4 if halves_vectors() else 8


def _pieces_type() -> Any:
    return types.UniTuple(Lanes(types.float64, _piece()), LANES // _piece())


def _pieces(emit: Emitter, values: Any) -> Any:
    return emit.context.make_tuple(emit.builder, _pieces_type(), values)


@instruction(lambda lanes: _pieces_type()(lanes))
def in_pieces(emit: Emitter, lanes: Any) -> Any:
    """Lanes of float64, in pieces."""
    starts = range(0, LANES, _piece())
    return _pieces(
        emit, [shuffled(emit.builder, lanes, lanes, range(i, i + _piece())) for i in starts]
    )


@instruction(lambda pieces: Lanes(types.float64)(pieces))
def joined(emit: Emitter, pieces: Any) -> Any:
    """Lanes of float64, out of pieces."""
    return concatenated(emit.builder, cgutils.unpack_tuple(emit.builder, pieces))


@instruction(lambda pointer, index, mean: mean(pointer, types.intp, mean))
def deviations(emit: Emitter, pointer: Any, index: Any, mean: Any) -> Any:
    """x − mean of elements ``index`` and following of float32 data, in pieces."""
    builder, found = emit.builder, []
    for i, about in enumerate(cgutils.unpack_tuple(builder, mean)):
        place = builder.add(index, I64(i * _piece()))
        at = vector_at(builder, pointer, place, vector_type(F32, _piece()))
        value = builder.fpext(builder.load(at, align=1), about.type)
        found.append(builder.fsub(value, about))
    return _pieces(emit, found)


def _with(emit: Emitter, moments: Any, d: list[ir.Value]) -> Any:
    """Moments with d and d² added to their first pieces.

    d is added by a multiplication with 1, which a fence hides from LLVM: processors multiply and
    add elsewhere than they convert and subtract.
    """
    builder, letters = emit.builder, f"v{_piece()}f64"
    one = constants(F64, [1.0] * _piece())
    one = llvm_function(builder, f"llvm.arithmetic.fence.{letters}", one.type, [one])
    sums = [cgutils.unpack_tuple(builder, some) for some in cgutils.unpack_tuple(builder, moments)]
    for i, value in enumerate(d):
        for some, factor in zip(sums, (one, value), strict=True):
            arguments = [value, factor, some[i]]
            some[i] = llvm_function(builder, f"llvm.fma.{letters}", value.type, arguments)
    kind = types.UniTuple(_pieces_type(), 2)
    return emit.context.make_tuple(builder, kind, [_pieces(emit, some) for some in sums])


@instruction(lambda d, moments: moments(d, moments))
def _added(emit: Emitter, d: Any, moments: Any) -> Any:
    """Moments with d and d² added, all of whose pieces are given."""
    return _with(emit, moments, cgutils.unpack_tuple(emit.builder, d))


@instruction(
    lambda pointer, index, points, moments, count: moments(
        pointer, types.intp, points, moments, types.intp
    )
)
def _with_eight(
    emit: Emitter, pointer: Any, index: Any, points: Any, moments: Any, count: Any
) -> Any:
    """Moments of float32 data with eight elements, or the first ``count`` of them, added."""
    builder, kind, found = emit.builder, vector_type(F32, EIGHT), []
    mask = first_of(builder, count, range(EIGHT))
    arguments = [vector_at(builder, pointer, index, kind), I32(1), mask, ir.Constant(kind, None)]
    values = masked(builder, "load", kind, kind, arguments)
    about = cgutils.unpack_tuple(builder, points)
    for i, first in enumerate(range(0, EIGHT, _piece())):
        lanes = range(first, first + _piece())
        value = builder.fpext(shuffled(builder, values, values, lanes), about[i].type)
        d = builder.fsub(value, about[i])
        some = shuffled(builder, mask, mask, lanes)
        found.append(builder.select(some, d, ir.Constant(d.type, None)))
    return _with(emit, moments, found)


@instruction(lambda pointer, index, pieces: types.void(pointer, types.intp, pieces))
def put_halves(emit: Emitter, pointer: Any, index: Any, pieces: Any) -> None:
    """Write the sums of the lower and the upper half of the lanes to scratch memory."""
    builder, vectors = emit.builder, cgutils.unpack_tuple(emit.builder, pieces)
    half = len(vectors) // 2
    for i in range(half):
        at = vector_at(builder, pointer, builder.add(index, I64(i * _piece())), vectors[i].type)
        builder.store(builder.fadd(vectors[i], vectors[half + i]), at, align=1)


@by_types
def start_moments(zero):
    """Moments that start at zero, for data that are added in a type."""
    if zero.real == types.float64:
        return lambda zero: (splat(0.0), splat(0.0), splat(0.0))
    return lambda zero: (in_pieces(splat(0.0)), in_pieces(splat(0.0)))


@by_types
def points_of(zero, mean):
    """What ``add_part`` takes for a mean in lanes of float64."""
    if zero.real == types.float64:
        return lambda zero, mean: mean
    return lambda zero, mean: in_pieces(mean)


@by_types
def add_part(x, i, points, moments, part):
    """Add the moments of a part of a row.

    In float64 arithmetic no rounding error is lost: the mean must be exact enough for elements that
    are far nearer to it than others.
    """

    def compensated(x, i, points, moments, part):
        s, q, e = moments
        d, rest = two_sum(load_part(x, i, part), minus(points))
        none = splat(0.0)
        d, rest = merge_part(x, d, none, part), merge_part(x, rest, none, part)
        total, left = two_sum(s, d)
        return total, fused(d, d, q), e + (left + rest)

    def whole(x, i, points, moments, part):
        return _added(deviations(x, i, points), moments)

    def some(x, i, points, moments, part):
        d = double_lanes(load_part(x, i, part)) - joined(points)
        return _added(in_pieces(merge_part(x, d, splat(0.0), part)), moments)

    if x.dtype == types.float64:
        return compensated
    return whole if x.dtype == types.float32 and not isinstance(part, types.Integer) else some


@by_types
def add_end(x, i, points, moments, count):
    """Add the moments of a row's last elements, about one point in all lanes."""
    if x.dtype != types.float32:
        return lambda x, i, points, moments, count: add_part(x, i, points, moments, count)

    def by_eights(x, i, points, moments, count):
        for k in range(0, count, EIGHT):
            moments = _with_eight(x, i + k, points, moments, count - k)
        return moments

    return by_eights


@by_types
def lanes_of(zero, moments):
    """The moments' lanes: the sum, its error and the sum of squares."""
    if zero.real == types.float64:
        return lambda zero, moments: (moments[0], moments[2], moments[1])
    return lambda zero, moments: (joined(moments[0]), splat(0.0), joined(moments[1]))


@by_types
def keep_moments(zero, kept, i, moments):
    """Keep the moments of float32 data as the i-th of those that are reduced together."""
    if zero.real == types.float64:
        return lambda zero, kept, i, moments: None

    def plain(zero, kept, i, moments):
        put_halves(kept[0], i * HALF, moments[0])
        put_halves(kept[1], i * HALF, moments[1])

    return plain


@by_types
def fold_moments(zero, sums, c, moments):
    """Add moments to channel c's sums."""
    if zero.real == types.float64:

        def compensated(zero, sums, c, moments):
            s, e, squares = lanes_of(zero, moments)
            row = double_buffer(LANES)
            put_lanes(row, 0, s)
            for lane in range(LANES):
                add_pair(sums[0], c, (get(row, lane), 0.0))
            put(sums[0][1], c, get(sums[0][1], c) + sum_of_lanes(e))
            add_pair(sums[1], c, sum_and_error_of_lanes(squares))

        return compensated

    def plain(zero, sums, c, moments):
        s, _, squares = lanes_of(zero, moments)
        add_pair(sums[0], c, (sum_of_lanes(s), 0.0))
        add_pair(sums[1], c, (sum_of_lanes(squares), 0.0))

    return plain


@helper
def moved(total, squares, n, away):
    """Moments of n elements about a point, from those about one that is greater by ``away``."""
    return total + n * away, squares + away * (total + total + n * away)


@instruction(lambda pointer, value: value(pointer, value))
def nearest(emit: Emitter, pointer: Any, value: Any) -> Any:
    """The number that a tensor can have which is nearest to a float64, or lanes of them; or 0.

    The difference of an element and such a number has few bits, and sums of some lose next to none.
    """
    builder, storage, kind = emit.builder, emit.types[0].dtype, value.type
    found = narrow(builder, builder.fptrunc(value, shaped(kind, F32)), storage)
    found = builder.fpext(widen(builder, found, storage), kind)
    # A number minus itself is NaN if it is not finite.
    zero = ir.Constant(kind, None)
    is_finite = builder.fcmp_ordered("==", builder.fsub(found, found), zero)
    return builder.select(is_finite, found, zero)
