"""The decompositions of the norms' operators for torch.compile's inductor.

Inductor can fuse PyTorch's operators with the layers around a norm, but not normgrad's kernels. So
it is given normgrad's operators in terms of PyTorch's. Other backends of torch.compile, and
exported programs, call normgrad's kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from ..contract import Kind
from .kernels import FAKES, arithmetic
from .schemas import SCHEMAS, overload

aten = torch.ops.aten


def _native_batch_norm(*arguments: Any) -> Any:
    if arguments[3] is None or arguments[4] is None:  # the running statistics
        tensors, options = arguments[:3], arguments[5:]
        return *aten._native_batch_norm_legit.no_stats(*tensors, *options), None, None
    return aten._native_batch_norm_legit_functional(*arguments)


def _native_batch_norm_backward(*arguments: Any) -> Any:
    running, own, train = arguments[3:5], arguments[5:7], arguments[7]
    if any(value is None for value in (own if train else running)):
        return None  # normgrad's operator computes the missing statistics
    return aten.native_batch_norm_backward(*arguments)


#: Inductor generates layer norms of fewer elements, where normgrad's kernels gain less than their
#: call costs: with 2¹⁹ elements they had 0.82 of the speed of PyTorch's layer, with 1.5 · 2²⁰
#: elements 1.10 (see docs/pytorch.md).
SMALL = 1 << 20


def _native_layer_norm_backward(*arguments: Any) -> Any:
    *first, weight, bias, mask = arguments
    # PyTorch's operator leaves the gradients of absent parameters undefined; normgrad's computes
    # them. They depend on neither parameter.
    data, shape = first[1:3]
    if weight is None and mask[1]:
        weight = data.new_ones(shape)
    if bias is None and mask[2]:
        bias = data.new_zeros(shape)
    return aten.native_layer_norm_backward(*first, weight, bias, mask)


_FORMULAS: dict[str, Callable[..., Any]] = {
    "native_batch_norm": _native_batch_norm,
    "native_batch_norm_backward": _native_batch_norm_backward,
    "native_group_norm": aten.native_group_norm,
    "native_group_norm_backward": aten.native_group_norm_backward,
    "native_layer_norm": aten.native_layer_norm,
    "native_layer_norm_backward": _native_layer_norm_backward,
}


def kernel_name(name: str) -> str:
    """The name of a second operator with an operator's kernel, which has no decomposition.

    Inductor refuses to call an operator that has one, even if that returns NotImplemented.
    """
    return f"{name}_kernel"


def _decomposition(name: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's decomposition: a formula in float32 or float64, with the operator's outputs.

    Its results have the dtypes and memory formats that the operator's fake kernel promises. It
    calls the operator's kernel where the formula is None, and for rows on the CPU, if the size is
    symbolic or not small. On a GPU, where this was not measured, it keeps the fusions.
    """
    by_row = SCHEMAS[name].operator.statistics is Kind.ROW

    def decomposed(*arguments: Any) -> Any:
        size: Any = arguments[0].numel()
        kernel = overload(kernel_name(name))
        is_small = isinstance(size, int) and size < SMALL
        if by_row and not is_small and arguments[0].device.type == "cpu":
            return kernel(*arguments)
        outputs = FAKES[name](*arguments)
        dtype = arithmetic(*[value for value in arguments[:2] if isinstance(value, Tensor)])
        results = formula(
            *[value.to(dtype) if isinstance(value, Tensor) else value for value in arguments]
        )
        if results is None:
            return kernel(*arguments)
        return tuple(
            # A result that the operator leaves absent is absent here too.
            like
            if like.shape == (0,) or value is None
            else value.to(like.dtype).contiguous(memory_format=suggest_memory_format(like))
            for like, value in zip(outputs, results, strict=True)
        )

    return decomposed


#: The decompositions by operators' names.
DECOMPOSITIONS = {name: _decomposition(name, formula) for name, formula in _FORMULAS.items()}


def with_registration(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an operator's fake kernel so that it registers the decompositions if Dynamo is loaded.

    Dynamo runs fake kernels before inductor reads its tables, so they import the module of these,
    which takes a second. Importing it at once would take that of callers that compile nothing.
    """

    @wraps(fake)
    def call(*arguments: Any, **more: Any) -> Any:
        inductor: Any = None
        if "torch._dynamo" in sys.modules:
            inductor = import_module("torch._inductor.decomposition")
        if inductor is not None and hasattr(inductor, "fast_random_decomps"):
            for table in (inductor.decompositions, inductor.fast_random_decomps()):
                for name, formula in DECOMPOSITIONS.items():
                    table.setdefault(overload(name), formula)
        return fake(*arguments, **more)

    return call
