"""The outcome of a case's call, and the faults that it may have.

There are three levels of findings, of which the first alone fails an implementation:

- *wrong* by any standard: a result further from the formula than plain float32 code (see
  :func:`normgrad.operators.precision.plain_error`), another shape or dtype, an error for a legal
  call, memory that is written to or kept;
- *beyond* normgrad's bound, but within what plain float32 code gives;
- a *convention*: what normgrad promises, but others need not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..operators.reference import Array


class Level(Enum):
    """A level of findings, the gravest first; the value is the word for it in a report."""

    WRONG = "wrong"
    BEYOND = "beyond the bound"
    CONVENTION = "another convention"


@dataclass(frozen=True)
class Fault:
    """What a call did that it must not.

    Attributes:
        level: how grave it is.
        what: a few words without numbers, the same for all faults of one cause.
        text: what was seen.
    """

    level: Level
    what: str
    text: str = ""

    @property
    def is_of_value(self) -> bool:
        """Whether an output's value is wrong; ``what`` is the output's name then."""
        return self.what.isidentifier()

    def __str__(self) -> str:
        return f"{self.what}: {self.text}" if self.text else self.what


def wrong(what: str, text: str = "") -> Fault:
    """A fault by any standard."""
    return Fault(Level.WRONG, what, text)


def convention(what: str, text: str = "") -> Fault:
    """What normgrad promises, but others need not."""
    return Fault(Level.CONVENTION, what, text)


#: What is wrong with a result of other outputs or kinds.
UNREADABLE = "its result cannot be read"


@dataclass(frozen=True)
class Outcome:
    """What a call did.

    Attributes:
        outputs: the outputs that it returned, by name, without those masked off.
        error: the exception's class and text, if it raised one.
        absent: why the call could not be tried, if the implementation does not offer it.
        faults: what else it did that it must not.
    """

    outputs: Mapping[str, Array] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    absent: str = ""
    faults: tuple[Fault, ...] = ()
