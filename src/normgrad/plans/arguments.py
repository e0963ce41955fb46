"""The tensors of one call, which share one framework and one device, and the call's signature."""

from __future__ import annotations

import operator as operators
from collections.abc import Sequence
from typing import Any

from ..declarations.contract import Input, Operator, Output
from ..support.values import describe
from ..tensors import devices, frameworks
from ..tensors.frameworks import Framework
from ..tensors.specs import OpenTensor, TensorSpec, naming


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

    If they are plain and their signature is that of an earlier call, only their memory remains to
    be checked. Otherwise :meth:`open` checks everything.

    Attributes:
        signature: all of the tensors on which a plan depends. Of plain tensors it is what can be
            seen at a glance; if there is another among them, it is None until all are opened, and
            then their framework, device and specs.
        values: the tensors as the caller passed them.
        framework: the framework of all tensors.
        like: one of the caller's tensors; new results are of its type and on its device.
        first, device: the name of the tensor that decides the device, and that device.
        open_tensors: the tensors, opened; None until then.
        tensors: the same tensors as the framework's plain ones.
        is_direct: whether these are the caller's own, and plain.
        specs: the specs of the opened tensors, by the names of the operator's inputs and outputs.
        addresses: the address of each tensor; 0 where absent.
        rooms: see :class:`.frameworks.Seen`.
    """

    framework: Framework
    addresses: Sequence[int]
    open_tensors: Sequence[OpenTensor | None] | None = None
    signature: tuple[Any, ...] | None = None

    def __init__(self, tensors: tuple[Any, ...], out: Any) -> None:
        """Look at the tensors; ``out`` is an :func:`out_tuple`."""
        self._inputs, self._out = tensors, out
        self.like = tensors[0]
        framework = frameworks.of_plain(self.like)
        if framework is None or type(out) is not tuple:
            return
        self.framework = framework
        self.values = self.tensors = (*tensors, *out)
        seen = framework.look(self.values, len(tensors))
        if seen is not None:
            self.signature, self.addresses, self.rooms, self._owners = seen

    @classmethod
    def at(cls, addresses: Sequence[int], owners: Sequence[Any]) -> Arguments:
        """Tensors at addresses of the CPU's memory, which ``owners`` keep alive."""
        arguments = cls.__new__(cls)
        arguments.addresses, arguments.tensors = addresses, tuple(owners)
        return arguments

    def open(self, operator: Operator, outputs: Sequence[Output]) -> None:
        """Check and open every tensor."""
        self.values = (*self._inputs, *out_entries(outputs, self._out))
        inputs = operator.names
        titles = (operator.out_name(index, output) for index, output in enumerate(outputs))
        names = (*inputs, *titles)
        # The first tensor that is present decides the framework. A missing required tensor is
        # reported when the specs are checked.
        present = zip(inputs, self.values, strict=False)
        first = next((pair for pair in present if pair[1] is not None), (names[0], None))
        self.first: str = first[0]
        self.like = first[1]
        if self.like is None:
            raise TypeError(f"{self.first}: None; allowed: a tensor")
        self.framework = frameworks.of(*first)
        self.device = self.framework.device(*first)
        devices.check(self.first, self.device)
        self.open_tensors = [
            None if value is None else self._open(name, value, writing=index >= len(inputs))
            for index, (name, value) in enumerate(zip(names, self.values, strict=True))
        ]
        self.tensors = tuple([each and each.tensor for each in self.open_tensors])
        is_own = all(map(operators.is_, self.values, self.tensors))
        self.is_direct = is_own and self.signature is not None
        self.addresses = [
            0 if each is None else each.address_for(name)
            for name, each in zip(names, self.open_tensors, strict=True)
        ]
        self.specs: dict[str, TensorSpec | None] = {}
        declared: tuple[Input | Output, ...] = (*operator.inputs, *outputs)
        for name, tensor, each in zip(names, self.open_tensors, declared, strict=True):
            self.specs[each.name] = None
            if tensor is not None:
                with naming(name):
                    self.specs[each.name] = tensor.spec(name, each.kind.dtypes)
        if not self.is_direct:
            self.signature = (self.framework, self.device, *self.specs.values())

    def _open(self, name: str, value: Any, writing: bool) -> OpenTensor:
        framework = frameworks.of(name, value)
        if framework is not self.framework:
            raise TypeError(
                f"{name}: a {framework.name} among {self.framework.name}s; allowed: one kind for "
                "all arguments"
            )
        devices.check_same(name, framework.device(name, value), self.device, self.first)
        return framework.open(name, value, writing)
