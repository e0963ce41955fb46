"""What kernels are made of: functions that are compiled as parts of them, and LLVM's instructions.

Numba makes each function that it compiles ready to be run: LLVM optimises it, with all that it
calls, and writes machine code for it. What runs here are kernels; of what they are made of there is
only LLVM's code, which is optimised once for each kernel. Without Numba's way a first training step
compiled in 0.76 of the time, all kernels in 0.80.
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


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """LLVM's code of a function and of what it calls, for kernels to be linked with."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave it to the kernel's own passes, but say what the machine is."""
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Put together what the function calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(LoweringPass):  # type: ignore[misc]
    """From Numba's code to LLVM's, as Numba's own pass does it, but for the machine code."""

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
        # Numba finds a function's code by this object, which cannot be called.
        key = _dynfunc.make_function(
            described.lookup_module(), name, "", 0, lowering.env, (library,)
        )
        target.insert_user_function(key, described, [library])
        state.library = library
        state["cr"] = _LowerResult(described, lowering.call_helper, cfunc=key, env=lowering.env)
        state.metadata["prune_stats"] = None
        return True


#: Numba's passes for what kernels do not have: contexts, closures, functions that are to be written
#: out in others, loops over literals. Each pass looks at the whole function.
_UNUSED = {
    "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction",
    "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass",
}  # fmt: skip


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's passes without those for arrays and objects, of which kernels have none."""

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("normgrad_part")
        # Each once: what branches are dead is known by the arguments' types, before all else.
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
    """A helper whose body is chosen when it is compiled, by what is returned for its types."""

    def chosen(*arguments: Any) -> Any:
        raise NotImplementedError

    overload(chosen, jit_options=_OPTIONS)(choose)
    return functools.update_wrapper(chosen, choose)


def passed(function: Any) -> Any:
    """A helper that others are given as an argument: Numba keeps no dispatcher on disk."""
    return by_types(functools.wraps(function)(lambda *arguments: function))


class Emitter(NamedTuple):
    """What an instruction is written with: Numba's context, LLVM's builder, arguments' types."""

    context: Any
    builder: Any
    types: tuple[Any, ...]


def instruction(signature: Callable[..., Any], literal: bool = False) -> Any:
    """A function for kernels that is written in LLVM's instructions rather than in Python.

    It is given an emitter and LLVM's values of the arguments, and returns LLVM's value of the
    result, or None; ``signature`` makes its type from the arguments' types. ``literal``: constants
    among the arguments have types of their own, with their value.
    """

    def written(emit: Any) -> Any:
        @functools.wraps(emit)
        def typed(typingctx: Any, *given: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                value = emit(Emitter(context, builder, given), *args)
                return context.get_dummy_value() if value is None else value

            return signature(*given), codegen

        return intrinsic(prefer_literal=literal)(typed)

    return written
