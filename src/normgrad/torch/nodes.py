"""How the operators are differentiated.

An operator's kernel at the dispatcher's Autograd key computes what is below it, then attaches a
node of autograd to the results. What a node computes is differentiable again: that of a forward
pass calls the operator of its gradients, and theirs are plain torch.

The nodes are single-level functions, the sort that torch.func itself is built on: each transform
runs the kernel for its own level, so grad, vjp, jvp and vmap nest as for torch's own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from .schemas import NAMESPACE, SCHEMAS, Schema

_transforms_active = torch._C._are_functorch_transforms_active
any_requires_grad = torch._C._any_requires_grad
_BelowAutograd = torch._C._AutoDispatchBelowAutograd


def operator(name: str) -> Any:
    """An operator of ours, called through the dispatcher."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def called(schema: Schema, values: Iterable[Any]) -> Any:
    """An operator's results, of its declaration's tensors and options, in their order."""
    names = (*[each.name for each in schema.operator.parameters], *schema.operator.options)
    given = dict(zip(names, values, strict=True))
    return operator(schema.name)(*schema.arguments_of(given))


class Node(_SingleLevelFunction):
    """A node for results that are there already.

    It is applied to what was made and to the tensors that have derivatives. ``backward`` gives, and
    ``jvp`` gets, one entry for what was made, which is None, and one for each of these tensors.

    Attributes:
        tensors: the arguments that have derivatives, by name.
        constants, options: other tensors that are kept, and other arguments.
        differentiable: which of the results, by position, have derivatives.
        saved: how many of the tensors are kept for the derivatives; None for all.
    """

    tensors: ClassVar[tuple[str, ...]]
    constants: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    differentiable: ClassVar[frozenset[int]] = frozenset({0})
    saved: ClassVar[int | None] = None

    @classmethod
    def forward(
        cls, ctx: Any, made: tuple[Any, tuple[Any, ...], Any, Any], *tensors: Tensor | None
    ) -> Any:
        """Keep what the derivatives need, and pass the results through.

        ``made`` are the results; the other tensors that are kept, and what else is; and whether the
        results were computed with gradients enabled, backwards and forwards: here neither is. In
        eager mode there is one result, the output, and nobody asks for that.
        """
        results, constants, ctx.choices, modes = made
        ctx.save_for_backward(*tensors[: cls.saved], *constants)
        if modes is None:
            return results
        ctx.modes = modes
        ctx.save_for_forward(*tensors[: cls.saved], *constants)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[
                value
                for index, value in enumerate(results)
                if index not in cls.differentiable or value.shape == (0,)
            ]
        )
        return results if len(results) > 1 else results[0]

    @classmethod
    def read(
        cls, schema: Schema, arguments: tuple[Any, ...], results: tuple[Tensor, ...]
    ) -> tuple[Any, Any, Any]:
        """What a node keeps of an operator's call: its tensors, constants and options."""
        given = dict(zip(schema.names, arguments, strict=True))
        tensors, constants, options = (
            tuple([given[name] for name in names])
            for names in (cls.tensors, cls.constants, cls.options)
        )
        return tensors, constants, options


def kernel(name: str, node: type[Node]) -> Callable[..., Any]:
    """An operator's kernel for the Autograd key: the results with a node, where one is needed."""
    call, schema = operator(name), SCHEMAS[name]

    def differentiable(*arguments: Any) -> Any:
        with _BelowAutograd():
            results = call(*arguments)
        needed = torch.is_grad_enabled() and any_requires_grad(*arguments)
        if not needed and forward_ad._current_level < 0:
            return results
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        results = results if isinstance(results, tuple) else (results,)
        tensors, *kept = node.read(schema, arguments, results)
        if _transforms_active():
            with enable_single_level_autograd_function():
                return node.apply((results, *kept, modes), *tensors)
        return node.apply((results, *kept, modes), *tensors)

    return differentiable


def wanted(values: Iterable[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    """The values, None where they are masked off."""
    return tuple([value if want else None for value, want in zip(values, mask, strict=True)])


def of_primals(jvp: Callable[..., Any]) -> Callable[..., Any]:
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
