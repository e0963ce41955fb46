"""Synchronised batch norm's parts in plain torch, for their derivatives.

Each part is differentiated for itself, with respect to every tensor that it takes, statistics and
sums too: what is put together from them, across ranks, then has the right derivatives of any order.

Notation: μ = mean, r = invstd, w = weight, Σ over a channel's elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .kernels import wide


def gradients(
    formula: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor | None],
    choices: Sequence[Any],
    cotangents: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of a formula's results in the place of its tensors, None where not wanted.

    Computed in float32, or float64 where the first tensor is; each is rounded once.
    """
    assert tensors[0] is not None
    dtype = wide(tensors[0])
    places = [index for index, want in enumerate(wanted) if want]
    found: list[Tensor | None] = [None] * len(tensors)
    moved = [value.to(dtype) for value in cotangents if value is not None]
    if not moved or not places:
        return found

    def computed(*values: Tensor) -> list[Tensor]:
        all_values = [*tensors]
        for place, value in zip(places, values, strict=True):
            all_values[place] = value
        results = formula(*[v if v is None else v.to(dtype) for v in all_values], *choices)
        pairs = zip(results, cotangents, strict=True)
        return [result for result, cotangent in pairs if cotangent is not None]

    _, pulled_back = torch.func.vjp(computed, *[tensors[place] for place in places])
    for place, value in zip(places, pulled_back(moved), strict=True):
        found[place] = value
    return found


def _axes(data: Tensor) -> list[int]:
    return [axis for axis in range(data.dim()) if axis != 1]


def _along(data: Tensor, vector: Tensor) -> Tensor:
    """A vector of channels against data of shape (N, C, ...)."""
    return vector.reshape(-1, *[1] * (data.dim() - 2))


def stats(input: Tensor, eps: float) -> tuple[Tensor, ...]:
    """μ = Σx/m and r = 1/sqrt(Σ(x − μ)²/m + eps), for m elements."""
    mean = input.mean(_axes(input))
    variance = (input - _along(input, mean)).square().mean(_axes(input))
    return mean, (variance + eps).rsqrt()


def gather(mean: Tensor, invstd: Tensor, counts: Tensor, eps: float) -> tuple[Tensor, ...]:
    """M = Σnμ/n and R = 1/sqrt(Σn(r⁻² − eps + (μ − M)²)/n + eps), with sums over ranks.

    A rank without elements has no part in anything.
    """
    share = counts.reshape(-1, 1) / counts.sum()
    some = share > 0
    mu, r = torch.where(some, mean, 0), torch.where(some, invstd, 1)
    all_mean = (share * mu).sum(0)
    variance = (share * (r**-2 - eps + (mu - all_mean).square())).sum(0)
    return all_mean, (variance + eps).rsqrt()


def reduce(grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, ...]:
    """Σdy, s = Σdy·(x − μ), grad_weight = r·s and grad_bias = Σdy."""
    total = grad_out.sum(_axes(input))
    moment = (grad_out * (input - _along(input, mean))).sum(_axes(input))
    return total, moment, invstd * moment, total


def backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> tuple[Tensor]:
    """grad_input = w·r·(dy − Σdy/n − (x − μ)·r²·s/n)."""
    n = count.sum()
    slope = _along(input, invstd.square() * sum_dy_xmu / n)
    inner = grad_out - _along(input, sum_dy / n) - (input - _along(input, mean)) * slope
    return (_along(input, invstd if weight is None else weight * invstd) * inner,)
