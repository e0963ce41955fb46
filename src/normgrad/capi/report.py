"""The report: failed calls, races, and objects and memory that were never destroyed or freed.

Calls that succeed here and may fail on devices are reported too.
"""

from __future__ import annotations

import ctypes
import os
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
    """The report on the time since the last report.

    Attributes:
        ending: the status with which the process shall end, if it is not 0.
    """

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
            found = [(line, count) for line, count in lines if line.startswith(sort)]
            if found:
                count = sum(count for _, count in found)
                complain(f"{count} {one if count == 1 else many}:")
            for line, count in found:
                complain(f"  {line}" + (f" ({count} times)" if count > 1 else ""))
            if found and sort == "race":
                complain(_NOT_SEEN)

    def last_words(self) -> None:
        """Print the report at the end of the program, after its static destructors."""
        STREAMS.abandon()
        self.print_lines()
        if SETTINGS.report:
            for line in self._left_over():
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
        entries = [each for at, each in HANDLES.living().items() if at not in self._handles]
        handles: dict[tuple[type, str, str], list[Any]] = {}
        for entry in [*self._reset_handles, *entries]:
            if entry.maker:
                key = type(entry.value), entry.maker, place_of(entry.caller)
                handles.setdefault(key, []).append(entry.value)
        left = [each for each in BLOCKS.living() if id(each) not in self._blocks]
        blocks: dict[tuple[str, str], list[int]] = {}
        reset = [block for block in self._reset_blocks if block.freed_by == RESET]
        for block in [*reset, *left]:
            made = block.maker, place_of(block.caller)
            blocks.setdefault(made, []).append(block.size)
        lines = []
        for (_, maker, where), (first, *more) in handles.items():
            others = f" and {len(more)} more" if more else ""
            lines.append(f"never destroyed: {_described(first)}{others} from {maker}{where}")
        for (maker, where), sizes in blocks.items():
            several = f" in {len(sizes)} blocks" if len(sizes) > 1 else ""
            lines.append(f"never freed: {sum(sizes)} bytes{several} from {maker}{where}")
        return lines

    def forked(self) -> None:
        """Begin a new report in a forked child, which reports its own calls only."""
        ERRORS.take()
        self._handles = set(HANDLES.living())
        self._blocks = {id(block) for block in BLOCKS.living()}
        self._reset_handles, self._reset_blocks = [], []


def _described(value: Any) -> str:
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
