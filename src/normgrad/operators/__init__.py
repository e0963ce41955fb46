"""The public operators and their declarations."""

from .batch_norm import BatchNormGradients, batch_norm_backward
from .by_name import OPERATORS, plan
from .forward import BatchNormOutput, GroupNormOutput, batch_norm, batch_norm_elemt, group_norm
from .group_norm import GroupNormGradients, group_norm_backward
from .layer_norm import LayerNormGradients, LayerNormOutput, layer_norm, layer_norm_backward
from .rms_norm import RmsNormGradients, RmsNormOutput, rms_norm, rms_norm_backward
from .statistics import (
    BatchNormStatistics,
    GatheredStatistics,
    batch_norm_gather_stats_with_counts,
    batch_norm_stats,
)
from .sync_batch_norm import (
    BatchNormReductions,
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
)

__all__ = [
    "OPERATORS",
    "BatchNormGradients",
    "BatchNormOutput",
    "BatchNormReductions",
    "BatchNormStatistics",
    "GatheredStatistics",
    "GroupNormGradients",
    "GroupNormOutput",
    "LayerNormGradients",
    "LayerNormOutput",
    "RmsNormGradients",
    "RmsNormOutput",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_backward_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_elemt",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_stats",
    "group_norm",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "plan",
    "rms_norm",
    "rms_norm_backward",
]
