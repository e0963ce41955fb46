"""Streams that hold their work back, to see what a program does before it is done.

With ``NORMGRAD_CAPI_STREAMS=checked``, asynchronous work is queued by stream, and done when the
program waits for it: as late as a device may. What a call uses meanwhile is compared with what
queued work reads and writes. Two calls are ordered where they are on one stream, where the later
stream waits for an event that was recorded behind the earlier call, or where the program has waited
for the earlier call: waiting does the work, so whatever is in the queue was not waited for.

After a finding the earlier work is done at once, so that the program goes on with the results that
it has without these checks.
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

from .. import layout
from . import pointers
from .calls import CURRENT
from .errors import ERRORS, are_checked
from .signatures import Function


class Use(NamedTuple):
    """What a call does with some memory.

    Attributes:
        name: the parameter's.
        verb: such as "reads".
        region: the bytes.
        is_host: whether they are the host's, and one after the other: then the program may change
            them without a call.
        in_place: whether they may be all of another use's.
    """

    name: str
    verb: str
    region: layout.Region
    is_host: bool = False
    in_place: bool = False

    @property
    def writes(self) -> bool:
        """Whether the bytes are others afterwards."""
        return self.verb != "reads"


def span(name: str, verb: str, address: int, count: int, is_host: bool = False) -> Use:
    """A use of bytes that follow each other."""
    return Use(name, verb, layout.Region(address, (count,), (1,), 1), is_host)


_numbers = itertools.count(1)


@dataclass(eq=False, repr=False)
class Stream:
    """A queue of work.

    Attributes:
        name: for messages.
        waited: what its next work waits for.
        count: how many calls it was given.
    """

    name: str = field(default_factory=lambda: f"stream {next(_numbers)}")
    waited: dict[Stream, int] = field(default_factory=dict)
    count: int = 0

    @property
    def clock(self) -> Clock:
        """All that is done when the stream has done what it was given until now."""
        return {**self.waited, self: self.count}


#: How many calls of each stream are known to be done before something.
Clock = Mapping[Stream, int]


class _Work(NamedTuple):
    """A call that is queued."""

    function: Function
    call: str
    stream: Stream
    place: int
    clock: Clock
    uses: Sequence[Use]
    objects: Sequence[object]
    sums: Sequence[tuple[Use, int | None]]
    look: Callable[[], object]
    run: Callable[[], object]


class Streams:
    """The queues of this process."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """A child of a fork has no device, and so none of its parent's work."""
        self._lock = threading.RLock()
        self._queue: list[_Work] = []
        self._calls: Counter[str] = Counter()

    def _call(self) -> str:
        """This thread's call, by its function and its number among that function's."""
        name = CURRENT.function.name
        self._calls[name] += 1
        return f"{name} #{self._calls[name]}"

    # What calls do

    def do(
        self,
        stream: Stream | None,
        uses: Callable[[], Iterable[Use]],
        run: Callable[[], object],
        look: Callable[[], object] = lambda: None,
        objects: Sequence[object] = (),
        refuse: Callable[[str], NoReturn] | None = None,
    ) -> None:
        """Do a call's work: at once, or where streams are checked and it has one, later.

        Args:
            stream: where the work is queued; None for a call that returns when it is done.
            uses: what memory it uses; asked for where that is looked at.
            run: does it.
            look: raises the call's error for memory that is not there; called before work is done
                later than the call that looked at it.
            objects: what is behind the handles that it uses.
            refuse: raises the call's error where its own uses share memory, which the work itself
                would tell too late; None where they may.
        """
        if are_checked():
            with self._lock:
                used, call = tuple(uses()), self._call()
                where = "" if stream is None else f" on {stream.name}"
                self._compare(call + where, used, stream)
                if stream is not None:
                    if refuse is not None:
                        _check_apart(used, refuse)
                    stream.count += 1
                    sums = [(each, _checksum(each)) for each in used if each.is_host]
                    work = _Work(
                        CURRENT.function, call, stream, stream.count, stream.clock, used, objects,
                        sums, look, run,
                    )  # fmt: skip
                    self._queue.append(work)
                    return
        run()

    def end(self, name: str, value: object) -> None:
        """Look for queued work that uses what is behind a handle, before that is ended."""
        if not are_checked():
            return
        with self._lock:
            call = self._call()
            for work in list(self._queue):
                if any(each is value for each in (work.stream, *work.objects)):
                    what = f"{call} ends its {name} before that is done"
                    self._find(work, what, name)

    def wait(self, stream: Stream, clock: Clock) -> None:
        """Order a stream's next work behind an event's."""
        with self._lock:
            for other in {work.stream for work in self._queue}:  # the others' work is done
                waited = stream.waited.get(other, 0)
                stream.waited[other] = max(waited, clock.get(other, 0))

    def is_done(self, clock: Clock) -> bool:
        """Whether nothing of this is queued."""
        with self._lock:
            return not any(_is_before(work, clock) for work in self._queue)

    def ask(self, clock: Clock) -> None:
        """Look for queued work that an event is behind, where the event has to be over."""
        with self._lock:
            call = self._call() if are_checked() else ""
            for work in [work for work in self._queue if _is_before(work, clock)]:
                self._find(work, f"{call} asks for the time after it before that is done", "time")

    def finish(self, clock: Clock | None = None) -> None:
        """Do what the program waits for, in the order of calls; None for all that there is.

        Raises:
            Exception: the first that a call's work raised; the rest is done all the same.
        """
        with self._lock:
            failed: Exception | None = None
            mine = CURRENT.function
            for work in [each for each in self._queue if clock is None or _is_before(each, clock)]:
                self._queue.remove(work)
                try:
                    if self._is_unchanged(work):
                        CURRENT.function = work.function
                        work.look()
                        work.run()
                except Exception as error:
                    failed = failed or error
                finally:
                    CURRENT.function = mine
        if failed is not None:
            raise failed

    def abandon(self) -> None:
        """Name what nobody has waited for, when the program ends."""
        with self._lock:
            for work in self._queue:
                self._report(work, "the program ends without waiting for it", "end")

    # Findings

    def _compare(self, call: str, uses: Sequence[Use], stream: Stream | None) -> None:
        """Report what queued work uses too, if one of them changes it and nothing orders them."""
        for work in list(self._queue):
            if stream is not None and _is_before(work, stream.clock):
                continue
            for theirs in work.uses:
                mine = next((use for use in uses if _collide(use, theirs)), None)
                if mine is None:
                    continue
                what = f"{theirs.verb} {theirs.name}; 2. {call} {mine.verb} it as {mine.name}"
                missing = (
                    "before that is done"
                    if stream is None
                    else f"with no event between them that {stream.name} waits for"
                )
                self._find(work, f"{what}, {missing}", (mine.name, theirs.name))
                break

    def _find(self, work: _Work, what: str, key: object) -> None:
        self._report(work, what, (CURRENT.function.name, key))
        if work in self._queue:
            self.finish({**work.clock, work.stream: work.place})

    @staticmethod
    def _report(work: _Work, what: str, key: object) -> None:
        first = f"race: 1. {work.call} on {work.stream.name}"
        second = "" if "; 2. " in what else "; 2."
        ERRORS.note(
            f"{first}{second} {what}; allowed: after waiting for it",
            f"race {work.function.name} {key}",
        )

    def _is_unchanged(self, work: _Work) -> bool:
        """Whether the host's memory that it copies is as it was; where a copy would write to memory
        that has another use by now, it must not be made."""
        for use, before in work.sums:
            if _checksum(use) != before:
                gone = pointers.problem(*_bytes(use), use.writes) is not None
                how = "took away" if gone else "changed"
                what = f"{use.verb} {use.name}; 2. the program {how} that memory before it was done"
                self._report(work, what, ("host", use.name))
                if gone or use.writes:
                    return False
        return True


def _check_apart(uses: Sequence[Use], refuse: Callable[[str], NoReturn]) -> None:
    for index, use in enumerate(uses):
        for earlier in uses[:index]:
            mine, other = (use, earlier) if use.writes else (earlier, use)
            in_place = mine.in_place and mine.region == other.region
            if not in_place and _collide(mine, other):
                refuse(f"{mine.name}: shares memory with {other.name}; allowed: memory of its own")


def _is_before(work: _Work, clock: Clock) -> bool:
    return work.place <= clock.get(work.stream, 0)


def _collide(mine: Use, theirs: Use) -> bool:
    return (mine.writes or theirs.writes) and layout.overlap(mine.region, theirs.region)


def _bytes(use: Use) -> tuple[int, int]:
    start, end = use.region.bounds()
    return start, end - start


def _checksum(use: Use) -> int | None:
    """Of bytes of the host; None where they are not there."""
    address, count = _bytes(use)
    if pointers.problem(address, count, False) is not None:
        return None
    return zlib.crc32((ctypes.c_char * count).from_address(address))


STREAMS = Streams()
os.register_at_fork(after_in_child=STREAMS.forked)
