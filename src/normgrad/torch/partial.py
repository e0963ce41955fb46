"""The derivatives of synchronised batch norm's parts, in plain torch.

Each part is differentiated for itself, with respect to every tensor that it takes, statistics and
sums too: what is put together from them, across ranks, then has the right derivatives of any order.
Computed in float32, or float64 where the data are; each result is rounded once.

Notation: μ = mean, r = invstd, w = weight, m elements per channel, Σ over a channel's elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .kernels import wide

#: Gradients, None where they are 0.
Some = tuple[Tensor | None, ...]


class _Channels:
    """Vectors beside data of shape (N, C, ...), in the type that is computed in."""

    def __init__(self, *data: Tensor) -> None:
        self.dtype = wide(*data)
        rank = data[0].dim()
        self._axes = tuple(axis for axis in range(rank) if axis != 1)
        self._shape = (-1, *[1] * (rank - 2))

    def data(self, values: Tensor) -> Tensor:
        return values.to(self.dtype)

    def vector(self, values: Tensor | None) -> Any:
        """1 for None."""
        return 1.0 if values is None else values.to(self.dtype).reshape(self._shape)

    def sum(self, values: Tensor) -> Tensor:
        return values.sum(self._axes)


def _plus(*terms: Tensor | None) -> Tensor | None:
    total = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total


def _times(gradient: Tensor | None, factor: Any) -> Tensor | None:
    return None if gradient is None else gradient * factor


def stats(
    input: Tensor, mean: Tensor, invstd: Tensor, to_mean: Tensor | None, to_invstd: Tensor | None
) -> Tensor | None:
    """Of μ = Σx/m and r = 1/sqrt(Σ(x − μ)²/m + eps)::

    for x:  (to_μ − to_r·r³·(x − μ)) / m
    """
    on = _Channels(input)
    count = input.numel() // max(input.shape[1], 1)
    total = None
    if to_mean is not None:
        total = on.vector(to_mean).expand(input.shape)
    if to_invstd is not None:
        slope = on.vector(to_invstd) * on.vector(invstd) ** 3
        total = _plus(total, -slope * (on.data(input) - on.vector(mean)))
    return _times(total, 1 / max(count, 1))


def elemt(
    weight: Tensor | None, invstd: Tensor, sum_dy: Tensor, sum_dy_xmu: Tensor
) -> tuple[Tensor, Tensor]:
    """Of y = w·r·(x − μ) + b, from Σdy and Σdy·(x − μ)::

    for μ:  −w·r·Σdy
    for r:  w·Σdy·(x − μ)
    """
    dtype = wide(invstd, sum_dy)
    w: Any = 1.0 if weight is None else weight.to(dtype)
    return -w * invstd.to(dtype) * sum_dy, w * sum_dy_xmu.to(dtype)


def gather(
    mean: Tensor,
    invstd: Tensor,
    counts: Tensor,
    all_mean: Tensor,
    all_invstd: Tensor,
    to_mean: Tensor | None,
    to_invstd: Tensor | None,
) -> Some:
    """Of all ranks' M = Σnμ/n and R = 1/sqrt(Σn(r⁻² − eps + (μ − M)²)/n + eps), sums over ranks::

        for μ:  n/Σn · (to_M − to_R·R³·(μ − M))
        for r:  n/Σn · to_R·R³/r³

    M's own part in R is 0. A rank without elements has no part in anything.
    """
    dtype = wide(mean, invstd)
    share = counts.reshape(-1, 1).to(dtype)
    share = share / share.sum()
    some = share > 0
    mu = torch.where(some, mean.to(dtype), 0)
    r = torch.where(some, invstd.to(dtype), 1)
    for_mean = _times(to_mean, share)
    for_invstd = None
    if to_invstd is not None:
        slope = share * to_invstd.to(dtype) * all_invstd.to(dtype) ** 3
        for_mean = _plus(for_mean, -slope * (mu - all_mean.to(dtype)))
        for_invstd = slope / r**3
    return for_mean, for_invstd


def reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    to_sum_dy: Tensor | None,
    to_sum_dy_xmu: Tensor | None,
    to_weight: Tensor | None,
    to_bias: Tensor | None,
) -> Some:
    """Of Σdy, s = Σdy·(x − μ), r·s and Σdy, with a = to_Σdy + to_bias, b = to_s + r·to_weight::

    for dy:  a + b·(x − μ)        for μ:  −b·Σdy
    for x:   b·dy                 for r:  to_weight·s
    """
    on = _Channels(grad_out, input)
    dy, centred = on.data(grad_out), on.data(input) - on.vector(mean)
    for_dy = _plus(to_sum_dy, to_bias)
    slope = _plus(to_sum_dy_xmu, _times(to_weight, invstd.to(on.dtype)))
    for_dy = None if for_dy is None else on.vector(for_dy).expand(grad_out.shape)
    for_x = for_mean = for_invstd = None
    if slope is not None:
        for_dy = _plus(for_dy, on.vector(slope) * centred)
        for_x = on.vector(slope) * dy
        for_mean = -slope * on.sum(dy)
    if to_weight is not None:
        for_invstd = to_weight * on.sum(dy * centred)
    return for_dy, for_x, for_mean, for_invstd


def backward_elemt(
    to_input: Tensor,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Some:
    """Of w·r·e with e = dy − Σdy/n − (x − μ)·r²·s/n, for u = to_input::

    for dy:  w·r·u                        for w:    Σu·r·e
    for x:   −w·r³·s/n·u                  for Σdy:  −w·r/n·Σu
    for μ:   w·r³·s/n·Σu                  for s:    −w·r³/n·Σu·(x − μ)
    for r:   w·Σu·(e − 2·(x − μ)·r²·s/n)
    """
    on = _Channels(grad_out, input)
    u, dy, centred = on.data(to_input), on.data(grad_out), on.data(input) - on.vector(mean)
    n = count.sum().to(on.dtype)
    r = invstd.to(on.dtype)
    w: Any = 1.0 if weight is None else weight.to(on.dtype)
    s, total = sum_dy_xmu.to(on.dtype), sum_dy.to(on.dtype)
    slope = r**2 * s / n
    inner = dy - on.vector(total / n) - centred * on.vector(slope)
    sum_u, sum_u_centred = on.sum(u), on.sum(u * centred)
    sum_u_inner = on.sum(u * inner)
    return (
        on.vector(w * r) * u,
        -on.vector(w * r * slope) * u,
        w * r * slope * sum_u,
        w * (sum_u_inner - 2 * slope * sum_u_centred),
        r * sum_u_inner,
        -w * r / n * sum_u,
        -w * r**3 / n * sum_u_centred,
    )
