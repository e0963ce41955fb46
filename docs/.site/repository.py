"""A hook of mkdocs: what the pages link to outside docs/ is part of the site.

Pages are written for a repository host, where `../examples/digits/README.md` leads out of docs/.
The site has such files under their paths in the repository, a Markdown file as a page and a folder
as its README, and links are made to fit. A link to nothing is left as it is, and fails a strict
build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

#: The target of a Markdown link or picture, up to its anchor.
_TARGET = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)[^)#\s]+")
#: Those of a paragraph of code are no links.
_FENCED = re.compile(r"^(```.*?^```)", re.M | re.S)


def _in_repository(page: str, target: str) -> str | None:
    """What a link on a page of docs/ or of the repository names, if it is a file outside docs/."""
    source = Path("docs", page) if (ROOT / "docs" / page).exists() else Path(page)
    named = PurePosixPath(os.path.normpath(source.parent / target))
    if (ROOT / named).is_dir():
        named /= "README.md"
    outside = named.parts[0] not in ("..", "docs")
    return str(named) if outside and (ROOT / named).is_file() else None


def _targets(markdown: str) -> list[str]:
    return _TARGET.findall(_FENCED.sub("", markdown))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to, and what those link to in their turn."""
    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while pages:
        page, markdown = pages.pop()
        for target in _targets(markdown):
            named = _in_repository(page, target)
            if named is None or files.get_file_from_path(named) is not None:
                continue
            files.append(File.generated(config, named, abs_src_path=str(ROOT / named)))
            if named.endswith(".md"):
                pages.append((named, (ROOT / named).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to where the site has what they name."""
    here = page.file.src_uri
    folder = PurePosixPath(here).parent

    def fitted(match: re.Match[str]) -> str:
        named = _in_repository(here, match[0])
        if named is None and not (ROOT / "docs" / here).exists():
            # From a page of the repository into docs/, which is the site's root.
            named = os.path.normpath(folder / match[0]).removeprefix("docs/")
        return match[0] if named is None else os.path.relpath(named, folder)

    parts = _FENCED.split(markdown)
    return "".join(
        part if index % 2 else _TARGET.sub(fitted, part) for index, part in enumerate(parts)
    )
