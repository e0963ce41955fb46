"""Physical memory that programs map at addresses which they have reserved."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, NoReturn

from . import pointers
from .blocks import BLOCKS, POISON, POISONED, Block
from .calls import need_memory, refuse
from .enums import aclError, aclrtMemGranularityOptions
from .handles import HANDLES
from .objects import Runtime
from .pointers import Address

_mmap = pointers.c_function(
    "mmap", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
)
_munmap = pointers.c_function("munmap", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)

#: The unit of sizes and addresses, in bytes.
_UNIT = 2 << 20
_ACCESS = mmap.PROT_READ | mmap.PROT_WRITE
#: Flags that Python's mmap does not name.
_FIXED, _NO_RESERVE = 0x10, 0x4000
_UNUSED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
_FAILED = ctypes.c_void_p(-1).value

_ALLOWED = "what aclrtMallocPhysical made"

#: The size of reserved addresses, and where the mapping that they lie in starts, by their start.
_reserved: dict[int, tuple[int, int]] = {}


class _Prop(ctypes.Structure):
    """The structure aclrtPhysicalMemProp."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("handle_type", "allocation_type", "attribute")),
        ("device", ctypes.c_uint32),
        ("location", ctypes.c_int),
        ("reserve", ctypes.c_uint64),
    )


class Physical:
    """Physical memory: a file without a name, which stays while it is mapped."""

    def __init__(self, size: int, is_device: bool) -> None:
        self.size, self.is_device = size, is_device
        self.file = os.memfd_create("normgrad", os.MFD_CLOEXEC)
        os.ftruncate(self.file, size)
        if size <= POISONED:
            for _ in range(size // _UNIT):
                os.write(self.file, bytes([POISON]) * _UNIT)


class Mapped(Block):
    """Physical memory at reserved addresses; what is mapped directly behind it continues it."""

    def __init__(self, address: int, physical: Physical) -> None:
        self.place(address, physical.size, physical.is_device)

    @property
    def end(self) -> int:
        """The first address after this memory and what continues it."""
        end = self.address + self.size
        while isinstance(following := BLOCKS.starting_at(end), Mapped):
            end += following.size
        return end


def _check_size(size: int) -> None:
    if size <= 0 or size % _UNIT:
        refuse("size", f"{size}; allowed: a multiple of {_UNIT}, more than 0")


def _check_zeros(**values: Address) -> None:
    for name, value in values.items():
        if value:
            refuse(name, f"{value:#x}; allowed: 0")


def _no_memory(size: int) -> NoReturn:
    message = f"{size} bytes; allowed: what the machine has"
    refuse("size", message, aclError.ACL_ERROR_RT_MEMORY_ALLOCATION)


def _prop(address: Address) -> _Prop:
    prop = _Prop.from_address(need_memory("prop", address, ctypes.sizeof(_Prop)))
    zeros = {"prop.handleType": prop.handle_type, "prop.allocationType": prop.allocation_type}
    _check_zeros(**zeros)
    if prop.location not in (0, 1):
        allowed = "ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE"
        refuse("prop.location.type", f"{prop.location}; allowed: {allowed}")
    return prop


def aclrtMemGetAllocationGranularity(prop: Address, option: int) -> int:
    _prop(prop)
    if option not in [*aclrtMemGranularityOptions][:2]:
        names = ", ".join(each.name for each in [*aclrtMemGranularityOptions][:2])
        refuse("option", f"{option}; allowed: {names}")
    return _UNIT


def aclrtMallocPhysical(size: int, prop: Address, flags: int) -> int:
    _check_size(size)
    _check_zeros(flags=flags)
    is_device = _prop(prop).location == 1
    try:
        return HANDLES.add(Physical(size, is_device))
    except (OSError, OverflowError):
        _no_memory(size)


def aclrtFreePhysical(handle: Address) -> None:
    os.close(HANDLES.take("handle", Physical, handle, _ALLOWED).file)


def aclrtReserveMemAddress(size: int, alignment: int, expected: Address, flags: int) -> int:
    """Reserve addresses. They can be accessed at any time, so that no mistake ends a program."""
    _check_size(size)
    _check_zeros(alignment=alignment, expectPtr=expected)
    if flags not in (0, 1):
        refuse("flags", f"{flags}; allowed: 0 or 1")
    start: Any = _mmap(None, size + _UNIT, _ACCESS, _UNUSED, -1, 0) if size < 1 << 60 else _FAILED
    if start == _FAILED:
        _no_memory(size)
    first: int = -(-start // _UNIT) * _UNIT
    _reserved[first] = size, start
    return first


def aclrtReleaseMemAddress(address: Address) -> None:
    allowed = "allowed: what aclrtReserveMemAddress reserved"
    if address is None or address not in _reserved:
        refuse("virPtr", f"{'null' if address is None else hex(address)}; {allowed}")
    size, start = _reserved[address]
    if _mappings(address, address + size):
        refuse("virPtr", "addresses with memory; allowed: after aclrtUnmapMem of all of it")
    del _reserved[address]
    BLOCKS.forget(address, address + size)
    _munmap(start, size + _UNIT)


def _mappings(first: int, end: int) -> list[Block]:
    """What is mapped between two addresses."""
    living = [block for block in BLOCKS.living() if isinstance(block, Mapped)]
    return [each for each in living if each.address < end and first < each.address + each.size]


def aclrtMapMem(address: Address, size: int, offset: int, handle: Address, flags: int) -> None:
    physical = HANDLES.need("handle", Physical, handle, _ALLOWED)
    _check_zeros(offset=offset, flags=flags)
    if size != physical.size:
        refuse("size", f"{size}; allowed: {physical.size}, that of the physical memory")
    first = address or 0
    if first % _UNIT or not any(
        start <= first and first + size <= start + room for start, (room, _) in _reserved.items()
    ):
        allowed = f"a multiple of {_UNIT} in what aclrtReserveMemAddress reserved"
        refuse("virPtr", f"{first:#x} and {size} bytes; allowed: {allowed}")
    if _mappings(first, first + size):
        refuse("virPtr", "addresses with memory; allowed: after aclrtUnmapMem")
    if _mmap(first, size, _ACCESS, mmap.MAP_SHARED | _FIXED, physical.file, 0) == _FAILED:
        _no_memory(size)
    BLOCKS.forget(first, first + size)
    BLOCKS.add(Mapped(first, physical))


def unmap(runtime: Runtime, address: Address) -> None:
    """aclrtUnmapMem."""
    runtime.free("virPtr", address, ("aclrtMapMem",))
    block: Any = BLOCKS.find(address or 0)
    _mmap(block.address, block.size, _ACCESS, _UNUSED | _FIXED, -1, 0)
