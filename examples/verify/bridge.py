"""Layers of other frameworks as PyTorch's modules, which `normgrad verify` tests both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: What gives the gradients of the input and the parameters for the output's.
Pull = Callable[[torch.Tensor], Sequence[torch.Tensor]]


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vjp: Callable[..., Any], *tensors: torch.Tensor) -> torch.Tensor:
        output, ctx.pull = vjp(*tensors)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        return None, *ctx.pull(grad_out)


class Bridged(torch.nn.Module):
    """A layer of another framework.

    A subclass has ``vjp``, which takes the input and the parameters, and returns the output and
    what gives their gradients, and ``why_not``.
    """

    #: Whether there is a bias beside the weight.
    biased = True
    #: Whether the framework has the channels last.
    channels_last = False

    def __init__(self, *sizes: int, eps: float) -> None:
        super().__init__()
        self.sizes, self.eps = sizes, eps
        self.weight = torch.nn.Parameter(torch.ones(sizes[-1]))
        if self.biased:
            self.bias = torch.nn.Parameter(torch.zeros(sizes[-1]))

    def vjp(self, x: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        raise NotImplementedError

    def why_not(self, x: torch.Tensor) -> str:
        """Why the framework does not offer the layer for this input; empty if it does."""
        return ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if reason := self.why_not(x):
            raise NotImplementedError(reason)
        given = x.movedim(1, -1) if self.channels_last else x
        output = _Bridge.apply(self.vjp, given, *self.parameters())
        return output.movedim(-1, 1) if self.channels_last else output
