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

from typing import TYPE_CHECKING, Any

import torch

from . import batching, inductor, nodes, synchronised
from .kernels import FAKES, KERNELS
from .schemas import NAMESPACE, SCHEMAS
from .watching import untraced

__all__ = [*SCHEMAS]

#: What holds the registrations.
LIBRARY = torch.library.Library(NAMESPACE, "DEF")

_KERNELS: dict[str, Any] = {
    **KERNELS,
    "all_reduce_sum": synchronised.all_reduce_sum,
    "sync_batch_norm": synchronised.sync_batch_norm,
    "sync_batch_norm_backward": synchronised.sync_batch_norm_backward,
}


def _register(name: str) -> Any:
    schema = SCHEMAS[name]
    qualified = f"{NAMESPACE}::{name}"
    LIBRARY.define(schema.text, tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):  # normgrad's functions know both
        LIBRARY.impl(name, untraced(_KERNELS[name]), device)
    torch.library.register_fake(qualified, inductor.announced(FAKES[name]), lib=LIBRARY)
    LIBRARY.impl(name, untraced(nodes.kernel(name)), "Autograd")
    call = nodes.operator(name)
    torch.library.register_vmap(qualified, batching.rule(schema, call), lib=LIBRARY)
    return call


globals().update({name: _register(name) for name in SCHEMAS})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Each operator is this module's, under its name."""
