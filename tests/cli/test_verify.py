"""``normgrad verify``: what it says, writes and returns."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import normgrad
from normgrad import testing
from normgrad.testing import page as pages

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

WRONG = """
import normgrad

class Ops:
    def batch_norm_stats(self, input, *, eps=1e-5):
        mean, invstd = normgrad.batch_norm_stats(input, eps=eps)
        return mean, invstd * 2
"""


@pytest.fixture
def verify(cli, tmp_path, monkeypatch, in_process):
    """Runs it where it may write, with its cases in this process; gives the result and the page."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "it's mine"):  # which are other modules in each test
        monkeypatch.delitem(sys.modules, name, raising=False)

    def run(*arguments):
        # With --only no page is written, unless it is asked for.
        given = arguments if "-o" in arguments else (*arguments, "-o", "normgrad-verify.html")
        result = cli("verify", *given)
        page = tmp_path / "normgrad-verify.html"
        return result, page.read_text() if page.is_file() else None

    return run


def test_ours(verify):
    result, page = verify("--quick", "--alone", "--only", "/stats/")
    assert result.exit_code == 0, result.output
    assert re.search(r"in all +\d+ ", result.stdout)
    assert "normgrad (cpu)" in result.stdout
    assert "wrong calls: " in result.stdout
    assert 'normgrad (cpu): <span class="good">every case is met</span>' in page
    assert page.count('src="data:image/svg+xml;base64,') == 2
    # All is in the page itself.
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "<h2>This machine</h2>" in page
    assert str(Path(normgrad.__file__).parent) not in page


@pytest.mark.full
def test_pytorch_beside_ours(verify):
    pytest.importorskip("torch")
    result, page = verify("--quick", "--only", "/group_norm/")
    # PyTorch's defects do not count against ours.
    assert result.exit_code == 0
    assert "torch 2." in result.stdout
    # Nor are they what is said of ours, which comes last.
    assert "normgrad verify --alone --backend torch" not in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last == "passed  normgrad (cpu): every case is met"
    assert "<h2>torch 2." in page
    assert '<td class="bad">wrong</td>' in page


def test_others(verify, tmp_path):
    (tmp_path / "mine.py").write_text(WRONG)
    result, page = verify("--backend", "mine:Ops", "--quick", "--only", "absent/")
    assert result.exit_code == 1, "nothing of it was tried"
    assert re.search(r'mine:Ops: <span class="bad">nothing was met, \d+ not offered</span>', page)
    result, page = verify("--backend", "mine:Ops", "--quick", "--only", "/stats/8x4x16x16/float32")
    assert result.exit_code == 1
    assert re.search(r"\nfailed  mine:Ops: \d+ wrong\n$", result.stdout)
    assert "mine:Ops: what is wrong" in result.stdout
    assert re.search(
        r"\nwrong, \d+ cases: \|mean\| ≫ std, stats\n"
        r" +mean/stats/8x4x16x16/float32\S+: invstd: .*\n"
        r" +normgrad verify --alone --backend mine:Ops --only mean/stats/8x4x16x16/float32\S+\n",
        result.stdout,
    )
    assert re.search(r'mine:Ops: <span class="bad">\d+ wrong</span>', page)
    # Ours is beside it, without being named.
    assert "<h2>normgrad (cpu)</h2>" in page


def in_a_shell(command, tmp_path):
    """What comes of a line that is pasted into a shell."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "normgrad"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m normgrad.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(
        command, cwd=tmp_path, env=environment, shell=True, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def without_progress(text):
    """Standard error's text without the lines that say how much is done, on a busy machine."""
    return re.sub(r"(?m)^normgrad: \d+ of \d+ cases.*\n", "", text)


def commands_of(text):
    return [line.strip() for line in text.splitlines() if line.strip().startswith("normgrad ver")]


CARELESS = """
import normgrad

class Ops:
    def batch_norm_stats(self, input, *, eps=1e-5):
        if input.dtype == "int32":
            return None
        mean, invstd = normgrad.batch_norm_stats(input, eps=eps)
        is_far = input.flags.c_contiguous and 1e9 < input.max() < 1e30
        return mean, invstd * 2 if is_far else invstd
"""


def test_each_finding_has_the_command_that_repeats_it(verify, tmp_path):
    (tmp_path / "it's mine.py").write_text(CARELESS)
    result, page = verify("--backend", "it's mine:Ops", "--alone", "--only", "/stats/3x4x")
    assert result.exit_code == 1
    commands = commands_of(result.stdout)
    assert len(commands) == 2
    for command, verdict, name in zip(
        commands,
        ("accepted", "wrong"),
        (
            "mistakes/stats/3x4x5/float32/contiguous/change=input: int32",
            "special/stats/3x4x40/float32/contiguous/change=one element far away",
        ),
        strict=True,
    ):
        assert command.endswith(f" --only '{name}'")
        assert command in html.unescape(page)
        if verdict == "wrong":
            done = in_a_shell(command, tmp_path)
            status, stdout, stderr = done.returncode, done.stdout, done.stderr
        else:  # as a shell reads it, in less time
            done, _ = verify(*shlex.split(command)[2:])
            status, stdout, stderr = done.exit_code, done.stdout, done.stderr
        assert (status, without_progress(stderr)) == (1, "")
        assert commands_of(stdout) == [command]
        assert re.search(rf"\n{verdict}, 1 case: .*, stats\n +{re.escape(name)}: ", stdout)
        assert re.search(r" in all +1 ", stdout), "another case was tried too"


def test_an_operator_that_never_answers(verify, tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Ops:\n"
        "    def batch_norm_stats(self, input, *, eps=1e-5):\n"
        "        raise ValueError('input: not today')\n"
    )
    result, page = verify("--backend", "mine:Ops", "--alone", "--quick")
    assert result.exit_code == 1
    first = "plain/stats/3x4x5/float32/contiguous"
    said = (
        "batch_norm_stats answers no legal call; the first was "
        f"{first}: refused: ValueError: input: not today"
    )
    assert f"\noperators: {said}\n" in result.stdout
    assert said in page
    assert 'class="bad">batch_norm_stats answers no legal call, ' in page
    legal = [case for case in testing.cases(True) if is_legal_call_of(case, "stats")]
    number = len([case for case in legal if case.channel_axis == 1])  # it has no parameter for it
    assert number < len(legal)
    assert (
        f"\nrefused, {number} cases: batch_norm_stats answers no legal call\n"
        f"    {first}: ValueError: input: not today\n"
        f"    normgrad verify --alone --backend mine:Ops --only {first}\n"
    ) in result.stdout
    assert f"normgrad verify --alone --backend mine:Ops --only {first}" in page


def is_legal_call_of(case, kind):
    return case.kind == kind and case.topic is not testing.Topic.MISTAKES


def test_the_page_explains_what_a_case_is(verify):
    _, page = verify("--quick", "--alone", "--only", "plain/")
    assert "<code>normgrad verify --only TEXT</code>" in page
    assert "such as <code>plain/train/3x4x5/float32/contiguous</code>" in page
    for kind in testing.SUITES["operators"].cases(True, {}):
        assert f"<code>{kind.kind}</code></td><td" in page
    for words, known in (
        (pages.TOPICS, testing.Topic),
        (pages.KINDS, (*testing.GRADIENTS, *testing.FORWARD)),
        (pages.LAYOUTS, testing.LAYOUTS),
    ):
        assert set(words) == set(known)
        assert all(text.endswith(".") for text in words.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "nowhere:Ops"), "--backend: nowhere:Ops: cannot import nowhere: "
         "ModuleNotFoundError: No module named 'nowhere'"),
        (("--only", "no such case"), "--only: no case of --quick has 'no such case' in its name; "
         "allowed: a part of one"),
        (("-o", "."), ".: a directory; allowed: the name of a file, new or old, in a folder "),
        (("-o", "nowhere/page.html"), "nowhere/page.html: no folder "),
    ],
)  # fmt: skip
def test_what_cannot_be_used(verify, arguments, message):
    result, page = verify("--quick", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"normgrad: {message}")
    assert result.stderr.count("\n") == 1
    assert page is None


def test_names_are_no_markup(verify, tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Ops:\n"
        "    def batch_norm_stats(self, input, *, eps=1e-5):\n"
        "        raise ValueError('<script>alert(1)</script>')\n"
    )
    result, page = verify("--backend", "mine:Ops", "--quick", "--alone", "--only", "mean/stats/")
    assert result.exit_code == 1
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_part_does_not_replace_the_whole(cli, tmp_path, monkeypatch, in_process):
    monkeypatch.chdir(tmp_path)
    result = cli("verify", "--quick", "--alone", "--only", "absent/train/")
    assert result.exit_code == 0
    assert not list(tmp_path.iterdir())


def test_without_what_the_page_is_made_with(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("verify", "--quick")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "normgrad: --report: the page needs jinja2 and matplotlib: pip install 'normgrad[cli]'\n"
    )


def test_files_beside_it_are_not_imported(tmp_path):
    for name in ("numpy", "json", "normgrad", "random"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    command = Path(sys.executable).with_name("normgrad")
    if not command.is_file():
        pytest.skip("no command normgrad beside this Python")
    options = ("--backend", "normgrad", "--quick", "--alone", "--only", "absent/eval/")
    done = subprocess.run(
        [command, "verify", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")


def begun(tmp_path, program, *options, every=5.0):
    """``normgrad verify`` of this program, once it has made the file "begun"."""
    (tmp_path / "mine.py").write_text(program)
    start = f"from normgrad.cli import main, show; show.EVERY = {every}; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", start, "verify", "--backend", "mine:Ops", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started = time.monotonic()
    while not (tmp_path / "begun").exists() and time.monotonic() - started < 120:
        assert process.poll() is None
        time.sleep(0.05)
    return process


HANGS = """
import os, pathlib, time
import normgrad

class Ops:
    def batch_norm_stats(self, input, *, eps=1e-5):
        if input.shape == (2, 4, 1000):
            pathlib.Path("writing").write_text(str(os.getpid()))
            pathlib.Path("writing").rename("begun")
            time.sleep(600)
        mean, invstd = normgrad.batch_norm_stats(input, eps=eps)
        return mean, invstd * (2 if str(input.dtype) == "float32" else 1)
"""


def test_an_interrupt_leaves_what_was_judged(tmp_path):
    """The table and the page of the cases before it, which say that they are not all.

    Standard error, which is no terminal, has a line of progress now and then.
    """
    only = ("--alone", "--only", "/stats/", "-o", "page.html")
    process = begun(tmp_path, HANGS, *only, every=0.2)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, without_progress(stderr)) == (130, "normgrad: interrupted\n")
    form = r"(?m)^normgrad: \d+ of \d+ cases: mine:Ops: dtypes and layouts, stats$"
    assert len(re.findall(form, stderr)) >= 2
    assert "cases: mine" not in stdout
    judged, left = re.search(
        r"\ninterrupted: after (\d+) cases, of which the rest is; (\d+) were left\n", stdout
    ).groups()
    assert int(judged) > 1
    assert int(left) > 50
    assert re.search(r"\n *in all +\d", stdout)
    assert "\nwrong, " in stdout
    last = stdout.partition("\nwritten  page.html\n")[2]
    assert last.startswith(f"interrupted  mine:Ops: interrupted after {judged} cases, ")
    page = (tmp_path / "page.html").read_text()
    assert "<title>normgrad verify: mine:Ops (interrupted)</title>" in page
    assert '<p class="bad">This run was interrupted: ' in page
    assert f'<span class="bad">interrupted after {judged} cases, ' in page
    assert f"{judged} of the suite" in page
    assert not (tmp_path / "normgrad-verify.html").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the system ends it")
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(tmp_path, ended_by):
    """Before any case was judged."""
    started = time.monotonic()
    program = HANGS.replace("(2, 4, 1000)", "(3, 4, 5)")
    process = begun(tmp_path, program, "--only", "plain/stats/", "-o", "page.html")
    process.send_signal(ended_by)
    stdout, stderr = process.communicate(timeout=60)
    if ended_by == signal.SIGINT:
        assert (process.returncode, stdout) == (130, "")
        assert without_progress(stderr) == "normgrad: interrupted\n"
    assert not (tmp_path / "page.html").exists()
    # What was tried is gone too, at once or when the system has seen to it.
    tried = Path("/proc", (tmp_path / "begun").read_text())
    while tried.exists() and "Z" not in (tried / "stat").read_text().split(")")[-1][:3]:
        assert time.monotonic() - started < 180
        time.sleep(0.05)
