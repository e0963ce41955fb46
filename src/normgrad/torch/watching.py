"""The question whether PyTorch must see an operator: for a transform, mode, tracer or subclass."""

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
    """Whether no transform, mode, compiler or tracer is active that must see operators.

    Compiled code asks the same, but for the compiler and forward mode (``is_watched``).
    """
    return not (
        torch.compiler.is_dynamo_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _C._get_tracing_state()
        or _C._dispatch_tls_is_dispatch_key_included(_C.DispatchKey.PreDispatch)
    )


def plain(*tensors: Any) -> bool:
    """Whether all arguments are plain tensors (of no subclass but Parameter) or None."""
    return all(type(value) in _PLAIN for value in tensors)


def kernels_suffice(grad_out: Tensor) -> bool:
    """Whether the kernels can read a gradient: a plain tensor on the CPU or a GPU, not a batch."""
    if not plain(grad_out):
        return False
    # Autograd has its own vmap (is_grads_batched); only the dispatch keys show its batched tensors.
    keys = _C._dispatch_keys(grad_out)
    return bool(keys.has(_CPU) or keys.has(_CUDA))


def untraced(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a kernel so that Dynamo does not trace it.

    If Dynamo cannot compile some part of a function, it inspects every Python frame that this part
    runs, including those that the dispatcher calls: it would compile the code of plans. Dynamo is
    looked up among the loaded modules, since importing it takes seconds and compiling loads it.
    """
    hidden = kernel

    @wraps(kernel)
    def call(*arguments: Any) -> Any:
        nonlocal hidden
        if hidden is kernel:
            dynamo = sys.modules.get("torch._dynamo")
            disable = getattr(dynamo, "disable", None)  # absent while Dynamo is being imported
            hidden = kernel if disable is None else disable(kernel)
        return hidden(*arguments)

    return call
