"""Calls through addresses: kernels, what copies tiles, and functions of the system's libraries."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from .conversions import I32, I64

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@intrinsic
def call_kernel(typingctx: Any, kernel: Any, dy: Any, x: Any, dx: Any, job: Any) -> Any:
    """Call the kernel at an address: void(operation, dy, x, dx, job).

    The operation is only a type, its value nothing.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kernel, *data, job = args
        pointer = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [pointer] * 5)
        builder.call(
            builder.inttoptr(kernel, function.as_pointer()),
            [
                ir.Constant(pointer, None),
                *[builder.inttoptr(address, pointer) for address in data],
                builder.bitcast(job, pointer),
            ],
        )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, job), codegen


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


def _calling(block: Any, numbers: int) -> Any:
    """A call of void(block, …numbers) at an address: its type, and how it is compiled."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, block, *rest = args
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer] + [I64] * numbers)
        builder.call(
            builder.inttoptr(function, kind.as_pointer()),
            [builder.bitcast(block, pointer), *rest],
        )
        return context.get_dummy_value()

    return types.void(types.int64, block, *[types.int64] * numbers), codegen


@intrinsic
def call_arithmetic(
    typingctx: Any, function: Any, block: Any, flags: Any, s: Any, bank: Any, c0: Any, c1: Any
) -> Any:
    """Call the arithmetic of channels at an address: void(block, flags, s, bank, c0, c1)."""
    return _calling(block, 5)


@intrinsic
def call_coefficients(
    typingctx: Any, function: Any, block: Any, s: Any, bank: Any, c0: Any, c1: Any
) -> Any:
    """Call what makes coefficients at an address: void(block, s, bank, c0, c1)."""
    return _calling(block, 4)


@intrinsic
def call_tiles(
    typingctx: Any, function: Any, block: Any, kernel: Any, uses: Any, job: Any, s: Any, c: Any,
    channels: Any, position: Any, rows: Any, run: Any, parameters: Any,
) -> Any:  # fmt: skip
    """Call what moves tensors to tiles at an address: void(block, kernel, uses, job, …)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, block, kernel, uses, job, *rest = args
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, I64, I64, pointer] + [I64] * 7)
        block, job = builder.bitcast(block, pointer), builder.bitcast(job, pointer)
        builder.call(
            builder.inttoptr(function, kind.as_pointer()), [block, kernel, uses, job, *rest]
        )
        return context.get_dummy_value()

    numbers = types.int64
    return types.void(numbers, block, numbers, numbers, job, *[numbers] * 7), codegen


@intrinsic
def call_mover(
    typingctx: Any, mover: Any, address: Any, tile: Any, writes: Any, rows: Any, columns: Any,
    step: Any, column_step: Any, tile_step: Any, tile_column_step: Any,
) -> Any:  # fmt: skip
    """Call the mover at an address, for a piece of a tensor and a tile at others."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mover, address, tile, *numbers = args
        pointer = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [pointer] * 2 + [I64] * 7)
        builder.call(
            builder.inttoptr(mover, function.as_pointer()),
            [builder.inttoptr(address, pointer), builder.inttoptr(tile, pointer), *numbers],
        )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), codegen


@intrinsic
def call_tasks(typingctx: Any, function: Any, block: Any, step: Any, first: Any, last: Any) -> Any:
    """Call what runs some of a step's tasks, at an address: void(block, step, first, last)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, block, step, first, last = args
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, I64, I64])
        builder.call(
            builder.inttoptr(function, kind.as_pointer()),
            [builder.bitcast(block, pointer), builder.bitcast(step, pointer), first, last],
        )
        return context.get_dummy_value()

    return types.void(types.int64, block, step, types.int64, types.int64), codegen
