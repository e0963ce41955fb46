"""Numba's compiler, cut down to what kernels need: it takes half the time of Numba's own.

Kernels have no Python objects, arrays, closures or reference counts. Numba spends most of its time
on analyses for these, in Python; without them, a first training step's units compile in three
quarters of the time.

Numba also makes every function that it compiles ready to run: LLVM optimises it, with all functions
that it calls, and emits machine code. Here a helper is kept as LLVM's intermediate code, which is
optimised once for each unit, and a unit's machine code is emitted once, to an object file.

This relies on Numba's internals. The import fails for a version of Numba that it was not tried
with; helpers.py then takes Numba's own compiler, whose code gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
from llvmlite.binding import Linkage
from numba import _dynfunc, types
from numba.core import cgutils, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, _LowerResult
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.rewrites.static_getitem import RewriteConstGetitems
from numba.core.ssa import reconstruct_ssa
from numba.core.targetconfig import ConfigStack
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import NativeLowering

if not (0, 62) <= numba.version_info.short <= (0, 68):
    raise ImportError(f"tried with Numba 0.62 to 0.68, not {numba.__version__}")


class _Helper(JITCodeLibrary):  # type: ignore[misc]
    """LLVM's code of a helper and of the functions that it calls, to be linked to units."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave the optimisation to the unit's passes, and only set the target machine."""
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Link the functions that the helper calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = Linkage.linkonce_odr
        self._finalized = True


class _Unit(JITCodeLibrary):  # type: ignore[misc]
    """LLVM's code of a unit, optimised but not emitted."""

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """No address, but the code is complete."""
        self._ensure_finalized()
        return 0


class _Lower(Lower):  # type: ignore[misc]
    """Numba's step to LLVM's code, without the sizes of variables, which only debuggers need."""

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Allocate a variable."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)


def _lower_helper(state: Any) -> None:
    """Lower Numba's code to LLVM's, as Numba's own pass does, but without machine code."""
    target, name, flags = state.targetctx, state.func_id.func_qualname, state.flags
    library = _Helper(target.codegen(), name)
    described = PythonFunctionDescriptor.from_specialized_function(
        state.func_ir, state.typemap, state.return_type, state.calltypes,
        mangler=target.mangler, inline=flags.forceinline, noalias=flags.noalias,
        abi_tags=[flags.get_mangle_string()],
    )  # fmt: skip
    with target.push_code_library(library):
        lowering = _Lower(target, library, described, state.func_ir, metadata=state.metadata)
        lowering.lower()
    # Numba finds a function's code by this object; it cannot be called.
    key = _dynfunc.make_function(described.lookup_module(), name, "", 0, lowering.env, (library,))
    target.insert_user_function(key, described, [library])
    state.library = library
    state["cr"] = _LowerResult(described, lowering.call_helper, cfunc=key, env=lowering.env)
    state.metadata["prune_stats"] = None


def _without_dead_branches(state: Any) -> None:
    """Remove branches that constants or the arguments' types decide."""
    code = state.func_ir
    code.blocks = canonicalize_cfg(code.blocks)
    untyped_passes.rewrite_semantic_constants(code, state.args)
    untyped_passes.dead_branch_prune(code, state.args)
    code.blocks = canonicalize_cfg(code.blocks)


def _with_constant_indices(state: Any) -> None:
    """Mark the constant indices of tuples, whose entries may differ in type."""
    rewrite = RewriteConstGetitems(state)
    for label, block in list(state.func_ir.blocks.items()):
        if rewrite.match(state.func_ir, block, None, None):
            state.func_ir.blocks[label] = rewrite.apply()


#: The signatures of the calls that were resolved, by the types of the function and its arguments.
_signatures: dict[tuple[Any, tuple[Any, ...]], Any] = {}


@contextmanager
def _resolving_once(context: Any) -> Iterator[None]:
    """Keep the signature of each call, for later calls with arguments of the same types.

    Numba resolves every call anew, and tries all candidates, which for an operator are mostly those
    for arrays. Without this, units take a sixth longer to compile.
    """
    if "resolve_function_type" in vars(context):  # a helper, while the function that calls it waits
        yield
        return
    resolve = context.resolve_function_type

    def resolved(function: Any, args: Any, kws: Any) -> Any:
        if kws or not isinstance(function, (types.Function, types.Dispatcher)):
            return resolve(function, args, kws)
        key = function, tuple(args)
        signature = _signatures.get(key)
        if signature is None:
            signature = _signatures[key] = resolve(function, args, kws)
        return signature

    context.resolve_function_type = resolved
    try:
        yield
    finally:
        del context.resolve_function_type


class UnitCompiler(CompilerBase):  # type: ignore[misc]
    """The compiler of units, whose code LLVM optimises."""

    @staticmethod
    def _lower(state: Any) -> None:
        """Lower Numba's code to LLVM's."""
        state.library = _Unit(state.targetctx.codegen(), state.func_id.func_qualname)
        NativeLowering().run_pass(state)

    def _compile_core(self) -> Any:
        """Run the passes from a function's bytecode to LLVM's code."""
        state = self.state
        with ConfigStack().enter(state.flags.copy()):
            untyped_passes.TranslateByteCode().run_pass(state)
            untyped_passes.FixupArgs().run_pass(state)
            _without_dead_branches(state)
            _with_constant_indices(state)
            # Each assignment of a variable gets a name and a type of its own.
            state.func_ir = reconstruct_ssa(state.func_ir)
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
            with _resolving_once(state.typingctx):
                typed_passes.NopythonTypeInference().run_pass(state)
            # Assignments replace phi nodes; LLVM makes phi nodes of its own.
            state.func_ir = typed_passes.PreLowerStripPhis()._strip_phi_nodes(state.func_ir)
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
            self._lower(state)
            typed_passes.NoPythonBackend().run_pass(state)
        return state.cr


class HelperCompiler(UnitCompiler):
    """The compiler of helpers."""

    _lower = staticmethod(_lower_helper)
