"""Callers' values: their description in messages, and the check of an integer."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any

import numpy as np


class Invalid:
    """The placeholder for an argument that must be refused, or the owner of such memory.

    Its text is the reason.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def describe(value: object) -> str:
    """Describe an argument of a wrong type, for a message."""
    if isinstance(value, Invalid):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def shorten(text: str, most: int = 200) -> str:
    """A text of somebody else's for a message, without its middle if it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def represent(value: object) -> str:
    """The repr of an argument for a message, or its type's name if repr fails."""
    try:
        return shorten(repr(value))
    except Exception:  # some tensors have no values to print
        return describe(value)


def integer(name: str, value: Any) -> int:
    """Check an integer argument; a boolean is not one."""
    with suppress(Exception):  # a tensor of one element may raise any type of exception
        if not isinstance(value, (bool, np.bool_)):
            return operator.index(value)
    raise TypeError(f"{name}: {represent(value)}; allowed: an integer")
