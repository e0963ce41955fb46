"""The replacement of PyTorch's own CPU kernels by normgrad's, for models whose code cannot change.

PyTorch has one kernel per operator and device in the whole process: while any thread is inside
:func:`override`, all threads use normgrad's. The kernel is chosen when an operator is called, not
when autograd records it: a backward pass that runs after the context ends uses PyTorch's own.
A model compiled with the "aot_eager" backend calls the same operators; "inductor" generates code of
its own instead.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.library import _scoped_library

from ..declarations import contract
from ..declarations.contract import Kind, Operator
from ..operators.by_name import FUNCTIONS, PLANNED
from . import aten
from .dynamo import hide_from_dynamo


def _within_ranks(tensor: Tensor, operator: Operator, options: dict[str, Any]) -> Tensor:
    """Merge axes of a tensor that has more than normgrad takes: those of the rows, or the last."""
    if tensor.dim() <= contract.MAX_RANK:
        return tensor
    if operator.statistics is Kind.ROW:
        return tensor.flatten(0, tensor.dim() - len(options["normalized_shape"]) - 1)
    return tensor.flatten(2)


def _kernel(name: str) -> Callable[..., Any]:
    """The kernel of the operator of ATen's that has a name of normgrad's."""
    operator, function = PLANNED[name], FUNCTIONS[name]
    known = {*operator.names, *operator.options}
    # ATen's operator does not return the new running statistics, but updates its arguments.
    updated = [operator.names[old] for _, old in operator.running]
    returned = len(operator.all_outputs) - len(updated)

    def kernel(*arguments: Any) -> Any:
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in zip(aten.OPERATORS[name].arguments, arguments, strict=True)
            if name in known
        }
        input: Any = values["input"]
        for parameter in operator.inputs:
            if parameter.kind in (Kind.DATA, Kind.ROW):
                value: Any = values[parameter.name]
                values[parameter.name] = _within_ranks(value, operator, values)
        if updated:
            out = (*[None] * returned, *[values[name] for name in updated])
            return function(**values, out=out)[:returned]
        with torch.no_grad():  # autograd has recorded ATen's operator
            results = function(**values)
        first, *rest = (results,) if operator.out_is_tensor else results
        if first is not None and operator.all_outputs[0].kind is Kind.DATA:
            first = first.reshape(input.shape)
        return first if operator.out_is_tensor else (first, *rest)

    return kernel


#: The kernels by ATen operators' names: those of the gradients replace PyTorch's kernels, and those
#: of synchronised batch norm are added, since PyTorch has none on the CPU.
KERNELS = {
    theirs.name: _kernel(name)
    for name, theirs in aten.OPERATORS.items()
    if PLANNED[name].is_gradient or theirs.name.startswith("batch_norm_")
}

_lock = threading.Lock()
_users = 0
_registrations = contextlib.ExitStack()


@contextlib.contextmanager
def override() -> Iterator[None]:
    """A context in which normgrad computes PyTorch's own operators on the CPU.

    These are the backward passes of batch, group, layer, RMS and instance norm. The operators of
    synchronised batch norm, which PyTorch has for CUDA only, are available in addition. The context
    can be nested, and entered by several threads: PyTorch's kernels return when the last one ends.
    """
    global _users
    with _lock:
        if _users == 0:
            library = _registrations.enter_context(_scoped_library("aten", "IMPL"))
            with warnings.catch_warnings():
                # PyTorch warns that a kernel is replaced, which is the purpose here.
                warnings.filterwarnings("ignore", r"(?s).*[Oo]verriding a previously registered")
                for name, kernel in KERNELS.items():
                    library.impl(name, hide_from_dynamo(kernel), "CPU")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _registrations.close()


_handles: list[contextlib.ExitStack] = []


def install() -> contextlib.ExitStack:
    """Enter :func:`override` without a ``with`` block.

    Returns:
        A handle that ends it by ``close()``, or at the end of a ``with`` block.
        :func:`uninstall` ends all of them.
    """
    handle = contextlib.ExitStack()
    handle.enter_context(override())
    _handles.append(handle)
    return handle


def uninstall() -> None:
    """Undo every :func:`install`; contexts of :func:`override` that are still open stay active."""
    while _handles:
        _handles.pop().close()
