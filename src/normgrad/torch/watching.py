"""Whether PyTorch must see an operator's call: for a transform, mode, tracer or subclass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

_C = torch._C
_TENSOR_TYPES = (Tensor, torch.nn.Parameter, type(None))
_DENSE_KEYS = _C._dispatch_keys(torch.empty(0))
for _key in (_C.DispatchKey.CUDA, _C.DispatchKey.AutogradCUDA, _C.DispatchKey.AutocastCUDA):
    _DENSE_KEYS |= _C.DispatchKeySet(_key)
_DENSE_BITS = _DENSE_KEYS.raw_repr()
#: The subclasses with which PyTorch traces programs; they take any operator.
_TRACING = (FakeTensor, FunctionalTensor)
#: How classes handle functions if they have no rules of their own.
_WITHOUT_RULES = (Tensor.__torch_function__.__func__, None)


def unwatched() -> bool:
    """Whether no transform, mode, compiler or tracer is active that must see operators."""
    return not (
        is_recorded()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or forward_ad._current_level >= 0
    )


def is_recorded() -> bool:
    """Whether a compiler, a transform or a tracer has to see an operator with its derivative."""
    return bool(
        torch.compiler.is_dynamo_compiling()
        or _C._are_functorch_transforms_active()
        or _C._get_tracing_state()
        or _C._dispatch_tls_is_dispatch_key_included(_C.DispatchKey.PreDispatch)
    )


def readable(*tensors: Any) -> bool:
    """Whether all arguments are None, or tensors whose values kernels can read from their memory.

    Such a tensor is of no subclass but Parameter. Only the dispatch keys show the others: tensors
    that transforms batch, wrap or replace by zeros, and views that negate.
    """
    return all(
        type(value) in _TENSOR_TYPES
        # A difference of sets would keep the bits of their devices.
        and (value is None or (_C._dispatch_keys(value) | _DENSE_KEYS).raw_repr() == _DENSE_BITS)
        for value in tensors
    )


def has_rules(value: Any) -> bool:
    """Whether a value is a tensor of a class with its own rules for functions or operators.

    A class knows PyTorch's, such as DTensor those that it can shard, but not normgrad's.
    """
    kind: Any = type(value)
    return (
        kind not in _TENSOR_TYPES
        and isinstance(value, Tensor)
        and not isinstance(value, _TRACING)
        and (
            kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
            or getattr(kind.__torch_function__, "__func__", None) not in _WITHOUT_RULES
        )
    )


def is_constant(value: Tensor | None) -> bool:
    """Whether no derivative by a tensor is asked for, in reverse or forward mode.

    In forward mode the answer is no where it cannot be found out: in compiled code, and for tensors
    that a transform wraps, since the tangents of outer transforms do not show in inner ones.
    """
    if value is None:
        return True
    if forward_ad._current_level < 0 or value.requires_grad:
        return not value.requires_grad
    return (
        not torch.compiler.is_dynamo_compiling()
        and not _C._functorch.is_functorch_wrapped_tensor(value)
        and forward_ad.unpack_dual(value).tangent is None
    )


def leaves_averaging(batches: Tensor, *statistics: Tensor) -> bool:
    """Whether PyTorch's function has to average running statistics over a number of batches.

    That is so in eager mode if derivatives by the statistics are asked for, or if torch.func
    transforms the call: then operators must not write to tensors from outside, but PyTorch's
    function does. Both need the number, which cannot be read where it is transformed too.
    """
    if torch.compiler.is_dynamo_compiling() or _C._functorch.is_functorch_wrapped_tensor(batches):
        return False
    return _C._are_functorch_transforms_active() or not all(map(is_constant, statistics))


def hide_from_dynamo(kernel: Callable[..., Any]) -> Callable[..., Any]:
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
