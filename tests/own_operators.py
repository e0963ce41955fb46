"""Operators that normgrad does not have, declared for its suite; a right and a wrong version."""

from __future__ import annotations

import numpy as np

from normgrad.testing import Kind, Operator


def oracle(input, residual, weight, *, eps):
    """Each output's value and its scale: the formula with the absolute value of every term."""
    total, size = input + residual, abs(input) + abs(residual)
    r = 1 / np.sqrt((total**2).mean(-1, keepdims=True) + eps)
    w = np.ones(1, total.dtype) if weight is None else weight
    return {"output": (total * r * w, size * r * abs(w)), "total": (total, size)}


ADD_RMS_NORM = Operator(
    "add_rms_norm",
    {"input": Kind.DATA, "residual": Kind.DATA, "weight": Kind.POSITION},
    {"output": Kind.DATA, "total": Kind.DATA},
    oracle,
    options={"eps": 1e-6},
    optional=("weight",),
)


def oracle_of_scale(input, weight):
    output = input * weight.reshape(-1, *[1] * (input.ndim - 2))
    means = (each.mean(-1, keepdims=True) for each in (input, abs(input)))
    return {"output": (output, abs(output)), "mean": (*means,)}


SCALE = Operator(
    "scale",
    {"input": Kind.DATA, "weight": Kind.CHANNEL},
    {"output": Kind.DATA, "mean": Kind.ROW},
    oracle_of_scale,
)


def pytest_normgrad_operators():
    return [ADD_RMS_NORM, SCALE]


class Right:
    """In float64, rounded once."""

    def add_rms_norm(self, input, residual, weight=None, *, eps):
        if residual.shape != input.shape:
            raise ValueError(f"residual: shape {residual.shape}; allowed: {input.shape}")
        wide = np.longdouble if input.dtype == np.float64 else np.float64
        x, added = input.astype(wide), residual.astype(wide)
        w = None if weight is None else weight.astype(wide)
        output = self.formula(x, added, w, eps)
        return output.astype(input.dtype), (x + added).astype(input.dtype)

    def formula(self, x, added, w, eps):
        return oracle(x, added, w, eps=eps)["output"][0]


class Wrong(Right):
    """Without a weight, the residual is left out."""

    def formula(self, x, added, w, eps):
        return super().formula(x, 0 * added if w is None else added, w, eps)
