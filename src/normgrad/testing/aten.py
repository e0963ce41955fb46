"""PyTorch's native kernels (ATen) under normgrad's function names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
