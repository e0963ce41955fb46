"""Moments: Σ(x − mean), in float64 arithmetic with its error, and Σ(x − mean)².

In float64 they are added in lanes; beside float32 data the lanes are in *pieces*, vectors that the
processor adds in one go. Moments in float32 are about a pilot, a number near the mean;
``move_moments`` moves them to another.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .accumulate import sum_of_total
from .conversions import F32, F64, I32, I64, narrow, shaped, widen
from .helpers import Emitter, by_types, helper, instruction
from .intrinsics import two_sum
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
    shuffled,
    splat,
    sum_and_error_of_lanes,
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
def split_lanes(emit: Emitter, lanes: Any) -> Any:
    """Lanes of float64, in pieces."""
    starts = range(0, LANES, _piece())
    return _pieces(
        emit, [shuffled(emit.builder, lanes, lanes, range(i, i + _piece())) for i in starts]
    )


@instruction(lambda pieces: Lanes(types.float64)(pieces))
def join_pieces(emit: Emitter, pieces: Any) -> Any:
    """Lanes of float64, out of pieces."""
    return concatenated(emit.builder, cgutils.unpack_tuple(emit.builder, pieces))


@instruction(lambda pointer, index, mean: mean(pointer, types.intp, mean))
def deviations(emit: Emitter, pointer: Any, index: Any, mean: Any) -> Any:
    """x − mean of elements ``index`` and following of float32 data, in pieces."""
    builder, pieces = emit.builder, []
    for i, about in enumerate(cgutils.unpack_tuple(builder, mean)):
        place = builder.add(index, I64(i * _piece()))
        at = vector_at(builder, pointer, place, vector_type(F32, _piece()))
        value = builder.fpext(builder.load(at, align=1), about.type)
        pieces.append(builder.fsub(value, about))
    return _pieces(emit, pieces)


def _accumulate(emit: Emitter, moments: Any, d: list[ir.Value]) -> Any:
    """Add d and d² to the first pieces of moments.

    d is added by a multiplication with 1, which a fence hides from LLVM: processors multiply and
    add elsewhere than they convert and subtract.
    """
    builder, letters = emit.builder, f"v{_piece()}f64"
    one = constants(F64, [1.0] * _piece())
    one = llvm_function(builder, f"llvm.arithmetic.fence.{letters}", one.type, [one])
    sums = [cgutils.unpack_tuple(builder, each) for each in cgutils.unpack_tuple(builder, moments)]
    for i, value in enumerate(d):
        for pieces, factor in zip(sums, (one, value), strict=True):
            arguments = [value, factor, pieces[i]]
            pieces[i] = llvm_function(builder, f"llvm.fma.{letters}", value.type, arguments)
    kind = types.UniTuple(_pieces_type(), 2)
    return emit.context.make_tuple(builder, kind, [_pieces(emit, pieces) for pieces in sums])


@instruction(lambda d, moments: moments(d, moments))
def add_deviations(emit: Emitter, d: Any, moments: Any) -> Any:
    """Add d and d², in pieces, to moments."""
    return _accumulate(emit, moments, cgutils.unpack_tuple(emit.builder, d))


@instruction(
    lambda pointer, index, mean, moments, count: moments(
        pointer, types.intp, mean, moments, types.intp
    )
)
def add_eight(emit: Emitter, pointer: Any, index: Any, mean: Any, moments: Any, count: Any) -> Any:
    """Add eight elements of float32 data, or the first ``count`` of them, to moments."""
    builder, kind, pieces = emit.builder, vector_type(F32, EIGHT), []
    mask = first_of(builder, count, range(EIGHT))
    arguments = [vector_at(builder, pointer, index, kind), I32(1), mask, ir.Constant(kind, None)]
    values = masked(builder, "load", kind, kind, arguments)
    about = cgutils.unpack_tuple(builder, mean)
    for i, first in enumerate(range(0, EIGHT, _piece())):
        lanes = range(first, first + _piece())
        value = builder.fpext(shuffled(builder, values, values, lanes), about[i].type)
        d = builder.fsub(value, about[i])
        is_element = shuffled(builder, mask, mask, lanes)
        pieces.append(builder.select(is_element, d, ir.Constant(d.type, None)))
    return _accumulate(emit, moments, pieces)


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
    return lambda zero: (split_lanes(splat(0.0)), split_lanes(splat(0.0)))


@by_types
def in_pieces(zero, mean):
    """A mean in lanes of float64 as ``add_part`` takes it: in pieces, but for float64 data."""
    if zero.real == types.float64:
        return lambda zero, mean: mean
    return lambda zero, mean: split_lanes(mean)


@by_types
def add_part(x, i, mean, moments, part):
    """Add the moments of a part of a row.

    In float64 arithmetic no rounding error is lost: the mean must be exact enough for elements that
    are far nearer to it than others.
    """

    def compensated(x, i, mean, moments, part):
        s, q, e = moments
        d, rest = two_sum(load_part(x, i, part), minus(mean))
        none = splat(0.0)
        d, rest = merge_part(x, d, none, part), merge_part(x, rest, none, part)
        total, left = two_sum(s, d)
        return total, fused(d, d, q), e + (left + rest)

    def whole(x, i, mean, moments, part):
        return add_deviations(deviations(x, i, mean), moments)

    def single(x, i, mean, moments, part):
        d = double_lanes(load_part(x, i, part)) - join_pieces(mean)
        return add_deviations(split_lanes(merge_part(x, d, splat(0.0), part)), moments)

    if x.dtype == types.float64:
        return compensated
    return whole if x.dtype == types.float32 and not isinstance(part, types.Integer) else single


@by_types
def add_end(x, i, mean, moments, count):
    """Add the moments of a row's last elements, about one mean in all lanes."""
    if x.dtype != types.float32:
        return lambda x, i, mean, moments, count: add_part(x, i, mean, moments, count)

    def by_eights(x, i, mean, moments, count):
        for k in range(0, count, EIGHT):
            moments = add_eight(x, i + k, mean, moments, count - k)
        return moments

    return by_eights


@by_types
def lanes_of(zero, moments):
    """The moments' lanes: the sum, its error and the sum of squares."""
    if zero.real == types.float64:
        return lambda zero, moments: (moments[0], moments[2], moments[1])
    return lambda zero, moments: (join_pieces(moments[0]), splat(0.0), join_pieces(moments[1]))


@by_types
def put_moments(zero, batch, i, moments, sums, c):
    """Put the moments of channel c into a batch.

    Those of float64 data are added to the channel's sums now, with their errors.
    """
    if zero.real == types.float64:

        def compensated(zero, batch, i, moments, sums, c):
            total, error, squares = lanes_of(zero, moments)
            add_pair(sums[0], c, sum_of_total((total, error)))
            add_pair(sums[1], c, sum_and_error_of_lanes(squares))

        return compensated

    def single(zero, batch, i, moments, sums, c):
        put_halves(batch[0], i * HALF, moments[0])
        put_halves(batch[1], i * HALF, moments[1])

    return single


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
    element = narrow(builder, builder.fptrunc(value, shaped(kind, F32)), storage)
    element = builder.fpext(widen(builder, element, storage), kind)
    # A number minus itself is NaN if it is not finite.
    zero = ir.Constant(kind, None)
    is_finite = builder.fcmp_ordered("==", builder.fsub(element, element), zero)
    return builder.select(is_finite, element, zero)
