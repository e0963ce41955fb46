"""normgrad's operators in ``torch.ops.normgrad``, for use under every part of PyTorch.

Their names, arguments and order are ATen's; nothing is written to but the results. They trace,
compile and export, are differentiable to any order, also under ``torch.func``, and take every
dtype, mixture and layout that normgrad's functions take.

A result that is absent is an empty tensor of shape (0,): one that is masked off, the statistics of
an evaluation, and new running statistics where there were no old ones. Statistics that are results
are constants to autograd, but for those of :func:`batch_norm_stats` and
:func:`batch_norm_gather_stats_with_counts`.
"""

from __future__ import annotations

from typing import Any

import torch

from . import autograd, batching, inductor, nodes, synchronised
from .fakes import FAKES
from .kernels import KERNELS
from .schemas import NAMESPACE, SCHEMAS
from .untraced import untraced

__all__ = [
    "all_reduce_sum",
    "batch_norm_backward_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_elemt",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_stats",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "sync_batch_norm",
    "sync_batch_norm_backward",
]

#: What holds the registrations.
LIBRARY = torch.library.Library(NAMESPACE, "DEF")


_KERNELS = {
    **KERNELS,
    "all_reduce_sum": synchronised.all_reduce_sum,
    "sync_batch_norm": synchronised.sync_batch_norm,
    "sync_batch_norm_backward": synchronised.sync_batch_norm_backward,
}

#: The kernels by their operators' names, for each device: normgrad's functions know both.
KERNELS_OF: dict[str, dict[str, Any]] = {"CPU": _KERNELS, "CUDA": _KERNELS}


def _register(name: str) -> Any:
    schema = SCHEMAS[name]
    qualified = f"{NAMESPACE}::{name}"
    LIBRARY.define(schema.text, tags=(torch.Tag.pt2_compliant_tag,))
    for device, kernels in KERNELS_OF.items():
        if name in kernels:
            LIBRARY.impl(name, untraced(kernels[name]), device)
    torch.library.register_fake(qualified, inductor.announced(FAKES[name]), lib=LIBRARY)
    LIBRARY.impl(name, untraced(autograd.kernel(name)), "Autograd")
    call = nodes.operator(name)
    torch.library.register_vmap(qualified, batching.rule(schema, call), lib=LIBRARY)
    return call


native_batch_norm = _register("native_batch_norm")
native_batch_norm_backward = _register("native_batch_norm_backward")
batch_norm_stats = _register("batch_norm_stats")
batch_norm_elemt = _register("batch_norm_elemt")
batch_norm_gather_stats_with_counts = _register("batch_norm_gather_stats_with_counts")
batch_norm_backward_reduce = _register("batch_norm_backward_reduce")
batch_norm_backward_elemt = _register("batch_norm_backward_elemt")
native_group_norm = _register("native_group_norm")
native_group_norm_backward = _register("native_group_norm_backward")
all_reduce_sum = _register("all_reduce_sum")
sync_batch_norm = _register("sync_batch_norm")
sync_batch_norm_backward = _register("sync_batch_norm_backward")
