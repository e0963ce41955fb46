"""The tensors of one call, which share one framework and one device, and the call's signature."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from . import devices, frameworks, layout
from .contract import Kind, Operator, Output
from .frameworks import Framework
from .tensor import TensorSpec, naming


def out_entries(operator: Operator, outputs: Sequence[Output], out: Any) -> Sequence[Any]:
    """Split ``out`` into one entry for each output: the caller's tensor, or None to allocate it.

    Entries of outputs that are not wanted are None.

    Raises:
        TypeError: ``out`` is neither a tuple nor a list.
        ValueError: it has too few entries, or too many.
    """
    if operator.out_is_tensor:
        return (out,)
    if out is None:
        return (None,) * len(outputs)
    if type(out) is tuple and len(out) == len(outputs):
        return [value if output.wanted else None for value, output in zip(out, outputs)]  # noqa: B905 - a small call's time
    allowed = f"a tuple of {len(outputs)} tensors or Nones"
    if not isinstance(out, (tuple, list)):
        raise TypeError(f"out: a {type(out).__name__}; allowed: {allowed}")
    if len(out) != len(outputs):
        raise ValueError(f"out: {len(out)} entries; allowed: {allowed}")
    return [value if output.wanted else None for value, output in zip(out, outputs, strict=True)]


class Arguments:
    """The tensors of one call.

    If all are plain PyTorch tensors on one GPU, only the signature is read at first, which is
    enough if a plan is cached for it. In all other cases :meth:`open` checks each tensor.

    Attributes:
        framework: the framework of all tensors.
        like: one of the caller's tensors; new results are of its type and on its device.
        first, device: the name of the tensor that decides the device, and that device; set by
            :meth:`open`.
        opened: the inputs, in the form that the framework's methods take; None where absent.
        out: the caller's outputs in that form.
        given: the outputs as the caller passed them.
        key: the signature, which is all that a plan depends on; :meth:`open` sets it, unless all
            are plain tensors on one GPU.
        addresses: the addresses of the inputs, then of the caller's outputs; 0 where absent.
        rooms: the bytes from each address to the end of the tensor's memory, which may be too few;
            None where opening checks them.
        plain_on_gpu: whether all are plain tensors on one GPU, which need no opening.
        values: the inputs as the caller passed them.
        changed: whether :meth:`open` replaced any tensor by another.
        copied: the original memory of inputs that :meth:`open` copied, by name.
    """

    __slots__ = (
        "_operator",
        "_outputs",
        "addresses",
        "changed",
        "copied",
        "device",
        "first",
        "framework",
        "given",
        "key",
        "like",
        "opened",
        "out",
        "plain_on_gpu",
        "rooms",
        "values",
    )

    def __init__(
        self,
        operator: Operator,
        outputs: Sequence[Output],
        values: tuple[Any, ...],
        given: Sequence[Any],
    ) -> None:
        self._operator = operator
        self._outputs = outputs
        self.values = values
        self.given = given
        self.like = values[0]
        self.opened: Sequence[Any] = values
        self.out: Sequence[Any] = given
        self.key: Hashable = None
        self.copied: dict[str, layout.Region] = {}
        self.rooms: Sequence[int] | None = None
        framework = frameworks.BY_TYPE.get(type(self.like))
        if framework is not None:
            self.framework: Framework = framework
            signature = framework.look(values, given)
            if signature is not None:
                self.key, self.addresses, self.rooms = signature
        self.plain_on_gpu = self.key is not None
        self.changed = False

    def open(self) -> None:
        """Check every tensor, and convert it to the form that the framework's methods take.

        Raises:
            TypeError: something that is not a tensor, or a tensor of another framework.
            ValueError: a tensor on another device than the first, or on one that cannot be used.
        """
        values, given = self.values, self.given
        operator = self._operator
        # The first tensor that is present decides the framework. A missing required tensor is
        # reported when the specs are checked.
        named = zip(operator.parameters, values, strict=True)
        first: tuple[str, Any] = next(
            ((parameter.name, value) for parameter, value in named if value is not None),
            (operator.parameters[0].name, None),
        )
        self.like = first[1]
        if self.like is None:
            raise TypeError(f"{first[0]}: None; allowed: a tensor")
        self.first = first[0]
        self.framework = frameworks.of(*first)
        self.device = self.framework.device(*first)
        devices.check(self.first, self.device)
        self.opened = [
            None if value is None else self._open(parameter.name, value, writing=False)
            for parameter, value in zip(operator.parameters, values, strict=True)
        ]
        for parameter, value, opened in zip(operator.parameters, values, self.opened, strict=True):
            region = None if value is None else self.framework.copied(value, opened)
            if region is not None:
                self.copied[parameter.name] = region
        self.out = [
            None
            if value is None
            else self._open(operator.out_name(index, self._outputs[index]), value, writing=True)
            for index, value in enumerate(given)
        ]
        self.addresses = [
            0 if value is None else self.framework.address(name, value)
            for name, value in zip(self._names(), (*self.opened, *self.out), strict=True)
        ]
        as_they_are = zip((*values, *given), (*self.opened, *self.out), strict=True)
        self.changed = any(value is not opened for value, opened in as_they_are)
        if self.key is None or self.changed:
            # There is no signature in the framework's own terms, so the specs serve as one.
            self.plain_on_gpu = False
            specs, out_specs = self.specs()
            self.key = (self.framework, self.device, *specs.values(), *out_specs.values())

    def _names(self) -> list[str]:
        """The names of the inputs and of the caller's outputs in messages."""
        operator = self._operator
        return [
            *(parameter.name for parameter in operator.parameters),
            *(operator.out_name(index, output) for index, output in enumerate(self._outputs)),
        ]

    def _open(self, name: str, value: Any, writing: bool) -> Any:
        framework = frameworks.of(name, value)
        if framework is not self.framework:
            raise TypeError(
                f"{name}: a {framework.name} among {self.framework.name}s; allowed: one kind for "
                "all arguments"
            )
        devices.check_same(name, framework.device(name, value), self.device, self.first)
        return framework.opened(name, value, writing)

    def specs(self) -> tuple[dict[str, TensorSpec | None], dict[str, TensorSpec | None]]:
        """The specs of the inputs and of the caller's outputs, by name.

        Raises:
            TypeError: a dtype that no operator takes.
            ValueError: a tensor that memory cannot hold.
        """

        def spec(name: str, value: Any, kind: Kind) -> TensorSpec:
            with naming(name):
                return self.framework.spec(name, value, kind.dtypes)

        inputs = {
            parameter.name: None if value is None else spec(parameter.name, value, parameter.kind)
            for parameter, value in zip(self._operator.parameters, self.opened, strict=True)
        }
        return inputs, {
            output.name: None
            if value is None
            else spec(self._operator.out_name(index, output), value, output.kind)
            for index, (output, value) in enumerate(zip(self._outputs, self.out, strict=True))
        }
