"""How the operators are differentiated.

An operator's kernel at the dispatcher's Autograd key computes what is below it, then attaches a
node of autograd to the results. What a node computes is differentiable again: that of a forward
pass calls the operator of its gradients, and theirs are plain torch.

The nodes are single-level functions, the sort that torch.func itself is built on: each transform
runs the kernel for its own level, so grad, vjp, jvp and vmap nest as for torch's own operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from .schemas import NAMESPACE

_transforms_active = torch._C._are_functorch_transforms_active
_any_requires_grad = torch._C._any_requires_grad
BelowAutograd = torch._C._AutoDispatchBelowAutograd


def operator(name: str) -> Any:
    """An operator of ours, called through the dispatcher."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


class Node(_SingleLevelFunction):
    """A node for results that are there already; made by :func:`attach`.

    ``differentiable`` says which of the results, by position, have derivatives. ``backward`` and
    ``jvp`` get and give one entry for each argument, after one for the results.
    """

    differentiable: ClassVar[frozenset[int]] = frozenset({0})

    @classmethod
    def forward(
        cls, ctx: Any, made: tuple[tuple[Tensor, ...], tuple[bool, bool]], *arguments: Any
    ) -> Any:
        """Keep what the derivatives need, and pass the results through.

        ``made`` are the results, and whether they were computed with gradients enabled, backwards
        and forwards: here neither is.
        """
        results, ctx.modes = made
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[
                value
                for index, value in enumerate(results)
                if index not in cls.differentiable or value.shape == (0,)
            ]
        )
        kept = cls.kept(ctx, results, *arguments)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        return results if len(results) > 1 else results[0]

    @staticmethod
    def kept(ctx: Any, results: tuple[Tensor, ...], *arguments: Any) -> tuple[Any, ...]:
        """The tensors to keep; other things are set on ``ctx``."""
        raise NotImplementedError


def attach(node: type[Node], results: Any, arguments: tuple[Any, ...]) -> Any:
    """The results with a node, where one is needed."""
    needed = torch.is_grad_enabled() and _any_requires_grad(*arguments)
    if not needed and forward_ad._current_level < 0:
        return results
    modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    made = (results if isinstance(results, tuple) else (results,)), modes
    if _transforms_active():
        with enable_single_level_autograd_function():
            return node.apply(made, *arguments)
    return node.apply(made, *arguments)


def kept_statistics(*statistics: Tensor | None) -> list[Tensor | None]:
    """Running statistics as they are now: a later batch may update them in place."""
    return [value if value is None else value.clone() for value in statistics]


def given(gradients: tuple[Any, ...], wanted: tuple[bool, ...]) -> tuple[Any, ...]:
    """The gradients, None where they are not wanted."""
    return tuple(
        gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)
    )


def along(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """A node's ``jvp``, which gets the kept tensors without tangents and may itself be moved."""

    @wraps(jvp)
    def moved(ctx: Any, *tangents: Any) -> Any:
        primals = [
            value if value is None else forward_ad.unpack_dual(value, level=0).primal
            for value in ctx.saved_tensors
        ]
        grad, fwd_grad = ctx.modes
        with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(fwd_grad):
            return jvp(ctx, primals, *tangents)

    return moved
