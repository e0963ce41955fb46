"""What is no argument at all, and how messages name it."""

from __future__ import annotations


class Unusable:
    """What a dialect is given in place of something that it must refuse, in words."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def described(value: object) -> str:
    """What an argument of a wrong type is, for a message."""
    if isinstance(value, Unusable):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def shown(value: object) -> str:
    """An argument as Python writes it, for a message; what cannot be written is described."""
    try:
        return repr(value)
    except Exception:  # some tensors have no numbers that could be printed
        return described(value)
