"""Handles: numbers that are looked up, never followed."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any, NamedTuple, TypeVar

from ..unusable import Unusable, described
from .calls import CURRENT, refuse
from .errors import ERRORS

_T = TypeVar("_T")

#: The first handle. No address is like it: those of processes start with zeros. Handles are never
#: used again, so one that was destroyed is nothing else later.
_FIRST = 0x4E47_0000_0000_0000
_STEP = 16

#: How many handles are remembered after their end, with what ended them.
_REMEMBERED = 4096


class Entry(NamedTuple):
    """What is behind a handle, the function that made it, and where the program called that.

    What the program need not end has no maker.
    """

    value: Any
    maker: str
    caller: int


class Handles:
    """The handles of this process."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()
        self._next = itertools.count(_FIRST, _STEP)

    def add(self, value: object, is_owned: bool = True) -> int:
        """A new handle; the program has to end what it owns."""
        handle = next(self._next)
        maker = CURRENT.function.name if is_owned else ""
        self._entries[handle] = Entry(value, maker, ERRORS.caller())
        return handle

    def replace(self, handle: int, value: object) -> None:
        """Put something else behind a handle."""
        self._entries[handle] = self._entries[handle]._replace(value=value)

    def find(self, handle: int | None) -> Any:
        """What is behind a handle: None for null, an :class:`Unusable` for one that is none."""
        if handle is None:
            return None
        entry = self._entries.get(handle)
        return self._unknown(handle) if entry is None else entry.value

    def find_a(self, kind: type[_T], handle: int | None) -> _T | Unusable | None:
        """The same, but what is of another kind is no use either."""
        value = self.find(handle)
        if value is None or isinstance(value, (kind, Unusable)):
            return value
        return Unusable(described(value))

    def need(self, name: str, kind: type[_T], handle: int, allowed: str) -> _T:
        """What is behind a handle of some kind; where it is none, this thread's call fails."""
        value = self.find_a(kind, handle)
        if isinstance(value, Unusable):
            refuse(name, f"{value!r}; allowed: {allowed}")
        assert value is not None
        return value

    def take(self, name: str, kind: type[_T], handle: int, allowed: str) -> _T:
        """The same, and forget the handle; of two threads only one can."""
        value = self.need(name, kind, handle, allowed)
        if not self.end(handle):
            refuse(name, f"{self._unknown(handle)!r}; allowed: {allowed}")
        return value

    def end(self, handle: int) -> bool:
        """Forget a handle; False if that is done already."""
        if self._entries.pop(handle, None) is None:
            return False
        self._ended[handle] = CURRENT.function.name
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return True

    def _unknown(self, handle: int) -> Unusable:
        by = self._ended.get(handle)
        if by is not None:
            return Unusable(f"a handle that {by} has ended")
        if _FIRST <= handle < _FIRST << 1 and handle % _STEP == 0:
            return Unusable("a handle that was ended long ago")
        return Unusable(f"{handle:#x}, which is no handle")

    def is_living(self, handle: int) -> bool:
        """Whether a handle has not ended."""
        return handle in self._entries

    def living(self) -> dict[int, Entry]:
        """All handles, oldest first."""
        return dict(self._entries)


HANDLES = Handles()
