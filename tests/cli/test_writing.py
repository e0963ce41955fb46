"""Where the gradients go: all or nothing, and to files alone."""

import errno
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import normgrad


@pytest.fixture
def file(batch_norm, tmp_path):
    return batch_norm.save(tmp_path / "layer.npz")


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_written(file, *args, **kwargs):
    file.write(b"half")
    file.flush()
    full()


WHY = "cannot be written; what was there is as it was (No space left on device)"


@pytest.mark.parametrize("name", ["gradients.npz", "gradients.safetensors"])
@pytest.mark.parametrize("fails", ["encode", "fsync", "replace"])
def test_a_failed_write_leaves_what_was_there(refused, file, tmp_path, monkeypatch, name, fails):
    out = tmp_path / name
    if fails == "encode":
        monkeypatch.setattr(np, "savez", half_written)
        monkeypatch.setattr(safetensors.numpy, "save", full)
    elif fails == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    assert refused(file, out=out) == f"{out}: {WHY}"
    assert out.read_bytes() == b"what was there"


def test_a_failed_write_over_the_input(refused, file, monkeypatch):
    monkeypatch.setattr(Path, "replace", full)
    assert refused(file, out=file) == f"{file}: {WHY}"


def test_an_interrupted_write(cli, file, tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    monkeypatch.setattr(os, "_exit", sys.exit)
    result = cli("run", file, "-o", tmp_path / "out.npz")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "normgrad: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["layer.npz"]


def test_a_folder_that_turns_out_to_be_closed(refused, file, tmp_path, monkeypatch):
    opened = os.open

    def closed(path, flags, *args, **kwargs):
        if flags & os.O_WRONLY:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", closed)
    out = tmp_path / "out.npz"
    assert refused(file, out=out) == (
        f"{out}: cannot be written; what was there is as it was (Permission denied)"
    )


@pytest.fixture
def nothing_computed(monkeypatch):
    """The rest of the test fails where anything is computed."""

    def computed(*args, **kwargs):
        raise AssertionError("computed")

    monkeypatch.setattr(normgrad, "batch_norm_backward", computed)


ALLOWED = "allowed: the name of a file, new or old, in a folder that is there"


@pytest.mark.usefixtures("nothing_computed")
def test_places_that_are_found_wrong_before_any_work(refused, file, tmp_path):
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    assert refused(file, out=folder) == f"{folder}: a directory; {ALLOWED}"
    assert refused(file, "-o", f"{folder}/") == f"{folder}: a directory; {ALLOWED}"
    assert list(folder.iterdir()) == []

    out = tmp_path / "none" / "out.npz"
    assert refused(file, out=out) == f"{out}: no folder {out.parent}; {ALLOWED}"
    assert not out.parent.exists()

    out = file / "out.npz"
    assert refused(file, out=out) == f"{out}: no folder {file}; {ALLOWED}"


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.parametrize(
    "name", ["new.npz/", "new.npz//", "new.npz/.", "layer.npz/", "new/more/.."]
)
def test_names_of_folders_that_are_not_there(cli, file, tmp_path, monkeypatch, name):
    """A Path would forget the slash, and a file new.npz be written."""
    monkeypatch.chdir(tmp_path)
    before = file.read_bytes()
    for command in (
        ("run", file, "-o", name),
        ("run", file, f"--out={name}"),
    ):
        result = cli(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"normgrad: -o: {name!r}, the name of a folder; {ALLOWED}\n"
    result = cli("run", file, "-o", "")
    assert (result.exit_code, result.stderr) == (2, f"normgrad: -o: ''; {ALLOWED}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["layer.npz"]
    assert file.read_bytes() == before


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.skipif(not Path(os.devnull).is_char_device(), reason="no devices as files")
def test_devices_are_not_replaced(refused, file):
    out = Path(os.devnull)
    assert refused(file, out=out) == f"{out}: not a regular file; {ALLOWED}"
    assert out.is_char_device()


@pytest.mark.usefixtures("nothing_computed")
def test_links_in_a_circle(cli, file, tmp_path):
    out = tmp_path / "circle.npz"
    out.symlink_to(out.name)
    result = cli("run", file, "-o", out)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"normgrad: {out}: links in a circle; {ALLOWED}\n"
    assert out.is_symlink()


def test_a_link_goes_on_pointing(cli, file, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    target, link = there / "gradients.npz", tmp_path / "link.npz"
    target.write_bytes(b"old")
    link.symlink_to(target)
    assert cli("run", file, "-o", link).exit_code == 0
    assert link.readlink() == target
    with np.load(target) as archive:
        assert sorted(archive) == ["grad_bias", "grad_input", "grad_weight"]
    assert [path.name for path in there.iterdir()] == ["gradients.npz"]


def test_permissions(cli, file, tmp_path):
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    old.touch()
    old.chmod(0o604)
    before = os.umask(0o027)
    try:
        assert cli("run", file, "-o", old).exit_code == 0
        assert cli("run", file, "-o", new).exit_code == 0
    finally:
        assert os.umask(before) == 0o027
    assert stat.S_IMODE(old.stat().st_mode) == 0o604
    assert stat.S_IMODE(new.stat().st_mode) == 0o640


def test_names_as_long_as_the_system_takes(cli, file, tmp_path):
    out = tmp_path / f"{'n' * 251}.npz"
    assert cli("run", file, "-o", out).exit_code == 0
    assert out.is_file()
    out = tmp_path / f"{'n' * 300}.npz"
    result = cli("run", file, "-o", out)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"normgrad: {out}: cannot be written (File name too long)\n"
