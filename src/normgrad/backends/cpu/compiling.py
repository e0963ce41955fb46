"""Compilation of C functions by Numba, with a cache on disk."""

from __future__ import annotations

import warnings
from typing import Any

from numba.core.ccallback import CFunc
from numba.core.errors import NumbaPerformanceWarning

from ...loading import compiling
from .disk import cache_for


def c_function(function: Any, signature: Any, parallel: bool = False) -> CFunc:
    """A C function of this signature, which is not compiled yet."""
    return CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options={"error_model": "numpy", "nopython": True, "parallel": parallel},
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
