"""One call's tensors: of one framework, on one device, in terms that a plan can compare."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import devices, frameworks, layout, memory
from .contract import Kind, Operator, Output
from .frameworks import Framework
from .tensor import TensorSpec, naming


def out_entries(operator: Operator, outputs: Sequence[Output], out: Any) -> Sequence[Any]:
    """The caller's tensors for the wanted outputs, one entry for each result.

    Raises:
        TypeError: ``out`` is no tuple.
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
    """One call's tensors.

    Plain tensors are looked at, no more: enough to find out whether the like of them has been seen.
    If not, :meth:`open` makes sure of them.

    Attributes:
        framework: what they all belong to.
        like: one of the caller's own.
        first, device: the name of the tensor that decides where all are, and where that is; once
            opened.
        opened: the inputs, in the form the framework's methods take; None where absent.
        out: the caller's outputs, likewise.
        given: the caller's outputs as they were given.
        key: everything that a plan depends on; None until opened, where they are not plain.
        addresses: where the inputs and then the caller's outputs are; 0 where absent.
        rooms: how many bytes of memory each has there, where that may be too little.
        plain: whether all are plain tensors, and the outputs not known to be read-only.
        copied: the memory of inputs that were copied to be opened, by name; once opened.
    """

    __slots__ = (
        "_operator",
        "_outputs",
        "_values",
        "addresses",
        "copied",
        "device",
        "first",
        "framework",
        "given",
        "key",
        "like",
        "opened",
        "out",
        "plain",
        "rooms",
    )

    def __init__(
        self,
        operator: Operator,
        outputs: Sequence[Output],
        values: Sequence[Any],
        given: Sequence[Any],
    ) -> None:
        self._operator = operator
        self._outputs = outputs
        self._values = values
        self.given = given
        self.like = values[0]
        self.opened: Sequence[Any] = values
        self.out: Sequence[Any] = given
        framework = frameworks.BY_TYPE.get(type(self.like))
        self.key: Hashable = None
        self.plain = True
        self.copied: dict[str, layout.Region] = {}
        self.rooms: Sequence[int] | None = None
        if framework is not None:
            self.framework: Framework = framework
            look = framework.look(values, given)
            if look is not None:
                self.key, self.addresses, self.rooms = look

    def open(self) -> None:
        """Check every tensor, and bring it into the form that the framework's methods take.

        Raises:
            TypeError: something that is no tensor, or another framework's.
            ValueError: a tensor on another device than the first, or on one that cannot be used.
        """
        values, given = self._values, self.given
        operator = self._operator
        # Whatever is there decides the framework; a required tensor that is not is found missing
        # when the specs are checked.
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
        if self.key is None or any(value is not opened for value, opened in as_they_are):
            # Not plain tensors: their specs say all that matters.
            self.plain = False
            specs, out_specs = self.specs()
            self.key = (self.framework, self.device, *specs.values(), *out_specs.values())

    def _names(self) -> list[str]:
        """What messages call the inputs and the caller's outputs."""
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
        """The inputs' and outputs' specs, by name.

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


class Place:
    """Where a tensor of known spec is allowed to be: the checks on memory, call by call."""

    __slots__ = ("high", "low", "name", "shown", "spec")

    def __init__(self, name: str, spec: TensorSpec, shown: str | None = None) -> None:
        self.name = name
        self.shown = name if shown is None else shown  # in messages
        self.spec = spec
        low, end = spec.region(0).bounds()
        self.low, self.high = low, end

    def check_readable(self, framework: Framework, value: Any, address: int) -> None:
        """Raise a ValueError if an input cannot be read."""
        reason = framework.unreadable(value, address + self.low, address + self.high)
        if reason is not None:
            raise ValueError(f"{self.shown}: {reason}")

    def check_writable(self, framework: Framework, value: Any, address: int) -> None:
        """Raise a ValueError if an output cannot be written."""
        reason = framework.unwritable(value, address + self.low, address + self.high)
        if reason is not None:
            raise ValueError(f"{self.shown}: {reason}")

    def check_room(self, room: int) -> None:
        """Raise a ValueError if so much memory is less than the tensor reaches over."""
        if room < self.high:
            raise ValueError(f"{self.shown}: {memory.lacking(room, self.high)}")

    def overlaps(self, address: int, other: Place, other_address: int) -> bool:
        """Whether two tensors share a byte."""
        if (
            address + self.high <= other_address + other.low
            or other_address + other.high <= address + self.low
        ):
            return False
        return layout.overlap(self.spec.region(address), other.spec.region(other_address))


class Scratch:
    """A workspace: its first aligned address, and what keeps it alive."""

    __slots__ = ("address", "owner")

    def __init__(
        self, size: int, alignment: int, workspace: Any = None, device: str = devices.CPU
    ) -> None:
        self.owner: Any
        start: int
        if workspace is not None:
            found = (
                memory_of("workspace", workspace, writing=True)
                if device == devices.CPU
                else _memory_on(device, "workspace", workspace)
            )
            start, given, self.owner, *_ = found
            if given < size:
                raise ValueError(f"workspace: {given} bytes; allowed: at least {size}")
        elif device == devices.CPU:
            try:
                self.owner = np.empty(size, np.uint8)
            except MemoryError:
                raise memory.missing("workspace", size) from None
            start = self.owner.ctypes.data
        else:
            # Gone before the kernels are through: PyTorch's allocator gives it to nobody but those
            # who come after them on their stream.
            self.owner = frameworks.of_torch().bytes_on(device, size)
            start = self.owner.data_ptr()
        self.address = -(-start // alignment) * alignment


class Memory(NamedTuple):
    """Bytes, most often such as follow each other, and what keeps them alive.

    ``problem`` says why they cannot be used, where that is so.
    """

    address: int
    nbytes: int
    owner: Any
    writeable: bool
    problem: str | None = None

    def lost(self) -> str | None:
        """Why they can no longer be used, though they could; None if they can."""
        owner = self.owner
        moved = False
        if isinstance(owner, np.ndarray):
            # Only an array with memory of its own can be resized.
            moved = owner.flags.owndata and (
                owner.ctypes.data != self.address or owner.nbytes != self.nbytes
            )
        elif isinstance(owner, Allocation):
            return None if owner.freed_by is None else f"its memory was freed by {owner.freed_by}"
        else:
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(owner, torch.Tensor):
                moved = (
                    owner.data_ptr() != self.address
                    or owner.nbytes != self.nbytes
                    or frameworks.of_torch().lacking(owner) is not None
                )
        return "its memory was moved" if moved else None


class Allocation:
    """An owner of memory that can be freed while others still hold it.

    Attributes:
        freed_by: the function that freed it, or None.
    """

    freed_by: str | None = None


def _memory_on(device: str, name: str, value: Any) -> Memory:
    """The memory of a contiguous tensor on a GPU, of any dtype, to be written.

    Raises:
        TypeError: no tensor.
        ValueError: not contiguous, read-only, or elsewhere.
    """
    allowed = f"a writable, contiguous tensor on {device}"
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name}: a {type(value).__name__}; allowed: {allowed}")
    try:
        framework = frameworks.of(name, value)
    except TypeError:
        raise TypeError(f"{name}: a {type(value).__name__}; allowed: {allowed}") from None
    where = framework.device(name, value)
    if where != device:
        raise ValueError(f"{name}: on device {where}; allowed: {device}, as in the plan")
    opened = framework.opened(name, value, writing=True)
    size = framework.contiguous_bytes(opened)
    if size is None:
        raise ValueError(f"{name}: not contiguous; allowed: {allowed}")
    address = framework.address(name, opened)
    reason = framework.unwritable(opened, address, address + size)
    if reason is not None:
        raise ValueError(f"{name}: {reason}")
    return Memory(address, size, opened, True)


def memory_of(name: str, value: Any, writing: bool) -> Memory:
    """The memory of a contiguous NumPy array, PyTorch CPU tensor or buffer, of any dtype.

    Raises:
        TypeError: none of them.
        ValueError: not contiguous, not on the CPU, or read-only where it is to be written.
    """
    if type(value) is Memory:
        if value.problem is not None:
            raise ValueError(f"{name}: {value.problem}")
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        framework = frameworks.of_torch()
        device = framework.device(name, value)
        if device != devices.CPU:
            raise ValueError(f"{name}: on device {device}; allowed: cpu")
        try:
            opened = framework.opened(name, value, writing=True)
        except TypeError:
            opened = None
        size = None if opened is None else framework.contiguous_bytes(opened)
        if size is None:
            raise ValueError(f"{name}: not a contiguous CPU tensor; allowed: a contiguous one")
        return Memory(framework.address(name, opened), size, opened, True)
    try:
        if isinstance(value, np.ndarray):  # of any dtype; not all can be a memoryview
            array = np.asarray(value)
            holds_objects, writeable = array.dtype.hasobject, array.flags.writeable
            contiguous = array.flags.c_contiguous
        else:
            view = memoryview(value)
            holds_objects, writeable = "O" in view.format, not view.readonly
            contiguous = view.c_contiguous
    except (TypeError, ValueError):
        allowed = "a writable buffer" if writing else "a buffer"
        raise TypeError(f"{name}: a {type(value).__name__}; allowed: {allowed}") from None
    if holds_objects:
        raise TypeError(f"{name}: a buffer of Python objects; allowed: one of plain bytes")
    if not contiguous or (writing and not writeable):
        allowed = "a writable, contiguous buffer" if writing else "a contiguous buffer"
        raise ValueError(
            f"{name}: {'read-only' if contiguous else 'not contiguous'}; allowed: {allowed}"
        )
    if not isinstance(value, np.ndarray):
        array = np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)
    return Memory(array.ctypes.data, array.nbytes, array, writeable)
