"""Run a part of a suite on an implementation, and compile shared libraries for it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from normgrad import testing
from normgrad.testing import loading
from normgrad.testing.outcomes import Outcome

SOURCES = Path(__file__).parent / "testing" / "libraries"


def compiled(source, target, *flags):
    warnings = ("-Wall", "-Wextra", "-Werror")
    command = ["cc", "-std=c11", *warnings, "-O1", "-shared", "-fPIC", SOURCES / source]
    subprocess.run([*command, *flags, "-lm", "-ldl", "-o", target], check=True)
    return str(target)


def tried(subject, wanted=lambda case: True, quick=True):
    """The verdicts on an implementation, or on that of a name, in the cases that are wanted."""
    subject = testing.load(str(subject)) if isinstance(subject, (str, Path)) else subject
    if not isinstance(subject, testing.Implementation):
        subject = testing.Subject("it", subject)
    cases = [case for case in loading.cases_of(subject, quick) if wanted(case)]
    return [testing.run(case, subject) for case in cases if subject.has(case)]


def apart(library, wanted, folder, *options):
    """Try a library in a process of its own, whose environment it may read once for all.

    Returns pytest's exit status, what it says, and the rows of its file by the cases' names.
    """
    command = [
        sys.executable,
        "-m",
        "normgrad.cli",
        "verify",
        str(library),
        *(options or ("-n", "0")),
        *("-p", "no:hypothesispytest"),  # which would import all of Hypothesis
    ]
    done = subprocess.run(
        [*command, "-m", wanted, "--csv", "found.csv"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    rows = {}
    if (path := Path(folder) / "found.csv").is_file():
        with path.open(encoding="utf-8") as file:
            rows = {row["case"]: row for row in csv.DictReader(file)}
    return done.returncode, done.stdout + done.stderr, rows


def unmet(judged):
    """The verdicts other than "passed", in words, by the cases' names."""
    return {each.case.name: str(each) for each in judged if not each.passed}


def words(judged):
    """The verdicts' words."""
    return {each.word for each in judged}


def of(*topics, **fields):
    """Whether a case has one of these topics, and these values of fields."""

    def is_wanted(case):
        fits = all(getattr(case, name) == value for name, value in fields.items())
        return fits and (not topics or case.topic in topics)

    return is_wanted


def allowed(case):
    """The status that a case's mistake must give."""
    (fault,) = testing.judge(case, Outcome()).faults
    assert fault.what == "accepts a wrong call"
    return fault.text.rpartition("success; allowed: ")[2]
