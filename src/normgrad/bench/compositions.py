"""torch's side: its own kernel for the same gradients, or the shortest composition of others.

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
    """Everything torch might compute the case's gradients with."""
    if case.operator is Operator.REDUCE:
        return _reduce(torch, case, data)
    if case.operator is Operator.ELEMT:
        return _elemt(torch, case, data)
    if case.operator is Operator.GROUP_NORM:
        return _group_norm(torch, case, data)
    return _batch_norm(torch, case, data)


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
    empty = torch.empty(0, dtype=data.mean.dtype)
    saved = (data.mean, data.invstd) if training else (empty, empty)

    def kernel() -> Any:
        return torch.ops.aten.native_batch_norm_backward(
            data.grad_out, data.input, data.weight, *running, *saved, training, EPS, mask
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

    return Candidates(
        {"aten::native_batch_norm_backward": kernel}, {"composition: sums, addcmul": composition}
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


def _group_norm(torch: Any, case: Case, data: Data) -> Candidates:
    samples, channels = case.shape[:2]
    positions = case.elements // (samples * channels)
    groups = case.groups
    # The kernel reads dy and x as if both lay the way x does, without looking: autograd brings them
    # there before it calls it, at no cost where they are there already.
    last = case.layout in (Layout.CHANNELS_LAST, Layout.X_CHANNELS_LAST)
    form = torch.channels_last if last else torch.contiguous_format
    name = "aten::native_group_norm_backward"
    if case.layout not in DENSE:
        name = f"aten::contiguous, {name}"

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
