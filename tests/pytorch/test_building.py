"""The build of the C++ library: once for all processes, and for each build of PyTorch."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec

import pytest

torch = pytest.importorskip("torch")

import normgrad.torch as nt  # noqa: E402
from normgrad.support import cache, notices, torch_build  # noqa: E402
from normgrad.support.compilers import BuildError  # noqa: E402
from normgrad.support.settings import SettingError  # noqa: E402

#: A compiler that notes each of its runs, and writes the library once it is allowed to.
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo run >> "$RUNS"
until [ -e "$GO" ]; do sleep 0.05; done
echo library > "$2"
"""
BUILD = "from normgrad.support.torch_build import build; print(build())"
#: The seconds within which processes that import PyTorch on a busy machine show a result.
PATIENCE = 240

#: The library that all tests share.
BUILT = torch_build.path()


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder with an empty cache and a compiler."""
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o700)
    (tmp_path / "runs").touch()
    for name, value in (
        ("CXX", compiler), ("RUNS", tmp_path / "runs"), ("GO", tmp_path / "go"),
        (cache.VARIABLE, tmp_path / "cache"), (notices.QUIET, ""),
    ):  # fmt: skip
        monkeypatch.setenv(name, str(value))
    return tmp_path


def runs(folder):
    return len((folder / "runs").read_text().splitlines())


def start(folder, name):
    """A process that builds the library, and writes its output to a file."""
    with (folder / name).open("w") as file:
        return subprocess.Popen([sys.executable, "-c", BUILD], stdout=file, stderr=file)


def test_processes_wait_for_the_one_that_builds(folder):
    processes = [start(folder, f"output {index}") for index in range(4)]
    waiting = "waiting for another process that builds the C++ library of PyTorch's layers"

    def texts():
        return [(folder / f"output {index}").read_text() for index in range(4)]

    until(lambda: runs(folder) + sum(waiting in text for text in texts()) >= 4)
    (folder / "go").touch()
    assert [process.wait(PATIENCE) for process in processes] == [0] * 4, texts()
    assert runs(folder) == 1
    assert {text.splitlines()[-1] for text in texts()} == {str(torch_build.path())}
    assert torch_build.missing() is None


@pytest.mark.every_case
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_interrupted(folder, number):
    """The next one neither waits for it nor finds a part of its library."""
    process = start(folder, "output")
    until(lambda: runs(folder) == 1)
    process.send_signal(number)
    assert process.wait(PATIENCE) != 0
    assert torch_build.missing() == "not built; `normgrad warmup` builds it"
    (folder / "go").touch()
    assert nt.build() == torch_build.path()
    assert torch_build.missing() is None
    assert runs(folder) == 2


def test_builds_that_fail(monkeypatch, folder):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="CXX: 'no-such-compiler' is not found; allowed: a C"):
        nt.build()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="false does not compile the library for PyTorch: no mess"):
        nt.build()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BuildError, match="the library for PyTorch on darwin; allowed: Linux"):
        nt.build()
    assert not any(folder.rglob("*.so"))


# The name


def test_builds_of_pytorch_have_libraries_of_their_own(monkeypatch, tmp_path):
    """Those of other versions, of other local versions, and of other commits."""
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torch_build, "find_spec", lambda name: spec)
    names = []
    for version, commit in (
        ("2.13.0", "cf30"), ("2.13.0+cpu", "cf30"), ("2.13.0a0+mine", "cf30"),
        ("2.13.0a0+mine", "aa11"), ("2.14.0", "aa11"),
    ):  # fmt: skip
        content = f"__all__ = ['__version__', 'git_version']\n__version__ = '{version}'\n"
        content += f"debug = False\ncuda: Optional[str] = None\ngit_version = '{commit}'\n"
        (tmp_path / "version.py").write_text(content)
        name = torch_build.path().name
        assert name.startswith(
            f"torch-{version}-{commit}-{sys.implementation.cache_tag}-{platform.machine()}-"
        )
        names.append(name)
    assert len(set(names)) == len(names)


def test_the_name_has_the_version_and_commit_of_this_pytorch():
    about = f"torch-{torch.version.__version__}-{torch.version.git_version}-"
    assert torch_build.path().name.startswith(about)


def test_without_pytorch(monkeypatch):
    monkeypatch.setattr(torch_build, "find_spec", lambda name: None)
    reason = "PyTorch is not installed; `pip install torch`"
    with pytest.raises(BuildError, match=f"^{reason}$"):
        nt.build()
    assert torch_build.missing() == f"not there: {reason}"


# Wrong settings


FLAGS = 'NORMGRAD_TORCH_FLAGS: "\'-g" (no closing quotation); allowed: words, quoted as for a shell'


def test_flags_and_compilers_that_are_no_words(monkeypatch, folder):
    monkeypatch.setenv("NORMGRAD_TORCH_FLAGS", "'-g")
    with pytest.raises(SettingError, match=f"^{re.escape(FLAGS)}$"):
        nt.build()
    monkeypatch.delenv("NORMGRAD_TORCH_FLAGS")
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(SettingError, match=r'^CXX: "g\+\+ \'" \(no closing quotation\); allowed: '):
        nt.build()
    assert runs(folder) == 0


#: What `normgrad info` says of layers, and what a first call gives or raises.
PROGRAM = """
import torch, normgrad.torch as nt
from normgrad.cli import info
for _, rows in info.gather():
    print(dict(rows).get("layers run", ""), end="")
print()
try:
    print(nt.nn.LayerNorm(4)(torch.ones(2, 4)).shape)
except ValueError as error:
    print(error)
"""
EXTENSION = "NORMGRAD_TORCH_EXTENSION: 'yes'; allowed: 0 or 1"


def test_a_folder_that_cannot_be_made(folder, monkeypatch):
    """It is found before the compiler runs."""
    monkeypatch.setenv(cache.VARIABLE, "/proc/nope")
    said = "/proc/nope"
    with pytest.raises(OSError, match=said):
        torch_build.build()
    assert runs(folder) == 0


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("name", "value", "reason", "call"),
    [
        ("NORMGRAD_TORCH_FLAGS", "'-g", FLAGS, "torch.Size([2, 4])"),
        (torch_build.VARIABLE, "yes", EXTENSION, EXTENSION),
    ],
)
def test_a_wrong_setting_ends_no_import(name, value, reason, call):
    """Nor does it end `normgrad info`, which shows it; other wrong settings do neither."""
    others = {"NORMGRAD_NUM_THREADS": "few", "NORMGRAD_ACL_PRODUCT": "none"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **others, name: value},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"by PyTorch; the C++ library is not there: {reason}",
        call,
    ]


# What stands in the library's place


def damaged(path, built):
    cache.write(path, built.read_bytes()[:20_000])


def pipe(path, built):
    path.parent.mkdir()
    os.mkfifo(path, 0o600)
    os.mkfifo(path.with_name("build.lock"), 0o600)


@pytest.mark.every_case
@pytest.mark.parametrize("make", [damaged, pipe])
def test_what_is_no_library_is_not_loaded(folder, monkeypatch, make):
    """It is built again."""
    path = torch_build.path()
    cache.folder().mkdir()
    make(path, BUILT)
    program = "import normgrad.torch; print(normgrad.support.torch_build.missing())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.startswith("not built; "), (done.stdout, done.stderr)
    (folder / "go").touch()
    nt.build()
    assert torch_build.missing() is None


def test_a_damaged_library_of_the_package_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(torch_build, "PACKAGED", tmp_path)
    cached = torch_build.path()
    packaged = tmp_path / cached.name
    packaged.write_bytes(cached.read_bytes()[:20_000])
    assert torch_build.path() == cached
    packaged.write_bytes(cache.seal(packaged, b"library"))
    assert torch_build.path() == packaged
    assert torch_build.missing() is None
