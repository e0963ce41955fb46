"""What the operators' results look like: shapes, strides and dtypes, without data.

An operator of normgrad's is read off its declaration; so a fake result can only differ from the
real one where the kernel breaks its contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import contract, layout
from ..contract import OUTPUT, Kind
from .kernels import absent_of, output_for, wide
from .schemas import SCHEMAS, Schema


def _like(data: Tensor) -> Tensor:
    strides = layout.dense_like(data.shape, data.stride())
    return torch.empty_strided(data.shape, strides, dtype=data.dtype, device=data.device)


def _output(input: Tensor) -> Tensor:
    found = output_for(input)
    return _like(input) if found is None else found


def _fake(schema: Schema) -> Callable[..., Any]:
    operator = schema.operator

    def fake(*arguments: Any) -> Any:
        """The results that the operator's declaration promises."""
        tensors, choices = schema.read(arguments)
        options = operator.read_options(**choices)
        present = contract.counted(operator, options, tensors)
        data = present["input"]
        rows = data.dim() - len(options.normalized_shape)
        shapes: dict[Kind, Any] = {
            Kind.CHANNEL: data.shape[1:2],
            Kind.GROUP: (*data.shape[:1], options.num_groups),
            Kind.ROW: (*data.shape[:rows], *[1] * len(options.normalized_shape)),
            Kind.POSITION: data.shape[rows:],
            Kind.COUNT: (1,),
        }
        results = []
        for output in operator.outputs(options):
            source = next((present[name] for name in output.dtype_from if name in present), None)
            if not output.wanted or source is None:
                results.append(absent_of(operator, data))
            elif output.kind is Kind.DATA:
                results.append(_output(data) if output.name == OUTPUT.name else _like(data))
            else:
                dtype = wide(source) if output.is_wide else source.dtype
                if output.kind is Kind.COUNT:
                    dtype = torch.int64
                results.append(torch.empty(shapes[output.kind], dtype=dtype, device=data.device))
        return results[0] if operator.out_is_tensor else tuple(results)

    return fake


def _all_reduce_sum(values: Tensor, group_name: str) -> Tensor:
    return torch.empty(values.shape, dtype=values.dtype, device=values.device)


#: The fake kernels by their operators' names.
FAKES: dict[str, Callable[..., Any]] = {
    **{name: _fake(schema) for name, schema in SCHEMAS.items()},
    "all_reduce_sum": _all_reduce_sum,
}
