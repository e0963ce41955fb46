"""PyTorch's own operators on the CPU, by normgrad: for models whose code is not to be touched.

PyTorch keeps one kernel for each operator in the whole process: while any thread is inside
:func:`override`, all threads use normgrad's. The kernel is chosen when an operator is called, not
when autograd records it: a backward pass that runs after the context was left uses PyTorch's own.
A model compiled with the "aot_eager" backend calls the same operators; "inductor" generates code of
its own instead.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.library import _scoped_library

from .. import contract
from ..contract import NEW_RUNNING, Kind, Operator
from ..operators.by_name import FUNCTIONS
from .schemas import ATEN, Schema
from .watching import untraced


def _within_ranks(tensor: Tensor, operator: Operator, options: dict[str, Any]) -> Tensor:
    """A tensor of more axes than normgrad's with some in one: a row's, or the last."""
    if tensor.dim() <= contract.MAX_RANK:
        return tensor
    if operator.statistics is Kind.ROW:
        return tensor.flatten(0, tensor.dim() - len(options["normalized_shape"]) - 1)
    return tensor.flatten(2)


def _kernel(schema: Schema) -> Callable[..., Any]:
    operator = schema.operator
    function = FUNCTIONS[operator.name]
    # ATen's own operator writes its last results, new running statistics, to its arguments.
    written = [output.in_place[0] for output in operator.all_outputs if output in NEW_RUNNING]
    kept = len(operator.all_outputs) - len(written)

    def kernel(*arguments: Any) -> Any:
        tensors, options = schema.read(arguments)
        input = tensors["input"]
        for parameter in operator.parameters:
            if parameter.kind in (Kind.DATA, Kind.ROW):
                value = tensors[parameter.name]
                tensors[parameter.name] = _within_ranks(value, operator, options)
        if written:
            out = (*[None] * kept, *[tensors[name] for name in written])
            return function(**tensors, **options, out=out)[:kept]
        results = function(**tensors, **options)
        first, *rest = (results,) if operator.out_is_tensor else results
        if first is not None and operator.all_outputs[0].kind is Kind.DATA:
            first = first.reshape(input.shape)
        return first if operator.out_is_tensor else (first, *rest)

    return kernel


#: ATen's operators and what computes them: the gradients, which replace PyTorch's kernels, and
#: those of synchronised batch norm, which has none on the CPU.
KERNELS = {
    schema.name: _kernel(schema)
    for schema in ATEN.values()
    if schema.operator.is_gradient or schema.name.startswith("batch_norm_")
}

_lock = threading.Lock()
_users = 0
_registered = contextlib.ExitStack()


@contextlib.contextmanager
def override() -> Iterator[None]:
    """A context in which PyTorch's own operators on the CPU are normgrad's.

    These are the backward passes of batch, group, layer and RMS norm, and instance norm's; the
    operators of synchronised batch norm, which PyTorch has for CUDA alone, are there in addition.
    It can be nested, and entered by several threads: PyTorch's own come back when the last leaves.
    """
    global _users
    with _lock:
        if _users == 0:
            library = _registered.enter_context(_scoped_library("aten", "IMPL"))
            with warnings.catch_warnings():
                # That a kernel is replaced is what was asked for.
                warnings.filterwarnings("ignore", r"(?s).*[Oo]verriding a previously registered")
                for name, kernel in KERNELS.items():
                    library.impl(name, untraced(kernel), "CPU")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _registered.close()


_installed: list[contextlib.ExitStack] = []


def install() -> contextlib.ExitStack:
    """Do what :func:`override` does from here on.

    Returns:
        What ends it by its ``close()``, or at the end of a ``with``; :func:`uninstall` ends all.
    """
    handle = contextlib.ExitStack()
    handle.enter_context(override())
    _installed.append(handle)
    return handle


def uninstall() -> None:
    """End what every :func:`install` began. Contexts of :func:`override` stay as they are."""
    while _installed:
        _installed.pop().close()
