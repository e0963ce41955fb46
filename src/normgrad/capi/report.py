"""The report: failed calls, races, and objects and memory that were never destroyed or freed.

Calls that succeed here and may fail on devices are reported too.
"""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ..aclnn import aclOpExecutor
from ..infiniop import infiniopTensorDescriptor_t
from .blocks import BLOCKS, RESET, Block
from .calls import ERRORS, SETTINGS, complain
from .handles import HANDLES, Entry
from .streams import STREAMS
from .symbols import place_of

#: The kinds of lines: what they begin with, and their names in the singular and plural.
_SORTS = (
    ("error", "call failed", "calls failed"),
    ("race", "race", "races"),
    ("device", "call that may fail on devices", "calls that may fail on devices"),
)

_NOT_SEEN = (
    "  not seen: the program's own reads and writes of the host's memory, but for what copies use, "
    "and what its threads do to each other"
)


class Report:
    """The report since the last one; ``ending`` is the status with which the process shall end."""

    def __init__(self) -> None:
        self.ending = ctypes.c_int()
        # The handles and blocks that the parent process made.
        self._handles: set[int] = set()
        self._blocks: set[int] = set()
        # What the program left to a reset of the device.
        self._reset_handles: list[Entry] = []
        self._reset_blocks: list[Block] = []

    def print_lines(self) -> None:
        """Print the failed calls and races to stderr, if a report is wanted."""
        if not SETTINGS.report:
            return
        lines = ERRORS.take()
        if lines:
            self._find()
        for sort, one, many in _SORTS:
            counts = [(line, count) for line, count in lines if line.startswith(sort)]
            if not counts:
                continue
            total = sum(count for _, count in counts)
            complain(f"{total} {one if total == 1 else many}:")
            for line, count in counts:
                complain(f"  {line}" + (f" ({count} times)" if count > 1 else ""))
            if sort == "race":
                complain(_NOT_SEEN)

    def last_words(self) -> None:
        """Print the report at the end of the program, after its static destructors."""
        STREAMS.abandon()
        self.print_lines()
        for line in self._left_over() if SETTINGS.report else ():
            complain(line)
            self._find()

    def _find(self) -> None:
        """Let the process fail because of a finding, if that is wanted."""
        if SETTINGS.is_fatal:
            self.ending.value = 1

    def was_reset(self, handles: Iterable[Entry], blocks: Iterable[Block]) -> None:
        """Count objects and blocks that a reset of the device released as left over."""
        if SETTINGS.report:  # otherwise the lists would keep the memory
            self._reset_handles += handles
            self._reset_blocks += blocks

    def _left_over(self) -> list[str]:
        """What was never destroyed or freed, in one line for each place that made it."""
        living = [entry for at, entry in HANDLES.living().items() if at not in self._handles]
        handles: defaultdict[tuple[type, str, str], list[Any]] = defaultdict(list)
        for entry in [*self._reset_handles, *living]:
            if entry.maker:
                place = type(entry.value), entry.maker, place_of(entry.caller)
                handles[place].append(entry.value)
        lines = []
        for (_, maker, where), (first, *more) in handles.items():
            others = f" and {len(more)} more" if more else ""
            lines.append(f"never destroyed: {_description(first)}{others} from {maker}{where}")
        reset = [block for block in self._reset_blocks if block.freed_by == RESET]
        sizes: defaultdict[str, list[int]] = defaultdict(list)
        for block in [*reset, *(b for b in BLOCKS.living() if id(b) not in self._blocks)]:
            sizes[block.maker + place_of(block.caller)].append(block.size)
        for source, each in sizes.items():
            several = f" in {len(each)} blocks" if len(each) > 1 else ""
            lines.append(f"never freed: {sum(each)} bytes{several} from {source}")
        return lines

    def forked(self) -> None:
        """Begin a new report in a forked child, which reports its own calls only."""
        ERRORS.take()
        self._handles = set(HANDLES.living())
        self._blocks = {id(block) for block in BLOCKS.living()}
        self._reset_handles, self._reset_blocks = [], []


def _description(value: Any) -> str:
    """A description of the object behind a handle."""
    name, text = type(value).__name__, repr(value)
    if isinstance(value, infiniopTensorDescriptor_t):
        return f"{name}({value.dtype.name}, shape {value.dims}, strides {value.strides})"
    if isinstance(value, aclOpExecutor):
        return f"{name} of {value.name}"
    if f"{name} object at" in text:  # the class has no __repr__ of its own
        return name
    return text if name in text else f"{name}{text}"


REPORT = Report()
os.register_at_fork(after_in_child=REPORT.forked)
