"""The operators: what each takes and gives, checked, and turned into a problem for a backend."""

from .batch_norm import BATCH_NORM_BACKWARD, BatchNormGradients, batch_norm_backward
from .group_norm import GROUP_NORM_BACKWARD, GroupNormGradients, group_norm_backward
from .sync_batch_norm import (
    BATCH_NORM_BACKWARD_ELEMT,
    BATCH_NORM_BACKWARD_REDUCE,
    BatchNormReductions,
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
)

#: Every operator, by the name that plans and files call it.
OPERATORS = {
    operator.name: operator
    for operator in (
        BATCH_NORM_BACKWARD,
        BATCH_NORM_BACKWARD_REDUCE,
        BATCH_NORM_BACKWARD_ELEMT,
        GROUP_NORM_BACKWARD,
    )
}

__all__ = [
    "OPERATORS",
    "BatchNormGradients",
    "BatchNormReductions",
    "GroupNormGradients",
    "batch_norm_backward",
    "batch_norm_backward_elemt",
    "batch_norm_backward_reduce",
    "group_norm_backward",
]
