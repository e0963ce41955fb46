"""The examples run, and the captured files are what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
FILES = [
    f"{layer}_{dtype}"
    for layer in ("batch_norm", "group_norm")
    for dtype in ("float32", "bfloat16")
]


@pytest.mark.parametrize("name", FILES)
def test_captured_gradients_are_within_their_bound(name, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    from normgrad.cli import run

    request = run.load(DIGITS / f"{name}.safetensors", None, {})
    assert request.call.tensors["input"].dtype == name.rsplit("_", 1)[1]
    assert request.notes == ()
    report = run.execute(request)
    assert report.results[0].name == "grad_input"
    assert len(report.results) == 3
    assert 0 < max(result.units for result in report.results) <= 1
    assert safetensors is not None


def test_captured_files_are_small():
    sizes = [(DIGITS / f"{name}.safetensors").stat().st_size for name in FILES]
    assert sum(sizes) < 1_000_000


@pytest.mark.full
def test_capturing_anew(tmp_path):
    """The script trains, captures all four files, and finds every error within the bound."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, DIGITS / "capture.py", "--out-dir", tmp_path, "--epochs", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "epoch 1: loss" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}.safetensors" for name in FILES
    )
    rows = [line.split() for line in done.stdout.splitlines() if ".safetensors  " in line]
    assert len(rows) == 12
    assert all(0 <= float(row[3]) <= 1 for row in rows)


def test_aclnn_two_phase():
    """The numbers it prints, worked out by hand."""
    script = Path(__file__).parents[1] / "examples" / "aclnn_two_phase.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300
    )
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    # dy sums to 2 in each channel; Σ dy·(x − mean) is 0 in both.
    assert lines["sumDy"].split("[")[1] == "2. 2.]"
    assert lines["sumDyXmu"].split("[")[1] == "0. 0.]"
    # So dx is weight · invstd · (dy − 1/2): 1/sqrt(1.25) / 2, and 2/sqrt(5) / 2.
    blocks = done.stdout.split("aclnn")
    batch_norm = blocks[1].split("gradInput")[1].split("]")[0]
    expected = [0.4472, -0.4472, -0.4472, 0.4472, -0.4472, 0.4472, 0.4472, -0.4472]
    assert [float(word) for word in batch_norm.replace("[", "").split()] == expected
    assert batch_norm == blocks[3].split("gradInput")[1].split("]")[0]
    assert done.stdout.splitlines()[-1].startswith(
        "561003: aclnnGroupNormBackward: product: Ascend 950; allowed: Atlas training series"
    )
