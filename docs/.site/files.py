"""Make docs/files.md: every module of the package with the first sentence of its docstring.

python docs/.site/files.py
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, PAGE = ROOT / "src" / "normgrad", ROOT / "docs" / "files.md"
HEAD = """# Files

Every module of `src/normgrad`, with the first sentence of its docstring, from which
`python docs/.site/files.py` makes this page. [Architecture](architecture.md) says how they work
together.
"""


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|").replace("``", "`")


def page() -> str:
    """The page."""
    modules = sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.parent, path.name))
    folders: dict[Path, list[str]] = {}
    for path in modules:
        if path.name != "__init__.py" or sentence(path):
            line = f"| `{path.name}` | {sentence(path)} |"
            folders.setdefault(path.parent, []).append(line)
    tables = [
        f"## {folder.relative_to(PACKAGE.parent).as_posix()}\n\n| file | |\n| --- | --- |\n"
        + "\n".join(lines)
        + "\n"
        for folder, lines in folders.items()
    ]
    return "\n".join([HEAD, *tables])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
