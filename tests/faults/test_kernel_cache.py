"""Compiled kernels on disk: whatever is wrong there costs a compilation, no more."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import numba
import pytest

from normgrad.backends.cpu import disk, kernels, packaged, units

from .conftest import TIMEOUT, command, environment, python

pytestmark = pytest.mark.cpu

CALL = """
import sys, numpy as np, normgrad
for dtype in sys.argv[1:]:
    x = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    print(normgrad.batch_norm_backward(x, x, training=True).grad_bias)
"""
RIGHT = "[ 60.  92. 124.]\n"


def call(folder, *dtypes):
    done = python(CALL, *dtypes, NUMBA_CACHE_DIR=str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def flipped(content):
    return content[:60] + bytes([content[60] ^ 1]) + content[61:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: bytes(len(content)),
        lambda content: content[: len(content) // 2],
        lambda content: content + b"more",
        lambda content: b"",
        lambda content: b"\x80\x04garbage",
        flipped,
    ],
    ids=["zeros", "halved", "longer", "empty", "garbage", "flipped"],
)
def test_a_file_that_is_damaged_is_none(tmp_path, damage):
    files, key = disk._Files(str(tmp_path), "kernel"), ("signature", "cpu", "hash")
    files.save(key, ["machine code"] * 9)
    assert files.load(key) == ["machine code"] * 9
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert files.load(key) is None
    files.save(key, "mended")
    assert files.load(key) == "mended"


def test_kernels_of_another_numba(monkeypatch):
    """They are not loaded: the digest that a file begins with is another."""
    ours = disk.sources()
    assert disk.sources.__wrapped__() == ours
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert disk.sources.__wrapped__() != ours


def test_every_signature_has_a_file_of_its_own(tmp_path, monkeypatch):
    files = disk._Files(str(tmp_path), "kernel")
    keys = [
        (source.signature, ("x86", "znver4", "+avx"), ("hash",))
        for source in (kernels.SOURCES[units.kernel("rows", "sums", code)] for code in range(4))
    ]
    for key in keys:
        files.save(key, str(key))
    assert [files.load(key) for key in keys] == [str(key) for key in keys]
    assert len(list(tmp_path.iterdir())) == 4
    assert files.load((*keys[0][:2], ("another hash",))) is None
    monkeypatch.setattr(disk, "sources", lambda: "others")
    assert files.load(keys[0]) is None


def test_a_folder_that_is_a_file(tmp_path):
    """Numba finds another folder."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert call(file, "float32") == RIGHT
    assert file.read_bytes() == b""


def test_the_digest_is_of_all_that_kernels_have_constants_from():
    """What the files of compiled code import from above their folder."""
    imports = re.compile(r"^from \.\.\. import (.+)$|^from \.\.\.(\w+) import", re.M)
    found = set()
    for path in Path(disk.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search("^@(helper|instruction|by_types|passed)", text, re.M):
            for modules, module in imports.findall(text):
                names = modules.split(", ") if modules else [module]
                found |= {name.partition(" as ")[0] for name in names}
    assert {"native", "pages", "memory"} < found
    assert {f"{name}.py" for name in found} <= set(packaged._SHARED)


#: What is said where a kernel cannot be kept.
ONE_KERNEL = """
import warnings
from normgrad.backends.cpu import units
warnings.simplefilter("always", RuntimeWarning)
warnings.showwarning = lambda message, *rest: print(message)
{before}
print(units.address(units.OPENMP) != 0)
"""
WARNING = (
    "compiled kernels cannot be kept on disk ({}); each process compiles them again. Set "
    "NUMBA_CACHE_DIR to a folder that can be written."
)


def test_nowhere_to_keep_them():
    before = "from numba.core import caching; caching.CacheImpl._locator_classes = []"
    done = python(ONE_KERNEL.format(before=before))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [WARNING.format("no folder can be written"), "True"]


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="has no limits of files' sizes")
def test_a_full_disk(tmp_path):
    full = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
"""
    done = python(ONE_KERNEL.format(before=full), NUMBA_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [WARNING.format("[Errno 27] File too large"), "True"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


KERNELS = """
import sys
from normgrad.backends.cpu import kernels, units
for code in sys.argv[1:]:
    kernel = kernels.compiled(units.kernel("rows", "sums", int(code)))
    print(code, "from disk" if kernel.cache_hits else "compiled")
"""


def kernels_from(folder):
    done = python(KERNELS, 0, 3, NUMBA_CACHE_DIR=str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.full
def test_two_processes_at_once_and_files_that_are_exchanged(tmp_path):
    """Numba's own index could give the kernel of one dtype for another's, and compute with it."""
    running = [
        subprocess.Popen(
            command(KERNELS, *order), env=environment(NUMBA_CACHE_DIR=str(tmp_path)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for order in ((0, 3), (3, 0))
    ]  # fmt: skip
    for process in running:
        stdout, stderr = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, stderr) == (0, "")
        assert sorted(line[0] for line in stdout.splitlines()) == ["0", "3"]
    assert kernels_from(tmp_path) == ["0 from disk", "3 from disk"]
    one, other = (path for path in tmp_path.rglob("*") if path.is_file())
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert kernels_from(tmp_path) == ["0 compiled", "3 compiled"]
    assert kernels_from(tmp_path) == ["0 from disk", "3 from disk"]
