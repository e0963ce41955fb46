"""Normalisation by its formulas in long double, with any statistics, and the bound of results.

An output's scale is its formula with each term replaced by its absolute value, x − μ being a term.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from normgrad.tensors import dtypes

Array = np.ndarray[Any, Any]


class Exact(NamedTuple):
    """An output's value and scale."""

    value: Array
    scale: Array


class Norm(NamedTuple):
    """A normalisation of tensors that are seen in another shape.

    Attributes:
        view: the shape.
        axes: the axes that a statistic is of.
        parameters: the shape of a vector of parameters.
        over: the axes that the gradients of parameters are summed over.
        centred: whether a mean is subtracted.
    """

    view: tuple[int, ...]
    axes: tuple[int, ...]
    parameters: tuple[int, ...]
    over: tuple[int, ...]
    centred: bool = True

    def see(self, values: Array | None, default: float = 1.0) -> Array:
        """A tensor, or a vector of parameters, in long double and in the shape of the view."""
        if values is None:
            return np.full([1] * len(self.view), np.longdouble(default))
        shape = self.view if values.ndim > 1 else self.parameters
        return values.astype(np.longdouble).reshape(shape)

    def statistics(self, x: Array, eps: float, mean: Array | None = None) -> tuple[Array, Array]:
        """The mean, unless it is given, and 1/std about it."""
        x = self.see(x)
        if mean is None:
            mean = x.mean(self.axes, keepdims=True) * self.centred
        return mean, 1 / np.sqrt(((x - mean) ** 2).mean(self.axes, keepdims=True) + eps)

    def forward(
        self,
        x: Array,
        mean: Array,
        r: Array,
        w: Array | None = None,
        b: Array | None = None,
        *,
        computed: bool,
    ) -> Exact:
        """y, from a mean that is computed, and so a sum, or given."""
        xmu, w, b = self.see(x) - mean, self.see(w), self.see(b, 0.0)
        size = abs(xmu)
        if computed and self.centred:
            size = size + size.mean(self.axes, keepdims=True)
        exact = Exact(w * r * xmu + b, abs(w * r) * size + abs(b))
        return Exact(*(each.reshape(x.shape) for each in exact))

    def backward(
        self, dy: Array, x: Array, mean: Array, r: Array, w: Array | None, constant: bool = False
    ) -> dict[str, Exact]:
        """The gradients, and the sums of batch norm; with constant statistics dx is dy·w·r."""
        found = []
        for part, sign in ((lambda a: a, -1), (abs, 1)):
            d, xmu, weight, root = map(part, (self.see(dy), self.see(x) - mean, self.see(w), r))
            dx = g = weight * d
            if not constant:
                if self.centred:
                    dx = dx + sign * g.mean(self.axes, keepdims=True)
                projection = (g * xmu).mean(self.axes, keepdims=True)
                dx = dx + sign * xmu * root**2 * projection
            sums = [d, d * xmu, root * d * xmu]
            found.append([(root * dx).reshape(x.shape), *(s.sum(self.over).ravel() for s in sums)])
        names = ("grad_input", "sum_dy", "sum_dy_xmu", "grad_weight")
        exact = {
            name: Exact(*pair) for name, pair in zip(names, zip(*found, strict=True), strict=True)
        }
        return exact | {"grad_bias": exact["sum_dy"]}


def batch(shape: tuple[int, ...]) -> Norm:
    """Batch norm of (sample, channel, position...)."""
    view = (*shape[:2], int(np.prod(shape[2:])))
    return Norm(view, (0, 2), (1, shape[1], 1), (0, 2))


def group(shape: tuple[int, ...], groups: int) -> Norm:
    """Group norm of (sample, channel, position...)."""
    of_group = (groups, shape[1] // groups)
    return Norm((shape[0], *of_group, int(np.prod(shape[2:]))), (2, 3), (1, *of_group, 1), (0, 3))


def row(shape: tuple[int, int], centred: bool) -> Norm:
    """Layer norm of rows, or RMS norm."""
    return Norm(shape, (1,), (1, shape[1]), (0,), centred)


def units(actual: Array, exact: Exact) -> float:
    """The largest error of float32 arithmetic in units of the bound.

    The bound is 16·u·scale with float32's u, and in halves u·|value| more for their own rounding.
    """
    dtype = dtypes.parse(actual.dtype)
    bound = 16 * dtypes.float32.unit_roundoff * exact.scale + dtype.smallest_subnormal / 2
    if dtype.is_half:
        bound = bound + 1.05 * dtype.unit_roundoff * abs(exact.value)
    return float((abs(actual.astype(np.longdouble) - exact.value) / bound).max())
