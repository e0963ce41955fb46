"""The operators' kernels, which call normgrad's functions with ATen's arguments, and fake kernels.

A fake result has the shape, strides and dtype of the real one, but no data. It follows from the
operator's declaration, so it can differ from the real one only if the kernel breaks its contract.

A result that is absent (masked off, or the update of a running statistic that was not given) is an
empty tensor of shape (0,), since a schema's results are tensors and traced programs cannot hold
None in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .. import contract, layout
from ..contract import OUTPUT, Kind, Operator
from ..memory import allocating
from ..plans import call
from . import extension
from .schemas import ATEN, SCHEMAS, Schema


def arithmetic(*tensors: Tensor) -> torch.dtype:
    """The dtype of the arithmetic: float64 if one of the data tensors has it, otherwise float32."""
    return torch.float64 if torch.float64 in [t.dtype for t in tensors] else torch.float32


def absent_of(operator: Operator, input: Tensor) -> Tensor:
    """The empty tensor that stands for an absent result of an operator."""
    return input.new_empty(0, dtype=input.dtype if operator.is_gradient else arithmetic(input))


def output_for(input: Tensor) -> Tensor | None:
    """A new output if normgrad's own would have another layout than PyTorch's; otherwise None.

    PyTorch's output is contiguous, or channels-last if the input is, and programs that call
    ``view`` on it rely on that. normgrad's has its axes in the input's order in memory, whatever
    that is.
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
    order = [schema.declared[name] for name in schema.tensors]
    rest = (None,) * (len(operator.all_outputs) - 1)

    def kernel(*arguments: Any) -> Any:
        tensors, options = schema.read(arguments)
        output = output_for(tensors["input"]) if operator.all_outputs[0] is OUTPUT else None
        out = output if output is None or operator.out_is_tensor else (output, *rest)
        choices = tuple([options[name] for name in operator.options if name in options])
        plans: list[Any] = []
        returned = call(
            operator, tuple(tensors.values()), out, choices,
            read_next=True, is_recorded=True, tell=plans.append,
        )  # fmt: skip
        results = tuple(
            absent_of(operator, tensors["input"]) if value is None else value
            for value in ((returned,) if operator.out_is_tensor else returned)
        )
        extension.hand_over(plans[0], order, (), results)
        return results[0] if operator.out_is_tensor else results

    return kernel


#: The kernels by operators' names.
KERNELS = {schema.name: _kernel(schema) for schema in ATEN.values()}


def _fake(schema: Schema) -> Callable[..., Any]:
    operator = schema.operator

    def fake(*arguments: Any) -> Any:
        tensors, choices = schema.read(arguments)
        options = operator.read_options(**choices)
        present = contract.present_inputs(operator, options, tensors)
        data = present["input"]
        shapes = {**contract.shapes_of(operator, options, present), Kind.COUNT: (1,)}
        results = []
        for output in operator.outputs(options):
            source = next((present[name] for name in output.dtype_from if name in present), None)
            if not output.is_wanted or source is None:
                results.append(absent_of(operator, data))
            elif output.kind is Kind.DATA:
                new = None if operator.is_gradient else output_for(data)
                if new is None:
                    strides, dtype = layout.dense_like(data.shape, data.stride()), data.dtype
                    new = torch.empty_strided(data.shape, strides, dtype=dtype, device=data.device)
                results.append(new)
            else:
                dtype = arithmetic(source) if output.is_wide else source.dtype
                if output.kind is Kind.COUNT:
                    dtype = torch.int64
                results.append(torch.empty(shapes[output.kind], dtype=dtype, device=data.device))
        return results[0] if operator.out_is_tensor else tuple(results)

    return fake


#: The fake kernels by operators' names.
FAKES: dict[str, Callable[..., Any]] = {
    **{name: _fake(schema) for name, schema in SCHEMAS.items()},
    "all_reduce_sum": lambda values, _: torch.empty_like(
        values, memory_format=torch.contiguous_format
    ),
}
