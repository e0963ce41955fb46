"""What makes a Python function one that kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def helper(function: Callable[..., Any]) -> Any:
    """A function for kernels.

    Where they are interpreted it stays as it is: the interpreter would put its own language in
    place of Triton's at every call, which takes as long as all the rest.
    """
    return function if triton.knobs.runtime.interpret else triton.jit(function)
