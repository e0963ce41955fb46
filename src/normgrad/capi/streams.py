"""Streams that delay their work, to detect races between a program and its asynchronous calls.

With ``NORMGRAD_CAPI_STREAMS=checked``, asynchronous work is queued, and runs when the program waits
for it, which is as late as on a device. Memory that a call uses is compared with that of queued
work that is not ordered before the call. After a race the earlier work runs at once, so that the
program gets the same results as without these checks. docs/capi.md says what counts as ordered.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np

from ..dialects import Use, shared_memory
from ..memory import array_at
from . import pointers
from .calls import CURRENT, ERRORS, SETTINGS
from .signatures import Function
from .symbols import place_of

_numbers = itertools.count(1)


@dataclass(eq=False, repr=False)
class Stream:
    """A queue of work.

    Attributes:
        predecessors: the number of each other stream's calls that the next work waits for.
        count: the number of calls that were queued on the stream.
        context: the device and the context that the stream belongs to; 0 for the device's own.
        was_asked: whether a query has answered that the work is not done.
    """

    name: str = field(default_factory=lambda: f"stream {next(_numbers)}")
    predecessors: dict[Stream, int] = field(default_factory=dict)
    count: int = 0
    context: tuple[int, int] = (0, 0)
    was_asked: bool = False

    @property
    def clock(self) -> Clock:
        """The calls that are done when the stream's work until now is done."""
        return {**self.predecessors, self: self.count}


#: The number of each stream's calls that are known to be done before a certain point.
Clock = Mapping[Stream, int]


class _Work(NamedTuple):
    """A call that is queued; ``caller`` is the address in the program that it returns to."""

    function: Function
    caller: int
    call: str
    stream: Stream
    place: int
    clock: Clock
    uses: Sequence[Use]
    objects: Sequence[object]
    sums: list[tuple[Use, int | None]]
    check: Callable[[], object]
    run: Callable[[], object]


class Streams:
    """The queues of this process."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Begin with empty queues in a forked child, which has no device."""
        self._lock = threading.RLock()
        self._queue: list[_Work] = []
        self._calls: Counter[str] = Counter()

    def _call(self) -> str:
        """The name of this thread's call: its function, and its number among that function's."""
        name = CURRENT.function.name
        self._calls[name] += 1
        return f"{name} #{self._calls[name]}"

    # What calls do

    def do(
        self,
        stream: Stream | None,
        uses: Callable[[], Iterable[Use]],
        run: Callable[[], object],
        check: Callable[[], object] = lambda: None,
        objects: Sequence[object] = (),
        refuse: Callable[[str], NoReturn] | None = None,
    ) -> None:
        """Run a call's work: later if it has a stream and streams are checked, otherwise at once.

        Args:
            stream: the stream of the work; None for a synchronous call.
            uses: returns the call's uses of memory; called only if streams are checked.
            run: does the work.
            check: raises the call's error if memory cannot be accessed by now; called before
                delayed work runs.
            objects: the objects behind the handles that the call uses.
            refuse: raises the call's error if its own uses share memory, since delayed work would
                find that too late; None if they may share memory.
        """
        if SETTINGS.checked:
            with self._lock:
                used, call = tuple(uses()), self._call()
                self._compare(call, used, stream)
                if stream is not None:
                    problem = None if refuse is None else shared_memory(used)
                    if refuse is not None and problem is not None:
                        refuse(problem)
                    stream.count += 1
                    for use in used:
                        if use.is_host and use.writes and not _is_read(use, used):
                            _poison(use)
                    sums = [(use, _checksum(use)) for use in used if use.is_host]
                    work = _Work(
                        CURRENT.function, ERRORS.caller(), call, stream, stream.count,
                        stream.clock, used, objects, sums, check, run,
                    )  # fmt: skip
                    self._queue.append(work)
                    return
        run()

    def end(self, name: str, value: object) -> None:
        """Report queued work that uses the object behind a handle, before the handle ends."""
        if not SETTINGS.checked:
            return
        with self._lock:
            call = self._call()
            for work in list(self._queue):
                if any(each is value for each in (work.stream, *work.objects)):
                    what = f"; 2. {call}{_here()} ends its {name} before that is done"
                    self._find(work, what, name)

    def wait(self, stream: Stream, clock: Clock) -> None:
        """Order a stream's next work after the work before an event."""
        with self._lock:
            for other in {work.stream for work in self._queue}:  # other streams' work is done
                count = max(stream.predecessors.get(other, 0), clock.get(other, 0))
                stream.predecessors[other] = count

    def is_done(self, clock: Clock) -> bool:
        """Whether none of the calls of a clock are queued."""
        with self._lock:
            return not any(_is_before(work, clock) for work in self._queue)

    def ask(self, clock: Clock) -> None:
        """Report queued work before an event, for a call that requires the event to be over."""
        with self._lock:
            call = self._call() if SETTINGS.checked else ""
            for work in [work for work in self._queue if _is_before(work, clock)]:
                what = f"; 2. {call}{_here()} asks for the time after it before that is done"
                self._find(work, what, "time")

    def finish(self, clock: Clock | None = None) -> None:
        """Run the queued work of a clock, or all queued work, in the order of the calls.

        The first exception of a call's work is raised after the rest of the work.
        """
        with self._lock:
            first_error: Exception | None = None
            function = CURRENT.function
            for work in [each for each in self._queue if clock is None or _is_before(each, clock)]:
                self._queue.remove(work)
                try:
                    if self._is_unchanged(work):
                        CURRENT.function = work.function
                        work.check()
                        work.run()
                        self._renew_sums(work)
                except Exception as error:
                    first_error = first_error or error
                finally:
                    CURRENT.function = function
        if first_error is not None:
            raise first_error

    def abandon(self) -> None:
        """Report the work for which the program has not waited when it ends."""
        with self._lock:
            for work in self._queue:
                self._report(work, "; 2. the program ends without waiting for it", "end")

    # Findings

    def _compare(self, call: str, uses: Sequence[Use], stream: Stream | None) -> None:
        """Report queued work that is not ordered before a call and conflicts with its uses."""
        where, missing = "", "before that is done"
        if stream is not None:
            where = f" on {stream.name}"
            missing = f"with no event between them that {stream.name} waits for"
        for work in list(self._queue):
            if stream is not None and _is_before(work, stream.clock):
                continue
            for earlier in work.uses:
                use = next((use for use in uses if use.collides(earlier)), None)
                if use is not None:
                    second = f"2. {call}{_here()}{where} {use.verb} it as {use.name}"
                    what = f" {earlier.verb} {earlier.name}; {second}, {missing}"
                    self._find(work, what, (use.name, earlier.name))
                    break

    def _find(self, work: _Work, what: str, key: object) -> None:
        self._report(work, what, (CURRENT.function.name, key))
        if work in self._queue:
            self.finish({**work.clock, work.stream: work.place})

    @staticmethod
    def _report(work: _Work, what: str, key: object) -> None:
        """Note a race; ``what`` goes on after the name of the queued call."""
        first = f"{work.call}{place_of(work.caller)} on {work.stream.name}"
        line = f"race: 1. {first}{what}; allowed: after waiting for it"
        ERRORS.note(line, f"race {work.function.name} {key}")

    def _renew_sums(self, work: _Work) -> None:
        """Take the checksums of queued work's host memory again that some work has written."""
        outputs = [use for use in work.uses if use.is_host and use.writes]
        is_any = work.function.name == "aclrtLaunchCallback"  # a callback may write anything
        for later in self._queue if outputs or is_any else ():
            later.sums[:] = [
                (use, _checksum(use) if is_any or any(map(use.collides, outputs)) else checksum)
                for use, checksum in later.sums
            ]

    def _is_unchanged(self, work: _Work) -> bool:
        """Whether queued work can run; a change of its host memory since the call is reported.

        Work must not run if its memory is gone, or if it would write to memory that the program
        uses for something else by now.
        """
        for use, checksum in work.sums:
            if _checksum(use) != checksum:
                is_gone = pointers.problem(*use.region.bounds(), use.writes) is not None
                how = "took away" if is_gone else "changed"
                what = f" {use.verb} {use.name}; 2. the program {how} that memory"
                self._report(work, f"{what} before it was done", ("host", use.name))
                if is_gone or use.writes:
                    return False
        return True


def _here() -> str:
    """The place of this thread's call in the program."""
    return place_of(ERRORS.caller())


def _is_read(use: Use, others: Sequence[Use]) -> bool:
    """Whether the same call reads bytes that a use writes."""
    return any(not each.writes and use.collides(each) for each in others)


def _poison(use: Use) -> None:
    """Fill host memory that queued work will write with bytes that are NaN in every dtype.

    A program that reads it before it has waited gets these, as it gets old values on a device.
    """
    address, dims, steps, itemsize = use.region
    dtype = np.dtype(f"V{itemsize}")
    array_at(address, dims, steps, dtype, None, True)[...] = np.void(b"\xff" * itemsize)


def _is_before(work: _Work, clock: Clock) -> bool:
    return work.place <= clock.get(work.stream, 0)


def _checksum(use: Use) -> int | None:
    """The checksum of a use's host memory; None if it cannot be read."""
    first, end = use.region.bounds()
    if pointers.problem(first, end, False) is not None:
        return None
    return zlib.crc32((ctypes.c_char * (end - first)).from_address(first))


STREAMS = Streams()
os.register_at_fork(after_in_child=STREAMS.forked)
