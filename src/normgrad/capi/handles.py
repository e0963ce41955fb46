"""Handles: numbers that stand for objects, and are looked up rather than followed as pointers."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from ..unusable import Unusable, describe
from .calls import CURRENT, ERRORS, refuse, refuse_null
from .pointers import Address
from .streams import STREAMS

_T = TypeVar("_T")

#: The first handle. It cannot be an address, since the upper bits of a process's addresses are
#: zero. Handles are never reused, so a destroyed handle never stands for another object.
_FIRST = 0x4E47_0000_0000_0000
_STEP = 16

#: The number of ended handles for which the name of the function that ended them is kept.
_REMEMBERED = 4096


class Entry(NamedTuple):
    """The object behind a handle, the function that made it, and the address of that call.

    ``maker`` is empty for objects that the program need not destroy.
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
        """Make a handle for an object; ``is_owned`` says whether the program has to destroy it."""
        handle = next(self._next)
        maker = CURRENT.function.name if is_owned else ""
        self._entries[handle] = Entry(value, maker, ERRORS.caller())
        return handle

    def replace(self, handle: int, value: object) -> None:
        """Replace the object behind a handle."""
        self._entries[handle] = self._entries[handle]._replace(value=value)

    def find(self, handle: Address) -> Any:
        """The object behind a handle; None for null, an :class:`Unusable` for an invalid handle."""
        if handle is None:
            return None
        entry = self._entries.get(handle)
        return self._unknown(handle) if entry is None else entry.value

    def find_a(self, kind: type[_T], handle: Address) -> _T | Unusable | None:
        """The object behind a handle as in :meth:`find`; Unusable if it is of another kind."""
        value = self.find(handle)
        if value is None or isinstance(value, (kind, Unusable)):
            return value
        return Unusable(describe(value))

    def need(
        self, name: str, kind: type[_T], handle: Address, allowed: str, null: IntEnum | None = None
    ) -> _T:
        """The object of a kind behind a handle; otherwise this thread's call fails.

        ``null`` is the status for a null handle, if it is not the usual one.
        """
        value = self.find_a(kind, handle)
        if value is None:
            refuse_null(name, allowed, null)
        if isinstance(value, Unusable):
            refuse(name, f"{value!r}; allowed: {allowed}")
        return value

    def take(
        self, name: str, kind: type[_T], handle: Address, allowed: str, null: IntEnum | None = None
    ) -> _T:
        """Do the same as :meth:`need`, and end the handle, after the queued work that uses it.

        Of two threads only one succeeds.
        """
        value = self.need(name, kind, handle, allowed, null)
        STREAMS.end(name, value)
        assert handle is not None
        if not self.end(handle):
            refuse(name, f"{self._unknown(handle)!r}; allowed: {allowed}")
        return value

    def end(self, handle: int) -> bool:
        """End a handle; False if it has ended already."""
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

    def living(self) -> dict[int, Entry]:
        """All handles that have not ended, oldest first."""
        return dict(self._entries)


HANDLES = Handles()
