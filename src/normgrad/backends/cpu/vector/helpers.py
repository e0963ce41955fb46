"""The decorators for helpers, which are compiled as parts of units, and for LLVM instructions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from numba import njit, types
from numba.core.compiler import Compiler
from numba.core.extending import overload
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global

from ....support.memory import LINE

#: The compilers of units, and of helpers, which are compiled as parts of units.
UNIT_COMPILER: type = Compiler
_HELPER_COMPILER: type = Compiler
with suppress(ImportError):  # this version of Numba is unknown there
    from . import pipeline

    UNIT_COMPILER, _HELPER_COMPILER = pipeline.UnitCompiler, pipeline.HelperCompiler

#: Numba's options for all functions here: a division by zero gives what NumPy gives, and there are
#: no references to count.
OPTIONS = {"error_model": "numpy", "_nrt": False}
_OPTIONS = {
    **OPTIONS,
    "pipeline_class": _HELPER_COMPILER,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
helper = njit(**_OPTIONS)


def by_types(choose: Any) -> Any:
    """A helper whose body ``choose`` selects by the arguments' types, when it is compiled."""

    def stub(*arguments: Any) -> Any:
        raise NotImplementedError

    overload(stub, jit_options=_OPTIONS)(choose)
    return functools.update_wrapper(stub, choose)


def as_argument(function: Any) -> Any:
    """A helper that is passed to others as an argument: Numba keeps no dispatcher on disk."""
    return by_types(functools.wraps(function)(lambda *arguments: function))


class Emitter(NamedTuple):
    """The means to emit an instruction: Numba's context, LLVM's builder, the arguments' types."""

    context: Any
    builder: Any
    types: tuple[Any, ...]


def instruction(signature: Callable[..., Any], literal: bool = False) -> Any:
    """A function for kernels that is written in LLVM's instructions rather than in Python.

    It takes an emitter and LLVM's values of the arguments, and returns LLVM's value of the result,
    or None. ``signature`` makes its type from the arguments' types. ``literal``: constant arguments
    have types of their own, which hold their value.

    A function with an instruction aligns its stack to cache lines. LLVM does not do so by itself
    for vectors that registers cannot hold. Where such a vector spanned two pages, which depends on
    where a process has its stack, a kernel took up to eight times as long.
    """

    def decorate(emit: Any) -> Any:
        @functools.wraps(emit)
        def stub(*arguments: Any) -> Any:
            raise NotImplementedError

        declare(stub, lambda arguments: signature(*arguments), literal)

        @lower_builtin(stub, types.VarArg(types.Any))  # type: ignore[untyped-decorator]
        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.function.attributes.alignstack = LINE
            # llvmlite writes the alignment only beside another attribute.
            builder.function.attributes.add("nounwind")
            value = emit(Emitter(context, builder, signature.args), *args)
            return context.get_dummy_value() if value is None else value

        return stub

    return decorate


def declare(function: Any, signature: Callable[[Any], Any], literal: bool = False) -> None:
    """Tell Numba the type of a function: its signature from the tuple of the arguments' types."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        prefer_literal, key = literal, function

        def generic(self, arguments: Any, keywords: Any) -> Any:
            return signature(arguments)

    infer_global(function, types.Function(Template))
