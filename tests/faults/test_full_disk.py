"""A disk that is full and a process that is killed, while a file is written."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

from normgrad.support import files

from .conftest import python

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits"),
    pytest.mark.cpu,
]

#: What happens to the commands in forked children.
START = """
import commands, contextlib, os, resource, signal, sys
from pathlib import Path
from normgrad.support import files
folder = Path(sys.argv[1])

def full(limit):
    # No file may grow beyond so many bytes, which is what a full disk looks like to who writes.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def killed():
    os.fsync = die
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
    """The old file is whole; what was written of the new one has another name."""
    done = python(START + RUN + "tried(killed)", tmp_path, layer, "npz")
    assert (done.returncode, done.stderr) == (0, "0\n")
    assert done.stdout == "-9  what was there ['.normgrad-']\n"


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


def test_new_files_have_the_permissions_of_any_other(tmp_path):
    plain, path = tmp_path / "plain", tmp_path / "new"
    plain.touch()
    with files.replacing(path) as file:
        file.write(b"new")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    with files.replacing(path) as file:
        file.write(b"newer")
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == ["new", "plain"]
