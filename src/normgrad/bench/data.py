"""A case's tensors, made with torch, whose operators and ours both take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ..operators.by_name import PLANNED, choices_of
from .suite import Case, Layout, Operator, Part, Shape

EPS = 1e-5
MOMENTUM = 0.1

#: Tensors by their operators' names for them; see :func:`make`.
Data = SimpleNamespace


def _lay_out(values: Any, channels_last: bool, cropped: bool) -> Any:
    if channels_last:
        return values.contiguous(memory_format=torch.channels_last)
    if cropped:
        *front, height, width = values.shape
        whole = values.new_zeros((*front, height + 1, width + 1))
        return whole[..., 1:, 1:].copy_(values)
    return values


def make(case: Case, seed: int = 0, device: str = "cpu") -> Data:
    """Normally distributed tensors for all cases that differ in their operator alone.

    There are dy and x, and one number for each channel of the others, but for mean, var and invstd
    with group norm: one for each group of each sample. Layer norm has one of those for each row,
    and each position of a row stands in a channel's place. The statistics are plausible ones, not
    x's own: no operator looks, and none takes longer for it. A row's 1/std alone is what RMS norm
    has of x, as torch's autograd finds that itself.
    """
    generator = torch.Generator(device).manual_seed(seed)
    dtype, parameters = getattr(torch, case.dtype), getattr(torch, case.parameters)
    channels = case.shape[1]
    count = case.elements // channels
    statistics: Shape = (channels,)
    if case.groups or case.part is Part.ROWS:
        statistics = (case.shape[0], case.groups or 1)

    def normal(shape: Shape) -> Any:
        return torch.randn(shape, generator=generator, device=device)

    def data(mean: float, mixed: Layout) -> Any:
        values = normal(case.shape).add_(mean).to(dtype)
        channels_last = case.layout in (Layout.CHANNELS_LAST, mixed)
        return _lay_out(values, channels_last, case.layout is Layout.CROPPED)

    var = torch.rand(statistics, generator=generator, device=device) + 0.5
    grad_out = data(0.0, Layout.DY_CHANNELS_LAST)
    x = data(0.3, Layout.X_CHANNELS_LAST)
    spread = x.float().square().mean(1, keepdim=True) if case.part is Part.ROWS else var
    return Data(
        grad_out=grad_out,
        input=x,
        weight=normal((channels,)).to(parameters),
        mean=(0.3 + 0.1 * normal(statistics)).to(parameters),
        var=var.to(parameters),
        invstd=(spread + 1e-5).rsqrt().to(parameters),
        sum_dy=(normal((channels,)) * count**0.5).to(parameters),
        sum_dy_xmu=(normal((channels,)) * count**0.5).to(parameters),
        count=torch.tensor([count], dtype=torch.int32, device=device),
        bias=normal((channels,)).to(parameters),
    )


def arguments(case: Case, data: Data) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the public function takes: tensors and options, by name."""
    training = case.operator in (Operator.TRAIN, Operator.FORWARD)
    aliases = {"rstd": data.invstd, "gamma": data.weight, "beta": data.bias}
    tensors = {**vars(data), **aliases}
    if case.operator is Operator.TRAIN:
        tensors |= {"save_mean": data.mean, "save_invstd": data.invstd}
    else:  # the forward pass changes them in training, and the data are others' too
        tensors |= {"running_mean": data.mean.clone(), "running_var": data.var.clone()}
    options: dict[str, Any] = {"training": training, "eps": EPS, "momentum": MOMENTUM}
    options |= {"num_groups": case.groups, "normalized_shape": case.shape[1:]}
    if case.operator is Operator.EVAL_INPUT:
        options["output_mask"] = (True, False, False)
    name = case.operator.function
    names = [parameter.name for parameter in PLANNED[name].parameters]
    choices = choices_of(name)
    taken = {choice: value for choice, value in options.items() if choice in choices}
    return {name: tensors[name] for name in names if name in tensors}, taken
