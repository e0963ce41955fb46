"""The derivatives of the gradients, and of the forward passes along directions, in plain torch.

Everything here is made of differentiable torch operators, so derivatives of any order follow. It is
computed in float32, or float64 where the data are, and each result rounded once.

Notation. Statistics are shared by sets of elements (batch norm: a channel; group norm: a sample's
group); ⟨v⟩ is the mean over each set. With μ = ⟨x⟩, r = 1/sqrt(⟨(x − μ)²⟩ + eps) and
x̂ = (x − μ)·r, moving x by t moves ::

    x̂  by  r·P(t),          P(v) = v − ⟨v⟩ − x̂·⟨v·x̂⟩
    r   by  −r²·⟨x̂·t⟩

P is linear and symmetric, ⟨u·P(v)⟩ = ⟨v·P(u)⟩. Where the statistics are constants (evaluation),
P(v) = v and r does not move. With d = w·dy both norms' gradients are ::

    grad_input  = r·P(d)        grad_weight = Σ dy·x̂        grad_bias = Σ dy

with Σ over all elements of a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .kernels import wide

#: Tensors for the operator's tensors, None where nothing is known or wanted.
Some = Sequence[Tensor | None]


@dataclass(frozen=True)
class Grid:
    """A shape in which sets and channels are whole axes.

    Attributes:
        shape: of the data.
        set_axes: what a set's mean is taken over.
        channel_axes: what a channel's sum is taken over.
        statistics, parameters: the shapes of statistics and of per-channel vectors against it.
    """

    shape: tuple[Any, ...]
    set_axes: tuple[int, ...]
    channel_axes: tuple[int, ...]
    statistics: tuple[Any, ...]
    parameters: tuple[Any, ...]


def batch_grid(data: Tensor) -> Grid:
    """Batch norm's: a set is a channel."""
    axes = tuple(axis for axis in range(data.dim()) if axis != 1)
    vector = tuple(data.shape[1] if axis == 1 else 1 for axis in range(data.dim()))
    return Grid(tuple(data.shape), axes, axes, vector, vector)


def group_grid(data: Tensor, groups: int) -> Grid:
    """Group norm's: (sample, group, channel of the group, position)."""
    samples, channels = data.shape[0], data.shape[1]
    positions = 1
    for size in data.shape[2:]:
        positions = positions * size
    members = channels // groups
    return Grid(
        (samples, groups, members, positions),
        (2, 3),
        (0, 3),
        (samples, groups, 1, 1),
        (1, groups, members, 1),
    )


def row_grid(data: Tensor, normalized_shape: Sequence[Any]) -> Grid:
    """Layer norm's: a set is a row, and a position has parameters."""
    shape, rows = tuple(data.shape), data.dim() - len(normalized_shape)
    ones = (1,) * rows
    of_rows = (*shape[:rows], *[1] * len(normalized_shape))
    axes = tuple(range(data.dim()))
    return Grid(shape, axes[rows:], axes[:rows], of_rows, (*ones, *shape[rows:]))


class Normalisation:
    """x̂ and r of some data, as differentiable functions of them."""

    def __init__(
        self,
        grid: Grid,
        data: Tensor,
        mean: Tensor | None,
        invstd: Tensor | None,
        *,
        constant: bool,
        eps: float = 0.0,
        centred: bool = True,
    ) -> None:
        """The statistics as given, or computed where they are not.

        ``constant`` ones do not depend on the data. Others have the values that are given, and the
        data's derivatives: μ = μ₀ + (⟨x⟩ − ⟨x⟩₀) and r = (v + r₀⁻² − v₀)^(−1/2), where v is the
        variance about μ and the index 0 means: held constant. If they are not ``centred`` there is
        no μ, and P(v) = v − x̂·⟨v·x̂⟩.
        """
        self.grid = grid
        self.dtype = wide(data)
        x = self.data(data)
        self._constant, self._centred = constant, centred
        if not centred:
            assert invstd is not None
            mean = x.new_zeros(()).expand(grid.statistics)
        if constant:
            assert mean is not None
            assert invstd is not None
            mu, self.invstd = self._statistic(mean), self._statistic(invstd)
        else:
            mu = self._mean(x) if centred else self._statistic(mean)
            if centred and mean is not None:
                mu = self._statistic(mean) + (mu - mu.detach())
            variance = self._mean((x - mu).square())
            if invstd is None:
                self.invstd = (variance + eps).rsqrt()
            else:
                rest = self._statistic(invstd).pow(-2) - variance.detach()
                self.invstd = (variance + rest).rsqrt()
        self.normalised = (x - mu) * self.invstd

    def data(self, values: Tensor) -> Tensor:
        """Data on the grid, in the type that is computed in."""
        return values.to(self.dtype).reshape(self.grid.shape)

    def parameter(self, values: Tensor) -> Tensor:
        """A per-channel vector against the grid."""
        return values.to(self.dtype).reshape(self.grid.parameters)

    def _statistic(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).reshape(self.grid.statistics)

    def _mean(self, values: Tensor) -> Tensor:
        return values.mean(self.grid.set_axes, keepdim=True)

    def channel_sum(self, values: Tensor) -> Tensor:
        """Σ, as a vector."""
        axes = self.grid.channel_axes
        return (values.sum(axes) if axes else values).reshape(-1)

    def along(self, values: Tensor) -> Tensor:
        """⟨v·x̂⟩."""
        return self._mean(values * self.normalised)

    def project(self, values: Tensor) -> Tensor:
        """P(v)."""
        if self._constant:
            return values
        along = self.normalised * self.along(values)
        return values - self._mean(values) - along if self._centred else values - along

    def second(
        self,
        grad_out: Tensor,
        weight: Tensor | None,
        grad_grad_input: Tensor | None,
        grad_grad_weight: Tensor | None,
        grad_grad_bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the gradients, in the place of (grad_out, data, weight).

        With cotangents u, p, q of grad_input, grad_weight and grad_bias ::

            for dy:  w·r·P(u) + p·x̂ + q
            for w:   Σ dy·r·P(u)
            for x:   r·P(p·dy − r·(⟨d·x̂⟩·u + ⟨u·x̂⟩·d)) − r²·x̂·⟨u·P(d)⟩

        The last is p·dy and the two occurrences of x̂ in P(d), carried from x̂ to x by r·P, and
        the factor r. Where the statistics are constants it is r·p·dy.
        """
        r, xhat = self.invstd, self.normalised
        dy = self.data(grad_out)
        w = None if weight is None else self.parameter(weight)
        to_dy = torch.zeros_like(dy)
        to_xhat = torch.zeros_like(dy)
        to_x = torch.zeros_like(dy)
        to_weight = None
        if grad_grad_input is not None:
            u = self.data(grad_grad_input)
            d = dy if w is None else w * dy
            projected = r * self.project(u)
            to_dy = to_dy + (projected if w is None else w * projected)
            to_weight = self.channel_sum(dy * projected)
            if not self._constant:
                to_xhat = to_xhat - r * (self.along(d) * u + self.along(u) * d)
                to_x = to_x - r.square() * xhat * self._mean(u * self.project(d))
        if grad_grad_weight is not None:
            p = self.parameter(grad_grad_weight)
            to_dy = to_dy + p * xhat
            to_xhat = to_xhat + p * dy
        if grad_grad_bias is not None:
            to_dy = to_dy + self.parameter(grad_grad_bias)
        to_x = to_x + r * self.project(to_xhat)
        if to_weight is None:
            to_weight = self.channel_sum(to_dy.new_zeros(()).expand(self.grid.shape))
        return to_dy, to_x, to_weight

    def output_along(
        self, weight: Tensor | None, input_t: Tensor | None, weight_t: Tensor | None,
        bias_t: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """How y = w·x̂ + b moves along tangents: w·r·P(ẋ) + ẇ·x̂ + ḃ."""
        moved = torch.zeros_like(self.normalised)
        if input_t is not None:
            step = self.invstd * self.project(self.data(input_t))
            moved = moved + (step if weight is None else self.parameter(weight) * step)
        if weight_t is not None:
            moved = moved + self.parameter(weight_t) * self.normalised
        if bias_t is not None:
            moved = moved + self.parameter(bias_t)
        return moved

    def gradients_along(
        self,
        grad_out: Tensor,
        weight: Tensor | None,
        grad_out_t: Tensor | None,
        input_t: Tensor | None,
        weight_t: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """How the gradients move along tangents.

        With ḋ = ẇ·dy + w·dẏ, ẋ̂ = r·P(ẋ) and ṙ = −r²·⟨x̂·ẋ⟩ ::

            grad_input:   ṙ·P(d) + r·P(ḋ) − r·(ẋ̂·⟨d·x̂⟩ + x̂·⟨d·ẋ̂⟩)
            grad_weight:  Σ dẏ·x̂ + dy·ẋ̂
            grad_bias:    Σ dẏ

        Where the statistics are constants: r·ḋ, and ẋ̂ = r·ẋ.
        """
        r, xhat = self.invstd, self.normalised
        dy = self.data(grad_out)
        w = None if weight is None else self.parameter(weight)
        zeros = torch.zeros_like(dy)
        dy_t = zeros if grad_out_t is None else self.data(grad_out_t)
        d, d_t = (dy, dy_t) if w is None else (w * dy, w * dy_t)
        if weight_t is not None:
            d_t = d_t + self.parameter(weight_t) * dy
        to_input = r * self.project(d_t)
        to_weight = dy_t * xhat
        if input_t is not None:
            x_t = self.data(input_t)
            xhat_t = r * self.project(x_t)
            to_weight = to_weight + dy * xhat_t
            if not self._constant:
                r_t = -r.square() * self.along(x_t)
                to_input = to_input + r_t * self.project(d)
                to_input = to_input - r * (xhat_t * self.along(d) + xhat * self._mean(d * xhat_t))
        return to_input, self.channel_sum(to_weight), self.channel_sum(dy_t)


class SynchronisedNormalisation(Normalisation):
    """Batch norm over the batches of several ranks: means are over all of them."""

    def __init__(
        self, data: Tensor, mean: Tensor, invstd: Tensor, count: Tensor, group_name: str
    ) -> None:
        """``count``: the elements per channel of all ranks."""
        self._group_name = group_name
        self._count = count.sum().to(wide(data)).clamp(min=1)
        super().__init__(batch_grid(data), data, mean, invstd, constant=False)

    def _mean(self, values: Tensor) -> Tensor:
        local = values.sum(self.grid.set_axes, keepdim=True)
        total = torch.ops.normgrad.all_reduce_sum(local, self._group_name)
        return total / self._count


def like(values: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Values in another tensor's shape and dtype; None where there is no such tensor."""
    if values is None or other is None:
        return None
    return values.reshape(other.shape).to(other.dtype)
