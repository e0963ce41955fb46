"""torch's calls for each case: its operator for the same, or compositions of other operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch.ops import aten

from normgrad.bench.timing import Call
from normgrad.declarations.contract import Kind
from normgrad.operators.by_name import PLANNED, choices_of
from normgrad.torch.aten import OPERATORS, AtenOperator

from .data import EPS, MOMENTUM, Data, arguments
from .suite import DENSE, Case, Layout, Operator

#: Operators that torch has for CUDA alone.
_ON_CUDA = (
    *("batch_norm_backward_reduce", "batch_norm_backward_elemt", "batch_norm_stats"),
    *("batch_norm_elemt", "_fused_rms_norm_backward"),
)


def _like(values: Any, other: Any) -> Any:
    """Values in another tensor's shape and dtype; None if there is no other."""
    return None if other is None else values.reshape(other.shape).to(other.dtype)


def _along(vector: Any, x: Any) -> Any:
    """A per-channel vector, shaped to broadcast against x."""
    return vector.view(1, -1, *[1] * (x.dim() - 2))


def _others(x: Any) -> tuple[int, ...]:
    """All axes of x except the channels'."""
    return (0, *range(2, x.dim()))


def composed(case: Case, data: Data) -> dict[str, Call]:
    """Compositions of torch's other operators that compute a case's results, by name.

    At least one of them contains no normalisation operator.
    """
    operator = PLANNED[case.operator.function]
    usual = _gradients if operator.is_gradient else _forward
    return _SYNCHRONISED.get(operator.name, usual)(case, data)


def kernels(case: Case, data: Data, on_gpu: bool) -> dict[str, Call]:
    """torch's own operators for a case's results, by name."""
    theirs = OPERATORS[case.operator.function]
    if not on_gpu and theirs.name in _ON_CUDA:
        return {}
    name, call = _kernel(case, data, theirs)
    return {name: call, **(_cudnn(case, data) if on_gpu else {})}


def _kernel(case: Case, data: Data, theirs: AtenOperator) -> tuple[str, Call]:
    """The name of torch's own operator, and a call of it with the arguments of normgrad's."""
    tensors, options = arguments(case, data)
    # Like torch's layers in evaluation, pass empty tensors. torch checks their dtype.
    empty = data.mean.new_empty(0)
    given = {"eps": EPS, "bias": data.bias, "save_mean": empty, "save_invstd": empty}
    given |= {**choices_of(case.operator.function), **options, **tensors}
    samples, channels, *rest = data.input.shape
    given |= {"N": samples, "C": channels, "HxW": prod(rest)}
    values, name = [*map(given.get, theirs.arguments)], f"aten::{theirs.name}"
    function = getattr(aten, theirs.name)
    form = _form_needed(case, data.input.device.type == "cpu")
    if form is None:
        return name, partial(function, *values)
    read = case.operator.streams - 1  # dy and x, or x alone, are the first arguments
    return f"aten::contiguous, {name}", lambda: function(
        *(each.contiguous(memory_format=form) for each in values[:read]), *values[read:]
    )


def _cudnn(case: Case, data: Data) -> dict[str, Call]:
    """cuDNN's batch norm in training, by name."""
    running = data.mean.clone(), data.var.clone()

    def forward() -> Any:
        """Return y, mean, invstd and cuDNN's reserve, and update the running statistics."""
        affine = data.input, data.weight, data.bias
        return aten.cudnn_batch_norm(*affine, *running, True, MOMENTUM, EPS)

    # The backward pass needs the reserve of a forward pass.
    reserve = cache(lambda: forward()[3])

    def backward() -> Any:
        given = data.input, data.grad_out, data.weight, None, None, data.mean, data.invstd
        return aten.cudnn_batch_norm_backward(*given, EPS, reserve())

    if case.operator is Operator.TRAIN:
        return {"aten::cudnn_batch_norm_backward": backward}
    if case.operator is Operator.FORWARD:
        return {"aten::cudnn_batch_norm": forward}
    return {}


def _one_pass(x: Any, gain: Any, mean: Any, shift: Any) -> Any:
    """gain·(x − mean) + shift in one operator; gain, mean and shift are per channel."""
    return torch.addcmul(_along(shift - gain * mean, x), x, _along(gain, x))


def _two_passes(x: Any, gain: Any, mean: Any, shift: Any) -> Any:
    """gain·(x − mean) + shift in two simpler loops, which torch may vectorise if not addcmul's."""
    return (x * _along(gain, x)).add_(_along(shift - gain * mean, x))


def _evaluation(x: Any, gain: Any, mean: Any, shift: Any) -> Any:
    """gain·(x − mean) + shift by batch norm in evaluation with variance 1, in x's dtype."""
    ones = torch.ones_like(mean)
    return aten.native_batch_norm(x, gain, shift, mean, ones, False, 0.0, 0.0)[0]


#: Ways to compute gain·(x − mean) + shift in torch, by their names in a composition's name.
_WAYS = {
    "addcmul": _one_pass,
    "mul, add_": _two_passes,
    "aten::native_batch_norm": _evaluation,
}


def _reduce(case: Case, data: Data) -> dict[str, Call]:
    def masked() -> Any:
        # In training, the parameters' gradients are these sums, up to a factor.
        _, grad_weight, grad_bias = aten.native_batch_norm_backward(
            *(data.grad_out, data.input, data.weight, None, None, data.mean, data.invstd),
            *(True, EPS, [False, True, True]),
        )
        return grad_bias, grad_weight / data.invstd, grad_weight, grad_bias

    def composition() -> Any:
        others = _others(data.input)
        sum_dy = data.grad_out.sum(others, dtype=torch.float32)
        centred = data.input - _along(data.mean.float(), data.input)
        sum_dy_xmu = centred.mul_(data.grad_out).sum(others)
        sums = sum_dy, sum_dy_xmu, sum_dy_xmu * data.invstd, sum_dy
        return tuple(each.to(data.mean.dtype) for each in sums)

    return {
        "composition: aten::native_batch_norm_backward masked (F, T, T), div": masked,
        "composition: sub, mul, sums": composition,
    }


def _elemt(case: Case, data: Data) -> dict[str, Call]:
    def composition(way: Callable[..., Any]) -> Any:
        """dx = gain·dy + slope·(x − μ) + shift, of which ``way`` computes the last two terms."""
        invstd, count = data.invstd.float(), data.count.sum()
        gain = data.weight.float() * invstd
        slope = -gain * invstd * invstd * data.sum_dy_xmu.float() / count
        rest = way(data.input, slope, data.mean.float(), -gain * data.sum_dy.float() / count)
        rest.addcmul_(data.grad_out, _along(gain.to(rest.dtype), rest))
        return rest.to(data.input.dtype)

    return {
        f"composition: {name}, addcmul_": partial(composition, way) for name, way in _WAYS.items()
    }


def _form_needed(case: Case, on_cpu: bool) -> Any:
    """The memory format that tensors must be converted to; None if they need no conversion.

    The CPU's kernels of group norm read all tensors as if they had x's layout, those of other
    devices as if they were contiguous. torch converts tensors that are not before it calls them.
    """
    if not case.groups or case.layout in (DENSE if on_cpu else DENSE[:1]):
        return None
    last = on_cpu and case.layout is Layout.X_CHANNELS_LAST
    return torch.channels_last if last else torch.contiguous_format


def _stats(case: Case, data: Data) -> dict[str, Call]:
    # batch_norm_update_stats is the part of torch's batch norm that computes statistics. It needs
    # running statistics, which set its results' dtype; with momentum 0 they do not change.
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
    def composition(way: Callable[..., Any]) -> Any:
        gain, mean = data.weight.float() * data.invstd.float(), data.mean.float()
        return way(data.input, gain, mean, data.bias.float()).to(data.input.dtype)

    return {f"composition: {name}": partial(composition, way) for name, way in _WAYS.items()}


def _split(case: Case, tensor: Any) -> Any:
    """A tensor in float32, with axes for samples, groups, a group's channels, and positions.

    A row of layer or RMS norm is a sample of one group, whose elements are channels. Batch norm's
    tensors are those of one group too, with statistics of each channel.
    """
    samples, channels = case.shape[:2]
    groups = case.groups or 1
    shapes = {
        case.shape: (samples, groups, channels // groups, -1),
        (channels,): (1, groups, -1, 1),
    }
    return tensor.float().reshape(shapes.get(tuple(tensor.shape), (samples, groups, 1, 1)))


#: The axes, in :func:`_split`'s result, to sum over for each group, and for each channel.
_OF_GROUP, _OF_CHANNEL = (2, 3), (0, 3)


def _gradients(case: Case, data: Data) -> dict[str, Call]:
    """The gradients of every norm: dx = gain·dy + slope·(x − μ) + shift."""
    operator = PLANNED[case.operator.function]
    training = case.operator not in (Operator.EVAL, Operator.EVAL_INPUT)
    over = _OF_CHANNEL if operator.statistics is Kind.CHANNEL else _OF_GROUP
    count = case.elements // data.invstd.numel()

    def composition() -> Any:
        given = (data.grad_out, data.input, data.weight, data.mean, data.invstd)
        dy, x, weight, mean, rstd = (_split(case, each) for each in given)
        if not training:
            rstd = (_split(case, data.var) + EPS).rsqrt()
        gain = weight * rstd
        if case.operator is Operator.EVAL_INPUT:
            return _like(dy * gain, data.input), None, None
        terms = [(x - mean).mul_(dy), dy] if operator.is_centred else [x * dy]
        sums = [term.sum(3, keepdim=True) for term in terms]
        if training:
            means = [(weight * each).sum(over, keepdim=True) / count for each in sums]
            slope = -(rstd**3) * means[0]
            shift = -rstd * means[1] - slope * mean if operator.is_centred else x.new_zeros(())
            grad_input = torch.addcmul(shift, x, slope).addcmul_(dy, gain)
        else:
            grad_input = dy * gain
        sums[0] = sums[0] * rstd
        parameters = (_like(each.sum(_OF_CHANNEL), data.weight) for each in sums)
        return _like(grad_input, data.input), *parameters

    composed: dict[str, Call] = {"composition: sums, addcmul": composition}
    if case.operator is Operator.RMS_NORM:
        leaves = [tensor.detach().requires_grad_() for tensor in (data.input, data.weight)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it composes mixed dtypes
            output = aten.rms_norm(leaves[0], case.shape[1:], leaves[1], EPS)
        composed["autograd of aten::rms_norm"] = partial(
            torch.autograd.grad, output, leaves, data.grad_out, retain_graph=True
        )
    return composed


def _forward(case: Case, data: Data) -> dict[str, Call]:
    """The forward pass of every norm."""
    operator = PLANNED[case.operator.function]
    training = case.operator is not Operator.FORWARD_EVAL
    over = _OF_CHANNEL if operator.statistics is Kind.CHANNEL else _OF_GROUP
    # Training updates running statistics, and other calls use the same data.
    running = data.mean.clone(), data.var.clone()

    def composition() -> Any:
        x, weight, bias = (_split(case, each) for each in (data.input, data.weight, data.bias))
        if not training:
            mean, var = (_split(case, each) for each in running)
        elif operator.is_centred:
            var, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        else:
            var = x.square().mean(over, keepdim=True)
        rstd = (var + EPS).rsqrt()
        if not operator.is_centred:
            y, statistics = (x * rstd).mul_(weight), [rstd]
        else:
            gain = weight * rstd
            y, statistics = torch.addcmul(bias - gain * mean, x, gain), [mean, rstd]
        y = y.reshape(case.shape).to(data.input.dtype)
        results = y, *(each.view(data.invstd.shape) for each in statistics)
        if training and operator.statistics is Kind.CHANNEL:
            unbiased = case.elements / (case.elements - case.shape[1])
            running[0].lerp_(results[1].to(running[0].dtype), MOMENTUM)
            running[1].lerp_((var.view(-1) * unbiased).to(running[1].dtype), MOMENTUM)
        return results

    name = "var_mean, addcmul" if operator.is_centred else "square, mean, mul"
    return {f"composition: {name}": composition}


#: The compositions for parts of a synchronised batch norm, by the names of normgrad's functions.
_SYNCHRONISED: Mapping[str, Callable[[Case, Data], dict[str, Call]]] = {
    "batch_norm_backward_reduce": _reduce,
    "batch_norm_backward_elemt": _elemt,
    "batch_norm_stats": _stats,
    "batch_norm_elemt": _normalise,
}
