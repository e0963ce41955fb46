"""The fast path for plain tensors in eager mode, which bypasses PyTorch's dispatcher.

Each time the dispatcher calls Python costs an operator some microseconds. If no transform, mode,
tracer or tensor subclass needs to see the operator, normgrad's functions come here instead. The
kernels and the autograd nodes are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..plans import answered, call, keep, ready_plans
from .kernels import output_for
from .nodes import NODES, any_requires_grad, clones
from .schemas import ATEN


class Norm:
    """A norm: its function in ``functional`` and its operator.

    Attributes:
        schema, operator, node: the schema of PyTorch's operator, normgrad's declaration, and the
            class of the autograd node.
        plans: the plans of earlier calls, for ``native.answer``.
        name, function: the name, which PyTorch's function has too, and normgrad's function.
        takes: tells whether normgrad takes given tensors and options; otherwise PyTorch computes.
        autocast: whether CUDA's autocast computes this norm in float32.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        takes: Callable[[tuple[Any, ...], tuple[Any, ...]], bool],
        autocast: bool = True,
    ) -> None:
        """Take a function that has the operator's name."""
        self.name, self.function = function.__name__, function
        self.takes, self.autocast = takes, autocast
        self.schema = ATEN[self.name]
        self.operator, self.node = self.schema.operator, NODES[self.schema.name]
        self.plans: dict[bytes, native.Ready] = {}


# A repeated call runs few Python functions. In a model, where other layers have evicted them from
# the CPU's caches, each costs microseconds; a benchmark of a single layer does not show this.


def again(norm: Norm, tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> Any:
    """Do what :func:`computed` does with the plan of an earlier call; return None without one.

    The tensors are input, weight, bias and batch norm's running statistics. The running statistics
    are updated in place if the first option, batch norm's ``training``, is true.
    """
    out, running = None, tensors[3:]
    if running:
        if any_requires_grad(*running):
            return None
        if choices[0]:
            out = (None, None, None, *running)
    made = answered(norm.plans, tensors, out, choices)
    return None if made is None else _with_node(norm, made, tensors, choices)


def computed(norm: Norm, tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> Tensor:
    """Compute a norm's output, with an autograd node if gradients may be wanted.

    Running statistics are updated in place as in :func:`again`.
    """
    output, running = output_for(tensors[0]), tensors[3:] if choices[0] else ()
    absent = len(norm.operator.all_outputs) - 1 - len(running)
    out = (output, *[None] * absent, *running) if running or output is not None else None
    made = call(norm.operator, tensors, out, choices, read_next=True)
    if output is None:
        key = native.answer(None, tensors, out, choices)
        ready = None if key is None else ready_plans(norm.operator, read_next=True).get(key)
        if key is not None and ready is not None:
            keep(norm.plans, key, ready)
    return _with_node(norm, made, tensors, choices)


def _copies(statistics: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy running statistics in compiled code: clones take four times as long in a layer."""
    return native.copies(statistics, torch.empty_like) or clones(statistics)


def _with_node(norm: Norm, made: Any, tensors: tuple[Any, ...], choices: Any) -> Tensor:
    output: Tensor = made[0]
    if not torch.is_grad_enabled() or not any_requires_grad(*tensors[:3]):
        return output
    differentiable, constants, kept = norm.node.taken(tensors, choices, made, _copies)
    result: Tensor = norm.node.apply((output, constants, kept, None), *differentiable)
    return result
