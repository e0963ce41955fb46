"""Every operator against PyTorch in float64, where our kernels compute: on the CPU, or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import precision
from ..operators.by_name import plan
from ..reference import Exact
from .aten import Aten
from .cases import Case, Topic
from .subjects import CONVERSIONS
from .tensors import FORWARD, GRADIENTS, Call


def cases(held: int) -> list[Case]:
    """Small cases of every operator, in both dtypes, layouts and, where there is a choice, passes.

    What takes time is compiling, so there are not all combinations: what one operator has in
    float32 the next has in bfloat16.

    Args:
        held: as many elements as a program of the GPU can hold. A second case of each operator has
            more than that of each channel, and of each group. Group norm has rows besides.
    """
    shapes = ((3, 8, 5, 7), (2, 4, held))
    looks = (("float32", "contiguous"), ("bfloat16", "channels_last"))
    found = []
    for kind in (*GRADIENTS, *FORWARD):
        groups = 2 if "group" in kind else 1
        for shape, (dtype, layout) in zip(shapes, looks, strict=True):
            found.append(Case(Topic.VALUES, kind, shape, dtype, layout=layout, groups=groups))
        if groups > 1:
            found.append(Case(Topic.VALUES, kind, (9, 202), groups=groups))
        looks = looks[::-1]
    return found


def outside(case: Case, device: str) -> list[str]:
    """The results that are further from PyTorch's than their bound, each in words.

    Args:
        case: without ``out`` or masks; channels are axis 1, and data float32 or halves.
        device: where both compute, as PyTorch calls it.
    """
    to, back = CONVERSIONS["torch"](device)
    call = case.call()
    tensors = {name: None if value is None else to(value) for name, value in call.tensors.items()}
    made = plan(call.name, **tensors, **call.options)
    ours = made.run(**tensors)
    theirs = dict(zip(call.results, in_float64(call, tensors), strict=False))
    scales = call.exact()
    found = []
    for name, value in zip(call.results, [ours] if made.out_is_tensor else ours, strict=True):
        if value is None:
            continue
        exact = Exact(back(theirs[name]), scales[name].scale)
        units = precision.error(back(value), exact, call.arithmetic).max()
        if units > 1:
            found.append(
                f"{call.name} ({case.kind}) in {case.dtype}, {case.layout}, of shape {case.shape}, "
                f"by '{made.path}': {name} is off by {units:.3g} times its bound"
            )
    return found


def in_float64(call: Call, tensors: Mapping[str, Tensor | None]) -> Sequence[Tensor]:
    """The results of a call in their order, without those that are not there.

    Args:
        call: which operator, and its options; the channels are axis 1. Its data are of float32 or
            of halves, as which statistics that a forward pass finds are rounded to float32.
        tensors: the call's, on any device and in any dtype.
    """
    t: dict[str, Any] = {
        parameter.name: tensors.get(parameter.name) for parameter in call.operator.parameters
    }
    t = {name: None if each is None else each.double().contiguous() for name, each in t.items()}
    formula = getattr(_Formulas(call.options, t), call.name, None)
    found: Sequence[Tensor] = formula() if formula else _of_aten(call.name, call.options, t)
    return found


def _of_aten(name: str, options: Mapping[str, Any], t: Mapping[str, Any]) -> Sequence[Tensor]:
    found: Sequence[Tensor] = getattr(Aten, name)(**t, **options)
    return found


class _Formulas:
    """A method for each operator's results, from a call's options and its tensors by name.

    Other operators' are PyTorch's own.
    """

    def __init__(self, options: Mapping[str, Any], t: dict[str, Any]) -> None:
        self.options, self.t = options, t
        self.x = t["input"]
        self.over = (0, *range(2, self.x.dim()))

    def along(self, values: Tensor) -> Tensor:
        """One value for each channel, or for each sample's groups, as it broadcasts."""
        if values.dim() == 2:
            values = values.repeat_interleave(self.x.shape[1] // values.shape[1], 1)
        return values.reshape(-1, self.x.shape[1], *[1] * (self.x.dim() - 2))

    def centred(self) -> Tensor:
        return self.x - self.along(self.t["mean"])

    def normalised(self, mean: Tensor, r: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.along(weight) * self.along(r) * (self.x - self.along(mean)) + self.along(bias)

    def batch_norm_stats(self) -> Sequence[Tensor]:
        var, mean = torch.var_mean(self.x, self.over, correction=0)
        return mean, (var + self.options["eps"]).rsqrt()

    def batch_norm_backward(self) -> Sequence[Tensor]:
        if self.options["training"] and self.t["save_mean"] is None:
            self.t["save_mean"], self.t["save_invstd"] = self.batch_norm_stats()
        return _of_aten("batch_norm_backward", self.options, self.t)

    def batch_norm(self) -> Sequence[Tensor]:
        return self._rounded("batch_norm", "weight", "bias")

    def group_norm(self) -> Sequence[Tensor]:
        return self._rounded("group_norm", "gamma", "beta")

    def layer_norm(self) -> Sequence[Tensor]:
        _, *statistics = _of_aten("layer_norm", self.options, self.t)
        mean, r = (each.float().double() for each in statistics)
        return (self.x - mean) * r * self.t["weight"] + self.t["bias"], *statistics

    def rms_norm_backward(self) -> Sequence[Tensor]:
        dy, x, r, w = self.t.values()
        over = tuple(range(-len(self.options["normalized_shape"]), 0))
        d, xhat = w * dy, x * r
        grad_weight = (dy * xhat).sum(tuple(range(x.dim() + over[0])))
        return r * (d - xhat * (d * xhat).mean(over, keepdim=True)), grad_weight

    def rms_norm(self) -> Sequence[Tensor]:
        over = tuple(range(-len(self.options["normalized_shape"]), 0))
        r = (self.x.square().mean(over, keepdim=True) + self.options["eps"]).rsqrt()
        return self.t["weight"] * r.float().double() * self.x, r

    def _rounded(self, name: str, weight: str, bias: str) -> Sequence[Tensor]:
        """A forward pass's results, the output from statistics as they are rounded."""
        output, *statistics = _of_aten(name, self.options, self.t)
        if statistics:
            mean, r = (each.float().double() for each in statistics[:2])
            output = self.normalised(mean, r, self.t[weight], self.t[bias])
        return output, *statistics

    def batch_norm_elemt(self) -> Sequence[Tensor]:
        t = self.t
        return (self.normalised(t["mean"], t["invstd"], t["weight"], t["bias"]),)

    def batch_norm_backward_reduce(self) -> Sequence[Tensor]:
        dy = self.t["grad_out"]
        total, projection = dy.sum(self.over), (dy * self.centred()).sum(self.over)
        return total, projection, projection * self.t["invstd"], total

    def batch_norm_backward_elemt(self) -> Sequence[Tensor]:
        t, along = self.t, self.along
        r, n = t["invstd"], t["count"].sum()
        inner = along(t["sum_dy"] / n) + self.centred() * along(r * r * t["sum_dy_xmu"] / n)
        return (along(t["weight"] * r) * (t["grad_out"] - inner),)

    def batch_norm_gather_stats_with_counts(self) -> Sequence[Tensor]:
        t, momentum, eps = self.t, self.options["momentum"], self.options["eps"]
        counts, n = t["counts"].reshape(-1, 1), t["counts"].sum()
        mean = (counts * t["mean"]).sum(0) / n
        variance = (counts * (t["invstd"] ** -2 + (t["mean"] - mean) ** 2)).sum(0) / n
        unbiased = (variance - eps).clamp(min=0) * n / (n - 1)
        running = ((t["running_mean"], mean), (t["running_var"], unbiased))
        return mean, variance.rsqrt(), *(torch.lerp(old, new, momentum) for old, new in running)
