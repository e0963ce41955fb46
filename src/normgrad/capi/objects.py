"""What both runtimes have: memory, copies, streams and events."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, NoReturn

from ..layout import Region
from ..unusable import Unusable
from . import libc, pointers
from .blocks import BLOCKS, Block, host_memory_is_allowed
from .handles import HANDLES
from .streams import STREAMS, Clock, Stream, Use, span

#: More axes than anything has: a number of them that is none.
MOST_AXES = 1024


class Event:
    """A moment in a stream.

    Attributes:
        recorded: when, in seconds; None if it was not.
        clock: the work that it comes after.
        was_asked: whether a program was told that it is not over.
        can_order, has_time: whether streams may wait for it, and it has a time.
    """

    def __init__(self, can_order: bool = True, has_time: bool = True) -> None:
        self.recorded: float | None = None
        self.clock: Clock = {}
        self.was_asked = False
        self.can_order = can_order
        self.has_time = has_time


def named(
    call: Callable[..., Any], name: str = "", check: Callable[[str], None] | None = None
) -> Callable[..., None]:
    """An exported function that returns nothing, of one that takes its name first.

    ``name`` is the function's own where none is given. What ``check`` raises of the name is raised
    before the call.
    """
    function = name or call.__name__

    def exported(*arguments: Any) -> None:
        if check is not None:
            check(function)
        call(function, *arguments)

    return exported


class Runtime:
    """The functions of a runtime, with the errors of its dialect.

    Args:
        fail: raises the dialect's error, for a function, a parameter, and what is wrong with it; of
            a status, where that is not the usual one.
        no_memory: the status where there is no memory left.
        checks_sides: whether host and device memory have to be told apart.
        makers: the function that makes each kind of handle.

    Attributes:
        default: the stream that null stands for.
    """

    def __init__(
        self,
        fail: Callable[..., NoReturn],
        no_memory: IntEnum,
        checks_sides: bool,
        makers: Mapping[type[Any], str],
    ) -> None:
        self.fail = fail
        self._no_memory = no_memory
        self.checks_sides = checks_sides
        self._makers = makers
        self.default = Stream("the default stream")

    def out(self, function: str, name: str, address: int | None) -> int:
        """A pointer to write through: not null."""
        if address is None:
            self.fail(function, name, "null; allowed: a pointer to write to")
        return address

    # Streams and events

    def create(self, function: str, name: str, address: int | None, value: object) -> int:
        """Make a handle of something, and write it through a pointer."""
        where = self.out(function, name, address)
        handle = HANDLES.add(value, function)
        libc.store(ctypes.c_void_p, where, handle)
        return handle

    def find(self, function: str, name: str, kind: type[Any], handle: int | None) -> Any:
        """What is behind a handle that may not be null."""
        return self._there(function, name, kind, HANDLES.find_a(kind, handle))

    def _there(self, function: str, name: str, kind: type[Any], value: Any) -> Any:
        if value is None:
            self.fail(function, name, f"null; allowed: what {self._makers[kind]} made")
        if isinstance(value, Unusable):
            self.fail(function, name, f"{value!r}; allowed: what {self._makers[kind]} made")
        return value

    def stream(self, function: str, handle: int | None) -> Stream:
        """A stream that has to be there; null is the default one."""
        if handle is None:
            return self.default
        found: Stream = self.find(function, "stream", Stream, handle)
        return found

    def destroy(self, kind: type[Any], function: str, handle: int | None) -> None:
        """End a handle; a stream's work is done before."""
        name = kind.__name__.lower()
        if handle is None:
            self.fail_harmlessly(function, name, f"null; allowed: what {self._makers[kind]} made")
        value = self.find(function, name, kind, handle)
        STREAMS.end(function, name, value)
        self._there(function, name, kind, HANDLES.end_a(kind, handle, function))

    def fail_harmlessly(self, function: str, name: str, message: str) -> NoReturn:
        """Fail in a way that samples do, and that no report names."""
        try:
            self.fail(function, name, message)
        except Exception as error:
            error.is_mistake = False  # type: ignore[attr-defined]
            raise

    def synchronize(self, function: str, stream: int | None) -> None:
        """Wait for all that a stream was given."""
        STREAMS.finish(self.stream(function, stream).clock)

    def record(self, function: str, event: int | None, stream: int | None) -> None:
        """Note the time in an event, and what comes before it."""
        found: Event = self.find(function, "event", Event, event)
        found.clock = self.stream(function, stream).clock
        found.recorded, found.was_asked = time.perf_counter(), False

    def synchronize_event(self, function: str, event: int | None) -> None:
        """Wait for what comes before an event."""
        STREAMS.finish(self.find(function, "event", Event, event).clock)

    def wait(self, function: str, stream: int | None, event: int | None) -> None:
        """Let a stream's next work wait for an event."""
        waiting = self.stream(function, stream)
        found: Event = self.find(function, "event", Event, event)
        if not found.can_order:
            self.fail(function, "event", "one without ACL_EVENT_SYNC; allowed: one with it")
        STREAMS.wait(waiting, found.clock)

    def is_over(self, function: str, event: int | None) -> bool:
        """Whether an event is over. What waits in a queue is so for one answer: a program may ask
        until it is."""
        found: Event = self.find(function, "event", Event, event)
        if found.recorded is None:
            return False
        if not found.was_asked and not STREAMS.is_done(found.clock):
            found.was_asked = True
            return False
        STREAMS.finish(found.clock)
        return True

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
            if not event.has_time:
                self.fail(function, name, "one without a time; allowed: one that was made with it")
            STREAMS.ask(function, event.clock)
            times.append(event.recorded)
        libc.store(ctypes.c_float, where, 1e3 * (times[1] - times[0]))

    # Memory

    def memory_info(self, function: str, **results: int | None) -> None:
        """Write the bytes that the machine has left, and has in all, through two pointers."""
        page = os.sysconf("SC_PAGE_SIZE")
        for (name, address), pages in zip(
            results.items(), ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"), strict=True
        ):
            where = self.out(function, name, address)
            libc.store(ctypes.c_size_t, where, page * os.sysconf(pages))

    def allocate(
        self, function: str, name: str, address: int | None, size: int, device: bool
    ) -> None:
        """Allocate a block, and write its address through a pointer; 0 bytes have one too."""
        where = self.out(function, name, address)
        try:
            block = BLOCKS.allocate(max(size, 1), device, function)
        except MemoryError:
            message = f"{size} bytes; allowed: what the machine has"
            self.fail(function, "size", message, self._no_memory)
        libc.store(ctypes.c_void_p, where, block.address)

    def free(
        self,
        function: str,
        name: str,
        address: int | None,
        makers: tuple[str, ...],
        stream: Stream | None = None,
    ) -> None:
        """Free a block that one of ``makers`` allocated, after what a stream has queued."""
        allowed = f"allowed: what {' or '.join(makers)} allocated"
        if address is None:
            self.fail_harmlessly(function, name, f"null; {allowed}")
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
        if block.freed_by is None:
            STREAMS.do(
                function,
                stream,
                lambda: (span(name, "frees", block.address, block.size),),
                lambda: None,
            )
            STREAMS.finish({} if stream is None else stream.clock)
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
        stream: Stream | None = None,
    ) -> None:
        """Copy bytes.

        Args:
            function: for the message.
            to: where to, how many bytes the caller says are there, and whether on the device.
            source: where from, and whether on the device.
            count: how many bytes.
            stream: where the copy is queued; None for one that is waited for.
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
        if dst is None or src is None or not count:
            return

        def uses() -> Iterable[Use]:
            yield span("dst", "writes", dst, count, not (held[0] and held[0].is_device))
            yield span("src", "reads", src, count, not (held[1] and held[1].is_device))

        def look() -> None:
            self._probe(function, "dst", dst, count, held[0], True)
            self._probe(function, "src", src, count, held[1], False)

        look()
        STREAMS.do(function, stream, uses, partial(ctypes.memmove, dst, src, count), look)

    def copy_rows(
        self,
        function: str,
        to: tuple[int | None, int, bool],
        source: tuple[int | None, int, bool],
        width: int,
        height: int,
    ) -> None:
        """Copy rows of ``width`` bytes, whose starts are a pitch apart.

        Args:
            function: for the message.
            to, source: where to and where from, the pitch, and whether on the device.
            width, height: the rows' length and number.
        """
        held, regions = [], []
        for name, (address, pitch, on_device) in (("dst", to), ("src", source)):
            if pitch < width:
                self.fail(function, name[0] + "pitch", f"{pitch} bytes; allowed: {width} or more")
            reached = (height - 1) * pitch + width if width and height else 0
            held.append(self.reach(function, name, address, reached, on_device))
            if reached and address is not None:
                self._probe(function, name, address, reached, held[-1], name == "dst")
                regions.append(Region(address, (height, width), (pitch, 1), 1))
        if len(regions) < 2:
            return
        dst, src = regions

        def run() -> None:
            for row in range(height):
                ctypes.memmove(
                    dst.address + row * dst.strides[0], src.address + row * src.strides[0], width
                )

        STREAMS.do(
            function, None, lambda: (Use("dst", "writes", dst), Use("src", "reads", src)), run
        )
        del held

    def fill(
        self,
        function: str,
        name: str,
        address: int | None,
        value: int,
        count: int,
        stream: Stream | None = None,
    ) -> None:
        """Set bytes of device memory: on a stream, or at once."""
        held = self.reach(function, name, address, count, True)
        if address is None or not count:
            return
        look = partial(self._probe, function, name, address, count, held, True)
        look()
        STREAMS.do(
            function,
            stream,
            lambda: (span(name, "writes", address, count),),
            partial(ctypes.memset, address, value & 0xFF, count),
            look,
        )

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
