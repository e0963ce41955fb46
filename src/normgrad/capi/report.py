"""The report: failed calls, races, and objects and memory that were never destroyed or freed."""

from __future__ import annotations

import os
from typing import Any

from ..aclnn import aclOpExecutor
from ..infiniop.operators import infiniopTensorDescriptor_t
from . import symbols
from .blocks import BLOCKS
from .errors import ERRORS, complain, is_report_wanted
from .handles import HANDLES
from .streams import STREAMS

#: The kinds of lines: what they begin with, and their names in the singular and plural.
_SORTS = (("error", "call failed", "calls failed"), ("race", "race", "races"))

_NOT_SEEN = (
    "  not seen: the program's own reads and writes of the host's memory, but for what copies use, "
    "and what its threads do to each other"
)


class Report:
    """The report on the time since the last report."""

    def __init__(self) -> None:
        # The handles and blocks that an earlier report has named, or that the parent process made.
        self._handles: set[int] = set()
        self._blocks: set[int] = set()

    def print_if_wanted(self) -> None:
        """Print the report to stderr, if it is wanted and not empty."""
        if not is_report_wanted():
            return
        lines = ERRORS.take()
        for sort, one, many in _SORTS:
            found = [(line, count) for line, count in lines if line.startswith(sort)]
            if found:
                count = sum(count for _, count in found)
                complain(f"{count} {one if count == 1 else many}:")
            for line, count in found:
                complain(f"  {line}" + (f" ({count} times)" if count > 1 else ""))
            if found and sort == "race":
                complain(_NOT_SEEN)
        for line in self._left_over():
            complain(line)

    def last_words(self) -> None:
        """Print the report at the end of the program."""
        STREAMS.abandon()
        self.print_if_wanted()

    def _left_over(self) -> list[str]:
        """The objects and blocks that still exist, in one line for each place that made them."""
        handles: dict[tuple[type, str, str], list[Any]] = {}
        for handle, entry in HANDLES.living().items():
            if handle not in self._handles and entry.maker:
                key = type(entry.value), entry.maker, symbols.function_at(entry.caller)
                handles.setdefault(key, []).append(entry.value)
        blocks: dict[tuple[str, str], list[int]] = {}
        for block in BLOCKS.living():
            if id(block) not in self._blocks:
                made = block.maker, symbols.function_at(block.caller)
                blocks.setdefault(made, []).append(block.size)
        self.forget()
        lines = []
        for (_, maker, where), (first, *more) in handles.items():
            others = f" and {len(more)} more" if more else ""
            lines.append(f"never destroyed: {_described(first)}{others} from {maker}{where}")
        for (maker, where), sizes in blocks.items():
            several = f" in {len(sizes)} blocks" if len(sizes) > 1 else ""
            lines.append(f"never freed: {sum(sizes)} bytes{several} from {maker}{where}")
        return lines

    def forget(self) -> None:
        """Leave the handles and blocks that exist now out of the next report."""
        self._handles = set(HANDLES.living())
        self._blocks = {id(block) for block in BLOCKS.living()}

    def forked(self) -> None:
        """Begin a new report in a forked child, which reports its own calls only."""
        ERRORS.take()
        self.forget()


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
