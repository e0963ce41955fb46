"""The short way, for plain tensors in eager mode: no dispatcher between a layer and its kernels.

An operator costs some microseconds each time the dispatcher comes by Python. Where nothing but
autograd can be watching (no transform, mode, tracer or subclass), the functions come here instead:
to the same kernels, and to the same derivatives of higher order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from .. import operators
from . import ops
from .kernels import output_for
from .nodes import given, kept_statistics

_C = torch._C
_CPU, _CUDA = _C.DispatchKey.CPU, _C.DispatchKey.CUDA
_NONE = (None, None)
_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def alone(*tensors: Any) -> bool:
    """Whether these are plain tensors (or None), and nothing but autograd sees what is called."""
    if (
        torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _C._get_tracing_state()
    ):
        return False
    for value in tensors:  # noqa: SIM110 - a small call's time
        if type(value) not in _PLAIN:
            return False
    return True


def _kernels_suffice(grad_out: Tensor) -> bool:
    """Whether a gradient is wanted for itself alone, not to be differentiated or transformed."""
    if torch.is_grad_enabled() or not alone(grad_out):
        return False
    # Autograd has a vmap of its own, whose tensors look like any others.
    keys = _C._dispatch_keys(grad_out)
    return bool(keys.has(_CPU) or keys.has(_CUDA))


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
        if _kernels_suffice(grad_out):
            found: Any = operators.batch_norm_backward(
                grad_out, input, weight, *statistics, training=training, eps=ctx.eps,
                output_mask=mask,
            )  # fmt: skip
        else:
            found = ops.native_batch_norm_backward(
                grad_out, input, weight, *statistics, training, ctx.eps, mask
            )
            found = given(found, mask)
        return None, *found, None, None


class GroupNorm(_SingleLevelFunction):
    """Group norm's node: ``apply((output, mean, rstd), input, weight, bias, sizes, group)``."""

    @staticmethod
    def forward(
        ctx: Any, made: Any, input: Tensor, weight: Any, bias: Any, sizes: Any, group: int
    ) -> Tensor:
        """Keep what the gradients need."""
        output, mean, rstd = made
        ctx.sizes, ctx.group = sizes, group
        ctx.save_for_backward(input, weight, mean, rstd)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        """The gradients."""
        input, weight, mean, rstd = ctx.saved_tensors
        mask = ctx.needs_input_grad[1:4]
        if _kernels_suffice(grad_out):
            found: Any = operators.group_norm_backward(
                grad_out, input, mean, rstd, weight, num_groups=ctx.group, output_mask=mask
            )
        else:
            found = ops.native_group_norm_backward(
                grad_out, input, mean, rstd, weight, *ctx.sizes, ctx.group, mask
            )
            found = given(found, mask)
        return None, *found, None, None


def _needs_node(*tensors: Any) -> bool:
    if torch.is_grad_enabled():
        for value in tensors:
            if value is not None and value.requires_grad:
                return True
    return False


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch norm; in training the running statistics are updated in place."""
    output, mean, spread, _, _ = operators.batch_norm(
        input, weight, bias, running_mean, running_var,
        training=training, momentum=momentum, eps=eps,
        out=(output_for(input), None, None, *((running_mean, running_var) if training else _NONE)),
    )  # fmt: skip
    if not _needs_node(input, weight, bias):
        return output
    if not training:
        # They may be updated before the gradients are asked for.
        mean, spread = kept_statistics(running_mean, running_var)
    return BatchNorm.apply((output, mean, spread), input, weight, bias, training, eps)


def group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    sizes: tuple[int, int, int],
    group: int,
    eps: float,
) -> Tensor:
    """Group norm."""
    out = (output_for(input), None, None)
    made = operators.group_norm(input, weight, bias, num_groups=group, eps=eps, out=out)
    if not _needs_node(input, weight, bias):
        return made[0]
    return GroupNorm.apply(made, input, weight, bias, sizes, group)
