"""Parse the project's Markdown: blocks of code, the comments before them, links and anchors.

A comment on the lines before a block says how tests use it:

- `<!-- not run: REASON -->`: they do not run it;
- `<!-- file: NAME -->`: they save it under that name, for a later block that names it;
- `<!-- output -->`: it is the output of the block before it, with `...` for parts that vary;
- `<!-- command: NAME -->`: .ci/run runs it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
_MARK = re.compile(r"<!--\s*(not run|file|output|command)(?::\s*(.*?))?\s*-->\s*\Z", re.S)


@dataclass(frozen=True)
class Block:
    """A block of code, with the comment before it: its mark and argument, or as it stands."""

    page: str
    line: int
    language: str
    code: str
    mark: str | None = None
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def _tokens(page: str) -> list[Token]:
    text = (ROOT / page).read_text("utf-8")
    return MarkdownIt("commonmark").enable("table").parse(text)


def blocks(page: str) -> list[Block]:
    """The page's blocks of code in order; an indented one has no language."""
    found = []
    comment = ""
    for token in _tokens(page):
        if token.type == "html_block":
            comment = token.content
            continue
        if token.type in ("fence", "code_block"):
            marked = _MARK.search(comment)
            mark, argument = (marked[1], marked[2] or "") if marked else (None, comment)
            language = token.info.strip()
            found.append(Block(page, token.map[0] + 1, language, token.content, mark, argument))
        comment = ""
    return found


def _inline(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield from token.children or ()


def links(page: str) -> list[str]:
    """The targets, within the project, of the page's links and pictures."""
    targets = (
        str(token.attrGet("href") or token.attrGet("src"))
        for token in _inline(_tokens(page))
        if token.type in ("link_open", "image")
    )
    return [unquote(target) for target in targets if not re.match(r"[a-z]+:", target)]


def _slug(heading: str) -> str:
    """A heading's anchor, as repository hosts and the site generate it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    """The anchors of the page's headings."""
    tokens = _tokens(page)
    found: set[str] = set()
    for before, token in itertools.pairwise(tokens):
        if before.type != "heading_open":
            continue
        words = "".join(child.content for child in token.children or ())
        found.add(_slug(words))
    return found
