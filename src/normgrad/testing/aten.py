"""PyTorch's native kernels (ATen) under normgrad's function names.

These operators have no documented contract. What their callers pass counts as one, which are the
functions of ``torch.nn.functional`` and the derivatives that PyTorch lists in derivatives.yaml: for
every other call :func:`_why_not` says why it is not made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import prod
from types import SimpleNamespace
from typing import Any

import torch

from ..operators.by_name import FUNCTIONS
from ..torch.aten import OPERATORS

#: ATen's functions that update running statistics in place. normgrad's return new ones.
_IN_PLACE = ("batch_norm", "batch_norm_gather_stats_with_counts")
_RUNNING = ("running_mean", "running_var")


def operators() -> SimpleNamespace:
    """The operators that ``torch.ops.aten`` has, on the CPU and on GPUs, as a subject has them."""
    threads = torch.get_num_threads()
    return SimpleNamespace(
        **{name: _under_our_name(name) for name in OPERATORS},
        framework="torch",
        device="cpu",
        set_num_threads=lambda count: torch.set_num_threads(count or threads),
    )


_DATA = ("grad_out", "input")
_PARAMETERS = ("weight", "bias")
_STATISTICS = ("mean", "rstd", "save_mean", "save_invstd", "running_mean", "running_var")


def _why_not(name: str, values: Mapping[str, Any]) -> str:
    """What PyTorch's layers pass to an operator, if these arguments differ from it; else empty."""
    tensors = {key: each for key, each in values.items() if isinstance(each, torch.Tensor)}
    x, groups = values["input"], values.get("num_groups", 1)
    data = [tensors[key] for key in _DATA if key in tensors]
    statistics = [key for key in _STATISTICS if key in tensors]
    vectors = [tensors[key] for key in (*_PARAMETERS, *statistics) if key in tensors]
    beside = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    is_gradient, of_groups = "grad_out" in values, "group_norm" in name
    if not x.dtype.is_floating_point or any(
        (each.dtype, each.shape) != (x.dtype, x.shape) for each in data
    ):
        return "gradients of the input's dtype and shape"
    if {each.dtype for each in vectors} not in (set(), {x.dtype}, {beside}):
        return "vectors of one dtype: the input's, or float32 with data of half types"
    if ("normalized_shape" not in values and x.dim() < 2) or groups <= 0 or x.shape[1] % groups:
        return "at least two axes, and whole groups"
    if is_gradient and "weight" not in tensors and any(values["output_mask"][1:]):
        return "a mask without the gradients of parameters that are absent"
    if "normalized_shape" in values:
        sizes = {x.numel() // max(1, prod(values["normalized_shape"]))}
    else:
        sizes = {len(x) * groups if of_groups else x.shape[1]}
    if {tensors[key].numel() for key in statistics} - sizes:
        return "statistics of as many elements as there are"
    if "training" in values:
        prefix = "save" if is_gradient and values["training"] else "running"
        needed = {key for key in values if key.startswith(prefix)}
        is_free = values["training"] and not is_gradient and not statistics
        if not (needed <= {*statistics} or is_free):
            return "both statistics"
        if not x.numel() or any(len(each) != x.shape[1] for each in vectors):
            return "elements, and vectors of the input's channels"
    formats = [torch.contiguous_format]
    formats += {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(x.dim(), [])
    if of_groups and not any(
        all(each.is_contiguous(memory_format=layout) for each in data) for layout in formats
    ):
        return "dense data of one memory format"
    return ""


def _under_our_name(name: str) -> Callable[..., Any]:
    """A function with the signature of normgrad's, less options ATen lacks, that calls ATen."""
    theirs = OPERATORS[name]
    ours = inspect.signature(FUNCTIONS[name])
    lacking = ("channel_axis", "out")
    parameters = [each for each in ours.parameters.values() if each.name not in lacking]
    signature = ours.replace(parameters=parameters)

    def function(*tensors: Any, **options: Any) -> Any:
        bound = signature.bind(*tensors, **options)
        bound.apply_defaults()
        # The invstd of a call already includes eps.
        values: dict[str, Any] = {"eps": 0.0, **bound.arguments}
        values.setdefault("bias", values.get("weight"))  # ATen's gradient reads only its shape
        if name in _IN_PLACE:
            running = [name for name in _RUNNING if values[name] is not None]
            values |= {name: values[name].clone() for name in running}
        if isinstance(row := values.get("normalized_shape"), int):
            values["normalized_shape"] = (row,)
        # Those of synchronised batch norm, which PyTorch has on GPUs alone, have normgrad's names.
        if theirs.name != name and (reason := _why_not(name, values)):
            raise NotImplementedError(f"PyTorch's layers pass {reason}")
        dense = (*_STATISTICS, *(_PARAMETERS if "group_norm" in name else ()))
        values |= {key: values[key].contiguous() for key in dense if values.get(key) is not None}
        shape: list[int] = [*values["input"].shape, 1]
        values |= {"N": shape[0], "C": shape[1], "HxW": prod(shape[2:])}
        result = getattr(torch.ops.aten, theirs.name)(*map(values.get, theirs.arguments))
        if name not in _IN_PLACE:
            return result
        if not values.get("training", True):
            return result[:1]
        return (*result, *(values[each] for each in _RUNNING))

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
