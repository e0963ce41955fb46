"""The command with standard output or standard error closed, full, or read by nobody."""

import os
import subprocess
import sys

import numpy as np
import pytest

import normgrad
from normgrad.cli import main

pytestmark = pytest.mark.skipif(
    not os.path.exists("/dev/full"),  # noqa: PTH110
    reason="no full device",
)

FULL = "normgrad: standard output: No space left on device\n"
MISSING = "normgrad: nope.npz: No such file or directory; allowed: a .npz or .safetensors file\n"


def redirected(redirection, *arguments):
    """What comes of a command that a shell starts so: its status, and what arrives."""
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "normgrad"]
        + [str(argument) for argument in arguments],
        check=False,
        capture_output=True,
        timeout=120,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("aclnn",),
        ("aclnn", "contract", "BatchNormBackward", "--product", "Ascend910"),
        ("info",),
        ("run", "--help"),
        # The same of other commands.
        *[
            pytest.param(arguments, marks=pytest.mark.full)
            for arguments in (
                ("aclnn", "contract"), ("info", "--help"), ("bench", "--help"),
                ("verify", "--help"), ("warmup", "--help"), ("aclnn", "--help"),
                ("capi", "--help"), ("capi", "flags", "--help"), ("capi", "build", "--help"),
            )
        ],
    ],
    ids=" ".join,
)  # fmt: skip
def test_standard_output_that_is_full(arguments):
    assert redirected(">/dev/full", *arguments) == (2, "", FULL)


def test_results_on_a_full_standard_output(batch_norm, tmp_path):
    """The gradients are written all the same."""
    file, out = batch_norm.save(tmp_path / "layer.npz"), tmp_path / "out.npz"
    assert redirected(">/dev/full", "run", file, "-o", out) == (2, "", FULL)
    with np.load(out) as archive:
        assert sorted(archive) == ["grad_bias", "grad_input", "grad_weight"]


@pytest.mark.parametrize(
    ("redirection", "arguments"),
    [
        *[
            (redirection, ("run", "nope.npz"))
            for redirection in ("2>/dev/full", "2>&-", ">&- 2>&-", ">/dev/full 2>&1")
        ],
        ("2>/dev/full", ("run",)),
        ("2>&-", ("walk",)),
        ("2>/dev/full", ("capi", "flags", "aclnn", "--out", "nowhere")),
        *[
            pytest.param("2>/dev/full", arguments, marks=pytest.mark.full)
            for arguments in (("bench", "--device", "tpu"), ("aclnn", "contract", "no"))
        ],
    ],
    ids=str,
)
def test_refusals_that_nobody_reads(redirection, arguments):
    """The status is a refusal's, and what was meant for one stream is not in the other."""
    assert redirected(redirection, *arguments) == (2, "", "")


def test_refusals_with_standard_output_closed_or_full():
    for redirection in (">&-", ">/dev/full"):
        assert redirected(redirection, "run", "nope.npz") == (2, "", MISSING)


def test_results_that_nobody_reads(batch_norm, tmp_path):
    """Closed on purpose, or gone: no failure. A note is none either."""
    version = f"normgrad {normgrad.__version__}\n"
    assert redirected(">&-", "--version") == (0, "", "")
    assert redirected("2>/dev/full", "--version") == (0, version, "")
    reading, writing = os.pipe()
    os.close(reading)
    for arguments in (("--help",), ("aclnn", "contract")):
        done = subprocess.run(
            [sys.executable, "-m", "normgrad", *arguments],
            check=False,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    os.close(writing)
    file, out = batch_norm.save(tmp_path / "layer.npz", other=1), tmp_path / "out.npz"
    for redirection in ("2>/dev/full", "2>&-"):
        status, shown, _ = redirected(redirection, "run", file, "-o", out)
        assert status == 0
        assert shown.startswith("batch_norm_backward\n")
        assert "not used" not in shown
        with np.load(out) as archive:
            assert sorted(archive) == ["grad_bias", "grad_input", "grad_weight"]
        out.unlink()


def test_a_program_keeps_its_streams(monkeypatch, capsys):
    before = sys.stdout, sys.stderr
    monkeypatch.setattr(sys, "argv", ["normgrad", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == (f"normgrad {normgrad.__version__}\n", "")
