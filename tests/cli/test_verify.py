"""``normgrad verify``: exit statuses, and one clear line for what cannot be tried."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MINE = """
import normgrad

class Right:
    def batch_norm_stats(self, input, *, eps=1e-5):
        return normgrad.batch_norm_stats(input, eps=eps)

class Wrong(Right):
    def batch_norm_stats(self, input, *, eps=1e-5):
        mean, invstd = super().batch_norm_stats(input, eps=eps)
        return mean, invstd * 2

class OtherParameters:
    def batch_norm_stats(self, input):
        return normgrad.batch_norm_stats(input)

class Unwritten(Right):
    def batch_norm_stats(self, input, *, eps=1e-5):
        raise NotImplementedError("to come")

class Nothing:
    pass
"""


@pytest.fixture
def verify(cli, tmp_path, monkeypatch):
    """Runs it in a folder with the module ``mine``, with its cases in this process."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another in each test
    return lambda *arguments: cli("verify", *arguments, "-n", "0")


QUICK = ("--quick", "-k", "plain or mean/stats")


@pytest.mark.parametrize(
    ("subject", "status", "said"),
    [
        ((), 0, r"batch_norm_stats +(\d+) +\1 "),  # normgrad itself
        (("mine:Right",), 0, r"(\d+) cases offered: 0 wrong, \1 passed\n"),
        (
            ("mine:Wrong",),
            1,
            r"wrong: batch_norm_stats: invstd \(\d+ of \d+ cases; layers reach it\)\n"
            r"    invstd: 4 of 4 wrong, first at channel 0; ",
        ),
        (
            ("mine:OtherParameters",),
            1,
            r"not tried: .*\nbatch_norm_stats: eps, [^$]*lacks a parameter\s+\(1 of 1 case;[^$]*\n"
            r" +no parameter eps: batch_norm_stats\(float32\(3, 4, 5\), eps=1e-05\)\n",
        ),
        (("mine:Unwritten",), 5, "0 cases offered: 0 wrong, 0 passed\n"),
    ],
)  # fmt: skip
def test_the_exit_status_says_whether_a_case_is_wrong(verify, subject, status, said):
    result = verify(*subject, *QUICK)
    assert result.exit_code == status, result.output
    assert re.search(said, result.stdout), result.stdout
    assert result.stderr == ""


def test_a_finding_has_the_command_that_repeats_it(verify):
    result = verify("mine:Wrong", *QUICK)
    command = re.findall(r"\n    normgrad verify (.*)\n", result.stdout)[0]
    again = verify(*command.split())
    assert again.exit_code == 1
    assert "1 failed in " in again.stdout
    case = command.rpartition(" ")[2]
    said = rf"\n{case}: wrong\n    invstd: 4 of 4 wrong, first at channel 0; .*\n    "
    assert re.search(said, again.stdout), again.stdout
    assert [line for line in again.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere:Ops",), "--subject: nowhere:Ops: cannot import nowhere: ModuleNotFoundError: N"),
        (("mine.py",), "--subject: mine.py: a file; allowed: its module and a name in "),
        (("mine:Missing",), "--subject: mine:Missing: mine has no Missing"),
        (("mine:Nothing",), "--subject: mine:Nothing: no operators; allowed: an object with "),
        (("./libmine.so",), "--subject: ./libmine.so: no such file; allowed: a shared library"),
        (
            ("mine:Right", "--xfails", "none.txt"),
            "--xfails: none.txt: No such file or directory; allowed: a text file",
        ),
        (("mine:Right", "--xfails", "."), "--xfails: .: Is a directory; allowed: a text file"),
        (
            ("mine:Right", "--csv", "none/a.csv"),
            "--csv: none/a.csv: No such file or directory; allowed: a file that can be written",
        ),
        (("mine:Right", "--csv", "."), "--csv: .: Is a directory; allowed: a file that can be "),
        (
            ("mine:Right", "--case", "plane/stats/3x4x5/float32"),
            r"such as plain/stats/3x4x5/float32/contiguous",
        ),
        (("mine:Right", "--bound", "-1"), "--bound: -1; allowed: a finite number above 0"),
        (("mine:Right", "--bound", "0"), "--bound: 0; allowed: a finite number above 0"),
        (("mine:Right", "--bound", "nan"), "--bound: nan; allowed: a finite number above 0"),
        (("mine:Right", "--bound", "inf"), "--bound: inf; allowed: a finite number above 0"),
        (("mine:Right", "--bound", "small"), "argument --bound: invalid float value: 'small'"),
        (("mine:Right", "--no-such-option"), "unrecognized arguments: --no-such-option"),
    ],
)  # fmt: skip
@pytest.mark.every_case
def test_what_cannot_be_used(verify, arguments, message, capfd):
    """One line, whose end says what is allowed; pytest's own options are pytest's to explain."""
    result = verify(*arguments)
    assert result.exit_code == 4
    said = result.stderr + capfd.readouterr().err
    line = [each for each in said.splitlines() if "error: " in each.lower()][-1]
    assert message in line, said
    assert "Traceback" not in said + result.stdout


def test_without_what_it_runs_with(cli, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("verify")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("normgrad: verify: ")
    assert "pip install 'normgrad[verify]'" in line


HANGS = """
import os, pathlib, time

class Ops:
    def batch_norm_stats(self, input, *, eps=1e-5):
        pathlib.Path("begun.part").write_text(str(os.getpid()))
        pathlib.Path("begun.part").rename("begun")
        time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_an_interrupt_ends_it_and_its_workers(tmp_path):
    (tmp_path / "mine.py").write_text(HANGS)
    process = subprocess.Popen(
        [sys.executable, "-m", "normgrad.cli", "verify", "mine:Ops", "--quick", "-n", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        start_new_session=True,
    )
    started = time.monotonic()
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - started < 120
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "KeyboardInterrupt" in said
    worker = Path("/proc", (tmp_path / "begun").read_text())
    while worker.exists() and "Z" not in (worker / "stat").read_text().split(")")[-1][:3]:
        assert time.monotonic() - started < 180
        time.sleep(0.05)
