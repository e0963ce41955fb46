"""The report: what failed, and what was never destroyed or freed."""

from __future__ import annotations

import os
from typing import Any

from ..aclnn import aclOpExecutor
from ..infiniop.operators import infiniopTensorDescriptor_t
from .blocks import BLOCKS
from .errors import ERRORS, REPORT_VARIABLE, complain, is_on
from .handles import HANDLES


class Report:
    """What has happened since the last report."""

    def __init__(self) -> None:
        # What was named before, or was made by the process that this one was forked from.
        self._handles: set[int] = set()
        self._blocks: set[int] = set()

    def print_if_wanted(self) -> None:
        """Print it to stderr, if it is wanted and there is something to say."""
        if not is_on(REPORT_VARIABLE):
            return
        failures, left_over = ERRORS.take_failures(), self._left_over()
        if failures:
            count = sum(failures.values())
            complain(f"{count} {'call' if count == 1 else 'calls'} failed:")
        for line, count in failures.items():
            complain(f"  {line}" + (f" ({count} times)" if count > 1 else ""))
        for line in left_over:
            complain(line)

    def _left_over(self) -> list[str]:
        lines = [
            f"never destroyed: {_described(entry.value)} from {entry.maker}"
            for handle, entry in HANDLES.living().items()
            if handle not in self._handles
        ]
        lines += [
            f"never freed: {block.size} bytes from {block.maker}"
            for block in BLOCKS.living()
            if id(block) not in self._blocks
        ]
        self.forget()
        return lines

    def forget(self) -> None:
        """Leave what there is now out of the next report."""
        self._handles = set(HANDLES.living())
        self._blocks = {id(block) for block in BLOCKS.living()}

    def forked(self) -> None:
        """A child answers for its own calls."""
        ERRORS.take_failures()
        self.forget()


def _described(value: Any) -> str:
    """What a handle stands for, in words."""
    name, text = type(value).__name__, repr(value)
    if isinstance(value, infiniopTensorDescriptor_t):
        return f"{name}({value.dtype.name}, shape {value.dims}, strides {value.strides})"
    if isinstance(value, aclOpExecutor):
        return f"{name} of {value.name}"
    if f"{name} object at" in text:  # it has no text of its own
        return name
    return text if name in text else f"{name}{text}"


REPORT = Report()
os.register_at_fork(after_in_child=REPORT.forked)
