"""The tensors of one call, which share one framework and one device, and the call's signature."""

from __future__ import annotations

import operator as operators
from collections.abc import Hashable, Sequence
from typing import Any

from . import devices, frameworks
from .contract import Operator, Output, Parameter
from .tensor import OpenTensor, TensorSpec, naming
from .unusable import describe


def out_tuple(operator: Operator, out: Any) -> Any:
    """Convert ``out`` to a tuple with an entry for each output, if it is None, a tensor or a list.

    Anything else is left to :func:`out_entries`, which refuses it.
    """
    if out is None:
        return (None,) * len(operator.all_outputs)
    if operator.out_is_tensor:
        return (out,)
    return tuple(out) if isinstance(out, (tuple, list)) else out


def out_entries(outputs: Sequence[Output], out: Any) -> Sequence[Any]:
    """Make an entry for each output from an :func:`out_tuple`: the caller's tensor, or None.

    Entries of outputs that are not computed are None.
    """
    allowed = f"allowed: a tuple of {len(outputs)} tensors or Nones"
    if type(out) is not tuple:
        raise TypeError(f"out: {describe(out)}; {allowed}")
    if len(out) != len(outputs):
        raise ValueError(f"out: {len(out)} entries; {allowed}")
    return [value if output.is_wanted else None for value, output in zip(out, outputs, strict=True)]


class Arguments:
    """The tensors of one call: the inputs, and then the entries of ``out``; None where absent.

    Attributes:
        values: the tensors as the caller passed them.
        framework: the framework of all tensors.
        like: one of the caller's tensors; new results are of its type and on its device.
        first, device: the name of the tensor that decides the device, and that device.
        open_tensors: the tensors, opened.
        tensors: the same tensors as the framework's plain ones.
        is_direct: whether these are the caller's own.
        specs: the specs of the opened tensors, by the names of the operator's inputs and outputs.
        key: the signature, which is all that a plan depends on.
        addresses: the address of each tensor; 0 where absent.
    """

    def __init__(
        self,
        operator: Operator,
        outputs: Sequence[Output],
        tensors: tuple[Any, ...],
        out: Any,
    ) -> None:
        """Check and open every tensor; ``out`` is an :func:`out_tuple`."""
        self.values = (*tensors, *out_entries(outputs, out))
        inputs = operator.names
        titles = (operator.out_name(index, output) for index, output in enumerate(outputs))
        names = (*inputs, *titles)
        # The first tensor that is present decides the framework. A missing required tensor is
        # reported when the specs are checked.
        present = zip(inputs, self.values, strict=False)
        first = next((pair for pair in present if pair[1] is not None), (names[0], None))
        self.first: str = first[0]
        self.like: Any = first[1]
        if self.like is None:
            raise TypeError(f"{self.first}: None; allowed: a tensor")
        self.framework = frameworks.of(*first)
        self.device = self.framework.device(*first)
        devices.check(self.first, self.device)
        self.open_tensors = [
            None if value is None else self._open(name, value, writing=index >= len(inputs))
            for index, (name, value) in enumerate(zip(names, self.values, strict=True))
        ]
        self.tensors = [None if each is None else each.tensor for each in self.open_tensors]
        self.is_direct = all(map(operators.is_, self.values, self.tensors))
        self.addresses = [
            0 if each is None else each.address_for(name)
            for name, each in zip(names, self.open_tensors, strict=True)
        ]
        self.specs: dict[str, TensorSpec | None] = {}
        declared: tuple[Parameter | Output, ...] = (*operator.parameters, *outputs)
        for name, tensor, each in zip(names, self.open_tensors, declared, strict=True):
            self.specs[each.name] = None
            if tensor is not None:
                with naming(name):
                    self.specs[each.name] = tensor.spec(name, each.kind.dtypes)
        self.key: Hashable = (self.framework, self.device, *self.specs.values())

    def _open(self, name: str, value: Any, writing: bool) -> OpenTensor:
        framework = frameworks.of(name, value)
        if framework is not self.framework:
            raise TypeError(
                f"{name}: a {framework.name} among {self.framework.name}s; allowed: one kind for "
                "all arguments"
            )
        devices.check_same(name, framework.device(name, value), self.device, self.first)
        return framework.open(name, value, writing)
