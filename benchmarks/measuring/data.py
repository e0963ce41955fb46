"""Make a case's tensors as torch tensors, which torch's and normgrad's operators both take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from normgrad.operators.by_name import PLANNED

from .suite import Case, Layout, Operator, Part, Shape

EPS = 1e-5
MOMENTUM = 0.1

#: A case's tensors, by their names as arguments of the operators; see :func:`make`.
Data = SimpleNamespace


def make(case: Case, seed: int = 0, device: str = "cpu") -> Data:
    """Normally distributed tensors for all cases that differ only in their operator.

    Statistics have one value for each channel, each group of each sample, or each row; in a row,
    positions take the place of channels. They are plausible but not x's own, which changes no
    operator's time. Only RMS norm's 1/std of each row is x's own, since torch's autograd computes
    it from x.
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
        if case.layout in (Layout.CHANNELS_LAST, mixed):
            return values.contiguous(memory_format=torch.channels_last)
        if case.layout is Layout.CROPPED:
            *front, height, width = values.shape
            whole = values.new_zeros((*front, height + 1, width + 1))
            return whole[..., 1:, 1:].copy_(values)
        return values

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
        invstd=(spread + EPS).rsqrt().to(parameters),
        sum_dy=(normal((channels,)) * count**0.5).to(parameters),
        sum_dy_xmu=(normal((channels,)) * count**0.5).to(parameters),
        count=torch.tensor([count], dtype=torch.int32, device=device),
        bias=normal((channels,)).to(parameters),
    )


def arguments(case: Case, data: Data) -> tuple[dict[str, Any], dict[str, Any]]:
    """The public function's arguments: tensors and options, by name."""
    training = case.operator in (Operator.TRAIN, Operator.FORWARD)
    tensors = {**vars(data), "rstd": data.invstd, "weight": data.weight, "bias": data.bias}
    if case.operator is Operator.TRAIN:
        tensors |= {"save_mean": data.mean, "save_invstd": data.invstd}
    else:  # copies, since training updates them and other calls use the same data
        tensors |= {"running_mean": data.mean.clone(), "running_var": data.var.clone()}
    options: dict[str, Any] = {"training": training, "eps": EPS, "momentum": MOMENTUM}
    options |= {"num_groups": case.groups, "normalized_shape": case.shape[1:]}
    if case.operator is Operator.EVAL_INPUT:
        options["output_mask"] = (True, False, False)
    operator = PLANNED[case.operator.function]
    return (
        {name: tensors[name] for name in operator.names if name in tensors},
        {name: options[name] for name in operator.options if name in options},
    )
