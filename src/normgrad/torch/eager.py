"""The short way, for plain tensors in eager mode: no dispatcher between a layer and its kernels.

An operator costs some microseconds each time the dispatcher comes by Python. Where nothing but
autograd can be watching (no transform, mode, tracer or subclass), the functions come here instead:
to the same kernels, and to the same nodes of autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import native, operators
from ..contract import Operator
from ..operators.by_name import PLANNED
from ..plans import answered, call, keep, ready_for
from .kernels import output_for
from .nodes import _any_requires_grad, kept_statistics
from .norm_nodes import Forward, FusedRmsNorm, NativeBatchNorm, NativeGroupNorm, NativeLayerNorm

BATCH_NORM, GROUP_NORM = PLANNED["batch_norm"], PLANNED["group_norm"]
LAYER_NORM, RMS_NORM = PLANNED["layer_norm"], PLANNED["rms_norm"]


def _of_output(node: type[Forward]) -> type[Forward]:
    """A norm's node for its output alone: what was made else is no result of it."""

    class OfOutput(node):  # type: ignore[valid-type, misc]
        places = tuple(range(1, 1 + len(node.places)))

        @staticmethod
        def forward(
            ctx: Any, made: Any, input: Tensor, weight: Any, bias: Any, *choices: Any
        ) -> Tensor:
            """Keep what the gradients need; in a tuple autograd does not look at what was made."""
            output: Tensor
            output, *statistics = made
            ctx.choices = choices
            ctx.save_for_backward(input, weight, *statistics)
            return output

    OfOutput.__name__ = OfOutput.__qualname__ = node.__name__.removeprefix("Native")
    return OfOutput


BatchNorm, GroupNorm = _of_output(NativeBatchNorm), _of_output(NativeGroupNorm)
LayerNorm, RmsNorm = _of_output(NativeLayerNorm), _of_output(FusedRmsNorm)

#: Of an operator with five results none is brought.
_MADE_ANEW = (None,) * 5

#: The plans of calls that were made before, for ``native.answer``.
_batch_norms: dict[bytes, native.Ready] = {}
_group_norms: dict[bytes, native.Ready] = {}
_layer_norms: dict[bytes, native.Ready] = {}
_rms_norms: dict[bytes, native.Ready] = {}


def _remember(
    plans: dict[bytes, native.Ready], operator: Operator, tensors: Any, out: Any, choices: Any
) -> None:
    """Have such a call made again without a look at its arguments."""
    key = native.answer(None, tensors, out, choices)
    ready = None if key is None else ready_for(operator, key)
    if key is not None and ready is not None:
        keep(plans, key, ready)


# What is done again takes few Python functions: in a model other layers have emptied the caches,
# and each costs microseconds there, of which a loop of one layer shows nothing.


def batch_norm_again(
    input: Tensor, mean: Any, var: Any, weight: Any, bias: Any, training: bool, momentum: Any,
    eps: Any,
) -> Tensor | None:  # fmt: skip
    """What :func:`batch_norm` does, if it has done it for such arguments; else None."""
    if _any_requires_grad(mean, var):
        return None
    made = answered(
        _batch_norms, (input, weight, bias, mean, var),
        (None, None, None, mean, var) if training else _MADE_ANEW, (training, momentum, eps, 1),
    )  # fmt: skip
    if made is None:
        return None
    if not (torch.is_grad_enabled() and _any_requires_grad(input, weight, bias)):
        output: Tensor = made[0]
        return output
    kept = made[:3] if training else (made[0], *kept_statistics(mean, var))
    return BatchNorm.apply(kept, input, weight, bias, training, eps)


def batch_norm(
    input: Tensor, mean: Any, var: Any, weight: Any, bias: Any, training: bool, momentum: float,
    eps: float,
) -> Tensor:  # fmt: skip
    """Batch norm; in training the running statistics are updated in place."""
    output, tensors = output_for(input), (input, weight, bias, mean, var)
    out = (output, None, None, *((mean, var) if training else _MADE_ANEW[3:]))
    made = operators.batch_norm(*tensors, training=training, momentum=momentum, eps=eps, out=out)
    if output is None:
        _remember(_batch_norms, BATCH_NORM, tensors, out, (training, momentum, eps, 1))
    kept = made[:3] if training else (made[0], *kept_statistics(mean, var))
    return _with_node(BatchNorm, kept, (input, weight, bias), training, eps)


def group_norm_again(
    input: Tensor, weight: Any, bias: Any, group: int, eps: float
) -> Tensor | None:
    """What :func:`group_norm` does, if it has done it for such arguments; else None."""
    tensors = (input, weight, bias)
    made = answered(_group_norms, tensors, None, (group, eps, 1))
    return None if made is None else _with_node(GroupNorm, made, tensors, group)


def group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float
) -> Tensor:
    """Group norm."""
    output = output_for(input)
    tensors, out = (input, weight, bias), None if output is None else (output, None, None)
    made = operators.group_norm(*tensors, num_groups=group, eps=eps, out=out)
    if output is None:
        _remember(_group_norms, GROUP_NORM, tensors, None, (group, eps, 1))
    return _with_node(GroupNorm, made, tensors, group)


def _with_node(node: Any, made: Any, tensors: tuple[Any, ...], *choices: Any) -> Tensor:
    """The output, with a node of autograd where gradients may be wanted."""
    output: Tensor = made[0]
    if not (torch.is_grad_enabled() and _any_requires_grad(*tensors)):
        return output
    input, weight, *rest = tensors
    output = node.apply(made, input, weight, rest[0] if rest else None, *choices)
    return output


#: How norms by row are called: their operators, plans and nodes; RMS norm has no bias.
_BY_ROW = {
    "layer_norm": (LAYER_NORM, _layer_norms, LayerNorm),
    "rms_norm": (RMS_NORM, _rms_norms, RmsNorm),
}


def by_row_again(name: str, tensors: tuple[Any, ...], shape: tuple[int, ...], eps: Any) -> Any:
    """What :func:`by_row` does, if it has done it for such arguments; else None."""
    _, plans, node = _BY_ROW[name]
    made = answered(plans, tensors, None, (shape, eps))
    return None if made is None else _with_node(node, made, tensors, shape)


def by_row(name: str, tensors: tuple[Any, ...], shape: tuple[int, ...], eps: Any) -> Tensor:
    """Layer norm or RMS norm, of input, weight and, if it has one, bias."""
    operator, plans, node = _BY_ROW[name]
    output = output_for(tensors[0])
    rest = (None,) * (len(operator.all_outputs) - 1)
    out = None if output is None else (output, *rest)
    made = call(operator, tensors, out, (shape, eps))
    if output is None:
        _remember(plans, operator, tensors, None, (shape, eps))
    return _with_node(node, made, tensors, shape)
