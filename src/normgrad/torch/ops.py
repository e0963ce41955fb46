"""normgrad's operators in ``torch.ops.normgrad``, which work in all parts of PyTorch.

Their names, their arguments and the order of these are ATen's; the operators modify no argument.
They can be traced, compiled and exported, are differentiable to any order, also under
``torch.func``, and take every dtype, mixture of dtypes and layout that normgrad's functions take.

An absent result is an empty tensor of shape (0,): a result that is masked off, the statistics in
evaluation, and new running statistics where no old ones were given. Statistics that are results
are constants to autograd, except those of :func:`batch_norm_stats` and
:func:`batch_norm_gather_stats_with_counts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import batching, extension, inductor, layers, nodes, synchronised
from .kernels import FAKES, KERNELS
from .schemas import NAMESPACE, SCHEMAS, overload
from .watching import hide_from_dynamo

__all__ = list(SCHEMAS)

#: The library object that keeps the operators registered.
LIBRARY = torch.library.Library(NAMESPACE, "DEF")

_KERNELS: dict[str, Any] = {
    **KERNELS,
    "all_reduce_sum": synchronised.all_reduce_sum,
    "sync_batch_norm": synchronised.sync_batch_norm,
    "sync_batch_norm_backward": synchronised.sync_batch_norm_backward,
}


def _define(name: str, text: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an operator without derivatives by its schema, its kernel and its fake kernel.

    Where C++ computes the operator, Python's kernel is that of its twin.
    """
    LIBRARY.define(text, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    target = name
    if extension.is_loaded() and name in KERNELS:
        target = f"{name}_python"
        LIBRARY.define(text.replace(name, target, 1))
        LIBRARY.impl(target, torch.library.fallthrough_kernel, "Autograd")
        extension.implement(name)
    for device in ("CPU", "CUDA"):  # one kernel for both, since normgrad's functions take both
        LIBRARY.impl(target, hide_from_dynamo(kernel), device)


def _register(name: str) -> Any:
    schema = SCHEMAS[name]
    qualified = f"{NAMESPACE}::{name}"
    _define(name, schema.text, _KERNELS[name], inductor.with_registration(FAKES[name]))
    if name in inductor.DECOMPOSITIONS:
        second = inductor.kernel_name(name)
        _define(second, schema.text.replace(name, second, 1), _KERNELS[name], FAKES[name])
    LIBRARY.impl(name, hide_from_dynamo(nodes.kernel(name)), "Autograd")
    call = overload(name)
    torch.library.register_vmap(qualified, batching.rule(schema, call), lib=LIBRARY)
    return call


extension.load()
globals().update({name: _register(name) for name in SCHEMAS})
layers.define(LIBRARY)
extension.implement_layers()

_One = Callable[..., Tensor]
_Two = Callable[..., tuple[Tensor, Tensor]]
_Three = Callable[..., tuple[Tensor, Tensor, Tensor]]
_Four = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
_Five = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]
_Six = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]

# What type checkers see of the operators.
native_batch_norm: _Five
native_batch_norm_backward: _Three
batch_norm_stats: _Two
batch_norm_elemt: _One
batch_norm_gather_stats_with_counts: _Four
batch_norm_backward_reduce: _Four
batch_norm_backward_elemt: _One
native_group_norm: _Three
native_group_norm_backward: _Three
native_layer_norm: _Three
native_layer_norm_backward: _Three
_fused_rms_norm: _Two
_fused_rms_norm_backward: _Two
sync_batch_norm: _Six
all_reduce_sum: _One
sync_batch_norm_backward: _Three
