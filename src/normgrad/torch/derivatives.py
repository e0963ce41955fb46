"""Jacobian-vector products and second derivatives of the norms, in plain PyTorch operators.

The operators are differentiable, so derivatives of any order follow. The arithmetic is float32, or
float64 if the data are, and each result is rounded once.

Notation. Statistics are shared by sets of elements (batch norm: a channel; group norm: a sample's
group; layer norm: a row); ⟨v⟩ is the mean over each set. With μ = ⟨x⟩,
r = 1/sqrt(⟨(x − μ)²⟩ + eps) and x̂ = (x − μ)·r, the derivatives along a tangent t of x are ::

    of x̂:  r·P(t),          P(v) = v − ⟨v⟩ − x̂·⟨v·x̂⟩
    of r:   −r²·⟨x̂·t⟩

P is linear and symmetric, ⟨u·P(v)⟩ = ⟨v·P(u)⟩. If the statistics are constants (evaluation),
P(v) = v and the derivative of r is 0. With d = w·dy the norms' gradients are ::

    grad_input  = r·P(d)        grad_weight = Σ dy·x̂        grad_bias = Σ dy

with Σ over all elements of a channel (layer norm: of a position).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .kernels import arithmetic
from .schemas import overload


class Normalisation:
    """x̂ and r as differentiable functions of the data."""

    def __init__(
        self,
        data: Tensor,
        mean: Tensor | None,
        invstd: Tensor | None,
        shape: Sequence[Any],
        set_axes: Sequence[int],
        channel_axes: Sequence[int],
        *,
        constant: bool = False,
        centred: bool = True,
        eps: float = 0.0,
    ) -> None:
        """Use the given statistics, and compute those that are None.

        The data are reshaped to ``shape``, in which ``set_axes`` are the axes that the mean of a
        set is taken over, and ``channel_axes`` those that the sum of a channel is taken over.
        Statistics that are ``constant`` do not depend on the data. Others have the given values,
        but the derivatives of functions of the data: μ = μ₀ + (⟨x⟩ − ⟨x⟩₀) and
        r = (v + r₀⁻² − v₀)^(−1/2), where v is the variance about μ, μ₀ and r₀ are the given values,
        and ⟨x⟩₀ and v₀ are ⟨x⟩ and v without derivatives. If ``centred`` is false there is no μ,
        and P(v) = v − x̂·⟨v·x̂⟩.
        """
        self._dtype = arithmetic(data)
        self._shape, self._set_axes, self._channel_axes = shape, set_axes, channel_axes
        self._constant, self._centred = constant, centred
        x = self._data(data)
        mu: Any = 0.0
        if centred and not constant:
            mu = self._mean(x)
        if mean is not None:
            statistic = self._with_ones(set_axes, mean)
            mu = statistic if constant else statistic + (mu - mu.detach())
        if constant:
            assert invstd is not None
            self._invstd = self._with_ones(set_axes, invstd)
        else:
            variance = self._mean((x - mu).square())
            rest: Any = eps
            if invstd is not None:
                rest = self._with_ones(set_axes, invstd).pow(-2) - variance.detach()
            self._invstd = (variance + rest).rsqrt()
        self._xhat = (x - mu) * self._invstd

    def _data(self, values: Tensor) -> Tensor:
        return values.to(self._dtype).reshape(self._shape)

    def _with_ones(self, axes: Sequence[int], values: Tensor) -> Tensor:
        """Insert axes of size 1 into a tensor that lacks these axes, so that it broadcasts."""
        shape = [1 if axis in axes else size for axis, size in enumerate(self._shape)]
        return values.to(self._dtype).reshape(shape)

    def _weighted(self, weight: Tensor | None, values: Tensor) -> Tensor:
        return values if weight is None else self._with_ones(self._channel_axes, weight) * values

    def _mean(self, values: Tensor) -> Tensor:
        return values.mean(self._set_axes, keepdim=True)

    def _channel_sum(self, values: Tensor) -> Tensor:
        return values.sum(self._channel_axes) if self._channel_axes else values

    def _along(self, values: Tensor) -> Tensor:
        """⟨v·x̂⟩."""
        return self._mean(values * self._xhat)

    def _project(self, values: Tensor) -> Tensor:
        """P(v)."""
        if self._constant:
            return values
        along = self._xhat * self._along(values)
        return values - self._mean(values) - along if self._centred else values - along

    def output_jvp(
        self, weight: Tensor | None, input_t: Tensor | None, weight_t: Tensor | None,
        bias_t: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The Jacobian-vector product of y = w·x̂ + b, which is w·r·P(ẋ) + ẇ·x̂ + ḃ."""
        product = torch.zeros_like(self._xhat)
        if input_t is not None:
            product = self._weighted(weight, self._invstd * self._project(self._data(input_t)))
        if weight_t is not None:
            product = product + self._weighted(weight_t, self._xhat)
        if bias_t is not None:
            product = product + self._with_ones(self._channel_axes, bias_t)
        return product

    def gradients(self, grad_out: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The norm's gradients, which are linear in grad_out."""
        return self.gradients_jvp(grad_out, weight, grad_out, None, None)

    def gradients_jvp(
        self,
        grad_out: Tensor,
        weight: Tensor | None,
        grad_out_t: Tensor | None,
        input_t: Tensor | None,
        weight_t: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The Jacobian-vector products of the gradients.

        With ḋ = ẇ·dy + w·dẏ, ẋ̂ = r·P(ẋ) and ṙ = −r²·⟨x̂·ẋ⟩ they are ::

            grad_input:   ṙ·P(d) + r·P(ḋ) − r·(ẋ̂·⟨d·x̂⟩ + x̂·⟨d·ẋ̂⟩)
            grad_weight:  Σ dẏ·x̂ + dy·ẋ̂
            grad_bias:    Σ dẏ

        If the statistics are constants, that of grad_input is r·ḋ, and ẋ̂ = r·ẋ.
        """
        r, xhat = self._invstd, self._xhat
        dy = self._data(grad_out)
        d = self._weighted(weight, dy)
        d_t = to_weight = to_bias = torch.zeros_like(dy)
        if grad_out_t is not None:
            dy_t = to_bias = self._data(grad_out_t)
            d_t, to_weight = self._weighted(weight, dy_t), dy_t * xhat
        if weight_t is not None:
            d_t = d_t + self._weighted(weight_t, dy)
        to_input = r * self._project(d_t)
        if input_t is not None:
            x_t = self._data(input_t)
            xhat_t = r * self._project(x_t)
            to_weight = to_weight + dy * xhat_t
            if not self._constant:
                r_t = -r.square() * self._along(x_t)
                to_input = to_input + r_t * self._project(d)
                to_input = to_input - r * (xhat_t * self._along(d) + xhat * self._mean(d * xhat_t))
        return to_input, self._channel_sum(to_weight), self._channel_sum(to_bias)

    def double_backward(
        self,
        grad_out: Tensor,
        weight: Tensor | None,
        grad_grad_input: Tensor | None,
        grad_grad_weight: Tensor | None,
        grad_grad_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The vector-Jacobian products of the gradients, for (grad_out, data, weight).

        The gradients are a linear function of dy, whose transpose is the Jacobian-vector product of
        the output. With respect to data and weight they are the gradient of Σ dy·y, whose Hessian
        is symmetric, so their vector-Jacobian products equal their Jacobian-vector products.
        """
        cotangents = grad_grad_input, grad_grad_weight
        to_input, to_weight, _ = self.gradients_jvp(grad_out, weight, None, *cotangents)
        return self.output_jvp(weight, *cotangents, grad_grad_bias), to_input, to_weight


class SynchronisedNormalisation(Normalisation):
    """Batch norm over the batches of several ranks, whose means are taken over all ranks."""

    def __init__(
        self, group_name: str, data: Tensor, mean: Tensor, invstd: Tensor, count: Tensor
    ) -> None:
        """``count`` is the number of elements per channel, summed over all ranks."""
        self._group_name = group_name
        self._count = count.sum().to(arithmetic(data)).clamp(min=1)
        super().__init__(data, mean, invstd, data.shape, _axes(data), _axes(data))

    def _mean(self, values: Tensor) -> Tensor:
        local = values.sum(self._set_axes, keepdim=True)
        total: Tensor = overload("all_reduce_sum")(local, self._group_name)
        return total / self._count


# The functions below make a norm's Normalisation from the options that the norm and its gradients
# share, the data and the statistics.


def of_channels(choices: Any, data: Tensor, mean: Any, spread: Any) -> Normalisation:
    """The normalisation of batch norm."""
    training, eps = choices
    if not training:
        channels = data.shape[1]
        mean = data.new_zeros(channels) if mean is None else mean
        variance = data.new_ones(channels) if spread is None else spread
        dtype = torch.promote_types(arithmetic(data), variance.dtype)
        spread = (variance.to(dtype) + eps).rsqrt()
    axes = _axes(data)
    return Normalisation(data, mean, spread, data.shape, axes, axes, constant=not training, eps=eps)


def of_groups(choices: Any, data: Tensor, mean: Any, rstd: Any) -> Normalisation:
    """The normalisation of group norm."""
    (groups,) = choices
    samples, channels, *positions = data.shape
    shape = (samples, groups, channels // groups, prod(positions))
    return Normalisation(data, mean, rstd, shape, (2, 3), (0, 3))


def of_rows(
    choices: Any, data: Tensor, mean: Any, rstd: Any, *, centred: bool = True
) -> Normalisation:
    """The normalisation of layer norm: each row is a set, each position has its own parameters."""
    (normalized_shape,) = choices
    axes = tuple(range(data.dim()))
    rows = data.dim() - len(normalized_shape)
    return Normalisation(data, mean, rstd, data.shape, axes[rows:], axes[:rows], centred=centred)


def by_squares(choices: Any, data: Tensor, rstd: Any) -> Normalisation:
    """The normalisation of RMS norm."""
    return of_rows(choices, data, None, rstd, centred=False)


def like(values: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Convert values to another tensor's shape and dtype; None if either is None."""
    if values is None or other is None:
        return None
    return values.reshape(other.shape).to(other.dtype)


# The parts of synchronised batch norm. Each is differentiable with respect to every tensor that it
# takes, including statistics and sums, so that compositions of them, across ranks, have the right
# derivatives of any order. In the formulas μ = mean, r = invstd, w = weight, and Σ is over the
# elements of a channel.


def formula_vjp(
    formula: Callable[..., Sequence[Tensor]],
    tensors: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    mask: Sequence[bool],
) -> list[Tensor | None]:
    """The vector-Jacobian product of a formula for each of its tensors; None where masked off.

    The arithmetic is float32, or float64 if the first tensor is; each result is rounded once.
    """
    assert tensors[0] is not None
    dtype = arithmetic(tensors[0])
    places = [place for place, want in enumerate(mask) if want]
    products: list[Tensor | None] = [None] * len(tensors)
    wide_cotangents = [value.to(dtype) for value in cotangents if value is not None]
    if not wide_cotangents or not places:
        return products

    def of_places(*values: Tensor) -> list[Tensor]:
        arguments = [*tensors]
        for place, value in zip(places, values, strict=True):
            arguments[place] = value
        results = formula(*[v if v is None else v.to(dtype) for v in arguments])
        # Results beyond the cotangents are constants.
        pairs = zip(results, cotangents, strict=False)
        return [result for result, cotangent in pairs if cotangent is not None]

    _, pull = torch.func.vjp(of_places, *[tensors[place] for place in places])
    for place, value in zip(places, pull(wide_cotangents), strict=True):
        products[place] = value
    return products


def _axes(data: Tensor) -> list[int]:
    return [axis for axis in range(data.dim()) if axis != 1]


def _against(data: Tensor, vector: Tensor) -> Tensor:
    """Reshape a per-channel vector to broadcast with data of shape (N, C, ...)."""
    return vector.reshape(-1, *[1] * (data.dim() - 2))


def stats(input: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    """μ = Σx/m and r = 1/sqrt(Σ(x − μ)²/m + eps), for m elements."""
    mean = input.mean(_axes(input))
    variance = (input - _against(input, mean)).square().mean(_axes(input))
    return mean, (variance + eps).rsqrt()


def gather(mean: Tensor, invstd: Tensor, counts: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    """M = Σnμ/n and R = 1/sqrt(Σn(r⁻² − eps + (μ − M)²)/n + eps), with sums over ranks.

    A rank without elements does not affect the result.
    """
    share = counts.reshape(-1, 1) / counts.sum()
    present = share > 0
    mu, r = torch.where(present, mean, 0), torch.where(present, invstd, 1)
    all_mean = (share * mu).sum(0)
    variance = (share * (r**-2 - eps + (mu - all_mean).square())).sum(0)
    return all_mean, (variance + eps).rsqrt()


def reduce(grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, ...]:
    """Σdy, s = Σdy·(x − μ), grad_weight = r·s and grad_bias = Σdy."""
    total = grad_out.sum(_axes(input))
    moment = (grad_out * (input - _against(input, mean))).sum(_axes(input))
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
    n = count.sum().clamp(min=1)  # without elements there is nothing to divide
    slope = _against(input, invstd.square() * sum_dy_xmu / n)
    inner = grad_out - _against(input, sum_dy / n) - (input - _against(input, mean)) * slope
    return (_against(input, invstd if weight is None else weight * invstd) * inner,)
