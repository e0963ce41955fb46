"""An extension of Griffe: docstrings as Griffe and Markdown have them."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: Two attributes described together, "mean, rstd: …": Griffe takes a word after a space for a type.
_NAMES = re.compile(r"^ +\w+(?:, \w+)+(?=: )", re.M)
_ROLE = re.compile(r":(?:func|class|mod|meth|data|attr):`~?\.?([\w.]+)`")


def _markdown(text: str) -> str:
    text = _NAMES.sub(lambda names: names[0].replace(", ", ",\N{NO-BREAK SPACE}"), text)
    # "so that::" and a formula: one colon, and a block of code as Markdown has them.
    return re.sub(r"::$", ":", _ROLE.sub(r"`\1`", text), flags=re.M)


class Markdown(griffe.Extension):
    """Rewrites every docstring once it is loaded."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """List the members of an enumeration and the fields of a named tuple, a line each.

        By itself each would have a heading and a block of code, or be left out for want of a
        docstring.
        """
        bases = {str(base).partition("[")[0] for base in cls.bases}
        listed = [each for each in cls.attributes.values() if not each.docstring]
        if bases & {"Enum", "IntEnum"}:
            lines = [f"{each.name} = {each.value}" for each in listed]
        elif "NamedTuple" in bases and "Attributes:" not in getattr(cls.docstring, "value", ""):
            lines = [f"{each.name}: {each.annotation}" for each in listed]
        else:
            return
        if cls.docstring is not None and lines:
            cls.docstring.value += "\n\n" + "\n".join(f"    {line}" for line in lines) + "\n"

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _markdown(obj.docstring.value)
