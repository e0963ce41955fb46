"""The cache of what calls need: how many entries it has, and who may use it."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")

#: The number of entries of a cache; a training loop needs one plan for each layer's shape.
SIZE = 4096


class Cache(dict[_K, _T]):
    """A dictionary of at most ``SIZE`` entries, which forgets the oldest when it is full.

    Every thread may read and write it, without a lock: each step is one of a dictionary's. Two
    threads that miss the same key both make a value, and the later one stays; either serves. A
    forked child begins with its parent's entries: they hold no threads, which a fork would end.
    """

    def __setitem__(self, key: _K, value: _T) -> None:
        while len(self) >= SIZE:
            with suppress(StopIteration, RuntimeError):  # another thread changed it
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)
