"""The autograd nodes of the operators.

An operator's kernel at the dispatcher's Autograd key calls the kernel below that key, then attaches
an autograd node to the results. What a node computes is differentiable again: a forward pass's node
calls the operator of the gradients, and the node of the gradients consists of PyTorch's operators.

The nodes are single-level autograd functions, on which torch.func itself is built: each transform
runs the kernel for its own level, so grad, vjp, jvp and vmap nest as for PyTorch's own operators.
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

from ..plans import call
from . import derivatives
from .derivatives import Normalisation, SynchronisedNormalisation, formula_vjp, like
from .kernels import absent_of
from .schemas import SCHEMAS, Schema, overload
from .watching import has_rules, is_recorded, readable, unwatched

any_requires_grad = torch._C._any_requires_grad
_BelowAutograd = torch._C._AutoDispatchBelowAutograd
#: PyTorch's own nodes do not call ``__torch_function__`` of a gradient's class.
_WithoutSubclasses = torch._C.DisableTorchFunctionSubclass

#: The inputs of gradients that have derivatives.
_FIRST = ("grad_out", "input", "weight")


def call_schema(
    schema: Schema, values: Iterable[Any], store: Callable[[Sequence[Tensor]], None] | None = None
) -> Any:
    """Call a schema's operator with the values of its declaration's tensors, then its options.

    The last option of a declaration, the channel axis, is not an argument of PyTorch's. ``store``
    is as in :func:`call_and_store`.
    """
    names = (*schema.operator.names, *schema.operator.options)
    arguments = schema.arguments_of(dict(zip(names, values, strict=False)))
    if store is None:
        return overload(schema.name)(*arguments)
    return call_and_store(schema.name, arguments, store)


def call_and_store(
    name: str, arguments: tuple[Any, ...], store: Callable[[Sequence[Tensor]], None]
) -> Any:
    """Call an operator, and ``store`` with the results.

    Where the call is not recorded, that is before autograd saves tensors, since checkpointing ends
    a call while autograd saves them.
    """
    if is_recorded():
        results = overload(name)(*arguments)
        store(results)
        return results
    results = _below_autograd(name, arguments)
    store(results)
    return _attach_node(name, arguments, results)


class Node(_SingleLevelFunction):
    """An autograd node for results that are already computed.

    ``apply`` takes the tuple ``context`` of :meth:`forward`, then the tensors with derivatives.
    ``backward`` returns, and ``jvp`` takes, an entry for each argument; the first entry is None.

    Attributes:
        tensors: the names of the arguments that have derivatives.
        constants, options: the names of the other tensors and other arguments that are saved.
        differentiable: how many of the results, from the first on, have derivatives.
        save_count: how many of the tensors, from the first on, are saved; None for all.
    """

    tensors: ClassVar[tuple[str, ...]]
    constants: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    differentiable: ClassVar[int] = 1
    save_count: ClassVar[int | None] = None

    #: Compiled autograd asks for it. Single-level functions lack what ``autograd.Function`` has.
    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @classmethod
    def forward(
        cls, ctx: Any, context: tuple[Any, tuple[Any, ...], Any, Any], *tensors: Tensor | None
    ) -> Any:
        """Save what the derivatives need, and return the results.

        ``context`` consists of the results, the constant tensors to save, the other values to save,
        and the pair of modes (reverse, forward) in which gradients were enabled for the operator,
        since neither is here. The fast path of :mod:`.layers`, whose only result is the output,
        never needs the pair, and has the tensors to save in its place. There no one else has the
        constants, and as an attribute they cost less.
        """
        results, constants, ctx.choices, modes = context
        if isinstance(results, Tensor):
            ctx.constants = constants
            ctx.save_for_backward(*modes)
            return results
        ctx.constants, ctx.modes = (), modes
        ctx.save_for_backward(*tensors[: cls.save_count], *constants)
        ctx.save_for_forward(*tensors[: cls.save_count], *constants)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[
                value
                for index, value in enumerate(results)
                if index >= cls.differentiable or value.shape == (0,)
            ]
        )
        return results if len(results) > 1 else results[0]

    @classmethod
    def read(
        cls, schema: Schema, arguments: tuple[Any, ...], results: tuple[Tensor, ...]
    ) -> tuple[Any, Any, Any]:
        """What a node needs of an operator's call: its tensors, constants and options."""
        values = dict(zip(schema.names, arguments, strict=True))
        tensors, constants, options = (
            tuple([values[name] for name in names])
            for names in (cls.tensors, cls.constants, cls.options)
        )
        return tensors, constants, options


def apply_mask(values: Iterable[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    """The values, with None in place of those that are masked off."""
    return tuple([value if want else None for value, want in zip(values, mask, strict=True)])


def clones(values: Sequence[Any]) -> tuple[Any, ...]:
    """Copies of tensors, and None for None."""
    return tuple([None if value is None else value.clone() for value in values])


def of_primals(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a node's ``jvp``: it gets the saved tensors without tangents, and is differentiable.

    The gradient modes of the operator's call are restored for it.
    """

    @wraps(jvp)
    def wrapper(ctx: Any, *tangents: Any) -> Any:
        primals = [
            value if value is None else forward_ad.unpack_dual(value, level=0).primal
            for value in ctx.saved_tensors
        ]
        grad, fwd_grad = ctx.modes
        with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(fwd_grad):
            return jvp(ctx, primals, *tangents)

    return wrapper


class Norm:
    """A norm: its operator, that of its gradients, and how one's arguments follow from the other's.

    Attributes:
        name: normgrad's name of the norm, which PyTorch's function has too.
        schema, gradient: the schemas of the two operators.
        normalisation: makes a Normalisation from the options that both operators have, the data and
            the statistics.
        shared_options: takes those of the norm's options that the gradients' operator has too.
        tensors_to_save: takes those of the norm's tensors that PyTorch's layer saves. Of these, the
            gradients depend on input and weight only; autograd raises an error if one has changed.
        orders: for evaluation and for training, the place of each tensor of the gradients' operator
            in (grad_out, input, weight, the statistics, None).
        node, gradient_node: the classes of the two operators' autograd nodes.
    """

    def __init__(
        self,
        name: str,
        title: str,
        normalisation: Callable[..., Normalisation],
        saved: tuple[int, ...] = (),
        shared: Any = itemgetter(slice(1)),
    ) -> None:
        """Take the operator's name, the shown name of the node, and ``normalisation``.

        ``saved`` are the places of the tensors that are saved besides input and weight.
        """
        self.tensors_to_save, self.shared_options = itemgetter(0, 1, *saved), shared
        self.schema, self.gradient = SCHEMAS[name], SCHEMAS[f"{name}_backward"]
        self.name, self.normalisation = self.schema.operator.name, normalisation
        self.orders = []
        for training in (False, True):
            pool = (*_FIRST, *self.statistics((training,)))
            places = [pool.index(name) if name in pool else -1 for name in self.gradient.inputs]
            self.orders.append(places)
        node: Any = type(title, (Forward,), {"norm": self})
        own = {"norm": self, "normalisation": staticmethod(normalisation)}
        self.gradient_node = type(f"{title}Backward", (Backward,), own)
        # PyTorch's own method looks for this function in every call, which takes 2 µs.
        node._backward_cls.apply = node.backward
        node._backward_cls.norm = self  # where compiled autograd finds it too
        self.node = node

    def statistics(self, choices: Any) -> list[str]:
        """The names of the tensors from which the gradients take the statistics.

        In batch norm they depend on the first option, ``training``. The first option of other norms
        is never 0 or empty, so it counts as true.
        """
        names = [name for name in self.gradient.inputs if name not in _FIRST]
        return names[-2:] if choices[0] else names[:2]

    def by_formula(self, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """The results of the gradients' operator by PyTorch's operators, from its arguments.

        For classes with their own rules for operators, which know PyTorch's. The results have the
        dtype of the arithmetic.
        """
        tensors, choices, mask = self.read_gradient(arguments)
        grad_out, data, weight = (tensors[name] for name in _FIRST)
        statistics = [tensors[name] for name in self.statistics(choices)]
        gradients = self.normalisation(choices, data, *statistics).gradients(grad_out, weight)
        # Those of group norm's parameters have an axis for the groups.
        others = [each.flatten() if self.name == "group_norm" else each for each in gradients[1:]]
        results = [gradients[0].reshape(data.shape), *others]
        absent = absent_of(self.gradient.operator, data)
        return tuple(each if want else absent for each, want in zip(results, mask, strict=False))

    def read_gradient(self, arguments: tuple[Any, ...]) -> tuple[dict[str, Any], Any, Any]:
        """The gradients' tensors by PyTorch's names, the norm's options and the mask."""
        tensors, options = self.gradient.read(arguments)
        *choices, mask = options.values()
        return dict(zip(self.gradient.inputs, tensors.values(), strict=True)), choices, mask


class Forward(Node):
    """The node of a norm's forward pass."""

    save_count = 2
    norm: ClassVar[Norm]

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:  # noqa: D102 - as Node's
        named_tensors, options = schema.read(arguments)
        tensors, choices = tuple(named_tensors.values()), tuple(options.values())
        # A later batch may update the running statistics in place.
        statistics = results[1:3] if choices[0] else clones(tensors[3:])
        return tensors[:3], statistics, cls.norm.shared_options(choices)

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients, by the kernels if PyTorch need not see the call, else by the operator."""
        norm: Norm = ctx.norm
        mask = ctx.needs_input_grad[1:]
        if grad_out is None:
            return None, *[None] * len(mask)
        choices = (*ctx.choices, mask)
        input, weight, *others = ctx.saved_tensors
        # On the fast path the others are not read: they were saved so that no one changes them.
        constants = ctx.constants or others
        order = norm.orders[bool(choices[0])]
        tensors = itemgetter(*order)((grad_out, input, weight, *constants, None))
        if not torch.is_grad_enabled() and unwatched() and readable(*tensors):
            return None, *call(
                norm.gradient.operator, tensors, None, choices, read_next=True, is_recorded=True
            )
        with _WithoutSubclasses():
            return None, *apply_mask(call_schema(norm.gradient, (*tensors, *choices)), mask)

    @staticmethod
    @of_primals
    def jvp(ctx: Any, saved: Any, _: Any, *tangents: Any) -> Any:
        """The Jacobian-vector product of the output."""
        norm: Norm = ctx._forward_cls.norm
        data, gamma, *statistics = saved
        input, weight, *bias = tangents
        normalisation = norm.normalisation(ctx.choices, data, *statistics)
        product = normalisation.output_jvp(gamma, input, weight, *(bias or [None]))
        return like(product, data), *[None] * (len(norm.schema.operator.all_outputs) - 1)


class Gradients(Node):
    """The node of gradients, which have derivatives for grad_out, input and weight.

    Attributes:
        normalisation: makes a Normalisation from the saved options, the data and the statistics.
    """

    tensors = _FIRST
    differentiable = 3
    normalisation: ClassVar[Callable[..., Normalisation]]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The vector-Jacobian products of the gradients."""
        node: type[Gradients] = ctx._forward_cls
        grad_out, input, weight, *statistics = ctx.saved_tensors
        normalisation = node.normalisation(ctx.choices[0], input, *statistics)
        with _WithoutSubclasses():
            products = normalisation.double_backward(grad_out, weight, *cotangents)
            gradients = map(like, products, (grad_out, input, weight))
            return None, *apply_mask(gradients, ctx.needs_input_grad[1:])


class Backward(Gradients):
    """The node of a norm's gradients, which also has forward-mode derivatives."""

    norm: ClassVar[Norm]

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:  # noqa: D102 - as Node's
        tensors, choices, mask = cls.norm.read_gradient(arguments)
        forms = [(value.shape, value.dtype) for value in results]
        statistics = [tensors[name] for name in cls.norm.statistics(choices)]
        return [tensors[name] for name in _FIRST], statistics, (choices, apply_mask(forms, mask))

    @staticmethod
    @of_primals
    def jvp(ctx: Any, saved: Any, _: Any, *tangents: Any) -> Any:
        """The Jacobian-vector products of the gradients."""
        node: type[Backward] = ctx._forward_cls
        dy, data, gamma, *statistics = saved
        choices, forms = ctx.choices
        normalisation = node.normalisation(choices, data, *statistics)
        products = normalisation.gradients_jvp(dy, gamma, *tangents)
        return tuple(
            None if form is None else value.reshape(form[0]).to(form[1])
            for value, form in zip(products, forms, strict=False)
        )


def _part(name: str, formula: Callable[..., Any], differentiable: int) -> type[Node]:
    """The node of a part of synchronised batch norm, from its formula in PyTorch's operators.

    The formula's positional arguments have derivatives, its keyword-only arguments are constants,
    and its first ``differentiable`` results are differentiable.
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

    title = "".join(word.title() for word in name.split("_"))
    return type(title, (Part,), {"differentiable": differentiable})


class BatchNormElemt(Node):
    """The node of batch_norm_elemt, the normalisation with given statistics."""

    tensors, options = ("input", "weight", "bias", "mean", "invstd"), ("eps",)

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        """The gradients for every tensor, from the sums of batch_norm_backward_reduce."""
        if grad_out is None:
            return (None,) * 6
        saved = input, weight, _, mean, invstd = ctx.saved_tensors
        mask = for_input, for_weight, for_bias, for_mean, for_invstd = ctx.needs_input_grad[1:]
        gradients: list[Any] = [None] * 5
        if for_input:
            # The output is affine in the input, so the gradient is the same operator applied to
            # grad_out, without mean and bias.
            zeros = torch.zeros_like(mean)
            gradients[0] = overload("batch_norm_elemt")(
                grad_out, weight, None, zeros, invstd, *ctx.choices
            )
        statistics = for_mean or for_invstd
        if statistics or for_weight or for_bias:
            sum_dy, sum_dy_xmu, gradients[1], gradients[2] = overload("batch_norm_backward_reduce")(
                grad_out, input, mean, invstd, weight, statistics, for_weight, for_bias
            )
            if statistics:
                dtype = sum_dy.dtype
                gain = 1.0 if weight is None else weight.to(dtype)
                gradients[3:] = -gain * invstd.to(dtype) * sum_dy, gain * sum_dy_xmu
        return None, *map(like, apply_mask(gradients, mask), saved)


class AllReduceSum(Node):
    """The node of the sum over ranks, to which the values of each rank contribute."""

    tensors, options, save_count = ("values",), ("group_name",), 0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The sum over ranks of the gradients, since every rank's loss depends on these values."""
        return None, overload("all_reduce_sum")(gradient, *ctx.choices)


class SyncBatchNorm(Node):
    """The node of synchronised batch norm's forward pass."""

    tensors, options, save_count = ("input", "weight", "bias"), ("group_name",), 2

    @classmethod
    def read(cls, schema: Any, arguments: Any, results: Any) -> Any:  # noqa: D102 - as Node's
        tensors, _, choices = super().read(schema, arguments, results)
        return tensors, (*results[1:3], results[5]), choices

    @staticmethod
    def backward(ctx: Any, grad_out: Any, *_: Any) -> Any:
        """The gradients, computed by the operator sync_batch_norm_backward."""
        mask = ctx.needs_input_grad[1:]
        if grad_out is None:
            return (None,) * 4
        gradients = overload("sync_batch_norm_backward")
        return None, *apply_mask(gradients(grad_out, *ctx.saved_tensors, *ctx.choices, mask), mask)


class SyncBatchNormBackward(Gradients):
    """The node of synchronised batch norm's gradients."""

    constants, options = ("mean", "invstd", "count"), ("group_name",)
    normalisation = SynchronisedNormalisation


#: The norms by normgrad's names.
NORMS = {
    norm.name: norm
    for norm in (
        Norm("native_batch_norm", "BatchNorm", derivatives.of_channels, (3, 4), itemgetter(0, 2)),
        Norm("native_group_norm", "GroupNorm", derivatives.of_groups),
        Norm("native_layer_norm", "LayerNorm", derivatives.of_rows, (2,)),
        Norm("_fused_rms_norm", "RmsNorm", derivatives.by_squares),
    )
}

#: The class of each operator's node, by the operator's name.
NODES: dict[str, Any] = {
    **{norm.schema.name: norm.node for norm in NORMS.values()},
    **{norm.gradient.name: norm.gradient_node for norm in NORMS.values()},
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
    """An operator's kernel for the Autograd key, which attaches a node to results that need it."""
    norm = next((norm for norm in NORMS.values() if norm.gradient.name == name), None)

    def differentiable(*arguments: Any) -> Any:
        with _WithoutSubclasses():
            if norm is not None and has_rules(arguments[0]):
                return norm.by_formula(arguments)
            return _attach_node(name, arguments, _below_autograd(name, arguments))

    return differentiable


def _below_autograd(name: str, arguments: tuple[Any, ...]) -> Any:
    """An operator's results, without a node."""
    with _BelowAutograd():
        return overload(name)(*arguments)


def _attach_node(name: str, arguments: tuple[Any, ...], results: Any) -> Any:
    """An operator's results, with a node if they need one."""
    needs_gradient = torch.is_grad_enabled() and any_requires_grad(*arguments)
    if not needs_gradient and forward_ad._current_level < 0:
        return results
    modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    results = results if isinstance(results, tuple) else (results,)
    node = NODES[name]
    tensors, *saved = node.read(SCHEMAS[name], arguments, results)
    with enable_single_level_autograd_function():
        return node.apply((results, *saved, modes), *tensors)
