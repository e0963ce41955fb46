"""Vectors with a fixed number of lanes, whatever the width of the machine's own vectors.

Loops over such vectors are vectorised by construction. Which elements are added to which depends on
the number of lanes alone, and not on LLVM's choices for a machine. A vector of float32 has 32
lanes, which are one cache line of a half type; one of float64 has 8, a cache line too. What is kept
in float64 beside a tensor has as many lanes as the tensor's vectors.

``load_lanes`` and ``store_lanes`` convert between a tensor's type and the arithmetic's. The lanes
of bfloat16 have an order of their own, the even elements before the odd ones. A pair of elements is
one 32-bit word, which two instructions split and one joins; to move each element to a word of its
own takes twice as many. ``as_loaded`` brings other lanes into the same order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import models, register_model
from numba.core.imputils import lower_builtin

from ....support.memory import LINE
from ..schedule import layout
from ..target import has_many_registers, rounds_to_bfloat16
from .conversions import (
    F32,
    F64,
    I16,
    I32,
    I64,
    below_overflow,
    bfloat16,
    float16,
    narrow,
    size_of,
    to_float16,
    value_type,
    widen,
)
from .helpers import Emitter, declare, instruction

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

LANES = layout.LANES
#: The lanes of a total: a sum's float64 that are added to each other at last.
HALF = LANES // 2
#: The number of vectors whose lanes are added up together.
EIGHT = 8


def lanes_in(real: types.Type) -> int:
    """The lanes of a vector of the arithmetic's type."""
    return layout.DOUBLE_LANES if real == types.float64 else LANES


class Lanes(types.Type):  # type: ignore[misc]
    """A vector of numbers of one real type."""

    def __init__(self, real: Any, count: int = 0) -> None:
        self.real, self.count = real, count or lanes_in(real)
        super().__init__(f"{self.count} lanes of {real}")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        element = F64 if fe_type.real == types.float64 else F32
        super().__init__(dmm, fe_type, ir.VectorType(element, fe_type.count))


def constants(element: ir.Type, values: Any) -> ir.Constant:
    """A vector of constants."""
    values = list(values)
    return ir.Constant(ir.VectorType(element, len(values)), values)


def shuffled(builder: Any, first: ir.Value, second: ir.Value, places: Any) -> ir.Value:
    """The elements of two vectors at these places."""
    return builder.shuffle_vector(first, second, constants(I32, places))


def concatenated(builder: Any, vectors: list[ir.Value]) -> ir.Value:
    """The elements of several vectors, whose number is a power of two, in one vector."""
    while len(vectors) > 1:
        places = range(2 * vectors[0].type.count)
        vectors = [
            shuffled(builder, a, b, places)
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def repeated(builder: Any, value: ir.Value, count: int) -> ir.Value:
    """A vector whose elements are all one value."""
    empty = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    one = builder.insert_element(empty, value, I32(0))
    return shuffled(builder, one, empty, [0] * count)


def places_of(storage: types.Type) -> list[int]:
    """The index of the element in each lane."""
    if storage == bfloat16:
        return [*range(0, LANES, 2), *range(1, LANES, 2)]
    return list(range(lanes_in(storage)))


def stored_type(context: Any, storage: types.Type) -> ir.Type:
    """The type of a vector as it is loaded or stored."""
    if storage == bfloat16:
        return ir.VectorType(I32, HALF)
    return ir.VectorType(context.get_value_type(storage), lanes_in(storage))


def unpacked(builder: Any, value: ir.Value, storage: types.Type) -> ir.Value:
    """Lanes from a stored vector."""
    if storage != bfloat16:
        return widen(builder, value, storage)
    single = ir.VectorType(F32, HALF)
    even = builder.shl(value, constants(I32, [16] * HALF))
    odd = builder.and_(value, constants(I32, [-65536] * HALF))
    halves = [builder.bitcast(half, single) for half in (even, odd)]
    return concatenated(builder, halves)


class _Bfloat(ir.Type):  # type: ignore[misc]
    """LLVM's type of bfloat16, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


def _rounded(builder: Any, value: ir.Value) -> ir.Value:
    """Lanes of float32 rounded to bfloat16, to nearest even, as pairs in words.

    NaNs need no test: the low half of a NaN is zero, since it is zero in every bfloat16 tensor and
    coefficient that the NaN may come from; so rounding leaves it a NaN.
    """
    bits = builder.bitcast(value, ir.VectorType(I32, LANES))
    even = builder.and_(
        builder.lshr(bits, constants(I32, [16] * LANES)), constants(I32, [1] * LANES)
    )
    rounded = builder.add(builder.add(bits, constants(I32, [0x7FFF] * LANES)), even)
    low, high = _halves(builder, rounded)
    return builder.or_(
        builder.lshr(low, constants(I32, [16] * HALF)),
        builder.and_(high, constants(I32, [-65536] * HALF)),
    )


def _rounded_by_instruction(builder: Any, value: ir.Value) -> ir.Value:
    """Round as ``_rounded`` does, but by AVX512_BF16's instruction.

    The instruction takes subnormal numbers for zero, so that lanes with one go the other way.
    """
    low, high = _halves(builder, value)
    kind, mask = ir.VectorType(_Bfloat(), LANES), ir.VectorType(ir.IntType(1), HALF)
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    rounded = builder.bitcast(
        llvm_function(builder, name, kind, [high, low]), ir.VectorType(I16, LANES)
    )
    pairs = [lane // 2 + lane % 2 * HALF for lane in range(LANES)]
    rounded = builder.bitcast(shuffled(builder, rounded, rounded, pairs), ir.VectorType(I32, HALF))
    subnormal = I32(0x20)
    tiny = [
        llvm_function(builder, "llvm.x86.avx512.fpclass.ps.512", mask, [half, subnormal])
        for half in (low, high)
    ]
    any_tiny = builder.icmp_unsigned(
        "!=", builder.bitcast(builder.or_(*tiny), I16), ir.Constant(I16, 0)
    )
    before = builder.block
    with builder.if_then(any_tiny, likely=False):
        other, inside = _rounded(builder, value), builder.block
    result = builder.phi(rounded.type)
    result.add_incoming(rounded, before)
    result.add_incoming(other, inside)
    return result


def _below_overflow(builder: Any, value: ir.Value) -> ir.Value:
    """``below_overflow`` of lanes of float32, computed only if one may be as large as 65520.

    One is only if the sum of the squares is as large: that takes half as many instructions.
    """
    count = HALF if has_many_registers() else EIGHT
    parts = [shuffled(builder, value, value, range(i, i + count)) for i in range(0, LANES, count)]
    total = builder.fmul(parts[0], parts[0])
    for part in parts[1:]:
        name = f"llvm.fmuladd.v{count}f32"
        total = llvm_function(builder, name, part.type, [part, part, total])
    large = builder.fcmp_unordered(">=", total, constants(F32, [65520.0**2] * count))
    word = builder.bitcast(large, ir.IntType(count))
    before = builder.block
    with builder.if_then(builder.icmp_unsigned("!=", word, word.type(0)), likely=False):
        other, inside = below_overflow(builder, value), builder.block
    result = builder.phi(value.type)
    result.add_incoming(value, before)
    result.add_incoming(other, inside)
    return result


def packed(builder: Any, value: ir.Value, storage: types.Type, by_words: bool) -> ir.Value:
    """A vector to store, rounded to nearest even; to bfloat16 in words of integers if asked."""
    if storage == float16 and value.type.element == F32:
        return to_float16(builder, _below_overflow(builder, value))
    if storage != bfloat16 or value.type.element != F32:
        return narrow(builder, value, storage)
    if by_words or not rounds_to_bfloat16():
        return _rounded(builder, value)
    return _rounded_by_instruction(builder, value)


def vector_at(builder: Any, pointer: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    """The pointer to a vector that begins at an element."""
    return builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer())


def llvm_function(
    builder: Any, name: str, result: ir.Type, args: Any, flags: tuple[str, ...] = ()
) -> ir.Value:
    """A call of one of LLVM's intrinsic functions, with flags for its arithmetic."""
    function = builder.module.globals.get(name)
    if function is None:
        signature = ir.FunctionType(result, [value.type for value in args])
        function = ir.Function(builder.module, signature, name)
    return builder.call(function, args, fastmath=flags)


@instruction(lambda x: Lanes(value_type(x.dtype))(x))
def zero_lanes(emit: Emitter, x: Any) -> Any:
    """Zeros in a tensor's arithmetic."""
    real = value_type(emit.types[0].dtype)
    return constants(emit.context.get_value_type(real), [0.0] * lanes_in(real))


@instruction(lambda pointer: types.int64(pointer))
def lanes_of(emit: Emitter, pointer: Any) -> Any:
    """The lanes of a vector of a tensor's elements."""
    return I64(lanes_in(emit.types[0].dtype))


@instruction(lambda value: Lanes(value)(value))
def splat(emit: Emitter, value: Any) -> Any:
    """A number in every lane."""
    return repeated(emit.builder, value, lanes_in(emit.types[0]))


@instruction(lambda value: Lanes(value, EIGHT)(value))
def splat_eight(emit: Emitter, value: Any) -> Any:
    """A number in eight lanes."""
    return repeated(emit.builder, value, EIGHT)


@instruction(lambda x, value: Lanes(value_type(x.dtype))(x, types.float64))
def splat_like(emit: Emitter, x: Any, value: Any) -> Any:
    """A float64 in every lane, rounded to a tensor's arithmetic."""
    real = value_type(emit.types[0].dtype)
    value = emit.context.cast(emit.builder, value, types.float64, real)
    return repeated(emit.builder, value, lanes_in(real))


def _doubles(pointer: Any) -> Lanes:
    return Lanes(types.float64, lanes_in(pointer.dtype))


@instruction(lambda pointer, value: _doubles(pointer)(pointer, types.float64))
def splat_doubles(emit: Emitter, pointer: Any, value: Any) -> Any:
    """A float64 in as many lanes as a tensor's vectors have."""
    return repeated(emit.builder, value, lanes_in(emit.types[0].dtype))


@instruction(lambda pointer, sums, index: _doubles(pointer)(pointer, sums, types.intp))
def load_doubles(emit: Emitter, pointer: Any, sums: Any, index: Any) -> Any:
    """As many numbers of scratch memory in float64 as a tensor's vectors have lanes."""
    kind = ir.VectorType(F64, lanes_in(emit.types[0].dtype))
    return emit.builder.load(vector_at(emit.builder, sums, index, kind), align=1)


@instruction(lambda pointer, index: Lanes(value_type(pointer.dtype))(pointer, types.intp))
def load_lanes(emit: Emitter, pointer: Any, index: Any) -> Any:
    """Elements ``index`` and following of a tensor or scratch memory, in the arithmetic's type."""
    storage = emit.types[0].dtype
    at = vector_at(emit.builder, pointer, index, stored_type(emit.context, storage))
    return unpacked(emit.builder, emit.builder.load(at, align=1), storage)


@instruction(lambda pointer, index: types.void(pointer, types.intp))
def prefetch_lanes(emit: Emitter, pointer: Any, index: Any) -> None:
    """Prefetch elements, which may lie beyond the tensor, into the L2 cache."""
    builder = emit.builder
    size = size_of(emit.context.get_value_type(emit.types[0].dtype))
    read, second_level, data = I32(0), I32(2), I32(1)
    for line in range(0, lanes_in(emit.types[0].dtype), LINE // size):
        at = builder.gep(pointer, [builder.add(index, I64(line))])
        at = builder.bitcast(at, ir.IntType(8).as_pointer())
        llvm_function(builder, "llvm.prefetch.p0", ir.VoidType(), [at, read, second_level, data])


@instruction(lambda pointer, index, lanes: types.void(pointer, types.intp, lanes))
def put_lanes(emit: Emitter, pointer: Any, index: Any, lanes: Any) -> None:
    """Write lanes to scratch memory of the same type."""
    at = vector_at(emit.builder, pointer, index, lanes.type)
    emit.builder.store(lanes, at, align=1)


@instruction(lambda pointer, index, lanes: types.void(pointer, types.intp, lanes))
def add_lanes(emit: Emitter, pointer: Any, index: Any, lanes: Any) -> None:
    """Add lanes to scratch memory of the same type."""
    at = vector_at(emit.builder, pointer, index, lanes.type)
    total = emit.builder.fadd(emit.builder.load(at, align=1), lanes)
    emit.builder.store(total, at, align=1)


@instruction(lambda lanes: Lanes(types.float64, lanes.count)(lanes))
def double_lanes(emit: Emitter, lanes: Any) -> Any:
    """The same numbers as float64."""
    return narrow(emit.builder, lanes, types.float64)


@instruction(lambda x, lanes: Lanes(value_type(x.dtype), lanes.count)(x, lanes))
def real_lanes(emit: Emitter, x: Any, lanes: Any) -> Any:
    """Numbers in float64, rounded to a tensor's arithmetic."""
    return narrow(emit.builder, lanes, value_type(emit.types[0].dtype))


def _halves(builder: Any, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The lower half of the lanes and the upper half."""
    half = value.type.count // 2
    low, high = (shuffled(builder, value, value, range(first, first + half)) for first in (0, half))
    return low, high


def _first_halves(builder: Any, lanes: ir.Value) -> ir.Value:
    """Half as many lanes in float64: the sums of the two halves, added in the vector's own type."""
    value = builder.fadd(*_halves(builder, lanes))
    if value.type.element == F64:
        return value
    return builder.fpext(value, ir.VectorType(F64, value.type.count))


@instruction(lambda a, b: Lanes(types.float64, HALF)(a, b))
def total_of(emit: Emitter, a: Any, b: Any) -> Any:
    """Two vectors as a total's lanes: side by side; or their sum's halves, added in their own type.

    This is the last addition in that type; CHAIN in reductions.py tells how many the bound allows.
    """
    if a.type.count < HALF:
        return concatenated(emit.builder, [a, b])
    return _first_halves(emit.builder, emit.builder.fadd(a, b, flags=("nsz",)))


@instruction(lambda lanes: types.float64(lanes))
def sum_of_lanes(emit: Emitter, lanes: Any) -> Any:
    """The sum of all lanes in float64, by adding the halves until one lane is left."""
    if lanes.type.element != F64:
        lanes = _first_halves(emit.builder, lanes)
    while lanes.type.count > 1:
        lanes = emit.builder.fadd(*_halves(emit.builder, lanes))
    return emit.builder.extract_element(lanes, I32(0))


@instruction(lambda batch, i, a, b: types.void(batch, types.intp, a, b))
def put_chains(emit: Emitter, batch: Any, i: Any, a: Any, b: Any) -> None:
    """Put two chains of each sum into a batch, added in their own type; of float64 side by side."""
    builder = emit.builder
    sums = [cgutils.unpack_tuple(builder, each) for each in (batch, a, b)]
    for pointer, first, second in zip(*sums, strict=True):
        total = concatenated(builder, [first, second])
        if total.type.count > HALF:
            total = builder.fadd(first, second)
        at = builder.mul(i, I64(total.type.count))
        builder.store(total, vector_at(builder, pointer, at, total.type), align=1)


@instruction(lambda pointer: Lanes(types.float64, EIGHT)(pointer))
def sums_of_eight(emit: Emitter, pointer: Any) -> Any:
    """The sums of the lanes of eight vectors: totals, or LANES of float32 each.

    Each sum is formed by halving, as in ``sum_of_lanes``, which takes two instructions per step for
    one vector; here one step halves two vectors. float32 is added up in float32.
    """
    builder, storage = emit.builder, emit.types[0].dtype
    count = HALF if storage == types.float64 else LANES
    kind = ir.VectorType(emit.context.get_value_type(storage), count)
    vectors = []
    for i in range(EIGHT):
        lanes = builder.load(vector_at(builder, pointer, I64(i * count), kind), align=1)
        while lanes.type.count > EIGHT:
            lanes = builder.fadd(*_halves(builder, lanes))
        vectors.append(lanes)
    while len(vectors) > 1:
        # Add the lower half of each sum's lanes to the upper half.
        half = len(vectors) // 2
        low = [lane for lane in range(2 * EIGHT) if lane % (2 * half) < half]
        high = [lane + half for lane in low]
        vectors = [
            builder.fadd(shuffled(builder, a, b, low), shuffled(builder, a, b, high))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    if storage == types.float64:
        return vectors[0]
    return builder.fpext(vectors[0], ir.VectorType(F64, EIGHT))


@instruction(lambda a, b, c: a(a, b, c))
def fused(emit: Emitter, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""
    name = f"llvm.fma.v{a.type.count}{'f64' if a.type.element == F64 else 'f32'}"
    return llvm_function(emit.builder, name, a.type, [a, b, c])


def _muladd(builder: Any, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    name = f"llvm.fmuladd.v{a.type.count}{'f64' if a.type.element == F64 else 'f32'}"
    return llvm_function(builder, name, a.type, [a, b, c], ("nsz",))


@instruction(lambda a, b, c: a(a, b, c))
def muladd(emit: Emitter, a: Any, b: Any, c: Any) -> Any:
    """a·b + c: rounded once by processors with an instruction for it, by others twice.

    Kernels say which operations are fused. Were LLVM allowed to contract any of them, it would
    choose by the costs of each processor, and the bits would depend on these.
    """
    return _muladd(emit.builder, a, b, c)


@instruction(lambda a, b, c: a(a, b, c))
def mulsub(emit: Emitter, a: Any, b: Any, c: Any) -> Any:
    """a·b − c, rounded as ``muladd``."""
    return _muladd(emit.builder, a, b, emit.builder.fneg(c))


def _operator(function: Callable[[Any, Any], Any], name: str) -> None:
    def signature(kinds: Any) -> Any:
        alike = len(kinds) == 2 and isinstance(kinds[0], Lanes) and kinds[0] == kinds[1]
        return kinds[0](*kinds) if alike else None

    @lower_builtin(function, Lanes, Lanes)
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # NaN and Inf must be kept, so neither 'nnan' nor 'ninf'.
        return getattr(builder, name)(*args, flags=("nsz",))

    declare(function, signature)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")


@instruction(lambda pointer, lanes: lanes(pointer, lanes))
def as_loaded(emit: Emitter, pointer: Any, lanes: Any) -> Any:
    """Reorder consecutive numbers as ``load_lanes`` orders a tensor's elements."""
    if emit.types[0].dtype != bfloat16:
        return lanes
    return shuffled(emit.builder, lanes, lanes, places_of(emit.types[0].dtype))


@instruction(lambda pointer, lanes: lanes(pointer, lanes))
def in_sequence(emit: Emitter, pointer: Any, lanes: Any) -> Any:
    """The reverse of ``as_loaded``."""
    places = places_of(emit.types[0].dtype)
    return shuffled(emit.builder, lanes, lanes, [places.index(lane) for lane in range(len(places))])
