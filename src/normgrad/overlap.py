"""The exact alias check of a call's memory, before anything is written, with its error messages.

Every tensor must have memory. The caller's outputs must be writable, and must not share a byte with
another argument, except that some may have exactly the memory of an input. The CPU backend's
compiled check (alias_check.py) passes the simple cases; a call that fails there is checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import layout, memory, pages
from .frameworks import Framework
from .tensor import TensorSpec


def used(workspace_size: int, alignment: int) -> int:
    """The number of bytes of a workspace that are used, from the first aligned byte on."""
    return max(0, workspace_size - alignment + 1)


class Place:
    """The memory that a tensor with a known spec needs, and that it may share.

    Attributes:
        slot: the tensor's index among a call's addresses.
        name, spec: the tensor's name and spec.
        shown: its name in messages.
        low, high: the offsets of the first byte and of one past the last byte from the address.
        in_place, in_place_shown: the inputs that this output may overwrite, by having exactly their
            memory; and their names in messages.
    """

    __slots__ = ("high", "in_place", "in_place_shown", "low", "name", "shown", "slot", "spec")

    def __init__(
        self,
        slot: int,
        name: str,
        spec: TensorSpec,
        shown: str | None = None,
        in_place: Sequence[str] = (),
        in_place_shown: Sequence[str] = (),
    ) -> None:
        self.slot = slot
        self.name = name
        self.spec = spec
        self.shown = name if shown is None else shown
        self.low, self.high = spec.reach
        self.in_place = in_place
        self.in_place_shown = in_place_shown

    def may_be(self, other: Place) -> bool:
        """Whether this output may have exactly the memory of an input."""
        return other.name in self.in_place and other.spec == self.spec

    def check_memory(self, value: Any) -> None:
        """Raise a TypeError for a tensor at address 0, unless it has no elements."""
        if self.spec.elements:
            raise TypeError(
                f"{self.shown}: a {type(value).__name__} without memory; allowed: a tensor with "
                "data"
            )

    def check_aligned(self, address: int) -> None:
        """Raise a ValueError for a misaligned tensor, whose fault would end all work on the GPU."""
        size = self.spec.dtype.itemsize
        if self.spec.elements and address % size:
            raise ValueError(
                f"{self.shown}: {self.spec.dtype} at an address that is no multiple of {size}; "
                "allowed: elements at multiples of their size"
            )

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
        """Raise a ValueError if a tensor needs more than the ``room`` bytes of its memory."""
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


class Taken:
    """The memory that a call's arguments occupy, as they are added one by one.

    ``copied`` is the original memory of inputs that were copied to be read, by their names in
    messages. Outputs must not share it either, since writing to them would change the inputs.
    """

    def __init__(
        self, framework: Framework, on_gpu: bool, copied: dict[str, layout.Region]
    ) -> None:
        self._framework = framework
        self._on_gpu = on_gpu
        self._copied = copied
        self._places: list[tuple[Place, int]] = []

    def read(self, place: Place, value: Any, address: int) -> None:
        """Add an input's memory.

        Raises:
            TypeError: a tensor without memory.
            ValueError: one that cannot be read.
        """
        self._check_address(place, value, address)
        place.check_readable(self._framework, value, address)
        self._places.append((place, address))

    def write(self, place: Place, value: Any, opened: Any, address: int) -> None:
        """Add the memory of an output that the caller provided.

        Raises:
            TypeError: a tensor without memory.
            ValueError: a tensor that cannot be written, or that shares memory it must not share.
        """
        self._check_address(place, value, address)
        place.check_writable(self._framework, opened, address)
        for other, elsewhere in self._places:
            if address == elsewhere and place.may_be(other):
                continue
            if place.overlaps(address, other, elsewhere):
                raise _shares(place.shown, other.shown, place.in_place_shown)
        self._check_copied(place.shown, place.spec.region(address))
        self._places.append((place, address))

    def work_in(self, start: int, size: int) -> None:
        """Add the bytes of a workspace that the caller provided.

        Raises:
            ValueError: the bytes cannot be written, or are shared.
        """
        reason = None if self._on_gpu else pages.unwritable(start, start + size)
        if reason is not None:
            raise ValueError(f"workspace: {reason}")
        region = layout.Region(start, (size,), (1,), 1)
        for other, elsewhere in self._places:
            if layout.overlap(region, other.spec.region(elsewhere)):
                raise _shares("workspace", other.shown)
        self._check_copied("workspace", region)

    def _check_address(self, place: Place, value: Any, address: int) -> None:
        if address == 0:
            place.check_memory(value)
        if self._on_gpu:
            place.check_aligned(address)

    def _check_copied(self, shown: str, region: layout.Region) -> None:
        for name, source in self._copied.items():
            if layout.overlap(region, source):
                raise _shares(shown, name)


def _shares(shown: str, other: str, in_place_shown: Sequence[str] = ()) -> ValueError:
    inputs = " or ".join(in_place_shown)
    words = f", or all of {inputs} with the same strides and dtype" if inputs else ""
    return ValueError(f"{shown}: shares memory with {other}; allowed: memory of its own{words}")
