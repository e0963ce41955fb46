"""What the operators do: normgrad's functions under ATen's arguments.

A result that is absent (masked off, or a statistic that was not given) is an empty tensor of shape
(0,): a schema's result is a tensor, and traced programs have no other way to hold none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from ..contract import OUTPUT, Operator
from ..memory import allocating
from ..operators.by_name import FUNCTIONS
from .schemas import ATEN, Schema


def wide(*tensors: Tensor) -> torch.dtype:
    """What is computed in: float64 as soon as one of the data tensors is, else float32."""
    return torch.float64 if torch.float64 in [t.dtype for t in tensors] else torch.float32


def absent(dtype: torch.dtype, like: Tensor) -> Tensor:
    """A result that is not there."""
    return torch.empty(0, dtype=dtype, device=like.device)


def absent_of(operator: Operator, input: Tensor) -> Tensor:
    """An operator's result that is not there."""
    return absent(input.dtype if operator.is_gradient else wide(input), input)


def output_for(input: Tensor) -> Tensor | None:
    """A new output where normgrad's own would be laid out unlike PyTorch's; else None.

    PyTorch's are contiguous, or channels-last where the input is; programs that call ``view`` on
    them count on it. normgrad's have the order of the input's axes, whatever it is.
    """
    if input.is_contiguous():
        return None
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    if last is not None and input.is_contiguous(memory_format=last):
        return None
    with allocating("output", input.nbytes):
        return torch.empty(
            input.shape, dtype=input.dtype, device=input.device,
            memory_format=suggest_memory_format(input),
        )  # fmt: skip


def _kernel(schema: Schema) -> Callable[..., Any]:
    operator = schema.operator
    function = FUNCTIONS[operator.name]
    rest = (None,) * (len(operator.all_outputs) - 1)

    def kernel(*arguments: Any) -> Any:
        tensors, options = schema.read(arguments)
        if operator.all_outputs[0] is OUTPUT:
            output = output_for(tensors["input"])
            options["out"] = output if operator.out_is_tensor else (output, *rest)
        results = function(**tensors, **options)
        if operator.out_is_tensor:
            return results
        return tuple(
            absent_of(operator, tensors["input"]) if value is None else value for value in results
        )

    return kernel


#: The kernels by their operators' names.
KERNELS = {schema.name: _kernel(schema) for schema in ATEN.values()}
