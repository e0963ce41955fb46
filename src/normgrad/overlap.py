"""The exact alias check of a call's memory, before anything is written, with its error messages.

Every tensor must have memory. The caller's outputs must be writable, and must not share a byte with
another argument, except that some may have exactly the memory of an input. The compiled check
(alias_check.py) passes the simple cases; a call that fails there is checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import devices, layout, pages
from .arguments import Arguments
from .tensor import TensorSpec


def used(workspace_size: int, alignment: int) -> int:
    """The number of bytes of a workspace that are used, from the first aligned byte on."""
    return max(0, workspace_size - alignment + 1)


class Place(NamedTuple):
    """The memory that a tensor with a known spec needs, and that it may share.

    Attributes:
        slot: the tensor's index among a call's addresses.
        name: its name in messages.
        spec: its spec.
        low, high: the offsets of the first byte and of one past the last byte from the address.
        in_place: the names of the inputs that this output may overwrite, by having exactly their
            memory.
    """

    slot: int
    name: str
    spec: TensorSpec
    low: int
    high: int
    in_place: Sequence[str] = ()

    def may_be(self, other: Place) -> bool:
        """Whether this output may have exactly the memory of an input."""
        return other.name in self.in_place and other.spec == self.spec

    def overlaps(self, address: int, other: Place, other_address: int) -> bool:
        """Whether two tensors share a byte."""
        if (
            address + self.high <= other_address + other.low
            or other_address + other.high <= address + self.low
        ):
            return False
        return layout.overlap(self.spec.region(address), other.spec.region(other_address))

    def check_address(self, value: Any, address: int, on_gpu: bool) -> None:
        """Raise an error for a tensor without memory, or on a GPU for a misaligned one."""
        if not self.spec.elements:
            return
        if address == 0:
            raise TypeError(
                f"{self.name}: a {type(value).__name__} without memory; allowed: a tensor with data"
            )
        size = self.spec.dtype.itemsize
        if on_gpu and address % size:  # the fault would end all work on the GPU
            raise ValueError(
                f"{self.name}: {self.spec.dtype} at an address that is no multiple of {size}; "
                "allowed: elements at multiples of their size"
            )


#: The places of an operator's inputs or outputs, in their order; None for absent ones.
Places = Sequence[Place | None]


def check(
    arguments: Arguments,
    inputs: Places,
    outputs: Places,
    workspace: layout.Region | None,
) -> None:
    """Check the memory of a call's tensors, and of a workspace that the caller provided.

    Raises:
        TypeError: a tensor without memory.
        ValueError: memory that cannot be read, or written, or that is shared and must not be.
    """
    on_gpu = arguments.device != devices.CPU
    probes_inputs = not (arguments.framework.trusted or on_gpu)
    tensors = list(zip(arguments.opened, arguments.addresses, strict=True))
    taken: list[tuple[Place, int]] = []
    # The original memory of inputs that were copied to be read: writing to it would change them.
    copied: list[tuple[str, layout.Region]] = []
    for place, (opened, address) in zip(inputs, tensors, strict=False):
        if place is None or opened is None:
            continue
        place.check_address(opened.tensor, address, on_gpu)
        if probes_inputs:
            reason = pages.unreadable(address + place.low, address + place.high)
            if reason is not None:
                raise ValueError(f"{place.name}: {reason}")
        taken.append((place, address))
        if opened.original is not None:
            copied.append((place.name, opened.original))

    def check_copied(name: str, region: layout.Region) -> None:
        for other, original in copied:
            if layout.overlap(region, original):
                raise _shares(name, other)

    for place, (opened, address) in zip(outputs, tensors[len(inputs) :], strict=True):
        if place is None or opened is None:
            continue
        place.check_address(opened.tensor, address, on_gpu)
        reason = opened.read_only
        # The system cannot probe a GPU's pages. On the CPU it knows of read-only memory that the
        # framework did not allocate.
        if reason is None and not on_gpu:
            reason = pages.unwritable(address + place.low, address + place.high)
        if reason is not None:
            raise ValueError(f"{place.name}: {reason}")
        for other, elsewhere in taken:
            if address == elsewhere and place.may_be(other):
                continue
            if place.overlaps(address, other, elsewhere):
                raise _shares(place.name, other.name, place.in_place)
        check_copied(place.name, place.spec.region(address))
        taken.append((place, address))
    if workspace is not None:
        reason = None if on_gpu else pages.unwritable(*workspace.bounds())
        if reason is not None:
            raise ValueError(f"workspace: {reason}")
        for other, elsewhere in taken:
            if layout.overlap(workspace, other.spec.region(elsewhere)):
                raise _shares("workspace", other.name)
        check_copied("workspace", workspace)


def _shares(name: str, other: str, in_place: Sequence[str] = ()) -> ValueError:
    inputs = " or ".join(in_place)
    words = f", or all of {inputs} with the same strides and dtype" if inputs else ""
    return ValueError(f"{name}: shares memory with {other}; allowed: memory of its own{words}")
