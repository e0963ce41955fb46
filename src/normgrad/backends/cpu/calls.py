"""Calls through addresses: what is compiled by itself, and functions of the system's libraries."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from .conversions import I32, I64

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@intrinsic
def call(typingctx: Any, function: Any, arguments: Any) -> Any:
    """Call a C function at an address; the int that it returns, if it returns one.

    The arguments, a tuple, are integers and pointers, which are passed alike. (An operation, the
    first argument of kernels, is only a type: 0 stands for it.)
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, packed = args
        given = [
            builder.ptrtoint(value, I64) if isinstance(value.type, ir.PointerType) else value
            for value in cgutils.unpack_tuple(builder, packed)
        ]
        kind = ir.FunctionType(I32, [I64] * len(given))
        result = builder.call(builder.inttoptr(function, kind.as_pointer()), given)
        return builder.sext(result, I64)

    return types.int64(types.int64, arguments), codegen
