"""Decorators of the functions and constants that kernels use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


def helper(function: Callable[..., Any]) -> Any:
    """Make a function callable from kernels.

    Where they are interpreted it stays as it is: the interpreter would put its own language in
    place of Triton's at every call, which takes as long as all the rest.
    """
    return function if triton.knobs.runtime.interpret else triton.jit(function)


def constant(value: int) -> Any:
    """Make a module's constant usable in kernels."""
    return value if triton.knobs.runtime.interpret else tl.constexpr(value)
