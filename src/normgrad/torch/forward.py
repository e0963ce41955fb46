"""Where the forward passes come from."""

from ..operators import (
    batch_norm,
    batch_norm_elemt,
    batch_norm_gather_stats_with_counts,
    group_norm,
)

__all__ = [
    "batch_norm",
    "batch_norm_elemt",
    "batch_norm_gather_stats_with_counts",
    "group_norm",
]
