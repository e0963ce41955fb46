"""torch's side: its own operator for the same, or the shortest composition of others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.ops import aten

from ..operators.by_name import choices_of
from ..torch.schemas import ATEN, Schema
from .data import EPS, MOMENTUM, Data, arguments
from .suite import DENSE, Case, Layout, Operator
from .timing import Call

#: Operators that torch has for CUDA alone.
_ON_CUDA = (
    *("batch_norm_backward_reduce", "batch_norm_backward_elemt", "batch_norm_stats"),
    *("batch_norm_elemt", "_fused_rms_norm_backward"),
)


@dataclass(frozen=True)
class Candidates:
    """Ways for torch to compute the same, by name.

    Attributes:
        kernels: its own operators.
        cuda: those that CUDA alone has.
        compositions: of other operators; one at least has no operator of normalisation in it.
    """

    kernels: Mapping[str, Call]
    cuda: Mapping[str, Call]
    compositions: Mapping[str, Call]


def _along(vector: Any, x: Any) -> Any:
    """A per-channel vector, shaped to broadcast against x."""
    return vector.view(1, -1, *[1] * (x.dim() - 2))


def _others(x: Any) -> tuple[int, ...]:
    """All axes of x but the channels'."""
    return (0, *range(2, x.dim()))


def candidates(case: Case, data: Data) -> Candidates:
    """Everything torch might compute the case's results with."""
    row = ATEN[case.operator.function]
    name, call = _kernel(case, data, row)
    kernels, cuda = {name: call}, _cudnn(case, data)
    if row.name in _ON_CUDA:
        kernels, cuda = {}, kernels
    return Candidates(kernels, cuda, _COMPOSITIONS[case.operator](case, data))


def _kernel(case: Case, data: Data, row: Schema) -> tuple[str, Call]:
    """torch's own operator on the arguments of ours, and its name."""
    tensors, options = arguments(case, data)
    # torch's own layers pass empty tensors in evaluation; their dtype is looked at.
    empty = data.mean.new_empty(0)
    given = {"eps": EPS, "bias": data.bias, "save_mean": empty, "save_invstd": empty}
    given |= {**choices_of(case.operator.function), **options, **tensors}
    values, name = row.arguments_of(given), f"aten::{row.name}"
    function = getattr(aten, row.name)
    form = None
    if case.groups:
        form, name = _laid_out(case, data.input.device.type == "cpu", name)
    if form is not None:
        return name, lambda: function(
            *(
                each.contiguous(memory_format=form)
                if each is data.grad_out or each is data.input
                else each
                for each in values
            )
        )
    if case.operator in (Operator.FORWARD, Operator.FORWARD_EVAL):
        running = tensors["running_mean"], tensors["running_var"]
        return name, lambda: _whole(options["training"], function(*values), running)
    return name, partial(function, *values)


def _whole(training: bool, results: Any, running: tuple[Any, Any]) -> Any:
    """What batch norm's forward pass returns; in evaluation torch gives two empty tensors."""
    return (*results[:3], *running) if training else (results[0], *[None] * 4)


def _cudnn(case: Case, data: Data) -> dict[str, Call]:
    """cuDNN's batch norm in training, by name."""
    running = data.mean.clone(), data.var.clone()
    reserved: list[Any] = []

    def forward() -> Any:
        """y, mean, invstd, and what cuDNN keeps; the running statistics are updated."""
        affine = data.input, data.weight, data.bias
        return aten.cudnn_batch_norm(*affine, *running, True, MOMENTUM, EPS)

    def backward() -> Any:
        if not reserved:  # it wants what its forward pass has kept
            reserved.append(forward()[3])
        given = data.input, data.grad_out, data.weight, None, None, data.mean, data.invstd
        return aten.cudnn_batch_norm_backward(*given, EPS, reserved[0])

    if case.operator is Operator.TRAIN:
        return {"aten::cudnn_batch_norm_backward": backward}
    if case.operator is Operator.FORWARD:
        return {"aten::cudnn_batch_norm": lambda: _whole(True, forward(), running)}
    return {}


def _sums(data: Data) -> tuple[Any, Any]:
    """Σdy and Σdy·(x − μ), in float32."""
    others = _others(data.input)
    centred = data.input - _along(data.mean.float(), data.input)
    sum_dy = data.grad_out.sum(others, dtype=torch.float32)
    return sum_dy, centred.mul_(data.grad_out).sum(others)


def _slopes(data: Data, sums: tuple[Any, Any], count: Any) -> tuple[Any, Any, Any]:
    """dx = gain·dy + slope·(x − μ) + shift, where none of the three depends on the position."""
    invstd = data.invstd.float()
    gain = data.weight.float() * invstd
    return gain, -gain * invstd * invstd * sums[1] / count, -gain * sums[0] / count


def _apply(data: Data, sums: tuple[Any, Any], count: Any, three: bool) -> Any:
    """Two passes, or three of simpler loops, which torch vectorises where it does not the first."""
    gain, slope, shift = _slopes(data, sums, count)
    vectors = gain, slope, shift - slope * data.mean.float()
    gain, slope, shift = (_along(vector, data.input) for vector in vectors)
    if three:
        grad_input = (data.input * slope).add_(shift)
    else:
        grad_input = torch.addcmul(shift, data.input, slope)
    return grad_input.addcmul_(data.grad_out, gain).to(data.input.dtype)


def _batch_norm(case: Case, data: Data) -> dict[str, Call]:
    training, alone = (case.operator is one for one in (Operator.TRAIN, Operator.EVAL_INPUT))

    def composition() -> Any:
        parameters, invstd = data.weight.dtype, data.invstd
        if training:
            sums = _sums(data)
            grad_input = _apply(data, sums, case.elements // case.shape[1], False)
        else:
            invstd = (data.var.float() + EPS).rsqrt()
            gain = _along(data.weight.float() * invstd, data.input)
            grad_input = (data.grad_out * gain).to(data.input.dtype)
            if alone:
                return grad_input, None, None
            sums = _sums(data)
        return grad_input, (sums[1] * invstd).to(parameters), sums[0].to(parameters)

    return {"composition: sums, addcmul": composition}


def _reduce(case: Case, data: Data) -> dict[str, Call]:
    def masked() -> Any:
        # The gradients of the parameters in training are these sums, but for a factor.
        _, grad_weight, grad_bias = aten.native_batch_norm_backward(
            *(data.grad_out, data.input, data.weight, None, None, data.mean, data.invstd),
            *(True, EPS, [False, True, True]),
        )
        return grad_bias, grad_weight / data.invstd, grad_weight, grad_bias

    def composition() -> Any:
        sum_dy, sum_dy_xmu = _sums(data)
        sums = sum_dy, sum_dy_xmu, sum_dy_xmu * data.invstd, sum_dy
        return tuple(each.to(data.mean.dtype) for each in sums)

    return {
        "composition: aten::native_batch_norm_backward masked (F, T, T), div": masked,
        "composition: sub, mul, sums": composition,
    }


def _elemt(case: Case, data: Data) -> dict[str, Call]:
    def given() -> tuple[tuple[Any, Any], Any]:
        return (data.sum_dy.float(), data.sum_dy_xmu.float()), data.count.sum()

    def by_batch_norm() -> Any:
        """slope·(x − μ) + shift by the forward kernel in evaluation, then gain·dy added in place.

        The least memory traffic of all; halves are rounded three times on the way.
        """
        gain, slope, shift = _slopes(data, *given())
        rest = _evaluated(data, slope, shift)
        return rest.addcmul_(data.grad_out, _along(gain.to(data.input.dtype), data.input))

    return {
        "composition: addcmul, addcmul_": lambda: _apply(data, *given(), False),
        "composition: mul, add_, addcmul_": lambda: _apply(data, *given(), True),
        "composition: aten::native_batch_norm, addcmul_": by_batch_norm,
    }


def _evaluated(data: Data, gain: Any, shift: Any) -> Any:
    """gain·(x − μ) + shift, by batch norm in evaluation of a variance of one."""
    mean = data.mean.float()
    ones = torch.ones_like(mean)
    return aten.native_batch_norm(data.input, gain, shift, mean, ones, False, 0.0, 0.0)[0]


def _laid_out(case: Case, on_cpu: bool, name: str) -> tuple[Any, str]:
    """The memory format that group norm's kernels want, and what they are called with it.

    Those of the CPU read all tensors as if they lay the way x does, those of other devices as if
    they were contiguous: torch brings them there before it calls them, where they are not. None
    is for tensors that are there.
    """
    if case.layout in (DENSE if on_cpu else DENSE[:1]):
        return None, name
    last = on_cpu and case.layout is Layout.X_CHANNELS_LAST
    return torch.channels_last if last else torch.contiguous_format, f"aten::contiguous, {name}"


def _group_norm(case: Case, data: Data) -> dict[str, Call]:
    samples, channels = case.shape[:2]
    positions, groups = case.elements // (samples * channels), case.groups

    def composition() -> Any:
        split = (samples, groups, channels // groups, positions)
        dy, x = data.grad_out.float().reshape(split), data.input.float().reshape(split)
        per_set = (samples, groups, 1, 1)
        mean, rstd = data.mean.float().view(per_set), data.invstd.float().view(per_set)
        normal = (x - mean).mul_(rstd)
        grad_gamma = (dy * normal).sum((0, 3)).view(-1).to(data.weight.dtype)
        grad_beta = dy.sum((0, 3)).view(-1).to(data.weight.dtype)
        scaled = dy * data.weight.float().view(1, groups, -1, 1)
        projection = (scaled * normal).mean((2, 3), keepdim=True)
        grad_input = scaled.sub_(scaled.mean((2, 3), keepdim=True)).sub_(normal.mul_(projection))
        grad_input = grad_input.mul_(rstd).view(case.shape).to(data.input.dtype)
        return grad_input, grad_gamma, grad_beta

    return {"composition: sums, mul": composition}


def _forward(case: Case, data: Data) -> dict[str, Call]:
    training = case.operator is Operator.FORWARD
    # The running statistics are changed in training, and the data are others' too.
    running = (data.mean.clone(), data.var.clone())

    def composition() -> Any:
        mean, var = running
        if training:
            var, mean = torch.var_mean(data.input.float(), _others(data.input), correction=0)
            unbiased = case.elements / (case.elements - case.shape[1])
            running[0].lerp_(mean.to(running[0].dtype), MOMENTUM)
            running[1].lerp_((var * unbiased).to(running[1].dtype), MOMENTUM)
        invstd = (var.float() + EPS).rsqrt()
        return _whole(training, (_normalised(data, mean.float(), invstd), mean, invstd), running)

    return {"composition: var_mean, addcmul": composition}


def _normalised(data: Data, mean: Any, invstd: Any, two: bool = False) -> Any:
    """One pass over x, or two, with all that does not depend on the position taken together."""
    gain = data.weight.float() * invstd
    shift = _along(data.bias.float() - gain * mean, data.input)
    gain = _along(gain, data.input)
    if two:
        return (data.input * gain).add_(shift).to(data.input.dtype)
    return torch.addcmul(shift, data.input, gain).to(data.input.dtype)


def _stats(case: Case, data: Data) -> dict[str, Call]:
    # Of its batch norm kernel it is the part that makes the statistics, and it wants running ones,
    # whose dtype it gives: with no momentum they stay what they are.
    running = [fill(case.shape[1], device=data.input.device) for fill in (torch.zeros, torch.ones)]

    def update() -> Any:
        mean, var = aten.batch_norm_update_stats(data.input, *running, 0.0)
        return mean, var.add_(EPS).rsqrt_()

    def var_mean() -> Any:
        var, mean = torch.var_mean(data.input.float(), _others(data.input), correction=0)
        return mean, var.add_(EPS).rsqrt_()

    return {
        "composition: aten::batch_norm_update_stats, rsqrt": update,
        "composition: var_mean, rsqrt": var_mean,
    }


def _normalise(case: Case, data: Data) -> dict[str, Call]:
    def by_batch_norm() -> Any:
        return _evaluated(data, data.weight.float() * data.invstd.float(), data.bias.float())

    def passes(two: bool) -> Any:
        return _normalised(data, data.mean.float(), data.invstd.float(), two)

    return {
        "composition: aten::native_batch_norm": by_batch_norm,
        "composition: addcmul": lambda: passes(False),
        "composition: mul, add_": lambda: passes(True),
    }


def _forward_group_norm(case: Case, data: Data) -> dict[str, Call]:
    samples, channels = case.shape[:2]
    positions = case.elements // (samples * channels)

    def composition() -> Any:
        split = data.input.float().reshape(samples, case.groups, -1, positions)
        var, mean = torch.var_mean(split, (2, 3), correction=0)
        rstd = (var + EPS).rsqrt()
        normal = (split - mean[:, :, None, None]).mul_(rstd[:, :, None, None])
        gain, shift = (
            vector.float().view(1, case.groups, -1, 1) for vector in (data.weight, data.bias)
        )
        output = normal.mul_(gain).add_(shift).view(case.shape)
        return output.to(data.input.dtype), mean, rstd

    return {"composition: var_mean, sub, mul, add": composition}


def _rows(case: Case, data: Data) -> dict[str, Call]:
    """Layer norm's or RMS norm's gradients."""
    x, rstd, row = data.input, data.invstd, case.shape[1:]
    centred = case.operator is Operator.LAYER_NORM

    def composition() -> Any:
        dy, wide = data.grad_out.float(), x.float()
        normal = (wide - data.mean if centred else wide) * rstd
        scaled = dy * data.weight
        projection = (scaled * normal).mean(1, keepdim=True)
        shift = scaled.mean(1, keepdim=True) if centred else 0.0
        grad_input = ((scaled - shift).addcmul_(normal, projection, value=-1) * rstd).to(x.dtype)
        sums = [(dy * normal).sum(0), *([dy.sum(0)] if centred else [])]
        return grad_input, *(each.to(data.weight.dtype) for each in sums)

    composed: dict[str, Call] = {"composition: mean, addcmul, sums": composition}
    if centred:
        return composed
    leaves = [tensor.detach().requires_grad_() for tensor in (x, data.weight)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own remark that it composes mixed dtypes
        output = aten.rms_norm(leaves[0], row, leaves[1], EPS)
    composed["autograd of aten::rms_norm"] = partial(
        torch.autograd.grad, output, leaves, data.grad_out, retain_graph=True
    )
    return composed


def _forward_rows(case: Case, data: Data) -> dict[str, Call]:
    x = data.input
    if case.operator is Operator.FORWARD_LAYER_NORM:

        def layer_norm() -> Any:
            var, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)
            rstd = (var + EPS).rsqrt()
            normal = (x - mean).mul_(rstd)
            return torch.addcmul(data.bias, normal, data.weight).to(x.dtype), mean, rstd

        return {"composition: var_mean, sub, mul, addcmul": layer_norm}

    def rms_norm() -> Any:
        wide = x.float()
        rstd = (wide.square().mean(1, keepdim=True) + EPS).rsqrt()
        return (wide * rstd).mul_(data.weight).to(x.dtype), rstd

    return {"composition: square, mean, mul": rms_norm}


_COMPOSITIONS: Mapping[Operator, Callable[[Case, Data], dict[str, Call]]] = {
    **dict.fromkeys((Operator.TRAIN, Operator.EVAL, Operator.EVAL_INPUT), _batch_norm),
    Operator.REDUCE: _reduce,
    Operator.ELEMT: _elemt,
    Operator.GROUP_NORM: _group_norm,
    **dict.fromkeys((Operator.FORWARD, Operator.FORWARD_EVAL), _forward),
    Operator.STATS: _stats,
    Operator.NORMALISE: _normalise,
    Operator.FORWARD_GROUP_NORM: _forward_group_norm,
    **dict.fromkeys((Operator.LAYER_NORM, Operator.RMS_NORM), _rows),
    **dict.fromkeys((Operator.FORWARD_LAYER_NORM, Operator.FORWARD_RMS_NORM), _forward_rows),
}
