"""Kernels that torch.compile does not look into.

Where a compiled function has parts that are not, Dynamo watches every Python frame that runs
meanwhile, also those that the dispatcher calls: it would compile plans and guards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def untraced(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, out of Dynamo's sight.

    Dynamo is looked for among the loaded modules: loading it takes seconds, and whoever compiles
    has done so.
    """
    hidden: list[Callable[..., Any]] = []

    @wraps(kernel)
    def call(*arguments: Any) -> Any:
        if hidden:
            return hidden[0](*arguments)
        dynamo = sys.modules.get("torch._dynamo")
        disable = getattr(dynamo, "disable", None)  # absent while it is being loaded
        if disable is None:
            return kernel(*arguments)
        hidden.append(disable(kernel))
        return hidden[0](*arguments)

    return call
