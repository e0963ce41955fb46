"""The suite under pytest: what is selected, what fails, what is skipped, and what is said."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path
from types import SimpleNamespace

import pytest
import trials

from normgrad import testing
from normgrad.testing import plugin
from normgrad.testing.plugin import COLUMNS

pytestmark = pytest.mark.every_case

HERE = Path(__file__).parent
NAMED = "normgrad.testing"
#: Hypothesis's plugin imports all of Hypothesis at the end of a run, which takes half a second.
PLAIN = "-p no:hypothesispytest"
MASKS = "case(topic='masks', kind='train')"


@pytest.fixture(autouse=True)
def _elsewhere(_here, monkeypatch, tmp_path):
    """In a folder without conftest.py, from which the tried modules are still found."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.chdir(tmp_path)


def under_pytest(subject, *arguments, plugins=()):
    """Run pytest in this process; return its exit status and what it says."""
    fixed = ("-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider", "-q", "--strict-markers")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main(
            [*fixed, "--pyargs", NAMED, "--subject", subject, *map(str, arguments)], [*plugins]
        )
    return int(status), said.getvalue()


def apart(subject, *arguments, named=NAMED):
    """The same in a process of its own, which may end."""
    # By its name too, since an installation from before the plugin has no entry point.
    command = [sys.executable, "-m", "pytest", "-p", "normgrad.pytest_plugin", "--pyargs", named]
    done = subprocess.run(
        [*command, "--subject", subject, "-q", "--strict-markers", "-p", "no:cacheprovider",
         "-c", os.devnull, "--rootdir=.", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}", "PYTEST_ADDOPTS": PLAIN},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_what_a_run_writes_and_says(tmp_path):
    """In pytest-xdist: a test for each case, with its properties; a file; and the findings."""
    status, said, _ = apart(
        "tried_operators:Doubles", "--quick", "-n1", "-m", "case(topic='values') or "
        "case(topic='masks')", "--junitxml", tmp_path / "found.xml",
        "--csv", tmp_path / "found.csv",
    )  # fmt: skip
    assert status == 1
    with (tmp_path / "found.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    tests = list(Xml.parse(tmp_path / "found.xml").iter("testcase"))
    assert {each.get("classname") for each in tests} == {"normgrad.testing.test_subject"}
    assert {f"test_case[{row['case']}]" for row in rows} == {each.get("name") for each in tests}
    verdicts = {row["case"]: row["verdict"] for row in rows}
    for each in tests:
        properties = {each.get("name"): each.get("value") for each in each.iter("property")}
        assert properties.keys() == {"verdict", "error / bound", "error / plain code", "faults"}
        verdict = verdicts[each.get("name")[len("test_case[") : -1]]
        assert properties["verdict"] == verdict
        assert [*each.iter("failure")] == [] or verdict == "wrong"
    wrong = [row for row in rows if row["verdict"] == "wrong"]
    assert 0 < len(wrong) < len(rows)
    assert all(float(row["error / plain code"]) > 1 for row in wrong)
    assert {row["what"] for row in wrong} == {"invstd"}
    lines = said.splitlines()
    (table,) = (line.split() for line in lines if line.startswith("batch_norm_stats "))
    assert table[1] == str(len(rows))
    (finding,) = (line for line in lines if line.startswith("wrong: batch_norm_stats: inv"))
    number = len(wrong)
    command = next(line for line in lines[lines.index(finding) :] if "    normgrad" in line)
    assert command.startswith("    normgrad verify tried_operators:Doubles --case values/stats/33x")
    start = next(index for index, line in enumerate(lines) if "= normgrad =" in line)
    end = next(index for index, line in enumerate(lines) if " cases offered: " in line)
    report = lines[start : end + 1]
    assert [line for line in report if len(line) > 80 and "--case" not in line] == []
    assert f"{len(rows)} cases offered: {number} wrong (" in said
    assert re.search(rf"\n{number} failed, ", said)


WEIGHT = "absent/train/3x4x25/float32/contiguous/absent=weight"


@pytest.mark.parametrize(
    "chosen",
    [
        ("--case", WEIGHT),
        ("-k", "absent/train/ and weight and bfloat16"),
        ("--quick", "-m", "case(topic='plain', kind='eval', dtype='float32', device='cpu')"),
    ],
)
def test_cases_are_selected_by_name_words_or_marks(chosen):
    status, said = under_pytest("tried_operators:Right", *chosen)
    assert (status, said.splitlines()[-1][:8]) == (0, "1 passed"), said


@pytest.mark.full
def test_one_test_by_its_name():
    """In another folder, and without any warning."""
    named = f"{NAMED}::test_case[{WEIGHT}]"
    status, said, _ = apart("tried_operators:Right", "-W", "error", named=named)
    assert (status, said.splitlines()[-1][:9]) == (0, "1 passed "), said


def test_a_case_of_one_of_several_devices_is_found_by_its_name():
    subject = testing.load("normgrad")
    other = copy.copy(subject)
    other.device = "cuda:0"
    case = "plain/stats/3x4x5/float32/contiguous"
    for name, device in ((case, "cpu"), (f"{case}/cuda:0", "cuda:0")):
        options = SimpleNamespace(getoption={"case": name, "quick": False}.get)
        wanted = plugin._wanted(options, (subject, other))
        assert {each: [*cases] for each, cases in wanted.items() if cases} == {device: [name]}


def test_errors_within_what_plain_code_gives_fail_only_by_a_bound_of_one_s_own(tmp_path):
    chosen = ("--quick", "-m", MASKS)
    status, said = under_pytest("tried_operators:Inexact", *chosen)
    assert status == 0
    assert re.search(r"\d+ cases offered: 0 wrong, \d+ beyond the bound, \d+ passed\n", said)
    assert re.search(r"\n\d+ passed, \d+ deselected, \d+ beyond the bound in ", said), said
    for bound, expected in ((1e9, 0), (1.5, 1)):
        status, said = under_pytest("tried_operators:Inexact", *chosen, "--bound", bound)
        assert status == expected
        failed = re.search(r"\n(\d+) failed, ", said)
        report = " ".join(said.split())
        assert f"; --bound {bound:g} fails {failed[1] if failed else 0} more " in report
    (tmp_path / "xfails.txt").write_text("masks/*")
    more = ("--bound", 1.5, "--xfails", tmp_path / "xfails.txt")
    status, said = under_pytest("tried_operators:Inexact", *chosen, *more)
    assert status == 0
    assert "; --bound 1.5 fails 0 more " in " ".join(said.split())


def test_cases_that_are_expected_to_fail(tmp_path):
    file = tmp_path / "xfails.txt"
    file.write_text("# all of these\n\nplain/train/*  # sums\nplain/eval/3x4x5/*\n")
    chosen = ("--quick", "-k", "plain/train/ or plain/eval", "-rxX", "--xfails", file)
    status, said = under_pytest("tried_operators:WritesToInputs", *chosen)
    assert status == 0
    assert re.search(r"\nXFAIL .*\[plain/train/3x4x5/float32/contiguous\] - sums\n", said)
    assert re.search(r"\D2 xfailed", said), said
    lines = [line for line in said.splitlines() if line.startswith("wrong: ")]
    assert lines, said
    report = " ".join(said.split())
    assert report.count(" (expected) ") == len(lines)
    assert "2 wrong (1 finding, 1 expected)" in report
    assert "--xfails" not in said
    status, said = under_pytest("tried_operators:Right", *chosen)
    assert (status, re.search(r"\D2 xpassed", said) is None) == (0, False), said
    # Of patterns, those that match no case of the whole suite are said.
    file.write_text("plain/train/*\nno/such/*\nvalues/train/*/bfloat16/*")
    status, said = under_pytest("tried_operators:WritesToInputs", *chosen)
    assert status == 1
    assert re.findall(r"^--xfails: .*", said, re.M) == ["--xfails: no case has the name no/such/*"]
    assert "(expected)" not in said  # the finding has another case


def test_an_interrupt_after_the_last_case_does_not_lose_the_report():
    """As while workers end."""

    class Interrupts:
        def pytest_sessionfinish(self):
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        chosen = ("--quick", "-k", "plain/train/")
        status, said = under_pytest("tried_operators:Right", *chosen, plugins=[Interrupts()])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 0
    assert re.search(r"1 case offered: 0 wrong, 1 passed\n", said), said


def test_what_is_not_offered_is_skipped():
    words = "4x6x9x11 or plain"
    status, said = under_pytest("tried_operators:Selective", "--quick", "-rs", "-k", words)
    assert status == 1  # three axes are refused
    assert "float32 alone" in said
    assert re.search(r"\n1 failed, \d+ passed, \d+ skipped, ", said)
    # What has no such operator has no such tests.
    assert "forward" not in said


def test_a_crash_fails_one_test_and_the_others_go_on(tmp_path, monkeypatch):
    """Without a stack for each; the finding names the signal."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parent}")
    wanted = f"{MASKS} or case(topic='plain', operator='batch_norm_backward')"
    options = ("--quick", "-k", "contiguous", "-n", "1")
    status, said, _ = trials.apart("tried_operators:Crashes", wanted, tmp_path, *options)
    assert status == 1
    assert "\n    SIGSEGV: worker 'gw" in said
    assert "Fatal Python error" not in said
    (finding,) = re.findall(r"^wrong: .*(?:\n  \S.*)*", said, re.M)
    finding = " ".join(finding.split())
    assert "the process ends or hangs" in finding, said
    failed, passed = (int(re.search(rf"(\d+) {word}", said)[1]) for word in ("failed", "passed"))
    assert f"({failed} of " in finding
    assert passed > failed > 0


def test_a_process_whose_end_is_unknown_is_what_xdist_says_of_it():
    """As where its way to the process is no longer the one that is known."""
    report = SimpleNamespace(longrepr="worker 'gw0' crashed while running a test\nmore")
    assert plugin._end_of(report) == "worker 'gw0' crashed while running a test"


def test_a_hang_fails_one_test(tmp_path):
    mask = "masks/train/3x4x5x6/float32/contiguous/mask=000"
    status, said, _ = apart(
        "tried_operators:Hangs",
        "-n1",
        "-m",
        MASKS,
        "-k",
        "contiguous",
        "--timeout=3",
        "--timeout-method=thread",
    )
    assert status == 1
    assert (tmp_path / "hangs").exists()
    assert re.search(r"\n1 failed, 7 passed", said), said
    assert f" --case {mask}\n" in said
    assert "the process ends or hangs" in said


def test_operators_of_one_s_own():
    """From the hook of the module that has the functions; those without a function are left out."""
    status, said = under_pytest("own_operators:Right", "-q", "--quick")
    assert status == 0, said
    assert "scale" not in said
    # The module may be a plugin already.
    more = ("-p", "own_operators", "--quick", "-m", "case(topic='absent')")
    status, said = under_pytest("own_operators:Wrong", *more)
    assert status == 1
    assert "\nwrong: add_rms_norm: output (" in said
    assert "    normgrad verify own_operators:Wrong --case absent/add_rms_norm/" in said


def test_other_runs_of_pytest_have_no_options_of_ours(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--subject', '--quick')\n"
    )
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "normgrad.pytest_plugin", "--subject", "x", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
