"""PyTorch's own kernels under normgrad's names."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from ..operators.by_name import FUNCTIONS

#: What ``torch.ops.aten`` calls our functions, and its arguments in their order: ours by name, the
#: numbers of samples, channels and positions as N, C and HxW. The last five are a GPU's alone.
_ATEN = {
    "batch_norm_backward": (
        "native_batch_norm_backward",
        "grad_out input weight running_mean running_var save_mean save_invstd training eps "
        "output_mask",
    ),
    "group_norm_backward": (
        "native_group_norm_backward",
        "grad_out input mean rstd gamma N C HxW num_groups output_mask",
    ),
    "batch_norm": (
        "native_batch_norm",
        "input weight bias running_mean running_var training momentum eps",
    ),
    "group_norm": ("native_group_norm", "input gamma beta N C HxW num_groups eps"),
    "layer_norm": ("native_layer_norm", "input normalized_shape weight bias eps"),
    "layer_norm_backward": (  # the weight also in the place of the bias, which has its shape
        "native_layer_norm_backward",
        "grad_out input normalized_shape mean rstd weight weight output_mask",
    ),
    "rms_norm": ("_fused_rms_norm", "input normalized_shape weight eps"),
    "rms_norm_backward": (
        "_fused_rms_norm_backward",
        "grad_out input normalized_shape rstd weight output_mask",
    ),
    "batch_norm_stats": ("batch_norm_stats", "input eps"),
    "batch_norm_elemt": ("batch_norm_elemt", "input weight bias mean invstd eps"),
    "batch_norm_gather_stats_with_counts": (
        "batch_norm_gather_stats_with_counts",
        "input mean invstd running_mean running_var momentum eps counts",
    ),
    "batch_norm_backward_reduce": (
        "batch_norm_backward_reduce",
        "grad_out input mean invstd weight input_g weight_g bias_g",
    ),
    "batch_norm_backward_elemt": (
        "batch_norm_backward_elemt",
        "grad_out input mean invstd weight sum_dy sum_dy_xmu count",
    ),
}
#: Those that change the running statistics that they are given, where ours returns new ones.
_CHANGING = ("batch_norm", "batch_norm_gather_stats_with_counts")
_RUNNING = ("running_mean", "running_var")

_THREADS = torch.get_num_threads()


def _under_our_name(name: str) -> Callable[..., Any]:
    """One of our functions, without options that ATen has not got, computed by PyTorch."""
    theirs, order = _ATEN[name]
    ours = inspect.signature(FUNCTIONS[name])
    parameters = [
        each for each in ours.parameters.values() if each.name not in ("channel_axis", "out")
    ]
    signature = ours.replace(parameters=parameters)

    def function(*tensors: Any, **options: Any) -> Any:
        given = signature.bind(*tensors, **options)
        given.apply_defaults()
        # What is added to a variance is in invstd already, where that is given.
        values: dict[str, Any] = {"eps": 0.0, **given.arguments}
        if "HxW" in order:
            n, c, *rest = values["input"].shape
            values |= {"N": n, "C": c, "HxW": math.prod(rest)}
        if name in _CHANGING:
            values |= {each: _copied(values[each]) for each in _RUNNING}
        result = getattr(torch.ops.aten, theirs)(*(values[each] for each in order.split()))
        if name not in _CHANGING:
            return result
        if not values.get("training", True):
            return result[:1]
        return (*result, *(values[each] for each in _RUNNING))

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _copied(tensor: Any) -> Any:
    return None if tensor is None else tensor.clone()


class Aten:
    """What ``torch.ops.aten`` has of the operators, on the CPU and on GPUs."""

    name = f"torch {torch.__version__}"
    framework = "torch"
    device = "cpu"

    @staticmethod
    def set_num_threads(count: int | None) -> None:
        """None for as many as PyTorch began with."""
        torch.set_num_threads(count or _THREADS)


for _name in _ATEN:
    setattr(Aten, _name, staticmethod(_under_our_name(_name)))
