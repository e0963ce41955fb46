"""Blocks: memory that programs allocate through the C libraries, found by any address in them."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from bisect import bisect_right, insort
from collections import deque

from .. import pages
from ..memory import aligned
from ..workspaces import Allocation, Memory
from . import pointers
from .calls import CURRENT, ERRORS

#: New blocks up to this size are filled with bytes that are NaN in every floating-point dtype, so
#: that reads of uninitialised memory show. Larger blocks may be pools that are never fully used.
POISONED = 64 << 20
POISON = 0xFF

#: The limits on freed blocks whose addresses are not reused, so that a use after free is detected:
#: their number, and their total bytes. The last freed block always counts as freed. The pages of
#: freed blocks from a certain size on go back to the system.
_MOST_FREED, _MOST_FREED_BYTES = 1024, 4 << 30
_RETURNED_FROM = 64 << 10

#: The function that frees the memory of a device.
RESET = "aclrtResetDevice"

#: The size that stands for memory of unknown size.
UNKNOWN_SIZE = 1 << 62


class Block(Allocation):
    """Memory from one allocation.

    Attributes:
        is_device: whether the block stands for a device's memory.
        maker, caller: the name of the function that allocated the block, and the address in the
            program where it was called.
        context: the device and the context that the block belongs to; 0 for the device's own.
    """

    def __init__(self, size: int, is_device: bool) -> None:
        try:
            self.memory = aligned(size)  # as aclrtMalloc's is
        except ValueError as error:  # the size exceeds the address space
            raise MemoryError(str(error)) from None
        self.place(self.memory.ctypes.data, size, is_device)
        if size <= POISONED:
            ctypes.memset(self.address, POISON, size)

    def place(self, address: int, size: int, is_device: bool) -> None:
        """Set the attributes."""
        self.address, self.size, self.is_device = address, size, is_device
        self.maker, self.caller = CURRENT.function.name, ERRORS.caller()
        self.freed_by: str | None = None
        self.context = (0, 0)

    @property
    def end(self) -> int:
        """The first address after the block."""
        return self.address + self.size


class Blocks:
    """The blocks of this process, including the blocks that were freed last."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # the blocks' addresses, ascending
        self._blocks: dict[int, Block] = {}
        self._freed: deque[Block] = deque()
        self._freed_bytes = 0
        self._lock = threading.Lock()
        # A fork waits for the lock, so that the child gets consistent lists and a released lock.
        release = self._lock.release
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=release, after_in_child=release
        )

    def allocate(self, size: int, is_device: bool) -> Block:
        """Allocate a new block, or raise a MemoryError."""
        try:
            block = Block(size, is_device)
        except MemoryError:
            with self._lock:
                while self._freed:
                    self._drop_oldest()
            block = Block(size, is_device)
        self.add(block)
        return block

    def add(self, block: Block) -> None:
        """Add a block at addresses at which there is none."""
        with self._lock:
            insort(self._starts, block.address)
            self._blocks[block.address] = block

    def forget(self, first: int, end: int) -> None:
        """Forget the freed blocks that start between two addresses, which are used again."""
        with self._lock:
            for block in [block for block in self._freed if first <= block.address < end]:
                self._freed.remove(block)
                self._freed.appendleft(block)
                self._drop_oldest()

    def starting_at(self, address: int) -> Block | None:
        """The block that starts at an address and was not freed; None if there is none."""
        block = self._blocks.get(address)
        return block if block is not None and block.freed_by is None else None

    def _drop_oldest(self) -> None:
        block = self._freed.popleft()
        self._freed_bytes -= block.size
        del self._starts[bisect_right(self._starts, block.address) - 1]
        del self._blocks[block.address]

    def free(self, block: Block) -> bool:
        """Free a block; False if the program has freed it already, rather than a reset."""
        with self._lock:
            freed_by = block.freed_by
            if freed_by not in (None, RESET):
                return False
            block.freed_by = CURRENT.function.name
            if freed_by == RESET:
                return True
            self._freed.append(block)
            self._freed_bytes += block.size
            while len(self._freed) > 1 and (
                len(self._freed) > _MOST_FREED or self._freed_bytes > _MOST_FREED_BYTES
            ):
                self._drop_oldest()
        if block.size >= _RETURNED_FROM:  # the pages go to the system; the addresses stay in use
            pages.advise(block.address, block.end, mmap.MADV_DONTNEED)
        return True

    def find(self, address: int) -> Block | None:
        """The block that contains an address, whether freed or not; None if there is none."""
        with self._lock:
            at = bisect_right(self._starts, address)
            block = self._blocks[self._starts[at - 1]] if at else None
        return block if block is not None and address < block.end else None

    def living(self) -> list[Block]:
        """The blocks that were not freed, in the order of allocation."""
        with self._lock:
            return [block for block in self._blocks.values() if block.freed_by is None]


BLOCKS = Blocks()


def memory_at(address: int | None, nbytes: int | None = None) -> Memory | None:
    """The memory that a pointer points to, up to its block's end; None for null.

    ``nbytes`` is the size of memory outside all blocks, if it is known.
    """
    if address is None:
        return None
    block = BLOCKS.find(address)
    if block is None:
        return Memory(address, UNKNOWN_SIZE if nbytes is None else nbytes, FOREIGN, True)
    problem = block.freed_by and f"memory that {block.freed_by} has freed; allowed: not freed"
    return Memory(address, block.end - address, block, True, problem)


def with_problem(memory: Memory, first: int, end: int, writing: bool) -> Memory:
    """The same memory, with a problem if it is outside all blocks and cannot be accessed."""
    if memory.owner is not FOREIGN:
        return memory
    return memory._replace(problem=pointers.problem(first, end, writing))


#: The owner of memory outside all blocks.
FOREIGN = Allocation()
