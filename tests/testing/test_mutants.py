"""The teeth of the suite: each wrong implementation is found, nearly all of them by a quick run.

``python -m test_mutants`` in this folder, with tests/ on the path, prints the documents' table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from common import FULL, sampled
from mutants import MUTANTS

from normgrad import testing
from normgrad.testing import Level, Subject

pytestmark = [pytest.mark.cpu, pytest.mark.every_case]

DOCUMENT = Path(__file__).parents[2] / "docs" / "verify" / "mutants.md"
#: A row: the mutant's words, the run that finds it, the gravest level and its first case's topic.
ROW = "| {} | {} | {} | {} |"
ROWS = {
    words.replace("\\|", "|"): found
    for words, *found in re.findall(
        ROW.replace("|", r"\|").format("(.+)", "(quick|full)", "(.+)", "(.+)"),
        DOCUMENT.read_text("utf-8"),
    )
}


def first_gravest(words, cases):
    """The first verdict of the gravest level that a mutant gets; None if all cases pass."""
    subject = Subject(words, MUTANTS[words]())
    found = {}
    for case in cases:
        if subject.has(case):
            judged = testing.run(case, subject)
            found.setdefault(judged.level, judged)
            if judged.level is Level.WRONG:  # none is graver
                break
    return next((found[level] for level in Level if level in found), None)


def found_by(words):
    """The columns of a mutant's row: the quickest run that finds it, the level and the topic."""
    for run in ("quick", "full"):
        if found := first_gravest(words, testing.cases(quick=run == "quick")):
            return [run, found.level.value, str(found.case.topic).replace("|", "\\|")]
    return None


@pytest.mark.parametrize("words", sampled(MUTANTS, 8, "mutants"))
def test_a_mutant_is_found(words):
    if FULL:
        assert found_by(words) == ROWS[words]
        return
    run, level, topic = ROWS[words]
    cases = testing.cases(quick=run == "quick")
    title = topic.replace("\\|", "|")
    found = first_gravest(words, [case for case in cases if case.topic.value == title])
    assert found.level.value == level


def test_there_are_many_and_a_quick_run_finds_nearly_all():
    assert set(ROWS) == set(MUTANTS)
    assert len(ROWS) >= 90
    assert [run for run, *_ in ROWS.values()].count("full") <= 4


if __name__ == "__main__":
    for row in (("wrong implementation", "found by", "level", "first among"), ["---"] * 4):
        print(ROW.format(*row))
    for each in MUTANTS:
        print(
            ROW.format(each.replace("|", "\\|"), *(found_by(each) or ["NOT FOUND"] * 3)), flush=True
        )
