"""A disk that is full and a process that is killed, while a file is written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from normgrad import writing

from .conftest import python

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits and files without names"),
    pytest.mark.cpu,
]

#: What happens to the commands in forked children.
START = """
import commands, contextlib, os, resource, signal, sys
from pathlib import Path
from normgrad import writing
folder = Path(sys.argv[1])

def full(limit):
    # No file may grow beyond so many bytes, which is what a full disk looks like to who writes.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def killed(where):
    if where == "link":
        os.link = die
    else:
        os.fsync = die
    if where == "named":
        writing._nameless = lambda folder, mode: None
"""

FULL = "cannot be written; what was there is as it was (File too large)"


@pytest.fixture
def layer(tmp_path):
    """A file whose gradients take 256 KiB."""
    x, dy = np.random.default_rng(0).standard_normal((2, 8, 8, 32, 32), dtype=np.float32)
    file = tmp_path / "in" / "layer.npz"
    file.parent.mkdir()
    np.savez(file, operator="batch_norm_backward", training=True, grad_out=dy, input=x)
    return file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


RUN = """
file, suffix = Path(sys.argv[2]), sys.argv[3]
out = folder / "out" / f"gradients.{suffix}"
out.parent.mkdir()
with contextlib.redirect_stdout(None):
    print(commands.here("run", file, "-o", out), file=sys.stderr)
def tried(change):
    out.write_bytes(b"what was there")
    status, complaint = commands.forked(change, "run", file, "-o", out)
    left = [path for path in out.parent.iterdir() if path != out]
    names = [path.name[:10] for path in left]
    print(status, complaint.replace(str(out), "OUT").strip(), out.read_bytes().decode(), names)
    for path in left:
        path.unlink()
"""


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_run_on_a_full_disk(layer, tmp_path, suffix):
    code = START + RUN + "for limit in (0, 1, 5000, 200_000): tried(lambda: full(limit))"
    done = python(code, tmp_path, layer, suffix)
    assert (done.returncode, done.stderr) == (0, "0\n")
    assert done.stdout.splitlines() == [f"2 normgrad: OUT: {FULL} what was there []"] * 4


def test_run_that_is_killed(layer, tmp_path):
    """Nothing is left, but where the file system has no files without names."""
    code = START + RUN + "for where in ('sync', 'link', 'named'): tried(lambda: killed(where))"
    done = python(code, tmp_path, layer, "npz")
    assert (done.returncode, done.stderr) == (0, "0\n")
    handle = writing._nameless(tmp_path, 0o666)
    nothing, something = "-9  what was there []", "-9  what was there ['.normgrad-']"
    expected = [nothing, nothing, something]
    if handle is None:
        expected = [something, something, something]
    else:
        os.close(handle)
    assert done.stdout.splitlines() == expected


def test_run_on_a_disk_that_is_really_full(layer, tmp_path):
    """Where this may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        out = disk / "gradients.npz"
        out.write_bytes(b"what was there")
        code = START + "sys.exit(commands.here('run', *sys.argv[2:]))"
        done = python(code, tmp_path, layer, "-o", out)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"normgrad: {out}: cannot be written; what was there is as it was (No space left on "
            "device)\n"
        )
        assert out.read_bytes() == b"what was there"
        assert names(disk) == [out.name]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# What they are written with


def test_new_files_have_the_permissions_of_any_other(tmp_path, monkeypatch):
    plain = tmp_path / "plain"
    plain.touch()
    for number in range(2):
        path = tmp_path / str(number)
        with writing.replacing(path) as file:
            file.write(b"new")
        assert path.stat().st_mode == plain.stat().st_mode
        path.chmod(0o640)
        with writing.replacing(path) as file:
            file.write(b"newer")
        assert path.stat().st_mode & 0o777 == 0o640
        assert path.read_bytes() == b"newer"
        # ... and where there are no files without names.
        monkeypatch.setattr(writing, "_nameless", lambda folder, mode: None)
    assert names(tmp_path) == ["0", "1", "plain"]
