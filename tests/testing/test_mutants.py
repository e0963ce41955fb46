"""The teeth of the suite: each wrong implementation is found, nearly all of them by a quick run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mutants import MUTANTS
from support import FULL, sampled

from normgrad import testing
from normgrad.testing import Subject, Topic

pytestmark = [pytest.mark.cpu, pytest.mark.every_case]

DOCUMENT = Path(__file__).parents[2] / "docs" / "verify.md"
#: The documents' table: by a mutant's words, the run that finds it and the topic of the first case.
ROWS = {
    words: (run, Topic(topic.replace("\\|", "|")))
    for words, run, topic in re.findall(
        r"^\| (.+) \| (quick|full) \| (.+) \|$", DOCUMENT.read_text("utf-8"), re.M
    )
}


def caught_by(name, cases):
    """The verdict on the first case that a mutant has wrong; None if it gets through."""
    subject = Subject(name, MUTANTS[name].make())
    for case in cases:
        if case.operator in subject.functions:
            judged = testing.run(case, subject)
            if judged.verdict.is_defect:
                return judged
    return None


@pytest.mark.parametrize("name", sampled(MUTANTS, 8, "mutants"))
def test_a_mutant_is_found(name):
    run, topic = ROWS[MUTANTS[name].words]
    cases = testing.cases(quick=run == "quick")
    found = caught_by(name, [case for case in cases if case.topic is topic])
    assert found is not None, f"{name} gets through"
    if FULL:
        assert caught_by(name, cases).case.topic is topic, name
        assert (caught_by(name, testing.cases(quick=True)) is None) == (run == "full"), name


def test_there_are_many_and_a_quick_run_finds_nearly_all():
    assert set(ROWS) == {mutant.words for mutant in MUTANTS.values()}
    assert len(ROWS) == len(MUTANTS) >= 40
    assert [run for run, _ in ROWS.values()].count("full") <= 4
