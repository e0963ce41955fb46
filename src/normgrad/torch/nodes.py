"""How the operators are differentiated.

An operator's kernel at the dispatcher's Autograd key computes what is below it, then attaches a
node of autograd to the results. What a node computes is differentiable again: that of a forward
pass calls the operator of its gradients, and theirs are plain torch.

The nodes are single-level functions, the sort that torch.func itself is built on: each transform
runs the kernel for its own level, so grad, vjp, jvp and vmap nest as for torch's own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from inspect import signature
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from ..plans import call, call_again
from . import derivatives
from .derivatives import Normalisation, SynchronisedNormalisation, formula_vjp, like
from .schemas import NAMESPACE, SCHEMAS, Schema
from .watching import kernels_suffice, unwatched

_transforms_active = torch._C._are_functorch_transforms_active
any_requires_grad = torch._C._any_requires_grad
_BelowAutograd = torch._C._AutoDispatchBelowAutograd

#: The tensors that gradients have derivatives for.
_FIRST = ("grad_out", "input", "weight")


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


def _statistics(gradient: Schema, choices: Any) -> list[str]:
    """What the tensors are called that a norm's gradients take the statistics from.

    The first option says whether batch norm trains; that of the other norms is never 0 or empty.
    """
    names = [name for name in gradient.inputs if name not in _FIRST]
    return names[-2:] if choices[0] else names[:2]


class Forward(Node):
    """A norm's forward pass.

    Attributes:
        gradient: the operator of its gradients.
        shared: which of the options that operator has too.
        orders: in evaluation and in training, that operator's tensors of grad_out, input, weight,
            the statistics and None.
        others: how many of the results are no output.
        normalised: the data, of the shared options and the statistics.
    """

    saved = 2
    gradient: ClassVar[Schema]
    shared: ClassVar[tuple[int, ...]]
    orders: ClassVar[tuple[Callable[[Any], Any], ...]]
    others: ClassVar[int]
    normalised: ClassVar[Callable[..., Normalisation]]

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:  # noqa: D102 - as Node's
        tensors, options = schema.read(arguments)
        return cls.taken(tuple(tensors.values()), tuple(options.values()), results)

    @classmethod
    def taken(
        cls, tensors: tuple[Any, ...], choices: tuple[Any, ...], results: tuple[Any, ...]
    ) -> tuple[Any, Any, Any]:
        """What :meth:`read` gives, of a call of our function."""
        statistics = results[1:3]
        if not choices[0]:
            # A later batch may update running statistics in place.
            running = tensors[3:]
            statistics = tuple([v if v is None else v.detach().clone() for v in running])
        return tensors[:3], statistics, tuple([choices[index] for index in cls.shared])

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients: by our function where nothing watches, else by PyTorch's operator."""
        node: type[Forward] = ctx._forward_cls
        mask = ctx.needs_input_grad[1:]
        if grad_out is None:
            return None, *[None] * len(mask)
        choices, gradient = ctx.choices, node.gradient
        ours = gradient.operator
        tensors = node.orders[bool(choices[0])]((grad_out, *ctx.saved_tensors, None))
        choices = (*choices, mask, 1) if "channel_axis" in ours.options else (*choices, mask)
        if not torch.is_grad_enabled() and unwatched():
            found = call_again(ours, tensors, None, choices, True)
            if found is None and kernels_suffice(grad_out):
                found = call(ours, tensors, None, choices, True)
            if found is not None:
                return None, *found
        return None, *wanted(called(gradient, (*tensors, *choices)), mask)

    @staticmethod
    @of_primals
    def jvp(ctx: Any, kept: Any, _: Any, *tangents: Any) -> Any:
        """Along tangents."""
        node: type[Forward] = ctx._forward_cls
        data, gamma, *statistics = kept
        input, weight, *bias = tangents
        norm = node.normalised(ctx.choices, data, *statistics)
        moved = norm.output_jvp(gamma, input, weight, *(bias or [None]))
        return like(moved, data), *[None] * node.others


class Gradients(Node):
    """Gradients, which have derivatives for grad_out, input and weight.

    Attributes:
        normalised: the data, of the other arguments that are kept and the statistics.
    """

    tensors = _FIRST
    differentiable = frozenset({0, 1, 2})
    normalised: ClassVar[Callable[..., Normalisation]]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The second derivatives."""
        node: type[Gradients] = ctx._forward_cls
        grad_out, input, weight, *statistics = ctx.saved_tensors
        norm = node.normalised(ctx.choices[0], input, *statistics)
        found = norm.double_backward(grad_out, weight, *cotangents)
        gradients = map(like, found, (grad_out, input, weight))
        return None, *wanted(gradients, ctx.needs_input_grad[1:])


class Backward(Gradients):
    """A norm's gradients, which can also be moved along tangents."""

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:  # noqa: D102 - as Node's
        given, options = schema.read(arguments)
        tensors = dict(zip(schema.inputs, given.values(), strict=True))
        *choices, mask = options.values()
        looks = [(value.shape, value.dtype) for value in results]
        statistics = [tensors[name] for name in _statistics(schema, choices)]
        return [tensors[name] for name in _FIRST], statistics, (choices, wanted(looks, mask))

    @staticmethod
    @of_primals
    def jvp(ctx: Any, kept: Any, _: Any, *tangents: Any) -> Any:
        """Along tangents."""
        node: type[Backward] = ctx._forward_cls
        dy, data, gamma, *statistics = kept
        choices, looks = ctx.choices
        moved = node.normalised(choices, data, *statistics).gradients_jvp(dy, gamma, *tangents)
        return tuple(
            None if look is None else value.reshape(look[0]).to(look[1])
            for value, look in zip(moved, looks, strict=False)
        )


def _nodes(
    name: str, shown: str, normalised: Callable[..., Normalisation]
) -> dict[str, type[Node]]:
    """The nodes of PyTorch's operator of that name and of its gradients'."""
    schema, gradient = SCHEMAS[name], SCHEMAS[f"{name}_backward"]
    own: dict[str, Any] = {"normalised": staticmethod(normalised)}
    orders = []
    for training in (False, True):
        pool = (*_FIRST, *_statistics(gradient, (training,)))
        places = [pool.index(name) if name in pool else -1 for name in gradient.inputs]
        orders.append(itemgetter(*places))
    forward = {
        "gradient": gradient,
        "shared": tuple(
            index
            for index, option in enumerate(schema.operator.options)
            if option in gradient.operator.options and option != "channel_axis"
        ),
        "orders": tuple(orders),
        "others": len(schema.operator.all_outputs) - 1,
    }
    return {
        name: type(shown, (Forward,), {**own, **forward}),
        gradient.name: type(f"{shown}Backward", (Backward,), own),
    }


def _part(name: str, formula: Callable[..., Any], differentiable: int) -> type[Node]:
    """The node of a part of synchronised batch norm, from its formula in plain torch.

    What the formula takes by position has derivatives, and what it takes by name is constant; of
    the results the first ones are differentiable.
    """
    parameters = signature(formula).parameters.values()

    class Part(Node):
        tensors = tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY)
        options = tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            of_choices = partial(formula, **dict(zip(Part.options, ctx.choices, strict=True)))
            mask = ctx.needs_input_grad[1:]
            return None, *formula_vjp(of_choices, ctx.saved_tensors, cotangents, mask)

    shown = "".join(word.title() for word in name.split("_"))
    return type(shown, (Part,), {"differentiable": frozenset(range(differentiable))})


class BatchNormElemt(Node):
    """Normalisation by given statistics."""

    tensors, options = ("input", "weight", "bias", "mean", "invstd"), ("eps",)

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        """For every tensor, from the sums of synchronised batch norm."""
        if grad_out is None:
            return (None,) * 6
        saved = input, weight, _, mean, invstd = ctx.saved_tensors
        mask = for_input, for_weight, for_bias, for_mean, for_invstd = ctx.needs_input_grad[1:]
        found: list[Any] = [None] * 5
        if for_input:
            # The same without mean and bias.
            zeros = torch.zeros_like(mean)
            found[0] = operator("batch_norm_elemt")(
                grad_out, weight, None, zeros, invstd, *ctx.choices
            )
        statistics = for_mean or for_invstd
        if statistics or for_weight or for_bias:
            sum_dy, sum_dy_xmu, found[1], found[2] = operator("batch_norm_backward_reduce")(
                grad_out, input, mean, invstd, weight, statistics, for_weight, for_bias
            )
            if statistics:
                dtype = sum_dy.dtype
                gain = 1.0 if weight is None else weight.to(dtype)
                found[3:] = -gain * invstd.to(dtype) * sum_dy, gain * sum_dy_xmu
        return None, *map(like, wanted(found, mask), saved)


class AllReduceSum(Node):
    """The sum over ranks: each rank's values are in every rank's sum."""

    tensors, options, saved = ("values",), ("group_name",), 0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The sum of what every rank's loss asks of these values."""
        return None, operator("all_reduce_sum")(gradient, *ctx.choices)


class SyncBatchNorm(Node):
    """Synchronised batch norm."""

    tensors, options, saved = ("input", "weight", "bias"), ("group_name",), 2

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:  # noqa: D102 - as Node's
        tensors, _, choices = super().read(schema, arguments, results)
        return tensors, (*results[1:3], results[5]), choices

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients, by the operator of that name."""
        mask = ctx.needs_input_grad[1:]
        if grad_out is None:
            return (None,) * 4
        gradients = operator("sync_batch_norm_backward")
        return None, *wanted(gradients(grad_out, *ctx.saved_tensors, *ctx.choices, mask), mask)


class SyncBatchNormBackward(Gradients):
    """Synchronised batch norm's gradients."""

    constants, options = ("mean", "invstd", "count"), ("group_name",)
    normalised = SynchronisedNormalisation


#: The nodes by their operators' names.
NODES: dict[str, Any] = {
    **_nodes("native_batch_norm", "BatchNorm", derivatives.of_channels),
    **_nodes("native_group_norm", "GroupNorm", derivatives.of_groups),
    **_nodes("native_layer_norm", "LayerNorm", derivatives.of_rows),
    **_nodes("_fused_rms_norm", "RmsNorm", derivatives.by_squares),
    "batch_norm_elemt": BatchNormElemt,
    "all_reduce_sum": AllReduceSum,
    "sync_batch_norm": SyncBatchNorm,
    "sync_batch_norm_backward": SyncBatchNormBackward,
    **{
        name: _part(name, formula, differentiable)
        for name, formula, differentiable in (
            ("batch_norm_stats", derivatives.stats, 2),
            ("batch_norm_gather_stats_with_counts", derivatives.gather, 2),
            ("batch_norm_backward_reduce", derivatives.reduce, 4),
            ("batch_norm_backward_elemt", derivatives.backward_elemt, 1),
        )
    },
}


def kernel(name: str) -> Callable[..., Any]:
    """An operator's kernel for the Autograd key: the results with a node, where one is needed."""
    below, schema, node = operator(name), SCHEMAS[name], NODES[name]

    def differentiable(*arguments: Any) -> Any:
        with _BelowAutograd():
            results = below(*arguments)
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
