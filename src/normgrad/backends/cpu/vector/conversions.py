"""Conversions between the types that tensors have and the types that arithmetic is done in.

They convert single numbers or vectors. float16 is converted by the processor (on x86-64 LLVM emits
vcvtph2ps and vcvtps2ph), bfloat16 by integer arithmetic.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import models, register_model

# mypy: disable-error-code="untyped-decorator"

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


class HalfStorage(types.Type):  # type: ignore[misc]
    """Sixteen bits that hold a float16 or a bfloat16."""


@register_model(HalfStorage)
class _HalfModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, I16)


float16 = HalfStorage("normgrad.float16")
bfloat16 = HalfStorage("normgrad.bfloat16")


def value_type(storage: types.Type) -> types.Type:
    """The type that an element is computed in: float32 for the half types."""
    return types.float32 if isinstance(storage, HalfStorage) else storage


def constant_like(like: ir.Type, element: ir.Type, value: float) -> ir.Constant:
    """A constant of an element type, or a vector of it where ``like`` is a vector."""
    if isinstance(like, ir.VectorType):
        return ir.Constant(ir.VectorType(element, like.count), [value] * like.count)
    return ir.Constant(element, value)


def shaped(like: ir.Type, element: ir.Type) -> ir.Type:
    """An element type, or as long a vector of it as ``like`` is."""
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def element(kind: ir.Type) -> ir.Type:
    """The type of a vector's elements, or of a single number."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def size_of(element: ir.Type) -> int:
    """The size in bytes of a number, or of a vector's element."""
    return {F64: 8, I64: 8, F32: 4, I32: 4}.get(element, 2)


def below_overflow(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """float32 that float16 makes ±65504 of where it would round ±65520 to infinity.

    ±65520 become the numbers of float32 next to them. float16 overflows from 65520 on, and a result
    that is a little smaller may be 65520 in float32: to round that by itself would round twice.
    65504 is also within the bound of a result that is a little larger. bfloat16 is left as it is:
    intermediate values overflow float32 next to where it overflows.
    """
    bits = builder.bitcast(value, shaped(value.type, I32))
    magnitude = builder.and_(bits, constant_like(value.type, I32, 0x7FFFFFFF))
    at_end = builder.icmp_signed("==", magnitude, constant_like(value.type, I32, 0x477FF000))
    return builder.bitcast(builder.add(bits, builder.sext(at_end, bits.type)), value.type)


def widen(builder: ir.IRBuilder, value: ir.Value, storage: types.Type) -> ir.Value:
    """A stored value, or a vector of them, in the type of arithmetic."""
    kind = value.type
    if storage == bfloat16:
        bits = builder.shl(builder.zext(value, shaped(kind, I32)), constant_like(kind, I32, 16))
        return builder.bitcast(bits, shaped(kind, F32))
    if storage == float16:
        return builder.fpext(builder.bitcast(value, shaped(kind, F16)), shaped(kind, F32))
    return value


def _to_float32_odd(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """float64 to float32 rounded to odd, so that rounding once more to a half type is exact.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Transactions on Computers 57(4), 2008.
    """
    kind = value.type
    single, word = shaped(kind, F32), shaped(kind, I32)
    nearest = builder.fptrunc(value, single)
    back = builder.fpext(nearest, kind)
    bits = builder.bitcast(nearest, word)
    magnitude = builder.and_(bits, constant_like(kind, I32, 0x7FFFFFFF))
    inexact = builder.fcmp_ordered("one", back, value)
    long, positive = shaped(kind, I64), constant_like(kind, I64, 0x7FFFFFFFFFFFFFFF)
    over = builder.icmp_unsigned(
        ">",
        builder.and_(builder.bitcast(back, long), positive),
        builder.and_(builder.bitcast(value, long), positive),
    )
    truncated = builder.sub(magnitude, builder.zext(over, word))
    odd = builder.or_(truncated, constant_like(kind, I32, 1))
    # A finite value beyond float32's range becomes its largest number, which is rounded to infinity
    # in the half types.
    sign = builder.and_(bits, constant_like(kind, I32, -0x80000000))
    return builder.bitcast(builder.select(inexact, builder.or_(sign, odd), bits), single)


def to_float16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """float32 that ``below_overflow`` has seen, rounded to the bits of float16, to nearest even."""
    kind = value.type
    return builder.bitcast(builder.fptrunc(value, shaped(kind, F16)), shaped(kind, I16))


def narrow(builder: ir.IRBuilder, value: ir.Value, storage: types.Type) -> ir.Value:
    """Round floats or doubles, one or a vector, to ``storage``; see also ``below_overflow``."""
    kind = value.type
    if storage == types.float64:
        return builder.fpext(value, shaped(kind, F64)) if element(kind) == F32 else value
    if storage == types.float32:
        return builder.fptrunc(value, shaped(kind, F32)) if element(kind) == F64 else value
    if element(kind) == F64:
        value = _to_float32_odd(builder, value)
    if storage == float16:
        return to_float16(builder, below_overflow(builder, value))
    bits = builder.bitcast(value, shaped(kind, I32))
    sixteen = constant_like(kind, I32, 16)
    even = builder.and_(builder.lshr(bits, sixteen), constant_like(kind, I32, 1))
    rounded = builder.add(bits, builder.add(even, constant_like(kind, I32, 0x7FFF)))
    quiet = builder.or_(bits, constant_like(kind, I32, 0x00400000))
    nan = builder.fcmp_unordered("uno", value, value)
    high = builder.lshr(builder.select(nan, quiet, rounded), sixteen)
    return builder.trunc(high, shaped(kind, I16))
