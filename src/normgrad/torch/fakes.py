"""What the operators' results look like: shapes, strides and dtypes, without data.

An operator of normgrad's is read off its declaration; so a fake result can only differ from the
real one where the kernel breaks its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import contract, layout
from ..contract import OUTPUT, Kind, Operator
from .kernels import absent, absent_of, output_for, wide
from .schemas import SCHEMAS, Schema


def _like(data: Tensor) -> Tensor:
    strides = layout.dense_like(data.shape, data.stride())
    return torch.empty_strided(data.shape, strides, dtype=data.dtype, device=data.device)


def _output(input: Tensor) -> Tensor:
    found = output_for(input)
    return _like(input) if found is None else found


def _vector(like: Tensor, size: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)


def _fake(schema: Schema, operator: Operator) -> Callable[..., Any]:
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
                results.append(_vector(data, shapes[output.kind], dtype))
        return results[0] if operator.out_is_tensor else tuple(results)

    return fake


def _running(old: Sequence[Tensor | None], gone: torch.dtype, like: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        absent(gone, like) if value is None else _vector(value, value.shape[0], value.dtype)
        for value in old
    )


def all_reduce_sum(values: Tensor, group_name: str) -> Tensor:
    """As :func:`.synchronised.all_reduce_sum`."""
    return torch.empty(values.shape, dtype=values.dtype, device=values.device)


def sync_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    group_name: str,
    key: int,
) -> tuple[Tensor, ...]:
    """As :func:`.synchronised.sync_batch_norm`."""
    dtype = wide(input)
    statistics = [_vector(input, input.shape[1], dtype) for _ in range(2)]
    running = _running((running_mean, running_var), dtype, input)
    return _output(input), *statistics, *running, _vector(input, 1, torch.int64)


def sync_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    count: Tensor,
    group_name: str,
    output_mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    """As :func:`.synchronised.sync_batch_norm_backward`."""
    wanted, *of_parameters = output_mask
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        _like(input) if wanted else absent(input.dtype, input),
        *(
            _vector(input, input.shape[1], dtype) if want else absent(dtype, mean)
            for want in of_parameters
        ),
    )


#: The fake kernels by their operators' names.
FAKES: dict[str, Callable[..., Any]] = {
    **{
        name: _fake(schema, schema.operator)
        for name, schema in SCHEMAS.items()
        if schema.operator is not None
    },
    **{fake.__name__: fake for fake in (all_reduce_sum, sync_batch_norm, sync_batch_norm_backward)},
}
