"""What both runtimes have: memory, copies, streams and events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..unusable import Unusable
from . import libc, pointers
from .blocks import BLOCKS, Block, host_memory_is_allowed
from .handles import HANDLES

#: More axes than anything has: a number of them that is none.
MOST_AXES = 1024


class Stream:
    """A queue of work. Work is done at once, so none is ever waiting."""


class Event:
    """A moment.

    Attributes:
        recorded: when, in seconds; None if it was not.
    """

    def __init__(self) -> None:
        self.recorded: float | None = None


class Runtime:
    """The functions of a runtime, with the errors of its dialect.

    Args:
        fail: raises the dialect's error, for a function, a parameter, and what is wrong with it.
        checks_sides: whether host and device memory have to be told apart.
        makers: the function that makes each kind of handle.
    """

    def __init__(
        self,
        fail: Callable[[str, str, str], NoReturn],
        checks_sides: bool,
        makers: Mapping[type[Any], str],
    ) -> None:
        self.fail = fail
        self.checks_sides = checks_sides
        self._makers = makers

    def out(self, function: str, name: str, address: int | None) -> int:
        """A pointer to write through: not null."""
        if address is None:
            self.fail(function, name, "null; allowed: a pointer to write to")
        return address

    # Streams and events

    def create(self, function: str, name: str, address: int | None, value: object) -> None:
        """Make a handle of something, and write it through a pointer."""
        where = self.out(function, name, address)
        libc.store(ctypes.c_void_p, where, HANDLES.add(value, function))

    def find(self, function: str, name: str, kind: type[Any], handle: int | None) -> Any:
        """What is behind a handle that may not be null."""
        return self._there(function, name, kind, HANDLES.find_a(kind, handle))

    def _there(self, function: str, name: str, kind: type[Any], value: Any) -> Any:
        if value is None:
            self.fail(function, name, f"null; allowed: what {self._makers[kind]} made")
        if isinstance(value, Unusable):
            self.fail(function, name, f"{value!r}; allowed: what {self._makers[kind]} made")
        return value

    def check_stream(self, function: str, handle: int | None) -> None:
        """A stream is there; null is the default one."""
        if handle is not None:
            self.find(function, "stream", Stream, handle)

    def destroy(self, function: str, name: str, kind: type[Any], handle: int | None) -> None:
        """End a handle."""
        self._there(function, name, kind, HANDLES.end_a(kind, handle, function))

    def record(self, function: str, event: int | None, stream: int | None) -> None:
        """Note the time in an event."""
        found = self.find(function, "event", Event, event)
        self.check_stream(function, stream)
        found.recorded = time.perf_counter()

    def elapsed(
        self, function: str, milliseconds: int | None, start: int | None, end: int | None
    ) -> None:
        """Write the time between two events, in milliseconds."""
        where = self.out(function, "ms", milliseconds)
        times = []
        for name, handle in (("start", start), ("end", end)):
            event = self.find(function, name, Event, handle)
            if event.recorded is None:
                self.fail(function, name, "an event that was not recorded; allowed: one that was")
            times.append(event.recorded)
        libc.store(ctypes.c_float, where, 1e3 * (times[1] - times[0]))

    # Memory

    def allocate(
        self, function: str, name: str, address: int | None, size: int, device: bool
    ) -> None:
        """Allocate a block, and write its address through a pointer.

        Raises:
            MemoryError: there is no such memory.
        """
        where = self.out(function, name, address)
        libc.store(ctypes.c_void_p, where, BLOCKS.allocate(size, device, function).address)

    def free(self, function: str, name: str, address: int | None, makers: tuple[str, ...]) -> None:
        """Free a block that one of ``makers`` allocated."""
        allowed = f"allowed: what {' or '.join(makers)} allocated"
        if address is None:
            self.fail(function, name, f"null; {allowed}")
        block = BLOCKS.find(address)
        if block is None:
            self.fail(function, name, f"{address:#x} is in no block; {allowed}")
        if block.maker not in makers:
            self.fail(function, name, f"memory from {block.maker}; {allowed}")
        if block.address != address:
            self.fail(
                function,
                name,
                f"{address - block.address} bytes behind the start of a block; allowed: its start",
            )
        if block.freed_by is not None or not BLOCKS.free(block, function):
            self.fail(function, name, f"memory that {block.freed_by} has freed; {allowed}")

    def reach(
        self, function: str, name: str, address: int | None, count: int, on_device: bool
    ) -> Block | None:
        """Check that bytes are there, as far as is known; the block that they are in, or None."""
        if address is None:
            if count:
                self.fail(function, name, f"null; allowed: {count} bytes of memory")
            return None
        block = BLOCKS.find(address)
        strict = self.checks_sides and not host_memory_is_allowed()
        if block is None:
            if on_device and strict:
                message = f"{address:#x} is no device memory; allowed: device memory"
                self.fail(function, name, message)
            return None
        if block.freed_by is not None:
            message = f"memory that {block.freed_by} has freed; allowed: not freed"
            self.fail(function, name, message)
        if count > block.end - address:
            self.fail(function, name, f"{count} bytes; allowed: {_left(block, address)}")
        if strict and block.is_device != on_device:
            is_, should = ("device", "host") if block.is_device else ("host", "device")
            message = f"{is_} memory; allowed: {should} memory for a copy of this kind"
            self.fail(function, name, message)
        return block

    def copy(
        self,
        function: str,
        to: tuple[int | None, int, bool],
        source: tuple[int | None, bool],
        count: int,
    ) -> None:
        """Copy bytes.

        Args:
            function: for the message.
            to: where to, how many bytes the caller says are there, and whether on the device.
            source: where from, and whether on the device.
            count: how many bytes.
        """
        dst, most, dst_on_device = to
        src, src_on_device = source
        # Held until all is copied: another thread may free them meanwhile.
        held = (
            self.reach(function, "dst", dst, count, dst_on_device),
            self.reach(function, "src", src, count, src_on_device),
        )
        if count > most:
            self.fail(function, "count", f"{count} bytes; allowed: up to destMax, {most}")
        if dst is not None and src is not None:
            self._probe(function, "dst", dst, count, held[0], True)
            self._probe(function, "src", src, count, held[1], False)
            ctypes.memmove(dst, src, count)
        del held

    def fill(self, function: str, name: str, address: int | None, value: int, count: int) -> None:
        """Set bytes of device memory."""
        held = self.reach(function, name, address, count, True)
        if address is not None:
            self._probe(function, name, address, count, held, True)
            ctypes.memset(address, value & 0xFF, count)
        del held

    def _probe(
        self, function: str, name: str, address: int, count: int, held: Block | None, writing: bool
    ) -> None:
        """Check that bytes in no block are there."""
        problem = None if held is not None else pointers.problem(address, count, writing)
        if problem is not None:
            self.fail(function, name, problem)


def _left(block: Block, address: int) -> str:
    offset = address - block.address
    where = f", from byte {offset} of it" if offset else ""
    return f"{block.end - address}, in a block of {block.size}{where}"
