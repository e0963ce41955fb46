"""Write the Python of the documents to a folder, for type checkers: python typed_pages.py OUT."""

from __future__ import annotations

import sys
from pathlib import Path

from documents import PAGES, blocks

#: A kernel of Triton's, whose annotations say what its compiler sees: calls do not fit them.
_KERNELS = ("elemt.py",)


def _main() -> None:
    out = Path(sys.argv[1])
    for page in PAGES:
        code: dict[str, list[str]] = {}
        for block in blocks(page):
            if block.language == "python" and block.mark in (None, "file"):
                code.setdefault(block.argument if block.mark else "page.py", []).append(block.code)
        for name, parts in code.items():
            if name not in _KERNELS:
                path = out / page.removesuffix(".md") / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(parts), "utf-8")


if __name__ == "__main__":
    _main()
