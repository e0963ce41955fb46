"""Calls through addresses: kernels, what copies tiles, and functions of the system's libraries."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from .conversions import I32, I64

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@intrinsic
def call_kernel(
    typingctx: Any, kernel: Any, block: Any, s: Any, c0: Any, channels: Any, first: Any, last: Any,
    part: Any,
) -> Any:  # fmt: skip
    """Call the kernel at an address: void(pattern, dy, x, dx, block, s, c0, …).

    The first three words of the block are the addresses of dy, x and dx; the pattern is only a
    type, its value nothing.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kernel, block, *numbers = args
        pointer = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [pointer] * 5 + [I64] * 6)
        data = [
            builder.inttoptr(builder.load(builder.gep(block, [I64(i)])), pointer) for i in range(3)
        ]
        builder.call(
            builder.inttoptr(kernel, function.as_pointer()),
            [ir.Constant(pointer, None), *data, builder.bitcast(block, pointer), *numbers],
        )
        return context.get_dummy_value()

    return types.void(types.int64, block, *[types.int64] * 6), codegen


@intrinsic
def call_memory(typingctx: Any, function: Any, address: Any, length: Any, flag: Any) -> Any:
    """Call madvise(2) or msync(2) at an address; 0 if it succeeds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, address, length, advice = args
        kind = ir.FunctionType(I32, [I64, I64, I32])
        result = builder.call(
            builder.inttoptr(function, kind.as_pointer()),
            [address, length, builder.trunc(advice, I32)],
        )
        return builder.sext(result, I64)

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def call_number(typingctx: Any, function: Any) -> Any:
    """Call int() at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I32, [])
        result = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return builder.sext(result, I64)

    return types.int64(types.int64), codegen


@intrinsic
def call_parallel(typingctx: Any, function: Any, team: Any, words: Any, threads: Any) -> Any:
    """Call GOMP_parallel at an address: so many threads each call the team with the words."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, team, words, threads = args
        kind = ir.FunctionType(ir.VoidType(), [I64, I64, I32, I32])
        call = builder.inttoptr(function, kind.as_pointer())
        builder.call(call, [team, words, builder.trunc(threads, I32), I32(0)])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def call_channels(
    typingctx: Any, kernel: Any, block: Any, flags: Any, s: Any, c0: Any, c1: Any
) -> Any:
    """Call the channel kernel at an address: void(real, block, flags, s, c0, c1).

    Like the pattern, real is only a type.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kernel, block, *numbers = args
        pointer = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [pointer] * 2 + [I64] * 4)
        builder.call(
            builder.inttoptr(kernel, function.as_pointer()),
            [ir.Constant(pointer, None), builder.bitcast(block, pointer), *numbers],
        )
        return context.get_dummy_value()

    return types.void(types.int64, block, *[types.int64] * 4), codegen


@intrinsic
def call_mover(
    typingctx: Any, mover: Any, address: Any, tile: Any, scatters: Any, channel_step: Any,
    step: Any, channels: Any, count: Any,
) -> Any:  # fmt: skip
    """Call the mover at an address, for a tensor at another."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mover, address, tile, *numbers = args
        pointer = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [pointer] * 2 + [I64] * 5)
        builder.call(
            builder.inttoptr(mover, function.as_pointer()),
            [builder.inttoptr(address, pointer), builder.bitcast(tile, pointer), *numbers],
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, tile, *[types.int64] * 5), codegen
