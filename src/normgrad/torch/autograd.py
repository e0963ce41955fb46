"""The operators' kernels at the dispatcher's Autograd key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .nodes import BelowAutograd, Node, attach, operator
from .norm_nodes import (
    FusedRmsNorm,
    FusedRmsNormBackward,
    NativeBatchNorm,
    NativeBatchNormBackward,
    NativeGroupNorm,
    NativeGroupNormBackward,
    NativeLayerNorm,
    NativeLayerNormBackward,
)
from .sync_nodes import (
    AllReduceSum,
    BatchNormBackwardElemt,
    BatchNormBackwardReduce,
    BatchNormElemt,
    BatchNormGather,
    BatchNormStats,
    SyncBatchNorm,
    SyncBatchNormBackward,
)

#: The nodes by their operators' names.
NODES: dict[str, type[Node]] = {
    "native_batch_norm": NativeBatchNorm,
    "native_batch_norm_backward": NativeBatchNormBackward,
    "batch_norm_stats": BatchNormStats,
    "batch_norm_elemt": BatchNormElemt,
    "batch_norm_gather_stats_with_counts": BatchNormGather,
    "batch_norm_backward_reduce": BatchNormBackwardReduce,
    "batch_norm_backward_elemt": BatchNormBackwardElemt,
    "native_group_norm": NativeGroupNorm,
    "native_group_norm_backward": NativeGroupNormBackward,
    "native_layer_norm": NativeLayerNorm,
    "native_layer_norm_backward": NativeLayerNormBackward,
    "_fused_rms_norm": FusedRmsNorm,
    "_fused_rms_norm_backward": FusedRmsNormBackward,
    "all_reduce_sum": AllReduceSum,
    "sync_batch_norm": SyncBatchNorm,
    "sync_batch_norm_backward": SyncBatchNormBackward,
}


def kernel(name: str) -> Callable[..., Any]:
    """An operator's kernel for the Autograd key."""
    call, node = operator(name), NODES[name]

    def differentiable(*arguments: Any) -> Any:
        with BelowAutograd():
            results = call(*arguments)
        return attach(node, results, arguments)

    return differentiable
