"""The short way, for plain tensors in eager mode: no dispatcher between a layer and its kernels.

An operator costs some microseconds each time the dispatcher comes by Python. Where nothing but
autograd can be watching (no transform, mode, tracer or subclass), the functions come here instead:
to the same kernels, and to the same derivatives of higher order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from .. import native, operators
from ..contract import Operator
from ..operators.by_name import PLANNED
from ..plans import answered, call_again, keep, ready_for
from . import ops
from .kernels import output_for
from .nodes import given

_C = torch._C
_CPU, _CUDA = _C.DispatchKey.CPU, _C.DispatchKey.CUDA
_NONE = (None, None)
BATCH_NORM, BATCH_NORM_BACKWARD = PLANNED["batch_norm"], PLANNED["batch_norm_backward"]
GROUP_NORM, GROUP_NORM_BACKWARD = PLANNED["group_norm"], PLANNED["group_norm_backward"]
_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def unwatched() -> bool:
    """Whether nothing but autograd sees what is called."""
    return not (
        torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _C._get_tracing_state()
    )


def plain(*tensors: Any) -> bool:
    """Whether these are plain tensors, or None."""
    return all(type(value) in _PLAIN for value in tensors)


def _kernels_suffice(grad_out: Tensor) -> bool:
    """Whether a gradient is wanted for itself alone, not to be differentiated or transformed."""
    if torch.is_grad_enabled() or not unwatched() or not plain(grad_out):
        return False
    # Autograd has a vmap of its own, whose tensors look like any others.
    keys = _C._dispatch_keys(grad_out)
    return bool(keys.has(_CPU) or keys.has(_CUDA))


def _gradients_again(operator: Operator, tensors: Any, choices: Any) -> Any:
    """Gradients that are wanted for themselves alone, as such tensors had them before; or None."""
    if torch.is_grad_enabled() or not unwatched():
        return None
    return call_again(operator, tensors, None, choices)


class BatchNorm(_SingleLevelFunction):
    """Batch norm's node: ``apply((output, mean, spread), input, weight, bias, training, eps)``.

    ``mean`` and ``spread`` are the batch's mean and 1/std in training, else the running mean and
    variance; the tuple keeps autograd from looking at what was made.
    """

    @staticmethod
    def forward(
        ctx: Any, made: Any, input: Tensor, weight: Any, bias: Any, training: bool, eps: float
    ) -> Tensor:
        """Keep what the gradients need."""
        output, mean, spread = made
        ctx.training, ctx.eps = training, eps
        ctx.save_for_backward(input, weight, mean, spread)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        """The gradients."""
        input, weight, mean, spread = ctx.saved_tensors
        mask = ctx.needs_input_grad[1:4]
        training = ctx.training
        statistics = (None, None, mean, spread) if training else (mean, spread, None, None)
        tensors = (grad_out, input, weight, *statistics)
        found = _gradients_again(BATCH_NORM_BACKWARD, tensors, (training, ctx.eps, mask, 1))
        if found is None and _kernels_suffice(grad_out):
            found = operators.batch_norm_backward(
                grad_out, input, weight, *statistics, training=training, eps=ctx.eps,
                output_mask=mask,
            )  # fmt: skip
        if found is None:
            found = ops.native_batch_norm_backward(
                grad_out, input, weight, *statistics, training, ctx.eps, mask
            )
            found = given(found, mask)
        return None, *found, None, None


class GroupNorm(_SingleLevelFunction):
    """Group norm's node: ``apply((output, mean, rstd), input, weight, bias, group)``."""

    @staticmethod
    def forward(ctx: Any, made: Any, input: Tensor, weight: Any, bias: Any, group: int) -> Tensor:
        """Keep what the gradients need."""
        output, mean, rstd = made
        ctx.group = group
        ctx.save_for_backward(input, weight, mean, rstd)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        """The gradients."""
        input, weight, mean, rstd = ctx.saved_tensors
        mask = ctx.needs_input_grad[1:4]
        tensors = (grad_out, input, mean, rstd, weight)
        found = _gradients_again(GROUP_NORM_BACKWARD, tensors, (ctx.group, mask, 1))
        if found is None and _kernels_suffice(grad_out):
            found = operators.group_norm_backward(
                grad_out, input, mean, rstd, weight, num_groups=ctx.group, output_mask=mask
            )
        if found is None:
            sizes = input.shape[0], input.shape[1], prod(input.shape[2:])
            found = ops.native_group_norm_backward(
                grad_out, input, mean, rstd, weight, *sizes, ctx.group, mask
            )
            found = given(found, mask)
        return None, *found, None


def _requires_grad(value: Any) -> bool:
    return value is not None and getattr(value, "requires_grad", False)


def _needs_node(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether gradients may be wanted."""
    return torch.is_grad_enabled() and (
        input.requires_grad or _requires_grad(weight) or _requires_grad(bias)
    )


#: The plans of calls that were made before, for ``native.answer``.
_batch_norms: dict[bytes, native.Ready] = {}
_group_norms: dict[bytes, native.Ready] = {}


def _remember(
    plans: dict[bytes, native.Ready], operator: Operator, tensors: Any, out: Any, choices: Any
) -> None:
    """Have such a call made again without a look at its arguments."""
    key = native.answer(None, tensors, out, choices)
    ready = None if key is None else ready_for(operator, key)
    if key is not None and ready is not None:
        keep(plans, key, ready)


#: Batch norm's tensors: input, weight, bias, running mean and running variance.
_Tensors = tuple[Any, Any, Any, Any, Any]


def batch_norm_again(tensors: _Tensors, training: bool, momentum: float, eps: float) -> Any:
    """What :func:`batch_norm` does, if it has done it for such arguments; else None."""
    running = tensors[3:]
    if _requires_grad(running[0]) or _requires_grad(running[1]):
        return None
    out = (None, None, None, *(running if training else _NONE))
    made = answered(_batch_norms, tensors, out, (training, momentum, eps, 1))
    return None if made is None else _with_batch_norm_s_node(made, tensors, training, eps)


def batch_norm(tensors: _Tensors, training: bool, momentum: float, eps: float) -> Tensor:
    """Batch norm; in training the running statistics are updated in place."""
    output = output_for(tensors[0])
    out = (output, None, None, *(tensors[3:] if training else _NONE))
    made = operators.batch_norm(*tensors, training=training, momentum=momentum, eps=eps, out=out)
    if output is None:
        _remember(_batch_norms, BATCH_NORM, tensors, out, (training, momentum, eps, 1))
    return _with_batch_norm_s_node(made, tensors, training, eps)


def _with_batch_norm_s_node(made: Any, tensors: _Tensors, training: bool, eps: float) -> Tensor:
    """The output, with a node of autograd where gradients may be wanted."""
    input, weight, bias, running_mean, running_var = tensors
    output: Tensor
    output, mean, spread, _, _ = made
    if not _needs_node(input, weight, bias):
        return output
    if not training:
        # They may be updated before the gradients are asked for.
        mean, spread = [v if v is None else v.clone() for v in (running_mean, running_var)]
    return BatchNorm.apply((output, mean, spread), input, weight, bias, training, eps)


def group_norm_again(
    input: Tensor, weight: Any, bias: Any, group: int, eps: float
) -> Tensor | None:
    """What :func:`group_norm` does, if it has done it for such arguments; else None."""
    tensors = (input, weight, bias)
    made = answered(_group_norms, tensors, None, (group, eps, 1))
    return None if made is None else _with_group_norm_s_node(made, *tensors, group)


def group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float
) -> Tensor:
    """Group norm."""
    output = output_for(input)
    tensors, out = (input, weight, bias), None if output is None else (output, None, None)
    made = operators.group_norm(*tensors, num_groups=group, eps=eps, out=out)
    if output is None:
        _remember(_group_norms, GROUP_NORM, tensors, None, (group, eps, 1))
    return _with_group_norm_s_node(made, *tensors, group)


def _with_group_norm_s_node(made: Any, input: Tensor, weight: Any, bias: Any, group: int) -> Tensor:
    """The output, with a node of autograd where gradients may be wanted."""
    output: Tensor = made[0]
    if not _needs_node(input, weight, bias):
        return output
    return GroupNorm.apply(made, input, weight, bias, group)
