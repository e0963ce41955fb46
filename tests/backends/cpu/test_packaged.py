"""Kernels that the package brings: the bits of compiled ones, without a compiler; or none."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import bits_program
import pytest

import normgrad
from normgrad.backends.cpu import kernels, linking, packaged, units
from normgrad.capi.build import BuildError, c_compiler

pytestmark = [pytest.mark.cpu, pytest.mark.full]

PROGRAM = Path(bits_program.__file__)
#: What any machine that is likely to run the tests has.
LEVEL = "x86-64-v3"
CASE = "train/float32/contiguous"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where there is a library, with all that one case takes."""
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        pytest.skip("libraries are for Linux on x86-64")
    try:
        c_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    call = bits_program.call_of(CASE)
    program = normgrad.plan(call.name, **call.tensors, **call.options)._program
    chosen = {*units.needed(program), units.OPENMP} - {units.NUMBA}
    path = tmp_path_factory.mktemp("packaged")
    run("-m", linking.__name__, LEVEL, path, *chosen)
    return path


@pytest.fixture
def library(folder, monkeypatch):
    """What looks for the library anew."""

    def look():
        packaged.library.cache_clear()
        return packaged.library()

    for name in packaged.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(packaged, "FOLDER", folder)
    if look() is None:
        pytest.skip(f"not {LEVEL}")
    yield look
    monkeypatch.undo()
    look()


def test_the_bits_are_those_of_compiled_kernels(library, folder):
    """And Numba is not imported. The release compares all there are (`nox -s package`)."""
    (found,) = run(PROGRAM, LEVEL, folder, CASE).splitlines()
    assert found.startswith(CASE)
    assert [found] == run(PROGRAM, "compiled", folder, CASE).splitlines()


ON_PYTORCHS_THREADS = """
import sys
from pathlib import Path
import torch, normgrad
from normgrad.backends.cpu import openmp, packaged, teams
from normgrad.testing import make
packaged.LEVELS, packaged.FOLDER = sys.argv[1:2], Path(sys.argv[2])
torch.set_num_threads(2)
normgrad.threads._most_from_environment = lambda: 2
call = make("train", (16, 24, 28, 28))
tensors = {name: torch.from_numpy(value) for name, value in call.tensors.items()}
normgrad.batch_norm_backward(**tensors, **call.options)
print(openmp.of_torch() is None or teams._threads.most.size, "numba" in sys.modules)
"""


def test_on_pytorchs_threads_numba_is_not_imported(library, folder):
    pytest.importorskip("torch")
    assert run("-c", ON_PYTORCHS_THREADS, LEVEL, folder) in ("2 False\n", "True True\n")


def test_what_a_library_has_not_is_compiled(library):
    assert library()[0] == LEVEL
    assert packaged.address(units.DRIVER)
    assert packaged.address(units.NUMBA) is None


@pytest.mark.parametrize("setting", packaged.SETTINGS)
def test_not_for_whoever_tells_numba_how_to_compile(library, monkeypatch, setting):
    monkeypatch.setenv(setting, "3")
    assert library() is None
    assert packaged.address(units.DRIVER) is None


def test_not_where_sources_are_others(library, monkeypatch):
    monkeypatch.setattr(packaged, "sources", lambda: "0" * 64)
    assert library() is None


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_not_where_there_is_none_or_half_of_it(library, monkeypatch, tmp_path, content):
    monkeypatch.setattr(packaged, "FOLDER", tmp_path)
    assert library() is None
    (tmp_path / packaged.file_of(LEVEL)).write_bytes(content)
    assert library() is None


def test_the_next_level_where_a_machine_lacks_one(library, monkeypatch, folder, tmp_path):
    """A library knows whether the processor can run it."""
    better = tmp_path / packaged.file_of("x86-64-v4")
    source = f'const char {packaged.SOURCES}[] = "{packaged.sources()}";\n'
    source += f"int {packaged.RUNS_HERE}(void) {{ return 0; }}\n"
    command = [*c_compiler(), "-shared", "-fPIC", "-xc", "-", "-o", str(better)]
    subprocess.run(command, input=source, text=True, check=True)
    monkeypatch.setattr(packaged, "FOLDER", tmp_path)
    assert library() is None
    shutil.copy(folder / packaged.file_of(LEVEL), tmp_path)
    assert library()[0] == LEVEL


def test_units_have_names_of_their_own_in_libraries():
    assert len({packaged.symbol(unit) for unit in kernels.SOURCES}) == len(kernels.SOURCES)
