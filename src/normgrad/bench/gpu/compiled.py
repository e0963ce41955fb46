"""torch.compile's side: the same arithmetic in plain torch, for Inductor to fuse.

Everything is computed in float32, as ours is, and written the way the formulas stand in a book:
what can be had without writing a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..compositions import EPS, MOMENTUM, Call
from ..data import Data
from ..suite import Case, Operator

#: What it is called in tables and files.
NAME = "torch.compile"

Maker = Callable[[Data], Call]


class _Shapes:
    """How per-channel and per-group vectors broadcast, as plain numbers that a compiler can see."""

    def __init__(self, case: Case) -> None:
        samples, channels, *rest = case.shape
        self.all = case.shape
        self.channel = (1, channels, *[1] * len(rest))
        self.others = (0, *range(2, len(case.shape)))
        self.count = case.elements // channels
        if case.groups:
            self.split = (samples, case.groups, channels // case.groups, -1)
            self.set = (samples, case.groups, 1, 1)
            self.member = (1, case.groups, channels // case.groups, 1)


def _batch_norm(torch: Any, shapes: _Shapes) -> dict[Operator, Callable[..., Any]]:
    def sums(dy: Any, x: Any, mean: Any) -> tuple[Any, Any, Any, Any]:
        dy = dy.float()
        centred = x.float() - mean.float().view(shapes.channel)
        return dy, centred, dy.sum(shapes.others), (dy * centred).sum(shapes.others)

    def apply(
        dy: Any, centred: Any, sum_dy: Any, sum_dy_xmu: Any, invstd: Any, weight: Any, count: Any
    ) -> Any:
        mean_dy = (sum_dy / count).view(shapes.channel)
        slope = (invstd * invstd * sum_dy_xmu / count).view(shapes.channel)
        return (dy - mean_dy - centred * slope) * (invstd * weight).view(shapes.channel)

    def train(dy: Any, x: Any, weight: Any, mean: Any, invstd: Any) -> Any:
        up, centred, sum_dy, sum_dy_xmu = sums(dy, x, mean)
        dx = apply(up, centred, sum_dy, sum_dy_xmu, invstd, weight, shapes.count)
        return dx.to(x.dtype), sum_dy_xmu * invstd, sum_dy

    def evaluate(dy: Any, x: Any, weight: Any, mean: Any, var: Any) -> Any:
        invstd = (var + EPS).rsqrt()
        up, _, sum_dy, sum_dy_xmu = sums(dy, x, mean)
        dx = up * (weight * invstd).view(shapes.channel)
        return dx.to(x.dtype), sum_dy_xmu * invstd, sum_dy

    def reduce(dy: Any, x: Any, mean: Any, invstd: Any) -> Any:
        _, _, sum_dy, sum_dy_xmu = sums(dy, x, mean)
        return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy

    def elemt(
        dy: Any, x: Any, mean: Any, invstd: Any, weight: Any, sum_dy: Any, sum_xmu: Any, count: Any
    ) -> Any:
        centred = x.float() - mean.view(shapes.channel)
        total = count.sum()
        return apply(dy.float(), centred, sum_dy, sum_xmu, invstd, weight, total).to(x.dtype)

    def forward(x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any) -> Any:
        var, mean = torch.var_mean(x.float(), shapes.others, correction=0)
        invstd = (var + EPS).rsqrt()
        running_mean.lerp_(mean, MOMENTUM)
        running_var.lerp_(var * (shapes.count / max(shapes.count - 1, 1)), MOMENTUM)
        normal = (x.float() - mean.view(shapes.channel)) * invstd.view(shapes.channel)
        y = normal * weight.view(shapes.channel) + bias.view(shapes.channel)
        return y.to(x.dtype), mean, invstd

    return {
        Operator.TRAIN: train,
        Operator.EVAL: evaluate,
        Operator.REDUCE: reduce,
        Operator.ELEMT: elemt,
        Operator.FORWARD: forward,
    }


def _group_norm(torch: Any, shapes: _Shapes) -> dict[Operator, Callable[..., Any]]:
    def backward(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
        up, scale = dy.float().reshape(shapes.split), rstd.view(shapes.set)
        normal = (x.float().reshape(shapes.split) - mean.view(shapes.set)) * scale
        scaled = up * weight.view(shapes.member)
        level = scaled.mean((2, 3), keepdim=True)
        projection = (scaled * normal).mean((2, 3), keepdim=True)
        dx = ((scaled - level - normal * projection) * scale).view(shapes.all)
        return dx.to(x.dtype), (up * normal).sum((0, 3)).view(-1), up.sum((0, 3)).view(-1)

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        split = x.float().reshape(shapes.split)
        var, mean = torch.var_mean(split, (2, 3), correction=0)
        rstd = (var + EPS).rsqrt()
        normal = (split - mean.view(shapes.set)) * rstd.view(shapes.set)
        y = normal * weight.view(shapes.member) + bias.view(shapes.member)
        return y.view(shapes.all).to(x.dtype), mean, rstd

    return {Operator.GROUP_NORM: backward, Operator.FORWARD_GROUP_NORM: forward}


def function(torch: Any, case: Case) -> Callable[..., Any] | None:
    """The arithmetic of a case, of its tensors alone; None where there is none, as of layers."""
    make = _group_norm if case.groups else _batch_norm
    return make(torch, _Shapes(case)).get(case.operator)


def tensors(case: Case, data: Data) -> Sequence[Any]:
    """What :func:`function`'s result takes."""
    both, statistics = (data.grad_out, data.input), (data.mean, data.invstd)
    if case.operator is Operator.REDUCE:
        return (*both, *statistics)
    if case.operator is Operator.ELEMT:
        sums = (data.sum_dy, data.sum_dy_xmu, data.count)
        return (*both, *statistics, data.weight, *sums)
    if case.operator is Operator.EVAL:
        return (*both, data.weight, data.mean, data.var)
    if case.operator is Operator.FORWARD_GROUP_NORM:
        return (data.input, data.weight, data.bias)
    if case.operator is Operator.FORWARD:
        running = (data.mean.clone(), data.var.clone())
        return (data.input, data.weight, data.bias, *running)
    return (*both, data.weight, *statistics)


def maker(torch: Any, case: Case) -> Maker | None:
    """The compiled arithmetic of a case, compiled at its first call, for its shapes alone."""
    plain = function(torch, case)
    if plain is None:
        return None
    # What was compiled for other cases counts towards a limit, past which nothing is compiled.
    torch.compiler.reset()
    fused = torch.compile(plain, dynamic=False, fullgraph=True)

    def make(data: Data) -> Call:
        given = tensors(case, data)
        return lambda: fused(*given)

    return make
