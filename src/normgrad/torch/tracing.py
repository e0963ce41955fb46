"""The operators that ``torch.jit.trace`` records for normgrad's functions.

The tracer records sizes as constants. So a traced call is one operator that takes no sizes, and
that does all that its function does when it runs: it decides then whether PyTorch computes. The
operators have no derivatives of their own, since what their functions call has them.
"""

from __future__ import annotations

import torch

from . import functional
from .ops import LIBRARY

_AFFINE = "Tensor? weight, Tensor? bias"
_RUNNING = "Tensor? running_mean, Tensor? running_var"
_ROW = "Tensor input, int[] normalized_shape, Tensor? weight"
_ARGUMENTS = {
    "batch_norm": f"Tensor input, {_RUNNING}, {_AFFINE}, bool training, float momentum, float eps",
    "cumulative_batch_norm": (
        f"Tensor input, Tensor running_mean, Tensor running_var, {_AFFINE}, Tensor batches, "
        "float eps"
    ),
    "group_norm": f"Tensor input, int num_groups, {_AFFINE}, float eps",
    "layer_norm": f"{_ROW}, Tensor? bias, float eps",
    "rms_norm": f"{_ROW}, float? eps",
    "instance_norm": (
        f"Tensor input, {_RUNNING}, {_AFFINE}, bool use_input_stats, float momentum, float eps"
    ),
}

for _name, _text in _ARGUMENTS.items():
    # By default the compiler of traced programs assumes that an operator may write to its
    # arguments, as these do to running statistics.
    LIBRARY.define(f"{_name}({_text}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(_name, getattr(functional, _name), "CompositeImplicitAutograd")
