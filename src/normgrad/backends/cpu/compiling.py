"""Compilation of C functions by Numba, with a cache on disk."""

from __future__ import annotations

import warnings
from typing import Any

from numba.core.ccallback import CFunc
from numba.core.compiler import Compiler
from numba.core.errors import NumbaPerformanceWarning

from ...loading import compiling
from .disk import cache_for
from .pipeline import OPTIONS, UnitCompiler


def c_function(function: Any, signature: Any, parallel: bool = False) -> CFunc:
    """A C function of this signature, which is not compiled yet.

    ``parallel``: whether it has a parallel loop, which takes all of Numba's own passes.
    """
    return CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options={**OPTIONS, "parallel": parallel},
        pipeline_class=Compiler if parallel else UnitCompiler,
    )


def compiled(function: Any, signature: Any, parallel: bool = False) -> CFunc:
    """A C function, compiled now or read from disk."""
    made = c_function(function, signature, parallel)
    made._cache = cache_for(function)
    with compiling(), warnings.catch_warnings():
        # Numba warns of functions without a parallel loop that a parallel function calls.
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        made.compile()
    return made
