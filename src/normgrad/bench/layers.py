"""A layer's step, forward and backward: normgrad's layer and others' on the same tensors."""

from __future__ import annotations

import importlib
from typing import Any

from .compositions import Call
from .data import Data
from .suite import Case

OURS, THEIRS = "normgrad.torch.nn", "torch.nn"


def step(torch: Any, library: str, case: Case, data: Data) -> Call:
    """:func:`step_of` a layer of the case's class.

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
    return step_of(torch, layer, data)


def step_of(torch: Any, layer: Any, data: Data) -> Call:
    """What a training does with one layer, as a call that returns y and the three gradients.

    The gradients of the call before are dropped first, so that each makes new ones.
    """
    return step_on(torch, layer, data.input, data.grad_out, data)


def step_on(torch: Any, layer: Any, x: Any, dy: Any, data: Data) -> Call:
    """The same on views of a case's x and dy, for a layer that wants other axes."""
    with torch.no_grad():
        layer.weight.copy_(data.weight)
        layer.bias.copy_(data.bias)
    # A leaf of its own, over the same memory.
    leaf = x.detach().requires_grad_()

    def call() -> Any:
        leaf.grad = layer.weight.grad = layer.bias.grad = None
        y = layer(leaf)
        y.backward(dy)
        return y, leaf.grad, layer.weight.grad, layer.bias.grad

    return call
