"""The teeth of the suite: each wrong implementation is found, most of them by a quick run."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import MUTANTS
from support import sampled

from normgrad import testing
from normgrad.testing import Subject

pytestmark = [pytest.mark.cpu, pytest.mark.every_case]

#: Those that only a full run finds.
FULL_RUN = {"mask_backwards", "nothing_is_nan", "no_multiple"}

#: How a table of Markdown spells a bar.
BAR = "\\|"

DOCUMENT = Path(__file__).parents[2] / "docs" / "verify.md"


def caught_by(name, quick):
    """The first case that is wrong of a mutant; None if it gets through."""
    subject = Subject(name, MUTANTS[name].make())
    for case in testing.cases(quick):
        if case.operator in subject.functions:
            judged = testing.run(case, subject)
            if judged.verdict.is_defect:
                return judged
    return None


def row(name):
    """The mutant's row in the documents' table."""
    found = caught_by(name, quick=name not in FULL_RUN)
    assert found is not None, f"{name} gets through"
    run = "full" if name in FULL_RUN else "quick"
    words = MUTANTS[name].words, run, found.case.topic.value
    return f"| {' | '.join(each.replace('|', BAR) for each in words)} |"


@pytest.mark.parametrize("name", sampled(MUTANTS, 5, "mutants"))
def test_a_mutant_is_found(name):
    assert row(name) in DOCUMENT.read_text("utf-8").splitlines()


def test_there_are_many_and_a_quick_run_finds_nearly_all():
    assert len(MUTANTS) >= 40
    assert len(FULL_RUN) <= 4
    assert set(MUTANTS) > FULL_RUN
    assert len({mutant.words for mutant in MUTANTS.values()}) == len(MUTANTS)
