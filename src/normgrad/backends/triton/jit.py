"""Decorators of the functions and constants that kernels use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


def helper(function: Callable[..., Any]) -> Any:
    """Make a function callable from kernels.

    For the interpreter the function does not change: a decorated one would patch Triton's language
    at every call, which takes as long as everything else.
    """
    return function if triton.knobs.runtime.interpret else triton.jit(function)


def constant(value: int) -> Any:
    """Make a constant of a module usable in kernels."""
    return value if triton.knobs.runtime.interpret else tl.constexpr(value)
