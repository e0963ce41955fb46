"""``normgrad verify``: what it says, writes and returns."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

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
def verify(cli, tmp_path, monkeypatch):
    """Runs it where it may write; gives the result and the page's text."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = cli("verify", *arguments)
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


def test_pytorch_beside_ours(verify):
    pytest.importorskip("torch")
    result, page = verify("--quick", "--only", "/group_norm/")
    # PyTorch's defects do not count against ours.
    assert result.exit_code == 0
    assert "torch 2." in result.stdout
    assert "<h2>torch 2." in page
    assert '<td class="bad">wrong</td>' in page


def test_others(verify, tmp_path):
    (tmp_path / "mine.py").write_text(WRONG)
    result, page = verify("--backend", "mine:Ops", "--quick", "--only", "absent/")
    assert result.exit_code == 0, "nothing of it was tried"
    result, page = verify("--backend", "mine:Ops", "--quick", "--only", "/stats/8x4x16x16/float32")
    assert result.exit_code == 1
    assert "mine:Ops: what is wrong" in result.stdout
    assert re.search(r"wrong +\d+ +mean/stats/8x4x16x16/float32.*invstd: ", result.stdout)
    assert 'mine:Ops: <span class="bad">not every case is met</span>' in page
    # Ours is beside it, without being named.
    assert "<h2>normgrad (cpu)</h2>" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "nowhere:Ops"), "--backend: nowhere:Ops: cannot import nowhere: "
         "ModuleNotFoundError: No module named 'nowhere'"),
        (("--only", "no such case"), "--only: no case has 'no such case' in its name; allowed: "
         "a part of one"),
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
    assert result.exit_code == 0
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupted(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, pathlib, time\n"
        "class Ops:\n"
        "    def batch_norm_stats(self, input, *, eps=1e-5):\n"
        "        pathlib.Path('writing').write_text(str(os.getpid()))\n"
        "        pathlib.Path('writing').rename('begun')\n"
        "        time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "normgrad.cli", "verify", "--backend", "mine:Ops"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started = time.monotonic()
    while not (tmp_path / "begun").exists() and time.monotonic() - started < 120:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, b"", b"normgrad: interrupted\n")
    assert not (tmp_path / "normgrad-verify.html").exists()
    # What was tried is gone too.
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "begun").read_text()), 0)
