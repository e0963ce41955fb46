"""The decorators for helpers, which are compiled as parts of kernels, and for LLVM instructions.

Numba makes every function that it compiles ready to run: LLVM optimises it, with all functions that
it calls, and emits machine code. Here only kernels run. A helper is kept as LLVM's intermediate
code, which is optimised once for each kernel. So a first training step compiled in 0.76 of the
time, all kernels in 0.80.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import _dynfunc, njit
from numba.core import typed_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.extending import intrinsic, overload
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Lower

from ...memory import LINE


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """LLVM's code of a helper and of the functions that it calls, to be linked to kernels."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave the optimisation to the kernel's passes, and only set the target machine."""
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Link the functions that the helper calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(LoweringPass):  # type: ignore[misc]
    """Lower Numba's code to LLVM's, as Numba's own pass does, but without machine code."""

    _name = "normgrad_part_lowering"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        target, name, flags = state.targetctx, state.func_id.func_qualname, state.flags
        library = _Part(target.codegen(), name)
        described = PythonFunctionDescriptor.from_specialized_function(
            state.func_ir, state.typemap, state.return_type, state.calltypes,
            mangler=target.mangler, inline=flags.forceinline, noalias=flags.noalias,
            abi_tags=[flags.get_mangle_string()],
        )  # fmt: skip
        with target.push_code_library(library):
            lowering = Lower(target, library, described, state.func_ir, metadata=state.metadata)
            lowering.lower()
        # Numba finds a function's code by this object; it cannot be called.
        key = _dynfunc.make_function(
            described.lookup_module(), name, "", 0, lowering.env, (library,)
        )
        target.insert_user_function(key, described, [library])
        state.library = library
        state["cr"] = _LowerResult(described, lowering.call_helper, cfunc=key, env=lowering.env)
        state.metadata["prune_stats"] = None
        return True


#: Numba's passes for features that kernels do not use: contexts, closures, inlined functions, loops
#: over literals. Each pass would go through the whole function.
_UNUSED = {
    "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction",
    "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass",
}  # fmt: skip


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler without the passes for arrays and objects, which kernels do not use."""

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("normgrad_part")
        # Each pass runs once: dead branches are known from the arguments' types at the start.
        untyped = dict.fromkeys(DefaultPassBuilder.define_untyped_pipeline(self.state).passes)
        passes.passes += [found for found in untyped if found[0].__name__ not in _UNUSED]
        passes.add_pass(typed_passes.NopythonTypeInference, "find types")
        passes.add_pass(typed_passes.PreLowerStripPhis, "remove phi nodes")
        passes.add_pass(typed_passes.IRLegalization, "check what can be lowered")
        passes.add_pass(_PartLowering, "lower")
        passes.add_pass(typed_passes.NoPythonBackend, "put the result together")
        passes.finalize()
        return [passes]


_OPTIONS = {
    "pipeline_class": _PartCompiler,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
helper = njit(**_OPTIONS)


def by_types(choose: Any) -> Any:
    """A helper whose body ``choose`` selects by the arguments' types, when it is compiled."""

    def chosen(*arguments: Any) -> Any:
        raise NotImplementedError

    overload(chosen, jit_options=_OPTIONS)(choose)
    return functools.update_wrapper(chosen, choose)


def passed(function: Any) -> Any:
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

    def written(emit: Any) -> Any:
        @functools.wraps(emit)
        def typed(typingctx: Any, *given: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                builder.function.attributes.alignstack = LINE
                # llvmlite writes the alignment only beside another attribute.
                builder.function.attributes.add("nounwind")
                value = emit(Emitter(context, builder, given), *args)
                return context.get_dummy_value() if value is None else value

            return signature(*given), codegen

        return intrinsic(prefer_literal=literal)(typed)

    return written
