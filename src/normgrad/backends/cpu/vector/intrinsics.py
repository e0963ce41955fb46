"""Instructions that Numba lacks: typed pointers, half types, and loads that do not alias stores.

A kernel takes a tensor as a typed pointer. ``load`` converts to the arithmetic's type, ``store``
rounds to the tensor's type, to nearest even.

The metadata of ``load`` and ``store`` say that a load never reads an element that a store of
another element wrote. The operators guarantee it: an output is either a tensor of its own or the
very memory of an input. Without it LLVM tests ranges for overlap before each loop that it
vectorises. Memory that is written and read back goes through ``get`` and ``put``, without such
metadata.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ....support.memory import LINE
from .conversions import F64, I32, I64, bfloat16, float16, narrow, size_of, value_type, widen
from .helpers import Emitter, by_types, instruction

# mypy: disable-error-code="untyped-decorator"

#: The pointers that kernels take, by the code of :class:`normgrad.tensors.dtypes.DType`.
POINTERS = {
    0: types.CPointer(types.float32),
    1: types.CPointer(types.float64),
    2: types.CPointer(float16),
    3: types.CPointer(bfloat16),
}
INT_POINTER = types.CPointer(types.int64)


@by_types
def is_double(pointer):  # type: ignore[no-untyped-def]
    """Whether a pointer's elements are float64."""
    double = pointer.dtype == types.float64
    return lambda pointer: double


def _promise(builder: ir.IRBuilder, access: ir.Instruction, reads: bool) -> None:
    module = builder.module
    domain = module.add_metadata([ir.MetaDataString(module, "normgrad")])
    read, write = (
        module.add_metadata([module.add_metadata([ir.MetaDataString(module, name), domain])])
        for name in ("reads", "writes")
    )
    access.set_metadata("alias.scope", read if reads else write)
    access.set_metadata("noalias", write if reads else read)


@instruction(lambda pointer, index: value_type(pointer.dtype)(pointer, types.intp))
def load(emit: Emitter, pointer: Any, index: Any) -> Any:
    """Read element ``index`` of a tensor, in the arithmetic's type."""
    value = emit.builder.load(emit.builder.gep(pointer, [index]), align=1)
    _promise(emit.builder, value, reads=True)
    return widen(emit.builder, value, emit.types[0].dtype)


@instruction(lambda pointer, index, value: types.void(pointer, types.intp, value))
def store(emit: Emitter, pointer: Any, index: Any, value: Any) -> None:
    """Round ``value`` to the tensor's type and write it to element ``index``."""
    value = narrow(emit.builder, value, emit.types[0].dtype)
    access = emit.builder.store(value, emit.builder.gep(pointer, [index]), align=1)
    _promise(emit.builder, access, reads=False)


@instruction(lambda pointer: types.int64(pointer))
def item_size(emit: Emitter, pointer: Any) -> Any:
    """The size of an element in bytes."""
    return I64(size_of(emit.context.get_value_type(emit.types[0].dtype)))


@instruction(lambda pointer, index: value_type(pointer.dtype)(pointer, types.intp))
def get(emit: Emitter, pointer: Any, index: Any) -> Any:
    """Read element ``index`` of scratch memory."""
    value = emit.builder.load(emit.builder.gep(pointer, [index]), align=1)
    return widen(emit.builder, value, emit.types[0].dtype)


def _put(pointer: Any, index: Any, value: Any) -> Any:
    whole = isinstance(pointer.dtype, types.Integer)
    return types.void(pointer, types.intp, pointer.dtype if whole else value)


@instruction(_put)
def put(emit: Emitter, pointer: Any, index: Any, value: Any) -> None:
    """Write to scratch memory, rounding to its type."""
    storage = emit.types[0].dtype
    if not isinstance(storage, types.Integer):
        value = narrow(emit.builder, value, storage)
    emit.builder.store(value, emit.builder.gep(pointer, [index]), align=1)


@instruction(lambda pointer, count: pointer(pointer, types.intp))
def shift(emit: Emitter, pointer: Any, count: Any) -> Any:
    """The pointer ``count`` elements on."""
    return emit.builder.gep(pointer, [count])


@instruction(lambda pointer: types.int64(pointer))
def address_of(emit: Emitter, pointer: Any) -> Any:
    """The pointer as an integer."""
    return emit.builder.ptrtoint(pointer, I64)


def _pointer_at(storage: types.Type) -> Any:
    @instruction(lambda address: types.CPointer(storage)(types.int64))
    def at(emit: Emitter, address: Any) -> Any:
        """A pointer to numbers of a type at an address."""
        return emit.builder.inttoptr(address, emit.context.get_value_type(types.CPointer(storage)))

    return at


singles_at, doubles_at = _pointer_at(types.float32), _pointer_at(types.float64)
float16s_at, bfloat16s_at = _pointer_at(float16), _pointer_at(bfloat16)
int32s_at, integers_at = _pointer_at(types.int32), _pointer_at(types.int64)


@instruction(lambda address, index: types.int64(types.int64, types.intp))
def word(emit: Emitter, address: Any, index: Any) -> Any:
    """Read an integer at an address, in a table or an object's structure."""
    words = emit.builder.inttoptr(address, I64.as_pointer())
    return emit.builder.load(emit.builder.gep(words, [index]), align=1)


@instruction(lambda address, value: types.int64(types.int64, types.int64))
def fetch_add(emit: Emitter, address: Any, value: Any) -> Any:
    """Add to a word at an address and return what it was, at once for all threads."""
    words = emit.builder.inttoptr(address, I64.as_pointer())
    return emit.builder.atomic_rmw("add", words, value, "seq_cst")


@instruction(lambda address, x: types.CPointer(value_type(x.dtype))(types.int64, x))
def reals_at(emit: Emitter, address: Any, x: Any) -> Any:
    """A pointer to numbers of a tensor's arithmetic at an address."""
    kind = types.CPointer(value_type(emit.types[1].dtype))
    return emit.builder.inttoptr(address, emit.context.get_value_type(kind))


def _on_stack(emit: Emitter, storage: types.Type, count: int) -> ir.Value:
    """An uninitialised array in the function's frame. (Numba's own helper fills it with zeros by an
    instruction that takes LLVM half a minute to compile.)"""
    with emit.builder.goto_entry_block():
        kind = ir.ArrayType(emit.context.get_value_type(storage), count)
        array = emit.builder.alloca(kind)
    array.align = LINE
    return emit.builder.gep(array, [I32(0), I32(0)])


@instruction(lambda count, x: types.CPointer(value_type(x.dtype))(count, x), literal=True)
def real_buffer(emit: Emitter, count: Any, x: Any) -> Any:
    """An array for a tensor's arithmetic on the stack, 64-byte aligned; ``count`` is a literal."""
    return _on_stack(emit, value_type(emit.types[1].dtype), emit.types[0].literal_value)


def _buffer(storage: types.Type) -> Any:
    @instruction(lambda count: types.CPointer(storage)(count), literal=True)
    def buffer(emit: Emitter, count: Any) -> Any:
        """An array of numbers of a type on the stack, 64-byte aligned; ``count`` is a literal."""
        return _on_stack(emit, storage, emit.types[0].literal_value)

    return buffer


double_buffer, int_buffer = _buffer(types.float64), _buffer(types.int64)


@instruction(lambda value: types.float64(value))
def double(emit: Emitter, value: Any) -> Any:
    """A number as float64. (Numba's own float() leaves a float32 as it is.)"""
    return emit.context.cast(emit.builder, value, emit.types[0], types.float64)


@instruction(lambda a, b, c: types.float64(types.float64, types.float64, types.float64))
def fma(emit: Emitter, a: Any, b: Any, c: Any) -> Any:
    """a·b + c in float64, rounded once."""
    return emit.builder.fma(a, b, c)


@instruction(lambda: types.void())
def inlined(emit: Emitter) -> None:
    """Inline the function that calls this, so that its result stays in registers."""
    emit.builder.function.attributes.add("alwaysinline")


@instruction(lambda: types.void())
def not_inlined(emit: Emitter) -> None:
    """Never inline the function that calls this.

    LLVM would copy large loops to every call, and the time to compile grows with the copies.
    """
    emit.builder.function.attributes.add("noinline")


@instruction(lambda bits: types.float64(types.int64))
def bits_to_double(emit: Emitter, bits: Any) -> Any:
    """The float64 whose bits these are."""
    return emit.builder.bitcast(bits, F64)


@instruction(lambda value: types.int64(value))
def as_int64(emit: Emitter, value: Any) -> Any:
    """A constant as no literal: a function is compiled anew for each literal argument."""
    return emit.context.cast(emit.builder, value, emit.types[0], types.int64)


def _selecting(sign: str) -> Any:
    @instruction(lambda a, b: types.int64(types.int64, types.int64))
    def choose(emit: Emitter, a: Any, b: Any) -> Any:
        """The smaller or the larger of two integers. (Numba's own min and max are functions, which
        are compiled by themselves.)"""
        return emit.builder.select(emit.builder.icmp_signed(sign, a, b), a, b)

    return choose


smaller, larger = _selecting("<"), _selecting(">")


@instruction(lambda function, arguments: types.int64(types.int64, arguments))
def call(emit: Emitter, function: Any, arguments: Any) -> Any:
    """Call a C function at an address; returns its int, if it has a result.

    The arguments, a tuple, are integers and pointers, which are passed alike. (An operation, the
    first argument of kernels, is only a type: 0 stands for it.)
    """
    builder = emit.builder
    words = [
        builder.ptrtoint(value, I64) if isinstance(value.type, ir.PointerType) else value
        for value in cgutils.unpack_tuple(builder, arguments)
    ]
    kind = ir.FunctionType(I32, [I64] * len(words))
    return builder.sext(builder.call(builder.inttoptr(function, kind.as_pointer()), words), I64)
