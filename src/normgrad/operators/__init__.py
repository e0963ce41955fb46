"""The operators: what each takes and gives, and the problem it makes for a backend."""

from .batch_norm import BatchNormGradients, batch_norm_backward
from .by_name import OPERATORS, plan
from .group_norm import GroupNormGradients, group_norm_backward
from .statistics import BatchNormStatistics, batch_norm_stats
from .sync_batch_norm import (
    BatchNormReductions,
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
)

__all__ = [
    "OPERATORS",
    "BatchNormGradients",
    "BatchNormReductions",
    "BatchNormStatistics",
    "GroupNormGradients",
    "batch_norm_backward",
    "batch_norm_backward_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_stats",
    "group_norm_backward",
    "plan",
]
