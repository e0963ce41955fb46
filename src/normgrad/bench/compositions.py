"""torch's side: its own kernel for the same, or the shortest composition of others.

Each function gives candidates, by name. Kernels come first, and the first that takes the tensors is
the contender. Where there is none, the fastest of the compositions is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .data import Data
from .suite import DENSE, Case, Layout, Operator

Call = Callable[[], Any]

EPS = 1e-5
MOMENTUM = 0.1


@dataclass(frozen=True)
class Candidates:
    """Ways for torch to compute the same: kernels in order of preference, and compositions."""

    kernels: Mapping[str, Call] = field(default_factory=dict)
    compositions: Mapping[str, Call] = field(default_factory=dict)


class _Along:
    """Per-channel vectors, shaped to broadcast against x."""

    def __init__(self, rank: int) -> None:
        self.shape = (1, -1) + (1,) * (rank - 2)
        self.others = (0, *range(2, rank))

    def __call__(self, values: Any) -> Any:
        return values.view(self.shape)


def candidates(torch: Any, case: Case, data: Data) -> Candidates:
    """Everything torch might compute the case's results with."""
    return _CANDIDATES[case.operator](torch, case, data)


def _sums(torch: Any, data: Data, along: _Along) -> tuple[Any, Any]:
    """Σdy and Σdy·(x − μ), in float32."""
    centred = data.input - along(data.mean.float())
    sum_dy = data.grad_out.sum(along.others, dtype=torch.float32)
    return sum_dy, centred.mul_(data.grad_out).sum(along.others)


def _coefficients(data: Data, along: _Along, sums: tuple[Any, Any], count: Any) -> list[Any]:
    """dx = gain·dy + slope·x + shift: what does not depend on the position, taken together."""
    mean, invstd = data.mean.float(), data.invstd.float()
    gain = data.weight.float() * invstd
    slope = -gain * invstd * invstd * sums[1] / count
    shift = -gain * sums[0] / count - slope * mean
    return [along(values) for values in (gain, slope, shift)]


def _apply(torch: Any, data: Data, coefficients: list[Any]) -> Any:
    """Two passes, the second in place."""
    gain, slope, shift = coefficients
    grad_input = torch.addcmul(shift, data.input, slope).addcmul_(data.grad_out, gain)
    return grad_input.to(data.input.dtype)


def _apply_in_three(data: Data, coefficients: list[Any]) -> Any:
    """Three passes of simpler loops, which torch vectorises where it does not the first."""
    gain, slope, shift = coefficients
    grad_input = (data.input * slope).add_(shift).addcmul_(data.grad_out, gain)
    return grad_input.to(data.input.dtype)


def _apply_by_batch_norm(torch: Any, data: Data, sums: tuple[Any, Any], count: Any) -> Any:
    """slope·(x − μ) + shift by the forward kernel in evaluation, then gain·dy added in place.

    The least memory traffic of all; halves are rounded three times on the way.
    """
    mean, invstd = data.mean.float(), data.invstd.float()
    gain = data.weight.float() * invstd
    slope, shift = -gain * invstd * invstd * sums[1] / count, -gain * sums[0] / count
    ones = torch.ones_like(mean)
    rest = torch.ops.aten.native_batch_norm(data.input, slope, shift, mean, ones, False, 0.0, 0.0)
    return rest[0].addcmul_(data.grad_out, _Along(data.input.dim())(gain.to(data.input.dtype)))


def _batch_norm(torch: Any, case: Case, data: Data) -> Candidates:
    along = _Along(len(case.shape))
    training = case.operator is Operator.TRAIN
    mask = [
        True,
        case.operator is not Operator.EVAL_INPUT,
        case.operator is not Operator.EVAL_INPUT,
    ]
    # In training torch looks at the batch's statistics, in evaluation at the running ones.
    running = (None, None) if training else (data.mean, data.var)
    # Empty tensors, as torch's own layers pass them; of the parameters' dtype, which is looked at.
    empty = torch.empty(0, dtype=data.mean.dtype, device=data.mean.device)
    saved = (data.mean, data.invstd) if training else (empty, empty)

    def kernel() -> Any:
        return torch.ops.aten.native_batch_norm_backward(
            data.grad_out, data.input, data.weight, *running, *saved, training, EPS, mask
        )

    reserved: list[Any] = []

    def cudnn() -> Any:
        if not reserved:  # its backward pass wants what its forward pass has kept
            kept = _cudnn_forward(torch, data, (data.mean.clone(), data.var.clone()))[3]
            reserved.append(kept)
        return torch.ops.aten.cudnn_batch_norm_backward(
            *(data.input, data.grad_out, data.weight, *running, *saved, EPS, reserved[0])
        )

    def composition() -> Any:
        parameters = data.weight.dtype
        if not training:
            invstd = (data.var.float() + EPS).rsqrt()
            gain = along(data.weight.float() * invstd)
            grad_input = (data.grad_out * gain).to(data.input.dtype)
            if not mask[1]:
                return grad_input, None, None
            sum_dy, sum_dy_xmu = _sums(torch, data, along)
            return grad_input, (sum_dy_xmu * invstd).to(parameters), sum_dy.to(parameters)
        sums = _sums(torch, data, along)
        count = case.elements // case.shape[1]
        grad_input = _apply(torch, data, _coefficients(data, along, sums, count))
        return grad_input, (sums[1] * data.invstd).to(parameters), sums[0].to(parameters)

    kernels: dict[str, Call] = {"aten::native_batch_norm_backward": kernel}
    if training:
        kernels["aten::cudnn_batch_norm_backward"] = cudnn
    return Candidates(kernels, {"composition: sums, addcmul": composition})


def _cudnn_forward(torch: Any, data: Data, running: tuple[Any, Any]) -> Any:
    """y, mean, invstd, and what cuDNN keeps; the running statistics are updated."""
    return torch.ops.aten.cudnn_batch_norm(
        data.input, data.weight, data.bias, *running, True, MOMENTUM, EPS
    )


def _reduce(torch: Any, case: Case, data: Data) -> Candidates:
    along = _Along(len(case.shape))

    def kernel() -> Any:
        return torch.ops.aten.batch_norm_backward_reduce(
            data.grad_out, data.input, data.mean, data.invstd, data.weight, True, True, True
        )

    def masked() -> Any:
        # The gradients of the parameters in training are these sums, but for a factor.
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            *(data.grad_out, data.input, data.weight, None, None, data.mean, data.invstd),
            *(True, EPS, [False, True, True]),
        )
        return grad_bias, grad_weight / data.invstd, grad_weight, grad_bias

    def composition() -> Any:
        sum_dy, sum_dy_xmu = _sums(torch, data, along)
        dtype = data.mean.dtype
        sums = sum_dy.to(dtype), sum_dy_xmu.to(dtype)
        return *sums, (sum_dy_xmu * data.invstd).to(dtype), sums[0]

    return Candidates(
        {"aten::batch_norm_backward_reduce": kernel},
        {
            "composition: aten::native_batch_norm_backward masked (F, T, T), div": masked,
            "composition: sub, mul, sums": composition,
        },
    )


def _elemt(torch: Any, case: Case, data: Data) -> Candidates:
    along = _Along(len(case.shape))

    def kernel() -> Any:
        return torch.ops.aten.batch_norm_backward_elemt(
            *(data.grad_out, data.input, data.mean, data.invstd, data.weight),
            *(data.sum_dy, data.sum_dy_xmu, data.count),
        )

    def sums() -> tuple[Any, Any]:
        return data.sum_dy.float(), data.sum_dy_xmu.float()

    def coefficients() -> list[Any]:
        return _coefficients(data, along, sums(), data.count.sum())

    return Candidates(
        {"aten::batch_norm_backward_elemt": kernel},
        {
            "composition: addcmul, addcmul_": lambda: _apply(torch, data, coefficients()),
            "composition: mul, add_, addcmul_": lambda: _apply_in_three(data, coefficients()),
            "composition: aten::native_batch_norm, addcmul_": lambda: _apply_by_batch_norm(
                torch, data, sums(), data.count.sum()
            ),
        },
    )


def _laid_out(torch: Any, case: Case, device: Any, name: str) -> tuple[Any, str]:
    """The memory format that group norm's kernels want, and what they are called with it.

    Those of the CPU read all tensors as if they lay the way x does, those of other devices as if
    they were contiguous: torch brings them there before it calls them, at no cost where they are
    there already.
    """
    on_cpu = device.type == "cpu"
    last = on_cpu and case.layout in (Layout.CHANNELS_LAST, Layout.X_CHANNELS_LAST)
    form = torch.channels_last if last else torch.contiguous_format
    there = DENSE if on_cpu else (Layout.CONTIGUOUS,)
    return form, name if case.layout in there else f"aten::contiguous, {name}"


def _group_norm(torch: Any, case: Case, data: Data) -> Candidates:
    samples, channels = case.shape[:2]
    positions = case.elements // (samples * channels)
    groups = case.groups
    form, name = _laid_out(torch, case, data.input.device, "aten::native_group_norm_backward")

    def kernel() -> Any:
        dy = data.grad_out.contiguous(memory_format=form)
        x = data.input.contiguous(memory_format=form)
        return torch.ops.aten.native_group_norm_backward(
            *(dy, x, data.mean, data.invstd, data.weight),
            *(samples, channels, positions, groups, [True, True, True]),
        )

    def composition() -> Any:
        split = (samples, groups, channels // groups, positions)
        dy, x = data.grad_out.float().reshape(split), data.input.float().reshape(split)
        per_set = (samples, groups, 1, 1)
        mean, rstd = data.mean.float().view(per_set), data.invstd.float().view(per_set)
        gamma = data.weight.float().view(1, groups, -1, 1)
        normal = (x - mean).mul_(rstd)
        grad_gamma = (dy * normal).sum((0, 3)).view(-1).to(data.weight.dtype)
        grad_beta = dy.sum((0, 3)).view(-1).to(data.weight.dtype)
        scaled = dy * gamma
        projection = (scaled * normal).mean((2, 3), keepdim=True)
        grad_input = scaled.sub_(scaled.mean((2, 3), keepdim=True)).sub_(normal.mul_(projection))
        grad_input = grad_input.mul_(rstd).view(case.shape).to(data.input.dtype)
        return grad_input, grad_gamma, grad_beta

    return Candidates({name: kernel}, {"composition: sums, mul": composition})


def _forward(torch: Any, case: Case, data: Data) -> Candidates:
    along = _Along(len(case.shape))
    training = case.operator is Operator.FORWARD
    # The running statistics are changed in training, and the data are others' too.
    running = (data.mean.clone(), data.var.clone())

    def kernel() -> Any:
        output, mean, invstd = torch.ops.aten.native_batch_norm(
            data.input, data.weight, data.bias, *running, training, MOMENTUM, EPS
        )
        # In evaluation it gives two empty tensors.
        return (output, mean, invstd, *running) if training else (output, *[None] * 4)

    def composition() -> Any:
        mean, var = running
        if training:
            var, mean = torch.var_mean(data.input.float(), along.others, correction=0)
            unbiased = case.elements / (case.elements - case.shape[1])
            running[0].lerp_(mean.to(running[0].dtype), MOMENTUM)
            running[1].lerp_((var * unbiased).to(running[1].dtype), MOMENTUM)
        invstd = (var.float() + EPS).rsqrt()
        output = _normalised(torch, data, mean.float(), invstd, along)
        return (output, mean, invstd, *running) if training else (output, *[None] * 4)

    kernels: dict[str, Call] = {"aten::native_batch_norm": kernel}
    if training:
        kernels["aten::cudnn_batch_norm"] = lambda: (
            *_cudnn_forward(torch, data, running)[:3],
            *running,
        )
    return Candidates(kernels, {"composition: var_mean, addcmul": composition})


def _normalised(torch: Any, data: Data, mean: Any, invstd: Any, along: _Along) -> Any:
    """One pass over x, with all that does not depend on the position taken together."""
    gain = data.weight.float() * invstd
    shift = data.bias.float() - gain * mean
    return torch.addcmul(along(shift), data.input, along(gain)).to(data.input.dtype)


def _stats(torch: Any, case: Case, data: Data) -> Candidates:
    along = _Along(len(case.shape))
    # Of its batch norm kernel it is the part that makes the statistics, and it wants running ones,
    # whose dtype it gives: with no momentum they stay what they are.
    running = [fill(case.shape[1], device=data.input.device) for fill in (torch.zeros, torch.ones)]

    def kernel() -> Any:
        return torch.ops.aten.batch_norm_stats(data.input, EPS)

    def update() -> Any:
        mean, var = torch.ops.aten.batch_norm_update_stats(data.input, *running, 0.0)
        return mean, var.add_(EPS).rsqrt_()

    def var_mean() -> Any:
        var, mean = torch.var_mean(data.input.float(), along.others, correction=0)
        return mean, var.add_(EPS).rsqrt_()

    return Candidates(
        {"aten::batch_norm_stats": kernel},
        {
            "composition: aten::batch_norm_update_stats, rsqrt": update,
            "composition: var_mean, rsqrt": var_mean,
        },
    )


def _normalise(torch: Any, case: Case, data: Data) -> Candidates:
    along = _Along(len(case.shape))

    def kernel() -> Any:
        return torch.ops.aten.batch_norm_elemt(
            data.input, data.weight, data.bias, data.mean, data.invstd, EPS
        )

    def vectors() -> tuple[Any, Any]:
        return data.mean.float(), data.invstd.float()

    def by_batch_norm() -> Any:
        # In evaluation, of a variance of one.
        mean, invstd = vectors()
        gain, ones = data.weight.float() * invstd, torch.ones_like(mean)
        return torch.ops.aten.native_batch_norm(
            data.input, gain, data.bias.float(), mean, ones, False, 0.0, 0.0
        )[0]

    def in_two() -> Any:
        mean, invstd = vectors()
        gain = data.weight.float() * invstd
        shift = data.bias.float() - gain * mean
        return (data.input * along(gain)).add_(along(shift)).to(data.input.dtype)

    return Candidates(
        {"aten::batch_norm_elemt": kernel},
        {
            "composition: aten::native_batch_norm": by_batch_norm,
            "composition: addcmul": lambda: _normalised(torch, data, *vectors(), along),
            "composition: mul, add_": in_two,
        },
    )


def _forward_group_norm(torch: Any, case: Case, data: Data) -> Candidates:
    samples, channels = case.shape[:2]
    positions = case.elements // (samples * channels)
    form, name = _laid_out(torch, case, data.input.device, "aten::native_group_norm")

    def kernel() -> Any:
        return torch.ops.aten.native_group_norm(
            *(data.input.contiguous(memory_format=form), data.weight, data.bias),
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

    return Candidates({name: kernel}, {"composition: var_mean, sub, mul, add": composition})


_CANDIDATES: Mapping[Operator, Callable[[Any, Case, Data], Candidates]] = {
    **dict.fromkeys((Operator.TRAIN, Operator.EVAL, Operator.EVAL_INPUT), _batch_norm),
    Operator.REDUCE: _reduce,
    Operator.ELEMT: _elemt,
    Operator.GROUP_NORM: _group_norm,
    Operator.FORWARD: _forward,
    Operator.FORWARD_EVAL: _forward,
    Operator.STATS: _stats,
    Operator.NORMALISE: _normalise,
    Operator.FORWARD_GROUP_NORM: _forward_group_norm,
}
