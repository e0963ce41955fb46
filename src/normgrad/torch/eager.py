"""The fast path of plain tensors in eager mode: no dispatcher between a layer and its kernels.

An operator costs some microseconds each time the dispatcher comes by Python. Where nothing but
autograd can be watching (no transform, mode, tracer or subclass), the functions come here instead:
to the same kernels, and to the same nodes of autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..plans import answered, call, keep, ready_for
from .kernels import output_for
from .nodes import NODES, any_requires_grad
from .schemas import ATEN


class Norm:
    """A norm, as a function here and as an operator of PyTorch's.

    Attributes:
        schema, operator, node: PyTorch's operator, normgrad's, and the node of autograd.
        plans: those of calls that were made before, for ``native.answer``.
        name, function: what PyTorch's function is called too, and the function here.
        takes: whether normgrad takes these tensors and options; else it is PyTorch's.
        autocast: whether CUDA's autocast has it in float32.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        takes: Callable[[tuple[Any, ...], tuple[Any, ...]], bool],
        autocast: bool = True,
    ) -> None:
        """Of a function that has the operator's name."""
        self.name, self.function = function.__name__, function
        self.takes, self.autocast = takes, autocast
        self.schema = ATEN[self.name]
        self.operator, self.node = self.schema.operator, NODES[self.schema.name]
        self.plans: dict[bytes, native.Ready] = {}


# What is done again takes few Python functions: in a model other layers have emptied the caches,
# and each costs microseconds there, of which a loop of one layer shows nothing.


def again(norm: Norm, tensors: tuple[Any, ...], choices: tuple[Any, ...]) -> Any:
    """What :func:`computed` gives, if it has done it for such arguments; else None.

    The tensors are input, weight, bias and batch norm's running statistics. These are updated in
    place if the first option, batch norm's ``training``, says so.
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
    """A norm's output, with a node of autograd where gradients may be wanted."""
    output, running = output_for(tensors[0]), tensors[3:] if choices[0] else ()
    absent = len(norm.operator.all_outputs) - 1 - len(running)
    out = (output, *[None] * absent, *running) if running or output is not None else None
    made = call(norm.operator, tensors, out, choices, read_next=True)
    if output is None:
        key = native.answer(None, tensors, out, choices)
        ready = None if key is None else ready_for(norm.operator, key, read_next=True)
        if key is not None and ready is not None:
            keep(norm.plans, key, ready)
    return _with_node(norm, made, tensors, choices)


def _with_node(norm: Norm, made: Any, tensors: tuple[Any, ...], choices: Any) -> Tensor:
    output: Tensor = made[0]
    if not torch.is_grad_enabled() or not any_requires_grad(*tensors[:3]):
        return output
    differentiable, constants, kept = norm.node.taken(tensors, choices, made)
    result: Tensor = norm.node.apply((output, constants, kept, None), *differentiable)
    return result
