"""Compile shared libraries and run the suites on them, to test the suites themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

from normgrad import testing
from normgrad.testing import Verdict
from normgrad.testing.outcomes import Outcome

SOURCES = Path(__file__).parent / "testing" / "libraries"


def compiled(source, target, *flags):
    warnings = ("-Wall", "-Wextra", "-Werror")
    command = ["cc", "-std=c11", *warnings, "-O1", "-shared", "-fPIC", SOURCES / source]
    subprocess.run([*command, *flags, "-lm", "-ldl", "-o", target], check=True)
    return str(target)


def tried(library, wanted=lambda case: True, quick=True):
    return testing.try_cases(str(library), quick, wanted)


def verdicts(trial):
    return {each.verdict for each in trial.judged}


def defects(trial):
    """The cases that were not met, by their verdict."""
    found = {}
    for each in trial.judged:
        if each.verdict is not Verdict.MET:
            found.setdefault(each.verdict, []).append(each)
    return found


def of(*topics):
    return lambda case: case.topic in topics


def allowed(case):
    """The status that a case's mistake must give."""
    judged = testing.judge(case, Outcome())
    assert judged.verdict is Verdict.ACCEPTED
    return judged.detail.rpartition("success; allowed: ")[2]
