"""What Numba lacks: typed pointers, the half types, and loads that do not alias stores.

A kernel sees a tensor as a typed pointer. ``load`` converts to the type arithmetic is done in,
``store`` rounds to the tensor's type, to nearest even.

``load`` and ``store`` carry metadata that says a load never sees an element that a store of
another element wrote. That is what the operators promise (an output is either a tensor of its own
or the very same memory as an input), and without it LLVM tests up to seven ranges for overlap
before each loop, and runs in-place calls one element at a time. Scratch memory, which is written
and read back, goes through ``get`` and ``put``, which promise nothing.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from ...memory import LINE
from .conversions import F64, I32, I64, bfloat16, float16, narrow, value_type, widen
from .helpers import helper

# mypy: disable-error-code="untyped-decorator"

#: The pointers that kernels take, by the code of :class:`normgrad.dtypes.DType`.
POINTERS = {
    0: types.CPointer(types.float32),
    1: types.CPointer(types.float64),
    2: types.CPointer(float16),
    3: types.CPointer(bfloat16),
}
INT_POINTER = types.CPointer(types.int64)
DOUBLE_POINTER = types.CPointer(types.float64)


def _real(*pointers: types.Type) -> types.Type:
    """The arithmetic's type: float64 as soon as one tensor is."""
    return types.float64 if any(p.dtype == types.float64 for p in pointers) else types.float32


def _promise(builder: ir.IRBuilder, access: ir.Instruction, reads: bool) -> None:
    module = builder.module
    domain = module.add_metadata([ir.MetaDataString(module, "normgrad")])
    read, write = (
        module.add_metadata([module.add_metadata([ir.MetaDataString(module, name), domain])])
        for name in ("reads", "writes")
    )
    access.set_metadata("alias.scope", read if reads else write)
    access.set_metadata("noalias", write if reads else read)


def _access(builder: ir.IRBuilder, pointer: ir.Value, index: ir.Value) -> ir.Value:
    return builder.gep(pointer, [index])


@intrinsic
def load(typingctx: Any, pointer: Any, index: Any) -> Any:
    """Element ``index`` of a tensor, in the type of arithmetic."""
    storage = pointer.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_access(builder, *args), align=1)
        _promise(builder, value, reads=True)
        return widen(builder, value, storage)

    return value_type(storage)(pointer, types.intp), codegen


@intrinsic
def store(typingctx: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Round ``value`` to the tensor's type and write it to element ``index``."""
    storage = pointer.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, position, number = args
        access = builder.store(
            narrow(builder, number, storage), _access(builder, target, position), align=1
        )
        _promise(builder, access, reads=False)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, value), codegen


@intrinsic
def item_size(typingctx: Any, pointer: Any) -> Any:
    """The size of an element in bytes."""
    size = {types.float64: 8, types.float32: 4}.get(pointer.dtype, 2)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return I64(size)

    return types.int64(pointer), codegen


@intrinsic
def get(typingctx: Any, pointer: Any, index: Any) -> Any:
    """Element ``index`` of scratch memory."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return widen(builder, builder.load(_access(builder, *args), align=1), pointer.dtype)

    return value_type(pointer.dtype)(pointer, types.intp), codegen


@intrinsic
def put(typingctx: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Write to scratch memory, rounding to its type."""
    storage = pointer.dtype
    if isinstance(storage, types.Integer):
        value = storage

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, position, number = args
        if not isinstance(storage, types.Integer):
            number = narrow(builder, number, storage)
        builder.store(number, _access(builder, target, position), align=1)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, value), codegen


@intrinsic
def shift(typingctx: Any, pointer: Any, count: Any) -> Any:
    """The pointer ``count`` elements on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _access(builder, *args)

    return pointer(pointer, types.intp), codegen


@intrinsic
def address_of(typingctx: Any, pointer: Any) -> Any:
    """The pointer as an integer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], I64)

    return types.int64(pointer), codegen


def _cast_to(storage: types.Type) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.CPointer(storage)))

    return codegen


def _pointer_at(storage: types.Type) -> Any:
    def typed(typingctx: Any, address: Any) -> Any:
        """A pointer to numbers of a type at an address."""
        return types.CPointer(storage)(types.int64), _cast_to(storage)

    return intrinsic(typed)


singles_at, doubles_at = _pointer_at(types.float32), _pointer_at(types.float64)
float16s_at, bfloat16s_at = _pointer_at(float16), _pointer_at(bfloat16)
int32s_at, integers_at = _pointer_at(types.int32), _pointer_at(types.int64)


@intrinsic
def like(typingctx: Any, address: Any, pointer: Any) -> Any:
    """A pointer of the same type at another address."""
    return pointer(types.int64, pointer), _cast_to(pointer.dtype)


@intrinsic
def real_of(typingctx: Any, dy: Any, x: Any) -> Any:
    """A null pointer to the type dy and x are computed in: it stands for that type."""
    pointer = types.CPointer(_real(dy, x))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant_null(pointer)

    return pointer(dy, x), codegen


def _on_stack(builder: ir.IRBuilder, element: ir.Type, count: int) -> ir.Value:
    """An uninitialised array in the function's frame. (Numba's own helper fills it with zeros, by
    an instruction that LLVM takes half a minute to compile.)"""
    with builder.goto_entry_block():
        array = builder.alloca(ir.ArrayType(element, count))
    array.align = LINE
    return builder.gep(array, [I32(0), I32(0)])


@intrinsic(prefer_literal=True)
def real_buffer(typingctx: Any, count: Any, dy: Any, x: Any) -> Any:
    """An array of the arithmetic's type on the stack, 64-byte aligned; ``count`` is a literal."""
    real = _real(dy, x)
    size = count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _on_stack(builder, context.get_value_type(real), size)

    return types.CPointer(real)(count, dy, x), codegen


def _buffer(storage: types.Type, pair: bool = False) -> Any:
    pointer = types.CPointer(storage)
    arrays = types.UniTuple(pointer, 2)

    def typed(typingctx: Any, count: Any) -> Any:
        """One array of a type on the stack, or two, 64-byte aligned; ``count`` is a literal."""
        size = count.literal_value

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            element = context.get_value_type(storage)
            first = _on_stack(builder, element, size)
            if not pair:
                return first
            return context.make_tuple(builder, arrays, (first, _on_stack(builder, element, size)))

        return (arrays if pair else pointer)(count), codegen

    return intrinsic(prefer_literal=True)(typed)


double_buffer, int_buffer = _buffer(types.float64), _buffer(types.int64)
#: Numbers and their errors (see pairs.py).
pairs_buffer = _buffer(types.float64, pair=True)


@intrinsic
def double(typingctx: Any, value: Any) -> Any:
    """A number as float64. (Numba's own float() leaves a float32 as it is.)"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[0], value, types.float64)

    return types.float64(value), codegen


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c in float64, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def inlined(typingctx: Any) -> Any:
    """Copy the function this stands in to where it is called: its result stays in registers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("alwaysinline")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def not_inlined(typingctx: Any) -> Any:
    """Keep the function this stands in out of its callers.

    LLVM would copy large loops into every place they are called from, and compiling takes as long
    as there are copies.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def bits_to_double(typingctx: Any, bits: Any) -> Any:
    """The float64 whose bits these are."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], F64)

    return types.float64(types.int64), codegen


@intrinsic
def plain(typingctx: Any, value: Any) -> Any:
    """A constant as any integer: a function is compiled anew for each constant it is given."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[0], value, types.int64)

    return types.int64(value), codegen


@helper
def two_sum(a, b):  # type: ignore[no-untyped-def]
    """a + b as a rounded sum and its exact error (Knuth). Never with reassociation."""
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)
