"""Compiled kernels on disk: whatever is wrong there costs a compilation, no more."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest

from normgrad.support.cache import VARIABLE

from .conftest import TIMEOUT, command, environment, python

pytestmark = pytest.mark.cpu

#: Prints warnings, and whether a unit that compiles fast has an address.
ONE_KERNEL = """
import warnings
from normgrad.backends.cpu.objects import store, units
warnings.simplefilter("always", RuntimeWarning)
warnings.showwarning = lambda message, *rest: print(message)
{before}
for unit in (units.OPENMP, units.DRIVER):
    print(store.addresses([unit])[unit] != 0)
"""


def warning(why):
    return (
        f"compiled kernels cannot be kept on disk ({why}); each process compiles them again. Set "
        f"{VARIABLE} to a folder that can be written."
    )


def test_a_folder_that_is_a_file(tmp_path):
    """One warning, and kernels in memory."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    done = python(ONE_KERNEL.format(before=""), **{VARIABLE: str(file)})
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    why = f"[Errno 20] Not a directory: '{file}/kernels/DIGEST'"
    assert re.sub("/kernels/[0-9a-f]{16}'", "/kernels/DIGEST'", first) == warning(why)
    assert rest == ["True", "True"]
    assert file.read_bytes() == b""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="has no limits of files' sizes")
def test_a_full_disk(tmp_path):
    full = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
"""
    done = python(ONE_KERNEL.format(before=full), **{VARIABLE: str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    expected = [warning("[Errno 27] File too large"), "True", "True"]
    assert done.stdout.splitlines() == expected
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


KERNELS = """
import sys
from normgrad.backends.cpu.objects import store, units
store.LONG = 60.0
kernels = [units.kernel("rows", "apply", int(code)) for code in sys.argv[1:]]
found = store.find(kernels)
store.addresses(kernels)
for code, unit in zip(sys.argv[1:], kernels):
    print(code, "from disk" if unit in found else "compiled")
"""


def kernels_from(folder):
    done = python(KERNELS, 0, 3, **{VARIABLE: str(folder)})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.full
def test_two_processes_at_once_and_files_that_are_exchanged(tmp_path):
    """No kernel is taken for another's."""
    running = [
        subprocess.Popen(
            command(KERNELS, *order), env=environment(**{VARIABLE: str(tmp_path)}),
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
