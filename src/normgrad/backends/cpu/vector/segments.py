"""Segments of a row in memory: whole lanes, or the few elements that a row ends with."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ....support.memory import LINE
from ..target import masks_halves
from .conversions import F32, F64, I32, I64, HalfStorage, size_of, value_type
from .helpers import Emitter, by_types, helper, instruction
from .intrinsics import not_inlined
from .lanes import (
    HALF,
    Lanes,
    constants,
    lanes_in,
    lanes_of,
    llvm_function,
    load_lanes,
    packed,
    places_of,
    repeated,
    shuffled,
    stored_type,
    unpacked,
    vector_at,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


def first_of(builder: Any, count: ir.Value, places: Any) -> ir.Value:
    """A mask of the lanes that hold one of the first ``count`` elements, by ``places``."""
    order = constants(I32, places)
    limit = repeated(builder, builder.trunc(count, I32), len(places))
    return builder.icmp_signed("<", order, limit)


def masked(builder: Any, name: str, result: ir.Type, kind: ir.Type, args: Any) -> ir.Value:
    """A call of llvm.masked.load or llvm.masked.store for vectors of a type."""
    letter = {F32: "f32", F64: "f64", I32: "i32"}.get(kind.element, "i16")
    return llvm_function(builder, f"llvm.masked.{name}.v{kind.count}{letter}.p0", result, args)


def _load_words(builder: Any, at: ir.Value, count: ir.Value) -> ir.Value:
    """The first ``count`` 16-bit elements: pairs of them as 32-bit words, and a last one alone."""
    words, pairs = ir.VectorType(I32, HALF), builder.lshr(count, I64(1))
    mask, none = first_of(builder, pairs, range(HALF)), ir.Constant(words, None)
    source = builder.bitcast(at, words.as_pointer())
    value = masked(builder, "load", words, words, [source, I32(1), mask, none])
    last = builder.load(builder.gep(at, [builder.sub(count, I64(1))]), align=2)
    last = repeated(builder, builder.zext(last, I32), HALF)
    # In an odd count the last element's word comes after the pairs.
    odd = first_of(builder, builder.lshr(builder.add(count, I64(1)), I64(1)), range(HALF))
    return builder.select(mask, value, builder.select(odd, last, none))


def _store_in_powers(builder: Any, at: ir.Value, value: ir.Value, count: ir.Value) -> None:
    """Write the first ``count`` elements of a vector in vectors of half as many each, down to one.

    Rows of a length that stays the same make these branches predictable, and a processor without
    AVX-512 takes longer for a masked store than for all of them.
    """
    size = lanes = value.type.count
    while size > 0:
        segment = shuffled(builder, value, value, range(size))
        has = builder.icmp_unsigned("!=", builder.and_(count, I64(size)), I64(0))
        before = builder.block
        with builder.if_then(has):
            place = builder.bitcast(at, segment.type.as_pointer())
            builder.store(segment, place, align=size_of(segment.type.element))
            further = builder.gep(at, [I64(size)])
            rest = value
            if size < lanes:
                rest = shuffled(builder, value, value, range(size, 2 * size))
            inside = builder.block
        next_at, next_value = builder.phi(at.type), builder.phi(segment.type)
        for source, (place, left) in ((inside, (further, rest)), (before, (at, segment))):
            next_at.add_incoming(place, source)
            next_value.add_incoming(left, source)
        at, value, size = next_at, next_value, size // 2


def _some(pointer: Any, index: Any, count: Any) -> Any:
    return Lanes(value_type(pointer.dtype))(pointer, types.intp, types.intp)


@instruction(_some)
def load_some(emit: Emitter, pointer: Any, index: Any, count: Any) -> Any:
    """As ``load_lanes``, for ``count`` elements, at least 1; the others are 0 and are not read."""
    builder, storage = emit.builder, emit.types[0].dtype
    if isinstance(storage, HalfStorage) and not masks_halves():
        words = _load_words(builder, builder.gep(pointer, [index]), count)
        kind = stored_type(emit.context, storage)
        return unpacked(builder, builder.bitcast(words, kind), storage)
    lanes = lanes_in(storage)
    kind = ir.VectorType(emit.context.get_value_type(storage), lanes)
    at, mask = vector_at(builder, pointer, index, kind), first_of(builder, count, range(lanes))
    others = ir.Constant(kind, None)
    value = masked(builder, "load", kind, kind, [at, I32(1), mask, others])
    return unpacked(builder, builder.bitcast(value, stored_type(emit.context, storage)), storage)


@instruction(lambda pointer, lanes, others, count: lanes(pointer, lanes, others, types.intp))
def merge_some(emit: Emitter, pointer: Any, lanes: Any, others: Any, count: Any) -> Any:
    """Select the lanes of the first ``count`` elements from one vector, the rest from another."""
    mask = first_of(emit.builder, count, places_of(emit.types[0].dtype))
    return emit.builder.select(mask, lanes, others)


def _as_singles(builder: Any, line: ir.Value) -> ir.Value:
    """A cache line as float32, behind inline assembly that hides its true type from LLVM.

    LLVM has no non-temporal store of float16, and silently drops the hint.
    """
    kind = ir.VectorType(F32, LINE // 4)
    name = f"llvm.arithmetic.fence.v{kind.count}f32"
    return llvm_function(builder, name, kind, [builder.bitcast(line, kind)])


def _storing(past_caches: bool, by_words: bool) -> Any:
    @instruction(lambda pointer, index, lanes: types.void(pointer, types.intp, lanes))
    def store_all(emit: Emitter, pointer: Any, index: Any, lanes: Any) -> None:
        """Round to a tensor's type and write to elements ``index`` and following.

        A store past the caches is non-temporal; its first element must begin a cache line.
        """
        value = packed(emit.builder, lanes, emit.types[0].dtype, by_words)
        # Line by line: LLVM would write the last line first, and memory is faster in order.
        count = LINE // size_of(value.type.element)
        for first in range(0, value.type.count, count):
            line = shuffled(emit.builder, value, value, range(first, first + count))
            if past_caches:
                line = _as_singles(emit.builder, line)
            at = emit.builder.bitcast(emit.builder.gep(pointer, [index]), line.type.as_pointer())
            at = emit.builder.gep(at, [I64(first // count)])
            access = emit.builder.store(line, at, align=LINE if past_caches else 1)
            if past_caches:
                access.set_metadata("nontemporal", emit.builder.module.add_metadata([I32(1)]))

    return store_all


@instruction(
    lambda pointer, index, lanes, count: types.void(pointer, types.intp, lanes, types.intp)
)
def _store_some(emit: Emitter, pointer: Any, index: Any, lanes: Any, count: Any) -> None:
    """As ``store_all``, for ``count`` elements, at least 1; the others are not touched."""
    builder, storage = emit.builder, emit.types[0].dtype
    kind = ir.VectorType(emit.context.get_value_type(storage), lanes.type.count)
    value = builder.bitcast(packed(builder, lanes, storage, True), kind)
    if not masks_halves():  # AVX2 masks 32-bit elements, but slowly
        _store_in_powers(builder, builder.gep(pointer, [index]), value, count)
        return
    mask = first_of(builder, count, range(kind.count))
    at = vector_at(builder, pointer, index, kind)
    masked(builder, "store", ir.VoidType(), kind, [value, at, I32(1), mask])


# Segments of a row: ``segment`` is None for all lanes, or the number of elements. A kernel is
# compiled for one of the two, so one function serves both and has no test at run time.


@by_types
def load_segment(pointer, index, segment):
    """``load_lanes`` or ``load_some``."""
    if isinstance(segment, types.Integer):
        return lambda pointer, index, segment: load_some(pointer, index, segment)
    return lambda pointer, index, segment: load_lanes(pointer, index)


@by_types
def merge_segment(pointer, lanes, others, segment):
    """``merge_some``, or the lanes.

    To leave elements out of a sum, merge the sum rather than the terms: some processors multiply,
    select and add in one instruction, which rounds differently.
    """
    if isinstance(segment, types.Integer):
        return lambda pointer, lanes, others, segment: merge_some(pointer, lanes, others, segment)
    return lambda pointer, lanes, others, segment: lanes


def _storing_segment(by_words: bool) -> Any:
    store_lanes, stream_lanes = _storing(False, by_words), _storing(True, by_words)

    @by_types
    def store_segment(pointer, index, lanes, segment, streaming):
        """Write a segment of a row, rounded to the tensor's type; past the caches if asked."""
        if isinstance(segment, types.Integer):
            return lambda pointer, index, lanes, segment, streaming: _store_some(
                pointer, index, lanes, segment
            )

        def store(pointer, index, lanes, segment, streaming):
            if streaming:
                stream_lanes(pointer, index, lanes)
            else:
                store_lanes(pointer, index, lanes)

        return store

    return store_segment


# The second rounds to bfloat16 by integers, on any processor: it has no branch.
store_segment, store_segment_by_words = _storing_segment(False), _storing_segment(True)


@helper
def over_row(segment_of_row, arguments, tensor, width):
    """Call a function for each segment of a tensor's row."""
    not_inlined()
    lanes = lanes_of(tensor)
    whole = width // lanes * lanes
    for c in range(0, whole, lanes):
        segment_of_row(arguments, c, None)
    if whole < width:
        segment_of_row(arguments, whole, width - whole)
