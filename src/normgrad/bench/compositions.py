"""torch's side: its own operator for the same, or the shortest composition of others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.ops import aten

from .data import Data
from .suite import DENSE, Case, Layout, Operator
from .timing import Call

EPS = 1e-5
MOMENTUM = 0.1


@dataclass(frozen=True)
class Candidates:
    """Ways for torch to compute the same, by name.

    Attributes:
        kernels: its own operators.
        cuda: those that CUDA alone has.
        compositions: of other operators; one at least has no operator of normalisation in it.
    """

    kernels: Mapping[str, Call] = field(default_factory=dict)
    cuda: Mapping[str, Call] = field(default_factory=dict)
    compositions: Mapping[str, Call] = field(default_factory=dict)


class _Along:
    """Per-channel vectors, shaped to broadcast against x."""

    def __init__(self, case: Case) -> None:
        rank = len(case.shape)
        self.shape = (1, -1) + (1,) * (rank - 2)
        self.others = (0, *range(2, rank))

    def __call__(self, values: Any) -> Any:
        return values.view(self.shape)


def candidates(case: Case, data: Data) -> Candidates:
    """Everything torch might compute the case's results with."""
    return _CANDIDATES[case.operator](case, data)


def _sums(data: Data, along: _Along) -> tuple[Any, Any]:
    """Σdy and Σdy·(x − μ), in float32."""
    centred = data.input - along(data.mean.float())
    sum_dy = data.grad_out.sum(along.others, dtype=torch.float32)
    return sum_dy, centred.mul_(data.grad_out).sum(along.others)


def _slopes(data: Data, sums: tuple[Any, Any], count: Any) -> tuple[Any, Any, Any]:
    """dx = gain·dy + slope·(x − μ) + shift, where none of the three depends on the position."""
    invstd = data.invstd.float()
    gain = data.weight.float() * invstd
    return gain, -gain * invstd * invstd * sums[1] / count, -gain * sums[0] / count


def _apply(data: Data, along: _Along, sums: tuple[Any, Any], count: Any, three: bool) -> Any:
    """Two passes, or three of simpler loops, which torch vectorises where it does not the first."""
    gain, slope, shift = _slopes(data, sums, count)
    gain, slope, shift = map(along, (gain, slope, shift - slope * data.mean.float()))
    if three:
        grad_input = (data.input * slope).add_(shift)
    else:
        grad_input = torch.addcmul(shift, data.input, slope)
    return grad_input.addcmul_(data.grad_out, gain).to(data.input.dtype)


def _batch_norm(case: Case, data: Data) -> Candidates:
    along = _Along(case)
    training = case.operator is Operator.TRAIN
    mask = [True, *[case.operator is not Operator.EVAL_INPUT] * 2]
    # In training torch looks at the batch's statistics, in evaluation at the running ones.
    running = (None, None) if training else (data.mean, data.var)
    # Empty tensors, as torch's own layers pass them; of the parameters' dtype, which is looked at.
    saved = (data.mean, data.invstd) if training else (data.mean.new_empty(0),) * 2

    kernel = partial(
        aten.native_batch_norm_backward,
        *(data.grad_out, data.input, data.weight),
        *(*running, *saved, training, EPS, mask),
    )
    reserved: list[Any] = []

    def cudnn() -> Any:
        if not reserved:  # its backward pass wants what its forward pass has kept
            reserved.append(_cudnn_forward(data, (data.mean.clone(), data.var.clone()))[3])
        return aten.cudnn_batch_norm_backward(
            *(data.input, data.grad_out, data.weight, *running, *saved, EPS, reserved[0])
        )

    def composition() -> Any:
        parameters, invstd = data.weight.dtype, data.invstd
        if training:
            sums = _sums(data, along)
            grad_input = _apply(data, along, sums, case.elements // case.shape[1], False)
        else:
            invstd = (data.var.float() + EPS).rsqrt()
            gain = along(data.weight.float() * invstd)
            grad_input = (data.grad_out * gain).to(data.input.dtype)
            if not mask[1]:
                return grad_input, None, None
            sums = _sums(data, along)
        return grad_input, (sums[1] * invstd).to(parameters), sums[0].to(parameters)

    return Candidates(
        {"aten::native_batch_norm_backward": kernel},
        {"aten::cudnn_batch_norm_backward": cudnn} if training else {},
        {"composition: sums, addcmul": composition},
    )


def _cudnn_forward(data: Data, running: tuple[Any, Any]) -> Any:
    """y, mean, invstd, and what cuDNN keeps; the running statistics are updated."""
    affine = data.input, data.weight, data.bias
    return aten.cudnn_batch_norm(*affine, *running, True, MOMENTUM, EPS)


def _reduce(case: Case, data: Data) -> Candidates:
    kernel = partial(
        aten.batch_norm_backward_reduce,
        *(data.grad_out, data.input, data.mean, data.invstd),
        *(data.weight, True, True, True),
    )

    def masked() -> Any:
        # The gradients of the parameters in training are these sums, but for a factor.
        _, grad_weight, grad_bias = aten.native_batch_norm_backward(
            *(data.grad_out, data.input, data.weight, None, None, data.mean, data.invstd),
            *(True, EPS, [False, True, True]),
        )
        return grad_bias, grad_weight / data.invstd, grad_weight, grad_bias

    def composition() -> Any:
        sum_dy, sum_dy_xmu = _sums(data, _Along(case))
        sums = sum_dy, sum_dy_xmu, sum_dy_xmu * data.invstd, sum_dy
        return tuple(each.to(data.mean.dtype) for each in sums)

    return Candidates(
        cuda={"aten::batch_norm_backward_reduce": kernel},
        compositions={
            "composition: aten::native_batch_norm_backward masked (F, T, T), div": masked,
            "composition: sub, mul, sums": composition,
        },
    )


def _elemt(case: Case, data: Data) -> Candidates:
    along = _Along(case)

    kernel = partial(
        aten.batch_norm_backward_elemt,
        *(data.grad_out, data.input, data.mean, data.invstd),
        *(data.weight, data.sum_dy, data.sum_dy_xmu, data.count),
    )

    def given() -> tuple[tuple[Any, Any], Any]:
        return (data.sum_dy.float(), data.sum_dy_xmu.float()), data.count.sum()

    def by_batch_norm() -> Any:
        """slope·(x − μ) + shift by the forward kernel in evaluation, then gain·dy added in place.

        The least memory traffic of all; halves are rounded three times on the way.
        """
        gain, slope, shift = _slopes(data, *given())
        rest = _evaluated(data, slope, shift)
        return rest.addcmul_(data.grad_out, along(gain.to(data.input.dtype)))

    return Candidates(
        cuda={"aten::batch_norm_backward_elemt": kernel},
        compositions={
            "composition: addcmul, addcmul_": lambda: _apply(data, along, *given(), False),
            "composition: mul, add_, addcmul_": lambda: _apply(data, along, *given(), True),
            "composition: aten::native_batch_norm, addcmul_": by_batch_norm,
        },
    )


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


def _of_group_norm(function: Callable[..., Any], form: Any, data: list[Any], *more: Any) -> Call:
    """A group norm kernel's call, with the copies of its data that it wants."""
    if form is None:
        return partial(function, *data, *more)
    return lambda: function(*(each.contiguous(memory_format=form) for each in data), *more)


def _group_norm(case: Case, data: Data) -> Candidates:
    samples, channels = case.shape[:2]
    positions, groups = case.elements // (samples * channels), case.groups
    form, name = _laid_out(
        case, data.input.device.type == "cpu", "aten::native_group_norm_backward"
    )

    kernel = _of_group_norm(
        *(aten.native_group_norm_backward, form, [data.grad_out, data.input]),
        *(data.mean, data.invstd, data.weight, samples, channels, positions, groups, [True] * 3),
    )

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

    return Candidates({name: kernel}, compositions={"composition: sums, mul": composition})


def _forward(case: Case, data: Data) -> Candidates:
    along = _Along(case)
    training = case.operator is Operator.FORWARD
    # The running statistics are changed in training, and the data are others' too.
    running = (data.mean.clone(), data.var.clone())

    def whole(output: Any, mean: Any, invstd: Any) -> Any:
        # In evaluation torch gives two empty tensors.
        return (output, mean, invstd, *running) if training else (output, *[None] * 4)

    def kernel() -> Any:
        affine = data.input, data.weight, data.bias
        return whole(*aten.native_batch_norm(*affine, *running, training, MOMENTUM, EPS))

    def composition() -> Any:
        mean, var = running
        if training:
            var, mean = torch.var_mean(data.input.float(), along.others, correction=0)
            unbiased = case.elements / (case.elements - case.shape[1])
            running[0].lerp_(mean.to(running[0].dtype), MOMENTUM)
            running[1].lerp_((var * unbiased).to(running[1].dtype), MOMENTUM)
        invstd = (var.float() + EPS).rsqrt()
        return whole(_normalised(data, mean.float(), invstd, along), mean, invstd)

    def cudnn() -> Any:
        return whole(*_cudnn_forward(data, running)[:3])

    return Candidates(
        {"aten::native_batch_norm": kernel},
        {"aten::cudnn_batch_norm": cudnn} if training else {},
        {"composition: var_mean, addcmul": composition},
    )


def _normalised(data: Data, mean: Any, invstd: Any, along: _Along, two: bool = False) -> Any:
    """One pass over x, or two, with all that does not depend on the position taken together."""
    gain = data.weight.float() * invstd
    shift = data.bias.float() - gain * mean
    if two:
        return (data.input * along(gain)).add_(along(shift)).to(data.input.dtype)
    return torch.addcmul(along(shift), data.input, along(gain)).to(data.input.dtype)


def _stats(case: Case, data: Data) -> Candidates:
    # Of its batch norm kernel it is the part that makes the statistics, and it wants running ones,
    # whose dtype it gives: with no momentum they stay what they are.
    running = [fill(case.shape[1], device=data.input.device) for fill in (torch.zeros, torch.ones)]

    def update() -> Any:
        mean, var = aten.batch_norm_update_stats(data.input, *running, 0.0)
        return mean, var.add_(EPS).rsqrt_()

    def var_mean() -> Any:
        var, mean = torch.var_mean(data.input.float(), _Along(case).others, correction=0)
        return mean, var.add_(EPS).rsqrt_()

    return Candidates(
        cuda={"aten::batch_norm_stats": partial(aten.batch_norm_stats, data.input, EPS)},
        compositions={
            "composition: aten::batch_norm_update_stats, rsqrt": update,
            "composition: var_mean, rsqrt": var_mean,
        },
    )


def _normalise(case: Case, data: Data) -> Candidates:
    along = _Along(case)

    affine = data.input, data.weight, data.bias
    kernel = partial(aten.batch_norm_elemt, *affine, data.mean, data.invstd, EPS)

    def by_batch_norm() -> Any:
        return _evaluated(data, data.weight.float() * data.invstd.float(), data.bias.float())

    def passes(two: bool) -> Any:
        return _normalised(data, data.mean.float(), data.invstd.float(), along, two)

    return Candidates(
        cuda={"aten::batch_norm_elemt": kernel},
        compositions={
            "composition: aten::native_batch_norm": by_batch_norm,
            "composition: addcmul": lambda: passes(False),
            "composition: mul, add_": lambda: passes(True),
        },
    )


def _forward_group_norm(case: Case, data: Data) -> Candidates:
    samples, channels = case.shape[:2]
    positions = case.elements // (samples * channels)
    form, name = _laid_out(case, data.input.device.type == "cpu", "aten::native_group_norm")

    kernel = _of_group_norm(
        *(aten.native_group_norm, form, [data.input], data.weight, data.bias),
        *(samples, channels, positions, case.groups, EPS),
    )

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

    compositions = {"composition: var_mean, sub, mul, add": composition}
    return Candidates({name: kernel}, compositions=compositions)


def _rows(case: Case, data: Data) -> Candidates:
    """Layer norm's or RMS norm's gradients; of the latter's torch has a kernel on CUDA alone."""
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
        kernel = partial(
            aten.native_layer_norm_backward,
            *(data.grad_out, x, row, data.mean, rstd, data.weight, data.bias, [True] * 3),
        )
        return Candidates({"aten::native_layer_norm_backward": kernel}, compositions=composed)
    kernel = partial(
        aten._fused_rms_norm_backward, data.grad_out, x, row, rstd, data.weight, [True] * 2
    )
    leaves = [tensor.detach().requires_grad_() for tensor in (x, data.weight)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own remark that it composes mixed dtypes
        output = aten.rms_norm(leaves[0], row, leaves[1], EPS)
    composed["autograd of aten::rms_norm"] = partial(
        torch.autograd.grad, output, leaves, data.grad_out, retain_graph=True
    )
    return Candidates(cuda={"aten::_fused_rms_norm_backward": kernel}, compositions=composed)


def _forward_rows(case: Case, data: Data) -> Candidates:
    x, row = data.input, case.shape[1:]
    if case.operator is Operator.FORWARD_LAYER_NORM:

        def layer_norm() -> Any:
            var, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)
            rstd = (var + EPS).rsqrt()
            normal = (x - mean).mul_(rstd)
            return torch.addcmul(data.bias, normal, data.weight).to(x.dtype), mean, rstd

        kernel = partial(aten.native_layer_norm, x, row, data.weight, data.bias, EPS)
        return Candidates(
            {"aten::native_layer_norm": kernel},
            compositions={"composition: var_mean, sub, mul, addcmul": layer_norm},
        )

    def rms_norm() -> Any:
        wide = x.float()
        rstd = (wide.square().mean(1, keepdim=True) + EPS).rsqrt()
        return (wide * rstd).mul_(data.weight).to(x.dtype), rstd

    kernel = partial(aten._fused_rms_norm, x, row, data.weight, EPS)
    return Candidates(
        {"aten::_fused_rms_norm": kernel},
        compositions={"composition: square, mean, mul": rms_norm},
    )


_CANDIDATES: Mapping[Operator, Callable[[Case, Data], Candidates]] = {
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
