"""A case's tensors, made with torch, whose contenders and ours both take."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from .suite import Case, Layout, Shape


class TorchMissingError(Exception):
    """There is no torch to compare with."""


def load_torch() -> Any:
    """torch, which takes seconds to import and is no dependency of the package.

    Raises:
        TorchMissingError: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TorchMissingError from None


@dataclass(frozen=True)
class Data:
    """The tensors of all cases that differ in their operator alone.

    The statistics are plausible ones, not x's own: no operator looks, and none takes longer for it.

    Attributes:
        grad_out, input: dy and x.
        weight: one for each channel, as are the rest unless it is said.
        mean: with group norm one for each group of each sample.
        var, invstd: positive; as many.
        sum_dy, sum_dy_xmu, count: what elemt takes beside them.
        bias: what the forward pass does.
    """

    grad_out: Any
    input: Any
    weight: Any
    mean: Any
    var: Any
    invstd: Any
    sum_dy: Any
    sum_dy_xmu: Any
    count: Any
    bias: Any


def _lay_out(torch: Any, values: Any, channels_last: bool, cropped: bool) -> Any:
    if channels_last:
        return values.contiguous(memory_format=torch.channels_last)
    if cropped:
        *front, height, width = values.shape
        whole = torch.zeros(
            (*front, height + 1, width + 1), dtype=values.dtype, device=values.device
        )
        view = whole[..., 1:, 1:]
        view.copy_(values)
        return view
    return values


def make(case: Case, seed: int = 0, device: str = "cpu") -> Data:
    """Normally distributed tensors that look as the case says.

    Raises:
        TorchMissingError: there is no torch.
    """
    torch = load_torch()
    generator = torch.Generator(device).manual_seed(seed)
    dtype, parameters = getattr(torch, case.dtype), getattr(torch, case.parameters)
    channels = case.shape[1]
    count = case.elements // channels
    statistics: Shape = (channels,)
    if case.groups:
        statistics = (case.shape[0], case.groups)

    def normal(shape: Shape) -> Any:
        return torch.randn(shape, generator=generator, device=device)

    def data(mean: float, channels_last_in: Layout) -> Any:
        channels_last = case.layout in (Layout.CHANNELS_LAST, channels_last_in)
        values = normal(case.shape).add_(mean).to(dtype)
        return _lay_out(torch, values, channels_last, case.layout is Layout.CROPPED)

    var = torch.rand(statistics, generator=generator, device=device) + 0.5
    return Data(
        grad_out=data(0.0, Layout.DY_CHANNELS_LAST),
        input=data(0.3, Layout.X_CHANNELS_LAST),
        weight=normal((channels,)).to(parameters),
        mean=(0.3 + 0.1 * normal(statistics)).to(parameters),
        var=var.to(parameters),
        invstd=(var + 1e-5).rsqrt().to(parameters),
        sum_dy=(normal((channels,)) * count**0.5).to(parameters),
        sum_dy_xmu=(normal((channels,)) * count**0.5).to(parameters),
        count=torch.tensor([count], dtype=torch.int32, device=device),
        bias=normal((channels,)).to(parameters),
    )
