"""What the documents say is so: their code runs and prints what they show, their links lead
somewhere."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import claims
import pytest
import yaml
from documents import PAGES, ROOT, Block, anchors, blocks, links

import normgrad
from normgrad.cli import app
from normgrad.operators.by_name import PLANNED

pytestmark = pytest.mark.every_case

#: What is run; and what is looked at in another way, or not at all: diagrams and formulas.
RUN = ("python", "sh")
SAVED = (*RUN, "c", "cpp")
SHOWN = ("text", "yaml")

_PROGRAM = Path(__file__).parent / "page_program.py"
#: Packages that some pages need and not every environment has.
_OPTIONAL = ("torch", "triton", "sklearn")
_EXPECTED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


#: What PyTorch says when it ends a process of torchrun's at its exit, after all is done. On a busy
#: machine it does so in 3 of 8 runs of a script without normgrad; then the page is run again.
_TORCH_S_END = "terminate called without an active exception"
_TRIES = 4


def _steps(page: str) -> list[Block]:
    """What is run of a page, and saved for it."""
    return [
        block
        for block in blocks(page)
        if block.mark == "file" or (block.language in RUN and block.mark is None)
    ]


def _pages_that_run() -> list[Any]:
    """The pages with something to run; of those with the same code and output, the first.

    Tutorials take long, and Chinese pages' code is the English ones' but for what is said in it.
    """
    kept: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        if steps := _steps(page):
            shown = [block for block in blocks(page) if block.mark == "output"]
            kept.setdefault(tuple(block.code for block in (*steps, *shown)), page)
    full = re.compile(r"\b(zh|tutorials)\b")
    return [
        pytest.param(page, marks=pytest.mark.full if full.search(page) else ())
        for page in kept.values()
    ]


def _missing(steps: list[Block]) -> list[str]:
    code = "\n".join(step.code for step in steps)
    named = {name for name in _OPTIONAL if re.search(rf"\b{name}", code)}
    missing = [name for name in named if importlib.util.find_spec(name) is None]
    if "normgrad capi" in code or "cc -" in code:
        missing += [name for name in ("gcc", "g++") if shutil.which(name) is None]
    return missing


def _run(steps: list[Block], folder: Path) -> list[str]:
    """What each step prints, in a folder that looks like a checkout with its examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    scripts = Path(sys.executable).parent
    as_json = [
        {
            "language": step.language,
            "path": str(ROOT / step.page),
            "line": step.line,
            "code": step.code,
            "file": step.argument if step.mark == "file" else None,
        }
        for step in steps
    ]
    for _ in range(_TRIES):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(_PROGRAM)],
            input=json.dumps(as_json),
            env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": "100"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if _TORCH_S_END not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.cpu
@pytest.mark.parametrize("page", _pages_that_run())
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path):
    steps = _steps(page)
    if missing := _missing(steps):
        pytest.skip(f"no {', '.join(missing)}")
    printed = dict(zip(steps, _run(steps, tmp_path), strict=True))
    checker = doctest.OutputChecker()
    for before, block in zip(blocks(page), blocks(page)[1:], strict=False):
        if block.mark == "output":
            example = doctest.Example("", block.code)
            assert checker.check_output(block.code, printed[before], _EXPECTED), (
                f"{block}: {checker.output_difference(example, printed[before], _EXPECTED)}"
            )


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_accounted_for(page):
    """It is run, saved for one that is run, shown, or marked with the reason why not."""
    found = blocks(page)
    for index, block in enumerate(found):
        known = f"{block}: a block of {block.language or 'no language'}"
        if block.mark == "not run":
            assert block.argument, f"{known}, not run for no reason"
            assert block.language in (*SAVED, *SHOWN), known
        elif block.mark == "file":
            assert block.language in SAVED, known
            # A module is named without its suffix.
            assert any(
                block.argument.removesuffix(".py") in later.code and later in _steps(page)
                for later in found[index + 1 :]
            ), f"{known}, saved as {block.argument} for nothing"
        elif block.mark == "output":
            assert block.language == "text", known
            assert index, known
            assert found[index - 1] in _steps(page), f"{known}, of what is not run"
        elif block.mark == "command":
            assert block.language == "sh", known
            ran = (ROOT / ".ci" / "run").read_text("utf-8")
            assert f'$(command_in_readme {block.argument})"' in ran, known
            assert page == "README.md", known
        else:
            assert block.language in (*RUN, *SHOWN), known
            assert not block.argument, f"{known}, after {block.argument.strip()}"


@pytest.mark.parametrize("page", PAGES)
def test_yaml_can_be_read(page):
    for block in blocks(page):
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.code), dict), str(block)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            there = str(target.resolve().relative_to(ROOT))
            assert anchor in anchors(there), f"{page}: {link}; {there} has {sorted(anchors(there))}"


#: Pages in Chinese and what they are translations of.
TRANSLATED = {
    page: page.replace("docs/zh/", "docs/").replace(".zh-CN", "")
    for page in PAGES
    if page.startswith("docs/zh/") or ".zh-CN" in page
}


def _without_comments(block: Block) -> str:
    if block.language == "python":
        return ast.unparse(ast.parse(block.code))
    comment = {"c": r"//.*", "sh": r"#.*", "yaml": r"\s*#.*"}.get(block.language, "(?!)")
    return re.sub(comment, "", block.code)


@pytest.mark.parametrize("page", TRANSLATED)
def test_a_translation_has_the_same_code_and_sections(page):
    """Block by block, but for comments; and as many sections and points."""
    ours, theirs = blocks(page), blocks(TRANSLATED[page])
    pairs = [
        [(block.language, _without_comments(block)) for block in found] for found in (ours, theirs)
    ]
    assert pairs[0] == pairs[1]
    for mark in ("output", "file"):
        assert [b.mark == mark for b in ours] == [b.mark == mark for b in theirs]
    for start in ("## ", "- "):
        counts = [_lines(name, start) for name in (page, TRANSLATED[page])]
        assert counts[0] == counts[1], start


def _lines(page: str, start: str) -> int:
    text = (ROOT / page).read_text("utf-8")
    return sum(line.startswith(start) for line in text.splitlines())


def test_figures_are_those_of_the_results():
    """Every figure of speed on the front pages, the tables of files in benchmarks/results, and the
    number of the suite's cases."""
    assert claims.check() == []


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("is 2.0 to\n9.9 times", "is 2.0 to\n3.1 times"),
        ("is 2.0 to 3.1 times", "is 2.0 to 3.1 times"),
        ("was 2.0 to 3.1 times", None),
        ("is 2.0 to 3.1 times, is 2.0 to 3.1 times", None),
    ],
)
def test_a_claim_is_found_once_and_corrected(text, corrected):
    assert claims._corrected(text, "is {} to {} times", ("2.0", "3.1")) == corrected


def test_there_is_one_tagline():
    """The package's description, on every front."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    said = [
        normgrad.__doc__.splitlines()[0],
        app.app.info.help,
        (ROOT / "README.md").read_text("utf-8").splitlines()[4],
        re.search('^description = "(.*)"$', project, re.M)[1],
        re.search("^site_description: (.*)$", site, re.M)[1],
    ]
    assert len({line.rstrip(".") for line in said}) == 1, said


def test_the_reference_has_every_operator():
    """And every result; the docstring of plan has the operators' names."""
    page = "docs/reference/operators"
    pages = (ROOT / page).glob("*.md")
    text = "\n".join(page.read_text("utf-8") for page in pages)
    results = {name for name in normgrad.__all__ if hasattr(getattr(normgrad, name), "_fields")}
    shown = re.findall(r"^::: (\S+)$(?:\n    options:\n      heading: (\S+)$)?", text, re.M)
    assert {heading or name for name, heading in shown} == {
        f"normgrad.{name}" for name in PLANNED.keys() | results
    }, f"{page}: the entries, by their headings where a module has the function's name"
    arguments = inspect.getdoc(normgrad.plan).partition("Args:")[2].partition("arguments:")[0]
    names = set(re.findall(r'"(\w+)"', arguments))
    assert names == PLANNED.keys(), "operators/by_name.py: the docstring of plan"


def test_features_of_pytorch_have_the_tests_that_are_named():
    text = (ROOT / "docs" / "pytorch" / "features.md").read_text("utf-8")
    named = re.findall(r"`([\w/]*test_\w+\.py)::(\w+)`", text)
    assert len(named) > 30
    for file, name in named:
        tests = (ROOT / "tests" / "pytorch" / file).read_text("utf-8")
        assert re.search(rf"^def {name}\(", tests, re.M), f"{file}::{name}"


def test_the_parser_sees_what_is_there():
    """A sentinel: a page's blocks, marks, links and anchors, counted by hand."""
    found = blocks("README.md")
    assert [block.argument for block in found if block.mark == "command"] == ["run", "test"]
    assert [block.language for block in found].count("python") == 2
    assert "docs/pytorch.md#under-torchcompile" in links("README.md")
    assert {"in-python", "installing", "who-gains-and-who-does-not"} <= anchors("README.md")
