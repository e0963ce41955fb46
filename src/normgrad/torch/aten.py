"""ATen's operators for norms, and their arguments by the names of normgrad's declarations."""

from __future__ import annotations

from typing import NamedTuple


class AtenOperator(NamedTuple):
    """An operator of ATen's: its name, and its arguments' names in normgrad's declaration.

    N, C, HxW and the bias of a gradient have no name there, since shapes are known without them.
    """

    name: str
    arguments: tuple[str, ...]


_AFFINE = "input weight bias"
_GRADIENT = "grad_out input"
_RUNNING = "running_mean running_var"
_SAVED = "mean invstd"

#: ATen's operators by the names of normgrad's.
OPERATORS = {
    name.removeprefix("native_").removeprefix("_fused_"): AtenOperator(name, (*arguments.split(),))
    for name, arguments in {
        "native_batch_norm": f"{_AFFINE} {_RUNNING} training momentum eps",
        "native_batch_norm_backward": (
            f"{_GRADIENT} weight {_RUNNING} save_mean save_invstd training eps output_mask"
        ),
        "batch_norm_stats": "input eps",
        "batch_norm_elemt": f"{_AFFINE} {_SAVED} eps",
        "batch_norm_gather_stats_with_counts": (f"input {_SAVED} {_RUNNING} momentum eps counts"),
        "batch_norm_backward_reduce": f"{_GRADIENT} {_SAVED} weight input_g weight_g bias_g",
        "batch_norm_backward_elemt": f"{_GRADIENT} {_SAVED} weight sum_dy sum_dy_xmu count",
        "native_group_norm": "input gamma beta N C HxW num_groups eps",
        "native_group_norm_backward": (
            f"{_GRADIENT} mean rstd gamma N C HxW num_groups output_mask"
        ),
        "native_layer_norm": "input normalized_shape weight bias eps",
        "native_layer_norm_backward": (
            f"{_GRADIENT} normalized_shape mean rstd weight bias output_mask"
        ),
        "_fused_rms_norm": "input normalized_shape weight eps",
        "_fused_rms_norm_backward": f"{_GRADIENT} normalized_shape rstd weight output_mask",
    }.items()
}
