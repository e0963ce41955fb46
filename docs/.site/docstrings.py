"""An extension of Griffe: the docstrings' cross-references, which are Sphinx's, as Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|mod|meth|data|attr):`~?\.?([\w.]+)`")


def _markdown(text: str) -> str:
    # "so that::" and a formula: one colon, and a block of code as Markdown has them.
    return re.sub(r"::$", ":", _ROLE.sub(r"`\1`", text), flags=re.M)


class Markdown(griffe.Extension):
    """Rewrites every docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _markdown(obj.docstring.value)
