"""Whether anything but autograd sees what is computed: a transform, mode, tracer or subclass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_C = torch._C
_CPU, _CUDA = _C.DispatchKey.CPU, _C.DispatchKey.CUDA
_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def unwatched() -> bool:
    """Whether nothing but autograd sees what is called."""
    return not (
        torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _C._get_tracing_state()
    )


def plain(*tensors: Any) -> bool:
    """Whether these are plain tensors, or None."""
    return all(type(value) in _PLAIN for value in tensors)


def kernels_suffice(grad_out: Tensor) -> bool:
    """Whether a gradient that nothing watches is one of a plain tensor."""
    if not plain(grad_out):
        return False
    # Autograd has a vmap of its own, whose tensors look like any others.
    keys = _C._dispatch_keys(grad_out)
    return bool(keys.has(_CPU) or keys.has(_CUDA))


def untraced(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, out of Dynamo's sight.

    Where a compiled function has parts that are not, Dynamo watches every Python frame that runs
    meanwhile, also those that the dispatcher calls: it would compile plans and guards. It is looked
    for among the loaded modules: loading it takes seconds, and whoever compiles has done so.
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
