"""Stand-ins for the forward passes, in plain torch, until normgrad has its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .. import layout


class BatchNormOutput(NamedTuple):
    output: Any
    mean: Any
    invstd: Any
    running_mean: Any
    running_var: Any


class GroupNormOutput(NamedTuple):
    output: Any
    mean: Any
    rstd: Any


def _wide(t: Any) -> Any:
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def _dense(t: Any, like: Any) -> Any:
    strides = layout.dense_like(like.shape, like.stride())
    return torch.empty_strided(like.shape, strides, dtype=like.dtype).copy_(t)


@torch.no_grad()
def batch_norm_elemt(input, weight, bias, mean, invstd, *, channel_axis=1, out=None):  # type: ignore
    shape = [-1 if i == channel_axis else 1 for i in range(input.dim())]
    w = _wide(input)
    y = (input.to(w) - mean.to(w).view(shape)) * invstd.to(w).view(shape)
    if weight is not None:
        y = y * weight.to(w).view(shape)
    if bias is not None:
        y = y + bias.to(w).view(shape)
    return _dense(y, input)


@torch.no_grad()
def batch_norm(  # type: ignore
    input, weight=None, bias=None, running_mean=None, running_var=None, *,
    training, momentum=0.1, eps=1e-5, channel_axis=1, out=None,
):  # fmt: skip
    wide = _wide(input)
    dims = [i for i in range(input.dim()) if i != channel_axis]
    c = input.shape[channel_axis]
    if not training:
        mean = input.new_zeros(c, dtype=wide) if running_mean is None else running_mean.to(wide)
        var = input.new_ones(c, dtype=wide) if running_var is None else running_var.to(wide)
        y = batch_norm_elemt(input, weight, bias, mean, (var + eps).rsqrt())
        return BatchNormOutput(y, None, None, None, None)
    x = input.double()
    m = max(1, input.numel() // max(1, c))
    mean = x.mean(dims) if input.numel() else x.sum(dims)
    var = x.var(dims, correction=0) if input.numel() else x.sum(dims)
    invstd = (var + eps).rsqrt()
    new = []
    for old, batch, place in (
        (running_mean, mean, 3), (running_var, var * m / max(1, m - 1), 4),
    ):  # fmt: skip
        if old is None:
            new.append(None)
            continue
        value = ((1 - momentum) * old.double() + momentum * batch).to(old.dtype)
        given = None if out is None else out[place]
        new.append(value if given is None else given.copy_(value))
    mean, invstd = mean.to(wide), invstd.to(wide)
    return BatchNormOutput(batch_norm_elemt(input, weight, bias, mean, invstd), mean, invstd, *new)


@torch.no_grad()
def batch_norm_gather_stats_with_counts(  # type: ignore
    input, mean, invstd, running_mean, running_var, counts, *, momentum=0.1, eps=1e-5, out=None,
):  # fmt: skip
    n = counts.double().reshape(-1, 1)
    mu, r = mean.double(), invstd.double()
    total = n.sum()
    m = (n * mu).sum(0) / total
    v = torch.where(n > 0, n * (r**-2 - eps + (mu - m) ** 2), 0).sum(0) / total
    new = []
    for old, batch in ((running_mean, m), (running_var, v * total / (total - 1))):
        new.append(
            None if old is None else ((1 - momentum) * old + momentum * batch).to(old.dtype)
        )
    return m.to(mean.dtype), (v + eps).rsqrt().to(mean.dtype), *new


@torch.no_grad()
def group_norm(input, gamma=None, beta=None, *, num_groups, eps=1e-5, channel_axis=1, out=None):  # type: ignore
    wide = _wide(input)
    n, c = input.shape[:2]
    x = input.double().reshape(n, num_groups, -1)
    if x.numel():
        mean, var = x.mean(-1), x.var(-1, correction=0)
    else:
        mean = var = x.sum(-1)
    rstd = (var + eps).rsqrt()
    y = ((x - mean[..., None]) * rstd[..., None]).reshape(input.shape)
    shape = [1, c] + [1] * (input.dim() - 2)
    if gamma is not None:
        y = y * gamma.view(shape)
    if beta is not None:
        y = y + beta.view(shape)
    return GroupNormOutput(_dense(y, input), mean.to(wide), rstd.to(wide))
