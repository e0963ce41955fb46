"""Normalisation layers, forward and backward, within a stated error bound."""

from __future__ import annotations

from .operators.batch_norm import (
    BatchNormGradients,
    BatchNormOutput,
    batch_norm,
    batch_norm_backward,
)
from .operators.by_name import plan
from .operators.group_norm import (
    GroupNormGradients,
    GroupNormOutput,
    group_norm,
    group_norm_backward,
)
from .operators.layer_norm import (
    LayerNormGradients,
    LayerNormOutput,
    layer_norm,
    layer_norm_backward,
)
from .operators.rms_norm import RmsNormGradients, RmsNormOutput, rms_norm, rms_norm_backward
from .operators.sync_batch_norm import (
    BatchNormReductions,
    BatchNormStatistics,
    GatheredStatistics,
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
    batch_norm_elemt,
    batch_norm_gather_stats_with_counts,
    batch_norm_stats,
)
from .plans.plan import Plan
from .support.threads import get_num_threads, set_num_threads
from .tensors.specs import TensorSpec

__version__ = "0.1.0"

__all__ = [
    "BatchNormGradients",
    "BatchNormOutput",
    "BatchNormReductions",
    "BatchNormStatistics",
    "GatheredStatistics",
    "GroupNormGradients",
    "GroupNormOutput",
    "LayerNormGradients",
    "LayerNormOutput",
    "Plan",
    "RmsNormGradients",
    "RmsNormOutput",
    "TensorSpec",
    "__version__",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_backward_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_elemt",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_stats",
    "get_num_threads",
    "group_norm",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "plan",
    "rms_norm",
    "rms_norm_backward",
    "set_num_threads",
]
