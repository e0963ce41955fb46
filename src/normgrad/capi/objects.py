"""The common parts of both vendors' runtimes: memory, copies, streams and events."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..dialects import Use, span
from ..layout import Region
from .blocks import BLOCKS, Block
from .calls import SETTINGS, fail, need_access, refuse, refuse_null
from .handles import HANDLES
from .pointers import Address
from .streams import STREAMS, Clock, Stream

_T = TypeVar("_T")

#: The maximum number of axes; a larger one is an error of the program.
MOST_AXES = 1024


@dataclass(eq=False, repr=False)
class Event:
    """An event, which marks a point in a stream.

    Attributes:
        can_order, has_time: whether streams may wait for the event, and whether it has a time.
        recorded: the time of recording, in seconds; None before.
        clock: the work before the event.
        was_asked: whether a query has answered that this work is not done.
    """

    can_order: bool = True
    has_time: bool = True
    recorded: float | None = None
    clock: Clock = field(default_factory=dict)
    was_asked: bool = False


def memory_info() -> tuple[int, int]:
    """The machine's free and total memory, in bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


class Side(NamedTuple):
    """One side of a copy: rows of bytes whose starts are ``pitch`` bytes apart."""

    name: str
    address: Address
    pitch: int
    on_device: bool


@dataclass(eq=False)
class Runtime:
    """The implementation of a runtime's functions.

    Attributes:
        no_memory: the status of a failed allocation.
        checks_sides: whether copies check which memory is a device's.
        makers: the name of the function that makes each kind of handle.
        default: the stream that null stands for.
    """

    no_memory: IntEnum
    checks_sides: bool
    makers: Mapping[type[Any], str]
    default: Stream = field(default_factory=partial(Stream, "the default stream"))

    # Streams and events

    def find(self, name: str, kind: type[_T], handle: Address) -> _T:
        """The object behind a handle; the call fails if the handle is null or invalid."""
        return HANDLES.need(name, kind, handle, f"what {self.makers[kind]} made")

    def stream(self, handle: Address) -> Stream:
        """The stream behind a handle, the default stream for null; fails if it is invalid."""
        return self.default if handle is None else self.find("stream", Stream, handle)

    def queue(self, stream: tuple[Address, ...]) -> Stream | None:
        """The stream of an asynchronous call, from its arguments after the others.

        None for synchronous calls, which have no such argument and return when their work is done.
        """
        return self.stream(*stream) if stream else None

    def destroy(self, kind: type[Any], handle: Address) -> None:
        """Destroy a stream, an event or a context."""
        name, allowed = kind.__name__.lower(), f"what {self.makers[kind]} made"
        if handle is None:  # the vendors' samples do this
            fail(f"{name}: null; allowed: {allowed}", is_mistake=False)
        HANDLES.take(name, kind, handle, allowed)

    def synchronize(self, stream: Address) -> None:
        """Wait for all work of a stream."""
        STREAMS.finish(self.stream(stream).clock)

    def record(self, handle: Address, stream: Address) -> None:
        """Record the time and the preceding work of a stream in an event."""
        event = self.find("event", Event, handle)
        event.clock = self.stream(stream).clock
        event.recorded, event.was_asked = time.perf_counter(), False

    def synchronize_event(self, event: Address) -> None:
        """Wait for the work before an event."""
        STREAMS.finish(self.find("event", Event, event).clock)

    def wait(self, stream: Address, handle: Address) -> None:
        """Make a stream's next work wait for an event."""
        waiting, event = self.stream(stream), self.find("event", Event, handle)
        if not event.can_order:
            refuse("event", "one without ACL_EVENT_SYNC; allowed: one with it")
        STREAMS.wait(waiting, event.clock)

    def reset(self, handle: Address, stream: Address) -> None:
        """Make an event what it was before it was recorded."""
        event = self.find("event", Event, handle)
        self.stream(stream)  # checks the handle
        event.clock, event.recorded, event.was_asked = {}, None, False

    def is_idle(self, stream: Address) -> bool:
        """Whether all work of a stream is done, as :meth:`_is_done` says."""
        return self._is_done(self.stream(stream))

    def is_over(self, handle: Address) -> bool:
        """Whether an event was recorded, and the work before it is done."""
        event = self.find("event", Event, handle)
        return event.recorded is not None and self._is_done(event)

    @staticmethod
    def _is_done(queried: Stream | Event) -> bool:
        """Whether work is done.

        If it is still queued, the first query answers False, and the second does the work, so that
        a program can ask until the answer is True.
        """
        if not queried.was_asked and not STREAMS.is_done(queried.clock):
            queried.was_asked = True
            return False
        queried.was_asked = False
        STREAMS.finish(queried.clock)
        return True

    def elapsed(self, start: Address, end: Address) -> float:
        """The time between two events, in milliseconds."""
        times = []
        for name, handle in (("start", start), ("end", end)):
            event = self.find(name, Event, handle)
            if event.recorded is None:
                refuse(name, "an event that was not recorded; allowed: one that was")
            if not event.has_time:
                refuse(name, "one without a time; allowed: one that was made with it")
            STREAMS.ask(event.clock)
            times.append(event.recorded)
        return 1e3 * (times[1] - times[0])

    # Memory

    def allocate(self, size: int, device: bool, context: tuple[int, int] = (0, 0)) -> int:
        """Allocate a block, even of 0 bytes, and return its address."""
        try:
            block = BLOCKS.allocate(max(size, 1), device)
        except MemoryError:
            refuse("size", f"{size} bytes; allowed: what the machine has", self.no_memory)
        block.context = context
        return block.address

    def free(
        self, name: str, address: Address, makers: tuple[str, ...], stream: Stream | None = None
    ) -> None:
        """Free a block that one of ``makers`` allocated, after a stream's queued work."""
        allowed = f"allowed: what {' or '.join(makers)} allocated"
        if address is None:  # the vendors' samples do this
            fail(f"{name}: null; {allowed}", is_mistake=False)
        block = BLOCKS.find(address)
        if block is None:
            refuse(name, f"{address:#x} is in no block; {allowed}")
        if block.maker not in makers:
            refuse(name, f"memory from {block.maker}; {allowed}")
        offset = address - block.address
        if offset:
            refuse(name, f"{offset} bytes behind the start of a block; allowed: its start")
        if block.freed_by is None:
            uses = (span(name, "frees", address, block.size),)
            STREAMS.do(stream, lambda: uses, lambda: None)
            if stream is not None:
                STREAMS.finish(stream.clock)
        if not BLOCKS.free(block):
            refuse(name, f"memory that {block.freed_by} has freed; {allowed}")

    def reach(self, name: str, address: Address, count: int, on_device: bool) -> Block | None:
        """Check that bytes are in one block, if they begin in one; returns the block or None."""
        if address is None:
            if count:
                refuse_null(name, f"{count} bytes of memory")
            return None
        block = BLOCKS.find(address)
        strict = self.checks_sides and not SETTINGS.host_memory
        if block is None:
            if on_device and strict:
                refuse(name, f"{address:#x} is no device memory; allowed: device memory")
            return None
        if block.freed_by is not None:
            refuse(name, f"memory that {block.freed_by} has freed; allowed: not freed")
        if count > block.end - address:
            offset = address - block.address
            where = f", from byte {offset} of it" if offset else ""
            left = f"{block.end - address}, in a block of {block.size}{where}"
            refuse(name, f"{count} bytes; allowed: {left}")
        if strict and block.is_device != on_device:
            is_, should = ("device", "host") if block.is_device else ("host", "device")
            refuse(name, f"{is_} memory; allowed: {should} memory for a copy of this kind")
        return block

    def copy(
        self,
        to: Side,
        source: Side,
        width: int,
        height: int = 1,
        most: int | None = None,
        stream: Stream | None = None,
    ) -> None:
        """Copy rows: on a stream, or at once.

        Args:
            to, source: the destination and the source.
            width, height: the length of each row in bytes, and the number of rows.
            most: the size in bytes of the destination, if the program states it.
            stream: see :meth:`queue`.
        """
        uses = []
        for side in (to, source):
            if side.pitch < width:
                message = f"{side.pitch} bytes; allowed: {width} or more"
                refuse(f"{side.name[0]}pitch", message)
            region = Region(side.address or 0, (height, width), (side.pitch, 1), 1)
            first, end = region.bounds()
            block = self.reach(side.name, side.address, end - first, side.on_device)
            verb = "writes" if side is to else "reads"
            # Between rows the program may have other things.
            is_host = not (block and block.is_device) and (height == 1 or side.pitch == width)
            uses.append((Use(side.name, verb, region, is_host), block))
        if most is not None and width > most:
            refuse("count", f"{width} bytes; allowed: up to destMax, {most}")
        dst, src = to.address, source.address
        if dst is None or src is None or not (width and height):
            return

        def run() -> None:
            for row in range(height):
                ctypes.memmove(dst + row * to.pitch, src + row * source.pitch, width)

        self._do(stream, uses, run)

    def fill(
        self, name: str, address: Address, value: int, count: int, stream: Stream | None = None
    ) -> None:
        """Set bytes of device memory: on a stream, or at once."""
        block = self.reach(name, address, count, True)
        if address is not None and count:
            use = span(name, "writes", address, count)
            run = partial(ctypes.memset, address, value & 0xFF, count)
            self._do(stream, [(use, block)], run)

    @staticmethod
    def _do(
        stream: Stream | None, uses: Sequence[tuple[Use, Block | None]], run: Callable[[], object]
    ) -> None:
        """Check that uses outside all blocks have memory, and run a call's work."""

        # The blocks in ``uses`` stay until the work is done, if another thread frees them.
        def check() -> None:
            for use, block in uses:
                if block is None:
                    need_access(use)

        check()
        STREAMS.do(stream, lambda: [use for use, _ in uses], run, check)
