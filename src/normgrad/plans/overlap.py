"""The exact alias check of a call's memory, before anything is written, with its error messages.

Every tensor must have memory. The caller's outputs must be writable, and must not share a byte with
another argument, except that some may have exactly the memory of an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..support.values import describe
from ..tensors.specs import TensorSpec
from ..tensors.strides import Region, overlap

if TYPE_CHECKING:
    from .arguments import Arguments


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
        """Whether this output shares a byte with another tensor, and must not."""
        if address == other_address and self.may_be(other):
            return False
        return overlap(self.spec.region(address), other.spec.region(other_address))

    def check_address(self, value: Any, address: int, on_gpu: bool) -> None:
        """Raise an error for a tensor without memory, or on a GPU for a misaligned one."""
        if not self.spec.elements:
            return
        if address == 0:
            raise TypeError(
                f"{self.name}: {describe(value)} without memory; allowed: a tensor with data"
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
    call: Arguments,
    inputs: Places,
    outputs: Places,
    workspace: Region | None,
    on_gpu: bool,
) -> None:
    """Check the memory of a call's tensors, and of a workspace that the caller provided.

    ``workspace`` is the part of its memory that is used, as bytes.
    """
    tensors, addresses = call.tensors, call.addresses
    # The first byte of each tensor, one past its last, its place and its address.
    spans: list[tuple[int, int, Place, int]] = []
    for place, value, address in zip(inputs, tensors, addresses, strict=False):
        if place is None or value is None:
            continue
        if on_gpu or not address:
            place.check_address(value, address, on_gpu)
        spans.append((address + place.low, address + place.high, place, address))
    open_tensors = call.open_tensors or ()
    # The original memory of inputs that were copied to be read: writing to it would change them.
    originals = [
        (place.name, each.original)
        for place, each in zip(inputs, open_tensors, strict=False)
        if place is not None and each is not None and each.original is not None
    ]

    def check_original(name: str, region: Region) -> None:
        for other, original in originals:
            if overlap(region, original):
                raise _shares(name, other)

    for index, place in enumerate(outputs, len(inputs)):
        value, address = tensors[index], addresses[index]
        if place is None or value is None:
            continue
        if on_gpu or not address:
            place.check_address(value, address, on_gpu)
        each = open_tensors[index] if open_tensors else None
        if each is not None and each.read_only is not None:
            raise ValueError(f"{place.name}: {each.read_only}")
        low, high = address + place.low, address + place.high
        for first, end, other, elsewhere in spans:
            if first < high and low < end and place.overlaps(address, other, elsewhere):
                raise _shares(place.name, other.name, place.in_place)
        if originals:
            check_original(place.name, place.spec.region(address))
        spans.append((low, high, place, address))
    if workspace is not None:
        low, high = workspace.address, workspace.address + workspace.shape[0]
        for first, end, other, elsewhere in spans:
            is_near = first < high and low < end
            if is_near and overlap(workspace, other.spec.region(elsewhere)):
                raise _shares("workspace", other.name)
        check_original("workspace", workspace)


def _shares(name: str, other: str, in_place: Sequence[str] = ()) -> ValueError:
    inputs = " or ".join(in_place)
    words = f", or all of {inputs} with the same strides and dtype" if inputs else ""
    return ValueError(f"{name}: shares memory with {other}; allowed: memory of its own{words}")
