"""The suite under pytest: what is selected, what fails, what is skipped, and what is said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.every_case,
    pytest.mark.skipif(sys.platform == "win32", reason="descriptors are handed on"),
]

HERE = Path(__file__).parent


@pytest.fixture
def under_pytest(tmp_path):
    """Runs pytest in a folder without settings; gives its exit status and what it says."""

    def run(backend, *arguments, named="normgrad.testing"):
        # By its name too, since an installation from before the plugin has no entry point.
        command = [sys.executable, "-m", "pytest", "-p", "normgrad.pytest_plugin", "--pyargs"]
        done = subprocess.run(
            [*command, named, "--backend", backend, "-q", "--strict-markers", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(HERE), "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_test_for_each_case(under_pytest, tmp_path):
    """In pytest-xdist, selected by marks, with the largest error in JUnit's file."""
    status, said, _ = under_pytest(
        "tried_operators:Inexact",
        "--quick",
        "-n1",
        "-m",
        "case(topic='mean', dtype='float32') and not case(kind='train_without_statistics')",
        "--junitxml=found.xml",
    )
    assert status == 1
    tests = list(Xml.parse(tmp_path / "found.xml").iter("testcase"))
    assert {each.get("classname") for each in tests} == {"normgrad.testing.test_backend"}
    form = r"test_case\[mean/(train|eval)/8x4x16x16/float32/\w+/mean=[\d.e+]+\]"
    assert tests
    for each in tests:
        assert re.fullmatch(form, each.get("name")), each.get("name")
        (message,) = (failure.get("message") for failure in each.iter("failure"))
        assert message.startswith("Failed: tried_operators:Inexact: wrong: grad_weight: ")
        (units,) = (p.get("value") for p in each.iter("property"))
        assert float(units) > 1
    assert f"{len(tests)} failed in " in said


@pytest.mark.full
def test_one_test_by_its_name(under_pytest):
    name = "normgrad.testing::test_case[absent/train/3x4x25/float32/contiguous/absent=weight]"
    status, said, _ = under_pytest("tried_operators:Talks", "-W", "error", named=name)
    assert (status, said.splitlines()[-1][:9]) == (0, "1 passed ")


def test_what_is_not_offered_is_skipped_and_refusals_are_no_failures(under_pytest):
    words = "4x6x9x11 or test_answers or (plain and stats)"
    status, said, _ = under_pytest("tried_operators:Selective", "--quick", "-rs", "-k", words)
    assert status == 0
    assert "not offered: float32 alone" in said
    assert "refused: RuntimeError: four axes alone" in said
    assert " passed, " in said
    # What has no such operator has no such tests.
    assert "forward" not in said


def test_a_crash_fails_a_test_in_a_process_of_its_own(under_pytest):
    topic = "case(topic='vectors', kind='train')"
    status, said, _ = under_pytest("tried_operators:Crashes", "--quick", "--isolate", "-m", topic)
    assert status == 1
    assert "tried_operators:Crashes: crashed: SIGSEGV: going down\n" in said
    assert re.search(r"\n1 failed, \d+ passed", said)


def test_an_operator_that_answers_nothing_fails(under_pytest):
    status, said, _ = under_pytest(
        "fooling_operators:OtherSignatures", "--quick", "-k", "test_answers or plain"
    )
    assert status == 1
    assert (
        "\nfooling_operators:OtherSignatures: batch_norm_stats answers no legal call; the first "
        "was plain/stats/3x4x5/float32/contiguous: not offered: no parameter eps\n"
    ) in said
    assert re.search(r"\n2 failed, 2 skipped", said)


@pytest.mark.parametrize(
    ("backend", "options", "reason"),
    [
        ("nowhere:Ops", (), "nowhere:Ops: cannot import nowhere: ModuleNotFoundError: No module "),
        ("fooling_operators:ExitsWhenMade", ("--isolate",), "it cannot be loaded: exit status 0"),
    ],
)
def test_what_cannot_be_loaded_is_said_first(under_pytest, backend, options, reason):
    status, said, error = under_pytest(backend, *options)
    assert (status, said) == (4, "")
    assert error.startswith(f"ERROR: --backend: {reason}")


def test_other_runs_of_pytest_have_no_options_of_ours(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--backend', '--quick')\n"
    )
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "normgrad.pytest_plugin", "--backend", "x", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
