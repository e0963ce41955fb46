"""Vectors of a fixed number of lanes, whatever the machine's own vectors are.

Loops written in them are vectorised by construction, and which elements are added to which follows
from the number of lanes alone, not from what LLVM thinks of a machine. 32 lanes are one cache line
of a half type, two AVX-512 registers of float32.

``load_lanes`` and ``store_lanes`` convert between a tensor's type and the arithmetic's. Lanes of
bfloat16 stand in an order of their own, the even elements before the odd ones: a pair of them is
one 32-bit word, which two instructions take apart and one puts together, where moving each to a
word of its own takes twice as many. Whatever meets such lanes must stand in the same order:
``as_loaded``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic, models, overload, register_model

from ...memory import LINE
from . import access
from .conversions import F32, F64, I32, I64, bfloat16, narrow, value_type, widen
from .helpers import by_types
from .intrinsics import _access, _promise, _real

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

LANES = access.LANES
HALF = LANES // 2
#: How many sums are added up together.
EIGHT = 8


class Lanes(types.Type):  # type: ignore[misc]
    """A vector of numbers of one real type."""

    def __init__(self, real: Any, count: int = LANES) -> None:
        self.real, self.count = real, count
        super().__init__(f"{count} lanes of {real}")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        element = F64 if fe_type.real == types.float64 else F32
        super().__init__(dmm, fe_type, _vector(element, fe_type.count))


def _vector(element: ir.Type, count: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, count)


def _constants(element: ir.Type, values: Any) -> ir.Constant:
    values = list(values)
    return ir.Constant(_vector(element, len(values)), values)


def _shuffled(builder: Any, first: ir.Value, second: ir.Value, places: Any) -> ir.Value:
    return builder.shuffle_vector(first, second, _constants(I32, places))


def _splat(builder: Any, value: ir.Value, count: int = LANES) -> ir.Value:
    empty = ir.Constant(_vector(value.type, count), ir.Undefined)
    one = builder.insert_element(empty, value, I32(0))
    return _shuffled(builder, one, empty, [0] * count)


def _places(storage: types.Type) -> list[int]:
    """Which element stands in which lane."""
    if storage == bfloat16:
        return [*range(0, LANES, 2), *range(1, LANES, 2)]
    return list(range(LANES))


def _stored_type(context: Any, storage: types.Type) -> ir.Type:
    """The vector that is moved between memory and registers."""
    if storage == bfloat16:
        return _vector(I32, HALF)
    return _vector(context.get_value_type(storage))


def _unpacked(builder: Any, value: ir.Value, storage: types.Type) -> ir.Value:
    """Lanes from a stored vector."""
    if storage != bfloat16:
        return widen(builder, value, storage)
    single = _vector(F32, HALF)
    even = builder.shl(value, _constants(I32, [16] * HALF))
    odd = builder.and_(value, _constants(I32, [-65536] * HALF))
    halves = [builder.bitcast(half, single) for half in (even, odd)]
    return _shuffled(builder, halves[0], halves[1], range(LANES))


def _packed(builder: Any, value: ir.Value, storage: types.Type) -> ir.Value:
    """A vector to store, rounded to nearest even.

    A NaN of bfloat16 arithmetic has zeros where its pattern would be rounded, since every tensor
    and coefficient that goes into it has; so it stays one without being looked for.
    """
    if storage != bfloat16 or value.type.element != F32:
        return narrow(builder, value, storage)
    bits = builder.bitcast(value, _vector(I32))
    even = builder.and_(
        builder.lshr(bits, _constants(I32, [16] * LANES)), _constants(I32, [1] * LANES)
    )
    rounded = builder.add(builder.add(bits, _constants(I32, [0x7FFF] * LANES)), even)
    low, high = (
        _shuffled(builder, rounded, rounded, range(first, first + HALF)) for first in (0, HALF)
    )
    return builder.or_(
        builder.lshr(low, _constants(I32, [16] * HALF)),
        builder.and_(high, _constants(I32, [-65536] * HALF)),
    )


def _first(builder: Any, count: ir.Value, places: Any) -> ir.Value:
    """Which lanes hold one of the first ``count`` elements, of those that stand at the places."""
    order = _constants(I32, places)
    limit = _splat(builder, builder.trunc(count, I32))
    return builder.icmp_signed("<", order, limit)


def _vector_at(builder: Any, pointer: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.bitcast(_access(builder, pointer, index), kind.as_pointer())


def _masked(builder: Any, name: str, result: ir.Type, kind: ir.Type, args: Any) -> ir.Value:
    """A call of llvm.masked.load or llvm.masked.store for vectors of a type."""
    letter = {F32: "f32", F64: "f64"}.get(kind.element, "i16")
    full = f"llvm.masked.{name}.v{kind.count}{letter}.p0"
    function = builder.module.globals.get(full)
    if function is None:
        signature = ir.FunctionType(result, [value.type for value in args])
        function = ir.Function(builder.module, signature, full)
    return builder.call(function, args)


@intrinsic
def zero_lanes(typingctx: Any, dy: Any, x: Any) -> Any:
    """Zeros in the arithmetic's type."""
    real = _real(dy, x)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _constants(context.get_value_type(real), [0.0] * LANES)

    return Lanes(real)(dy, x), codegen


@intrinsic
def half_zeros(typingctx: Any) -> Any:
    """Zeros in half as many lanes of float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _constants(F64, [0.0] * HALF)

    return Lanes(types.float64, HALF)(), codegen


@intrinsic
def splat(typingctx: Any, value: Any) -> Any:
    """A number in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return Lanes(value)(value), codegen


@intrinsic
def splat_like(typingctx: Any, dy: Any, x: Any, value: Any) -> Any:
    """A float64 in every lane, rounded to the arithmetic's type."""
    real = _real(dy, x)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, context.cast(builder, args[2], types.float64, real))

    return Lanes(real)(dy, x, types.float64), codegen


@intrinsic
def load_lanes(typingctx: Any, pointer: Any, index: Any) -> Any:
    """Elements ``index`` and following of a tensor, in the type of arithmetic."""
    storage = pointer.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _stored_type(context, storage)
        value = builder.load(_vector_at(builder, args[0], args[1], kind), align=1)
        _promise(builder, value, reads=True)
        return _unpacked(builder, value, storage)

    return Lanes(value_type(storage))(pointer, types.intp), codegen


@intrinsic
def prefetch_lanes(typingctx: Any, pointer: Any, index: Any) -> Any:
    """Bring elements, which may be beyond the tensor, into the second-level cache."""
    size = {types.float64: 8, types.float32: 4}.get(pointer.dtype, 2)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(8).as_pointer()
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name)
        if function is None:
            types_ = ir.FunctionType(ir.VoidType(), [kind, I32, I32, I32])
            function = ir.Function(builder.module, types_, name)
        read, second_level, data = I32(0), I32(2), I32(1)
        for line in range(0, LANES, LINE // size):
            at = _access(builder, args[0], builder.add(args[1], I64(line)))
            builder.call(function, [builder.bitcast(at, kind), read, second_level, data])
        return context.get_dummy_value()

    return types.void(pointer, types.intp), codegen


@intrinsic
def load_some(typingctx: Any, pointer: Any, index: Any, count: Any) -> Any:
    """The same of the first ``count`` of them, 0 to LANES; 0 for the others, which are not read."""
    storage = pointer.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, index, count = args
        kind = _vector(context.get_value_type(storage))
        mask = _first(builder, count, range(LANES))
        at = _vector_at(builder, pointer, index, kind)
        others = ir.Constant(kind, None)
        value = _masked(builder, "load", kind, kind, [at, I32(1), mask, others])
        _promise(builder, value, reads=True)
        value = builder.bitcast(value, _stored_type(context, storage))
        return _unpacked(builder, value, storage)

    return Lanes(value_type(storage))(pointer, types.intp, types.intp), codegen


@intrinsic
def merge_some(typingctx: Any, pointer: Any, lanes: Any, others: Any, count: Any) -> Any:
    """The lanes of a tensor's first ``count`` elements, and others beyond them."""
    storage = pointer.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, value, others, count = args
        return builder.select(_first(builder, count, _places(storage)), value, others)

    return lanes(pointer, lanes, others, types.intp), codegen


def _storing(past_caches: bool) -> Any:
    def typed(typingctx: Any, pointer: Any, index: Any, lanes: Any) -> Any:
        """Round to a tensor's type and write to elements ``index`` and following."""
        storage = pointer.dtype

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, index, value = args
            value = _packed(builder, value, storage)
            at = _vector_at(builder, target, index, value.type)
            access = builder.store(value, at, align=LINE if past_caches else 1)
            if past_caches:
                access.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))
            return context.get_dummy_value()

        return types.void(pointer, types.intp, lanes), codegen

    return intrinsic(typed)


# What is streamed is written past the caches; its first element must be at a cache line.
_store_lanes, _stream_lanes = _storing(False), _storing(True)


@intrinsic
def _store_some(typingctx: Any, pointer: Any, index: Any, lanes: Any, count: Any) -> Any:
    """The same of the first ``count`` elements, 0 to LANES; the others are not touched."""
    storage = pointer.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, index, value, count = args
        kind = _vector(context.get_value_type(storage))
        value = builder.bitcast(_packed(builder, value, storage), kind)
        at = _vector_at(builder, target, index, kind)
        mask = _first(builder, count, range(LANES))
        _masked(builder, "store", ir.VoidType(), kind, [value, at, I32(1), mask])
        return context.get_dummy_value()

    return types.void(pointer, types.intp, lanes, types.intp), codegen


@intrinsic
def get_lanes(typingctx: Any, pointer: Any, index: Any) -> Any:
    """LANES numbers of scratch memory, as they stand."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _vector(context.get_value_type(pointer.dtype))
        return builder.load(_vector_at(builder, args[0], args[1], kind), align=1)

    return Lanes(pointer.dtype)(pointer, types.intp), codegen


@intrinsic
def put_lanes(typingctx: Any, pointer: Any, index: Any, lanes: Any) -> Any:
    """Write to scratch memory of the same type."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, index, value = args
        builder.store(value, _vector_at(builder, target, index, value.type), align=1)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, lanes), codegen


@intrinsic
def double_lanes(typingctx: Any, lanes: Any) -> Any:
    """The same numbers as float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if lanes.real == types.float64:
            return args[0]
        return builder.fpext(args[0], _vector(F64))

    return Lanes(types.float64)(lanes), codegen


@intrinsic
def single_lanes(typingctx: Any, lanes: Any) -> Any:
    """The same numbers, rounded to float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fptrunc(args[0], _vector(F32))

    return Lanes(types.float32)(lanes), codegen


def _halves(builder: Any, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The lower lanes and the upper ones."""
    half = value.type.count // 2
    low, high = (
        _shuffled(builder, value, value, range(first, first + half)) for first in (0, half)
    )
    return low, high


def _first_halves(builder: Any, lanes: ir.Value) -> ir.Value:
    """Half as many lanes in float64: the halves are added to each other in their own type."""
    value = builder.fadd(*_halves(builder, lanes))
    if value.type.element == F64:
        return value
    return builder.fpext(value, _vector(F64, value.type.count))


@intrinsic
def halves_added(typingctx: Any, lanes: Any) -> Any:
    """Half as many lanes in float64: the two halves are added in their own type.

    It is the last addition in that type: see rows.py for how many the bound has room for.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _first_halves(builder, *args)

    return Lanes(types.float64, lanes.count // 2)(lanes), codegen


@intrinsic
def sum_of_lanes(typingctx: Any, lanes: Any) -> Any:
    """The sum of all lanes in float64: the halves are added to each other, and so on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[0]
        if value.type.element != F64:
            value = _first_halves(builder, value)
        while value.type.count > 1:
            value = builder.fadd(*_halves(builder, value))
        return builder.extract_element(value, I32(0))

    return types.float64(lanes), codegen


@intrinsic
def sums_of_eight(typingctx: Any, pointer: Any) -> Any:
    """Of HALF lanes of float64, eight times, the eight sums, each as ``sum_of_lanes`` has it.

    One alone takes two instructions for each time that it is halved; here they halve two at a time.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _vector(F64, HALF)
        vectors = []
        for i in range(EIGHT):
            at = _vector_at(builder, args[0], I64(i * HALF), kind)
            vectors.append(builder.fadd(*_halves(builder, builder.load(at, align=1))))
        while len(vectors) > 1:
            # Half of what is left of each sum: its lower lanes and its upper ones.
            half = len(vectors) // 2
            low = [lane for lane in range(2 * EIGHT) if lane % (2 * half) < half]
            high = [lane + half for lane in low]
            vectors = [
                builder.fadd(_shuffled(builder, a, b, low), _shuffled(builder, a, b, high))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]

    return Lanes(types.float64, EIGHT)(pointer), codegen


@intrinsic
def sum_and_error_of_lanes(typingctx: Any, lanes: Any) -> Any:
    """The same of float64, and what the roundings left: each addition is a two-sum (Knuth)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[0]
        error = ir.Constant(value.type, [0.0] * value.type.count)
        while value.type.count > 1:
            a, b = _halves(builder, value)
            value = builder.fadd(a, b)
            z = builder.fsub(value, a)
            left = builder.fadd(builder.fsub(a, builder.fsub(value, z)), builder.fsub(b, z))
            error = builder.fadd(builder.fadd(*_halves(builder, error)), left)
        pair = [builder.extract_element(number, I32(0)) for number in (value, error)]
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(types.float64, 2)(lanes), codegen


@intrinsic
def fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        name = f"llvm.fma.v{LANES}{'f64' if kind.element == F64 else 'f32'}"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return builder.call(function, args)

    return a(a, b, c), codegen


@intrinsic
def minus(typingctx: Any, lanes: Any) -> Any:
    """The same numbers with the other sign."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fneg(args[0])

    return lanes(lanes), codegen


@intrinsic
def finite(typingctx: Any, lanes: Any) -> Any:
    """The same numbers, and 0 for those that are infinite or NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        kind = value.type.element
        zeros = _constants(kind, [0.0] * value.type.count)
        # What is not finite less itself is NaN.
        is_finite = builder.fcmp_ordered("==", builder.fsub(value, value), zeros)
        return builder.select(is_finite, value, zeros)

    return lanes(lanes), codegen


@intrinsic
def product(typingctx: Any, a: Any, b: Any) -> Any:
    """a·b, rounded: never contracted with an addition."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(*args)

    return a(a, b), codegen


def _arithmetic(name: str) -> Any:
    def typed(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # NaN and Inf must stay what they are, so neither 'nnan' nor 'ninf'. A multiplication
            # and an addition may become one instruction.
            return getattr(builder, name)(*args, flags=("contract", "nsz"))

        return a(a, b), codegen

    return intrinsic(typed)


def _operator(function: Callable[[Any, Any], Any], name: str) -> None:
    instruction = _arithmetic(name)

    @overload(function)
    def _overload(a, b):
        if isinstance(a, Lanes) and a == b:
            return lambda a, b: instruction(a, b)
        return None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")


def _in_other_order(pointer: Any, lanes: Any, order: Callable[[int], int]) -> Any:
    storage = pointer.dtype
    places = [order(lane) for lane in range(LANES)] if storage == bfloat16 else None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, value = args
        return value if places is None else _shuffled(builder, value, value, places)

    return lanes(pointer, lanes), codegen


@intrinsic
def as_loaded(typingctx: Any, pointer: Any, lanes: Any) -> Any:
    """Numbers that follow each other, in the order in which a tensor's elements are loaded."""
    return _in_other_order(pointer, lanes, lambda lane: lane % HALF * 2 + lane // HALF)


@intrinsic
def in_sequence(typingctx: Any, pointer: Any, lanes: Any) -> Any:
    """The reverse of ``as_loaded``."""
    return _in_other_order(pointer, lanes, lambda lane: lane // 2 + lane % 2 * HALF)


# A part of a row: ``part`` is None for all lanes, or how many elements there are. It is known when
# a kernel is compiled which of the two it is, so one function serves both and neither asks.


@by_types
def load_part(pointer, index, part):
    """``load_lanes`` or ``load_some``."""
    if isinstance(part, types.Integer):
        return lambda pointer, index, part: load_some(pointer, index, part)
    return lambda pointer, index, part: load_lanes(pointer, index)


@by_types
def merge_part(pointer, lanes, others, part):
    """``merge_some``, or the lanes.

    To leave elements out of a sum it is the sum that is merged, not what is added: some processors
    multiply, select and add at once, and round otherwise.
    """
    if isinstance(part, types.Integer):
        return lambda pointer, lanes, others, part: merge_some(pointer, lanes, others, part)
    return lambda pointer, lanes, others, part: lanes


@by_types
def store_part(pointer, index, lanes, part, streaming):
    """Write a part of a row, rounded to the tensor's type; all lanes past the caches if asked."""
    if isinstance(part, types.Integer):
        return lambda pointer, index, lanes, part, streaming: _store_some(
            pointer, index, lanes, part
        )

    def store(pointer, index, lanes, part, streaming):
        if streaming:
            _stream_lanes(pointer, index, lanes)
        else:
            _store_lanes(pointer, index, lanes)

    return store
