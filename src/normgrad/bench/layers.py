"""A layer's step, forward and backward: normgrad's layer and others' on the same tensors."""

from __future__ import annotations

import importlib
from typing import Any

from .compositions import Call
from .data import Data
from .suite import Case

OURS, THEIRS = "normgrad.torch.nn", "torch.nn"


def step(torch: Any, library: str, case: Case, data: Data) -> Call:
    """What a training does with one layer, as a call that returns y and the three gradients.

    The gradients of the call before are dropped first, so that each makes new ones.

    Args:
        torch: the module.
        library: the module of the layer's class, :data:`OURS` or :data:`THEIRS`.
        case: of a layer.
        data: its tensors; dy is the gradient of the loss.
    """
    kind = getattr(importlib.import_module(library), case.operator.function)
    channels = case.shape[1]
    sizes = (case.groups, channels) if case.groups else (channels,)
    layer = kind(*sizes, dtype=getattr(torch, case.parameters), device=data.weight.device)
    with torch.no_grad():
        layer.weight.copy_(data.weight)
        layer.bias.copy_(data.bias)
    # A leaf of its own, over the same memory.
    leaf = data.input.detach().requires_grad_()

    def call() -> Any:
        leaf.grad = layer.weight.grad = layer.bias.grad = None
        y = layer(leaf)
        y.backward(data.grad_out)
        return y, leaf.grad, layer.weight.grad, layer.bias.grad

    return call
