"""What torch.compile's inductor generates in the place of the norms' operators.

It fuses PyTorch's formulas with the layers around a norm, which no kernel of ours can be; so it is
given the operators in terms of PyTorch's. Other backends, and exported programs, call ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .kernels import absent, wide

aten = torch.ops.aten


def _native_batch_norm(
    input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    dtype = wide(input)
    given = running_mean is not None and running_var is not None
    if given:
        output, mean, invstd, *new = aten._native_batch_norm_legit_functional(
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )
    else:
        output, mean, invstd = aten._native_batch_norm_legit.no_stats(
            input, weight, bias, training, momentum, eps
        )
    results = [absent(dtype, input) for _ in range(4)]
    if training:
        results[:2] = mean.to(dtype), invstd.to(dtype)
    if training and given:
        results[2:] = new[0].to(running_mean.dtype), new[1].to(running_var.dtype)
    return output.to(input.dtype), *results


def _as_ours(found: Any, input: Tensor, weight: Any, mask: Any) -> tuple[Tensor, ...]:
    """Gradients in their tensors' dtypes; what is masked off is empty."""
    dtypes = (input.dtype, *[input.dtype if weight is None else weight.dtype] * 2)
    return tuple(
        value.to(dtype) if wanted else absent(input.dtype, input)
        for value, dtype, wanted in zip(found, dtypes, mask, strict=True)
    )


def _native_batch_norm_backward(
    grad_out: Tensor, input: Tensor, weight: Any, running_mean: Any, running_var: Any,
    save_mean: Any, save_invstd: Any, train: bool, eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
    if any(value is None for value in statistics):
        return NotImplemented  # ours computes them
    found = aten.native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
        output_mask,
    )  # fmt: skip
    return _as_ours(found, input, weight, output_mask)


def _native_group_norm(input: Tensor, weight: Any, bias: Any, *sizes: Any) -> tuple[Tensor, ...]:
    data = input.to(wide(input))
    output, mean, rstd = aten.native_group_norm(data, weight, bias, *sizes)
    output = output.to(input.dtype)
    if input.dim() in (4, 5):
        output = output.contiguous(memory_format=suggest_memory_format(input))
    return output, mean.to(data.dtype), rstd.to(data.dtype)


def _native_group_norm_backward(
    grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Any, *rest: Any
) -> tuple[Tensor, ...]:
    dtype = wide(grad_out, input)
    cast = [None if value is None else value.to(dtype) for value in (mean, rstd, weight)]
    found = aten.native_group_norm_backward(grad_out.to(dtype), input.to(dtype), *cast, *rest)
    return _as_ours(found, input, weight, rest[-1])


#: The operators that PyTorch's take the place of.
_DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "native_batch_norm": _native_batch_norm,
    "native_batch_norm_backward": _native_batch_norm_backward,
    "native_group_norm": _native_group_norm,
    "native_group_norm_backward": _native_group_norm_backward,
}


def announced(fake: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's fake, which tells inductor of the above where it has been loaded.

    Fakes run before inductor looks, and loading it for those who do not use it would take seconds.
    """

    @wraps(fake)
    def call(*arguments: Any, **more: Any) -> Any:
        inductor: Any = sys.modules.get("torch._inductor.decomposition")
        if inductor is not None and hasattr(inductor, "fast_random_decomps"):
            for table in (inductor.decompositions, inductor.fast_random_decomps()):
                for name, formula in _DECOMPOSITIONS.items():
                    table.setdefault(getattr(torch.ops.normgrad, name).default, formula)
        return fake(*arguments, **more)

    return call
