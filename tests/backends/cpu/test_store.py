"""The store of machine code: where an object file comes from, and what is said meanwhile."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import bits_program
import pytest
from llvmlite import binding as llvm

import normgrad
from normgrad.backends.cpu import target
from normgrad.backends.cpu.objects import packing, processes, store, units
from normgrad.support import cache, notices, torch_build
from normgrad.support.forks import KernelError
from normgrad.tensors import dtypes

pytestmark = pytest.mark.cpu

UNIT = units.OPENMP
#: What any machine that is likely to run the tests has.
LEVEL = "x86-64-v3"
ARM = "armv8-a"
CASE = "train/float32/contiguous"


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """An empty cache folder, and a process that has loaded nothing."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_loaded", {})
    monkeypatch.setattr(store, "_reported", set())
    return tmp_path / "cache" / cache.KERNELS


@pytest.fixture
def compiled(monkeypatch):
    """The units that processes compile, each to bytes that are no object file."""
    names = []

    def compile_them(units, count, tick):
        for unit in units:
            tick()
            names.append(unit)
            yield unit, unit.encode()

    monkeypatch.setattr(processes, "compiled", compile_them)
    monkeypatch.setattr(store, "_load", lambda objects: store._loaded.update(objects))
    return names


# Files


PLACE = Path("somewhere/folder/name")
FILE = cache.seal(PLACE, b"machine code")


@pytest.mark.parametrize("content", [b"", b"machine code"])
def test_a_sealed_file_has_what_was_sealed(content):
    file = cache.seal(PLACE, content)
    assert file.startswith(content)  # so that tools can read it
    assert cache.unseal(PLACE, file) == content


def test_nothing_is_taken_from_a_file_of_another_place():
    assert cache.unseal(Path("elsewhere/folder/name"), FILE) == b"machine code"
    assert cache.unseal(Path("somewhere/folder/other"), FILE) is None
    assert cache.unseal(Path("somewhere/other/name"), FILE) is None


@pytest.mark.parametrize(
    "content",
    [
        bytes(len(FILE)),
        FILE[:-3],
        FILE[3:],
        FILE[: len(FILE) // 2],
        b"",
        b"\x80\x04garbage",
        FILE + b"\n",
        FILE[:-1] + bytes([FILE[-1] ^ 1]),
        bytes([FILE[0] ^ 1]) + FILE[1:],
    ],
    ids=[
        *("zeros", "no end", "no start", "halved", "empty", "garbage", "longer"),
        *("flipped at the end", "flipped at the start"),
    ],
)
def test_nothing_is_taken_from_a_damaged_file(content):
    assert cache.unseal(PLACE, content) is None


def test_units_have_symbols_of_their_own():
    assert len({units.symbol(unit) for unit in units.every()}) == len(units.every())


# The cache folder


def test_a_unit_is_compiled_once(empty, compiled):
    for _ in range(2):
        assert store.addresses([UNIT, units.RUN_TASKS]) == {
            UNIT: UNIT.encode(),
            units.RUN_TASKS: units.RUN_TASKS.encode(),
        }
    assert compiled == [UNIT, units.RUN_TASKS]
    store._loaded.clear()
    assert store.addresses([units.RUN_TASKS, UNIT])[UNIT] == UNIT.encode()
    assert compiled == [UNIT, units.RUN_TASKS]
    (folder,) = empty.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "normgrad_tasks.o",
        "normgrad_threads_of_OpenMP.o",
    ]


def test_what_is_written_is_private(empty, compiled):
    before = os.umask(0)
    try:
        store.addresses([UNIT])
    finally:
        os.umask(before)
    (folder,) = empty.iterdir()
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize(("which", "mode"), [("file", 0o620), ("file", 0o602), ("folder", 0o702)])
def test_what_others_can_write_is_not_read(empty, compiled, which, mode):
    store.addresses([UNIT])
    (folder,) = empty.iterdir()
    (file,) = folder.iterdir()
    (file if which == "file" else folder).chmod(mode)
    assert store.find([UNIT]) == {}
    (file if which == "file" else folder).chmod(0o600 if which == "file" else 0o700)
    assert store.find([UNIT]) == {UNIT: UNIT.encode()}


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_not_read(empty, compiled, which):
    store.addresses([UNIT])
    (folder,) = empty.iterdir()
    (file,) = folder.iterdir()
    os.chown(file if which == "file" else folder, 12345, -1)
    assert store.find([UNIT]) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_nothing_is_written_to_somebody_else_s_folder(empty, compiled):
    store.addresses([UNIT])
    (folder,) = empty.iterdir()
    os.chown(folder, 12345, -1)
    store._loaded.clear()
    with pytest.warns(RuntimeWarning, match="belongs to another user") as caught:
        store.addresses([UNIT, units.RUN_TASKS])
    assert len(caught) == 1
    assert len([*folder.iterdir()]) == 1


def test_a_damaged_file_is_made_again(empty, compiled):
    store.addresses([UNIT])
    (file,) = empty.rglob("*.o")
    right = file.read_bytes()
    file.write_bytes(right[:-1])
    store._loaded.clear()
    store.addresses([UNIT])
    assert compiled == [UNIT, UNIT]
    assert file.read_bytes() == right
    file.unlink()
    os.mkfifo(file, 0o600)  # a read of its content would wait for a writer
    store._loaded.clear()
    store.addresses([UNIT])
    assert compiled == [UNIT] * 3
    assert file.read_bytes() == right


def test_what_is_no_library_is_not_built_yet(monkeypatch, tmp_path):
    monkeypatch.setattr(torch_build, "path", lambda: tmp_path / "torch" / "torch-1.so")
    (tmp_path / "torch").mkdir(mode=0o700)
    os.mkfifo(torch_build.path(), 0o600)
    assert torch_build.missing() == "not built; `normgrad warmup` builds it"


def test_everything_in_the_cache_folder_is_removed(empty):
    names = (
        "kernels/0123456789abcdef/a.o",
        "torch/torch-1.so",
        "gpu/0123456789abcdef.txt",
        "gpu/0123456789abcdef.json",
        "gpu/.normgrad-0",
    )
    for name in names:
        file = cache.folder() / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    cache.clean()
    assert [*cache.folder().iterdir()] == []


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_old_kernels_are_removed(empty, compiled, kept):
    """Those of the sources, compilers and processors that were written to last stay."""
    for index in range(kept):
        folder = empty / f"{index:016}"
        folder.mkdir(parents=True)
        (folder / "normgrad_driver.o").write_bytes(b"old")
        os.utime(folder, (index, index))
    store.addresses([UNIT])
    store.addresses([units.RUN_TASKS])
    (empty / "cuda").mkdir()
    names = {path.name for path in cache.kernels()}
    last = {f"{index:016}" for index in range(kept)[-(store._FOLDERS - 1) :]}
    assert names == {store.digest()[:16], *last}


def another_processor(field, patch):
    other = target.processor()._replace(**{field: "other"})
    patch.setattr(target, "processor", lambda: other)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(store, "sources", lambda: "others"),
        lambda patch: patch.setattr(store, "_numbas_version", lambda: "numba-0.0.dist-info"),
        lambda patch: patch.setattr(store.llvmlite, "__version__", "0.0"),
        *(partial(another_processor, field) for field in target.Processor._fields),
    ],
    ids=["sources", "numba", "llvmlite", *target.Processor._fields],
)
def test_what_decides_the_code_is_in_the_digest(monkeypatch, change):
    before = store.digest.__wrapped__()
    assert store.digest.__wrapped__() == before == store.digest()
    change(monkeypatch)
    assert store.digest.__wrapped__() != before


def test_numba_s_version_is_its_own():
    import numba

    assert store._numbas_version() == f"numba-{numba.__version__}.dist-info"


def test_the_digest_is_of_all_that_kernels_have_constants_from():
    """What the files of compiled code import from above their folder."""
    imports = re.compile(r"^from \.{4}(\w+) import (.+)$|^from \.{4}(\w+)\.(\w+) import", re.M)
    found = set()
    for path in store.FOLDER.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search("^@(helper|instruction|by_types|passed)", text, re.M):
            for folder, modules, other, module in imports.findall(text):
                names = modules.split(", ") if modules else [module]
                found |= {f"{folder or other}/{name.partition(' as ')[0]}" for name in names}
    assert {"tensors/dtypes", "support/memory"} <= found
    assert {f"{name}.py" for name in found} <= set(store._SHARED)


@pytest.mark.parametrize("setting", ["", "relative/path"])
def test_a_wrong_folder_is_named(empty, compiled, monkeypatch, setting):
    monkeypatch.setenv(cache.VARIABLE, setting)
    with pytest.raises(ValueError, match=r"^NORMGRAD_CACHE_DIR: ") as caught:
        store.addresses([UNIT])
    assert str(caught.value) == (
        f"NORMGRAD_CACHE_DIR: {setting!r}; allowed: the absolute path of a folder"
    )


def test_without_the_variable_the_folder_is_the_platform_s(monkeypatch, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("XDG's folders are Linux's")
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "normgrad"


# What the package brings


@pytest.fixture
def package(monkeypatch, tmp_path, empty):
    """Looks anew for a level, in a folder for what wheels bring."""

    def look():
        store.level.cache_clear()
        return store.level()

    for name in target.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(store, "PACKAGED", tmp_path / "packaged")
    if LEVEL not in target.levels_here():
        pytest.skip(f"not {LEVEL}")
    yield look
    monkeypatch.undo()
    look()


def brought(level=LEVEL, unit=UNIT):
    """The file of a unit in the package, which is made."""
    path = store.packaged(level) / store.file_of(unit)
    path.parent.mkdir(parents=True)
    path.write_bytes(cache.seal(path, b"brought"))
    return path


def test_what_the_package_brings_is_not_compiled(package, compiled):
    assert package() is None
    brought()
    assert package() == LEVEL
    assert store.addresses([UNIT, units.RUN_TASKS]) == {
        UNIT: b"brought",
        units.RUN_TASKS: units.RUN_TASKS.encode(),
    }
    assert compiled == [units.RUN_TASKS]


@pytest.mark.parametrize("variable", target.VARIABLES)
def test_another_processor_wins(package, monkeypatch, variable):
    brought()
    monkeypatch.setenv(variable, "")
    assert package() is None


def test_other_settings_of_numba_s_do_not(package, monkeypatch):
    brought()
    for name in ("NUMBA_OPT", "NUMBA_DISABLE_JIT"):
        monkeypatch.setenv(name, "1")
    assert package() == LEVEL


def test_other_sources_win(package, monkeypatch):
    brought()
    monkeypatch.setattr(store, "sources", lambda: "0" * 64)
    assert package() is None


@pytest.mark.parametrize("content", [b"", b"no kernel"])
def test_a_damaged_file_of_the_package_is_not_used(package, compiled, content):
    brought().write_bytes(content)
    assert package() == LEVEL
    assert store.addresses([UNIT]) == {UNIT: UNIT.encode()}
    assert compiled == [UNIT]


def test_a_file_of_the_package_under_another_s_name_is_not_used(package, compiled):
    file = brought()
    shutil.copy(file, file.with_name(store.file_of(units.RUN_TASKS)))
    assert package() == LEVEL
    assert store.addresses([UNIT, units.RUN_TASKS])[UNIT] == b"brought"
    assert compiled == [units.RUN_TASKS]


def test_a_level_needs_all_its_features(package, monkeypatch):
    brought()
    brought("x86-64-v4")
    features = dict.fromkeys(target.LEVELS["x86-64-v4"].needs, True)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    assert package() == "x86-64-v4"
    features["avx512dq"] = False
    assert package() == LEVEL
    features["f16c"] = False
    assert package() is None
    monkeypatch.setattr(llvm, "get_process_triple", lambda: "riscv64-unknown-linux-gnu")
    assert target.levels_here() == []


def test_every_aarch64_has_the_level_of_arm(package, monkeypatch):
    brought()
    brought(ARM)
    monkeypatch.setattr(llvm, "get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    monkeypatch.setattr(llvm, "get_host_cpu_features", dict)
    assert package() == ARM


def test_without_numba_a_processor_of_no_level_is_told_what_to_install(empty, package, monkeypatch):
    package()
    found = store.find_spec
    monkeypatch.setattr(store, "find_spec", lambda name: None if name == "numba" else found(name))
    with pytest.raises(KernelError) as caught:
        store.addresses([UNIT])
    assert str(caught.value) == (
        f"this processor ({llvm.get_host_cpu_name()}) has none of the levels that the package has "
        "kernels for, and Numba, which compiles kernels, is not installed; allowed: `pip install "
        "'normgrad[compile]'`"
    )


def run(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.full
def test_the_bits_are_those_of_compiled_kernels(tmp_path):
    """And Numba is not imported. The release compares all there are (`nox -s package`)."""
    if platform.machine() != "x86_64" or LEVEL not in target.levels_here():
        pytest.skip(f"not {LEVEL}")
    call = bits_program.call_of(CASE)
    program = normgrad.plan(call.name, **call.tensors, **call.options)._schedule
    run("-m", packing.__name__, LEVEL, tmp_path, *units.needed(program))
    program = Path(bits_program.__file__)
    (found,) = run(program, LEVEL, tmp_path, CASE).splitlines()
    assert found.startswith(CASE)
    assert [found] == run(program, "compiled", tmp_path, CASE).splitlines()


@pytest.mark.parametrize(("level", "number"), [(LEVEL, 62), (ARM, 183)])
def test_any_machine_makes_the_kernels_of_any_level(tmp_path, level, number):
    """ELF has a number for each architecture."""
    unit = units.kernel("rows", "sums", dtypes.float16.code)
    run("-m", packing.__name__, level, tmp_path, unit)
    (path,) = tmp_path.glob(f"{level}-*/{store.file_of(unit)}")
    content = cache.unseal(path, path.read_bytes())
    assert content.startswith(b"\x7fELF")
    assert int.from_bytes(content[18:20], "little") == number


# Compiling


STOCK = """
import sys
import time
from pathlib import Path
sys.modules["normgrad.backends.cpu.vector.pipeline"] = None
from normgrad.backends.cpu.objects import store, units
from normgrad.backends.cpu.vector import helpers
from numba.core.compiler import Compiler
assert helpers.UNIT_COMPILER is Compiler
from normgrad.backends.cpu.objects.compiler import object_of
for unit in sys.argv[1:]:
    store.keep(unit, object_of(unit))
"""


@pytest.mark.full
def test_numba_s_own_compiler_gives_the_same_bits(monkeypatch, tmp_path):
    """It is used where Numba's version is one that the faster one was not tried with."""
    call = bits_program.call_of(CASE)
    plan = normgrad.plan(call.name, **call.tensors, **call.options)
    needed = units.needed(plan._schedule)
    store.addresses(needed)
    ours = store.find(needed)
    few = [unit for unit in needed if unit.startswith(("sums", "arithmetic: b"))]
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    run("-c", STOCK, *few)
    theirs = store.find(needed)
    assert sorted(theirs) == sorted(few)
    assert all(theirs[unit] != ours[unit] for unit in few)
    for unit in {*needed} - {*few}:  # need not be compiled anew
        store.keep(unit, ours[unit])
    bits = Path(bits_program.__file__), "compiled", "", CASE
    found = run(*bits)
    monkeypatch.undo()
    assert found == run(*bits)


def test_an_object_file_is_loaded_without_numba(tmp_path):
    """It refers to nothing of Numba's."""
    store.addresses([UNIT])
    code = (
        "import sys; from normgrad.backends.cpu.objects import store, units\n"
        "print(store.addresses([units.OPENMP])[units.OPENMP] != 0, 'numba' in sys.modules)"
    )
    assert run("-c", code) == "True False\n"


@pytest.mark.parametrize("executable", ["/nowhere/python", "/bin/false", "", "inside", "frozen"])
def test_what_processes_fail_to_compile_is_compiled_here(empty, monkeypatch, executable):
    """Nothing is started where Python may be the user's whole program, or from such a process."""
    if executable == "inside":
        monkeypatch.setenv(processes._INSIDE, "1")
    elif executable == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setattr(sys, "executable", executable)
    if executable in ("inside", "frozen"):
        monkeypatch.setattr(processes, "_Process", lambda: pytest.fail("started"))
    monkeypatch.setattr(store, "_compiled_here", lambda unit: f"{unit} here".encode())
    monkeypatch.setattr(store, "_load", lambda objects: store._loaded.update(objects))
    assert store.addresses(["a", "b"]) == {"a": b"a here", "b": b"b here"}


def test_a_program_that_does_not_answer_is_not_asked_again(empty, monkeypatch, tmp_path):
    """``sys.executable`` may embed Python, and know none of its options."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(processes, "_PATIENCE", 0.1)
    monkeypatch.setattr(processes, "_is_python", True)
    monkeypatch.setattr(store, "_compiled_here", lambda unit: f"{unit} here".encode())
    monkeypatch.setattr(store, "_load", lambda objects: store._loaded.update(objects))
    assert store.addresses(["a", "b"]) == {"a": b"a here", "b": b"b here"}
    monkeypatch.setattr(processes, "_Process", lambda: pytest.fail("started"))
    assert store.addresses(["c"]) == {"c": b"c here"}


def test_processes_compile_what_they_can():
    """Where one of them fails, the other goes on."""
    few = [UNIT, "arithmetic: count", "nobody's unit", "arithmetic: weights"]
    ticks = []
    found = dict(processes.compiled(few, 2, lambda: ticks.append(None)))
    assert set(found) == set(few) - {"nobody's unit"}
    assert all(content.startswith(b"\x7fELF") for content in found.values())
    assert ticks


HOSTILE = """
import sys
import time
from pathlib import Path
sys.path[:0] = [Path("/nowhere"), "/nowhere"]
from normgrad.backends.cpu.objects import processes
found = dict(processes.compiled(["arithmetic: count"], 1, lambda: None))
print(*found, found["arithmetic: count"][:4], "numba" in sys.modules)
"""


def test_processes_take_nothing_from_the_current_folder_or_from_what_is_printed(
    monkeypatch, tmp_path
):
    """Files there may have the names of modules, and a site's own code may print."""
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('x' * 9999)")
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(HOSTILE)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = "arithmetic: count b'\\x7fELF' False"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == found


def test_processes_end_when_all_is_compiled(monkeypatch):
    """They leave no zombies, which would be this process's until its end."""
    started, make = [], processes._Process
    monkeypatch.setattr(processes, "_Process", lambda: started.append(make()) or started[-1])
    assert list(processes.compiled([UNIT], 1, lambda: None))
    assert [process.process.returncode is not None for process in started] == [True]


def test_an_object_s_parts_lie_together(tmp_path):
    """Code reaches its constants within 2 GiB only, however full the memory around is."""
    run("-c", FULL)


FULL = """
import mmap, sys
from normgrad.backends.cpu.objects import store, units
place = store.addresses([units.DRIVER])[units.DRIVER]
with open("/proc/self/maps") as file:
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in file]
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 1, *[ctypes.c_int] * 3, ctypes.c_long]
FIXED, NORESERVE, PRIVATE, ANONYMOUS = 0x100000, 0x4000, 2, 0x20
for (_, begin), (end, _) in zip(ranges, ranges[1:]):
    low, high = max(begin, place - (6 << 30)), min(end, place + (6 << 30))
    if low < high:
        libc.mmap(low, high - low, 0, FIXED | NORESERVE | PRIVATE | ANONYMOUS, -1, 0)
import numpy as np, normgrad
x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
assert normgrad.batch_norm_backward(x, x, training=True).grad_bias.tolist() == [60, 92, 124]
"""


#: Settings of Numba's with which it prints, compiles other code, or none.
SETTINGS = {
    "NUMBA_DEBUG_JIT": "1",
    "NUMBA_DEBUGINFO": "1",
    "NUMBA_BOUNDSCHECK": "1",
    "NUMBA_OPT": "0",
    "NUMBA_DUMP_OPTIMIZED": "1",
}
#: A unit with calls, whose code every setting changes.
ARITHMETIC = "arithmetic: weights"


@pytest.fixture(scope="module")
def right():
    """A unit's object file, compiled without settings, and first: names in it are numbered."""
    return dict(processes.compiled([ARITHMETIC], 1, lambda: None))[ARITHMETIC]


@pytest.mark.parametrize("place", ["variables", "file"])
def test_no_setting_of_numba_s_has_a_say_in_kernels(monkeypatch, tmp_path, right, place):
    """Numba reads a file in the current folder too."""
    if place == "file":
        yaml = pytest.importorskip("yaml")
        names = {name.removeprefix("NUMBA_").lower(): value for name, value in SETTINGS.items()}
        (tmp_path / ".numba_config.yaml").write_text(yaml.dump(names))
        monkeypatch.chdir(tmp_path)
    else:
        for name, value in {**SETTINGS, "NUMBA_DISABLE_JIT": "1"}.items():
            monkeypatch.setenv(name, value)
    found = dict(processes.compiled([ARITHMETIC], 1, lambda: None))
    assert found == {ARITHMETIC: right}


HERE = """
import hashlib, sys
import numba
before = dict(vars(numba.core.config))
from normgrad.backends.cpu.objects import store
print(hashlib.sha256(store._compiled_here(sys.argv[1])).hexdigest())
print(vars(numba.core.config) == before)
"""


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_nor_where_this_process_compiles(right, disabled):
    """Its own configuration is as it was."""
    found = run("-c", HERE, ARITHMETIC, **SETTINGS, NUMBA_DISABLE_JIT=disabled)
    assert found == f"{hashlib.sha256(right).hexdigest()}\nTrue\n"


# What is said


@pytest.fixture
def told(empty, compiled, monkeypatch, caplog):
    """Compiles two units; returns what was said by then."""
    monkeypatch.setattr(store, "LONG", 0.0)
    monkeypatch.delenv(notices.QUIET, raising=False)

    def compile_two():
        store._loaded.clear()
        for path in empty.rglob("*.o"):
            path.unlink()
        store.addresses(["a", "b"])
        return [record.getMessage() for record in caplog.records if record.name == "normgrad"]

    return compile_two


def message(done, count=2):
    return (
        f"normgrad compiles kernels, once for this processor: {done} of {count} are done "
        "(`normgrad warmup` does it beforehand)"
    )


def test_whoever_waits_is_told_why(told):
    """Until all is done."""
    assert told() == [message(0), message(1), message(2)]


def test_nothing_is_said_for_a_moment(told, monkeypatch):
    monkeypatch.setattr(store, "LONG", 60.0)
    assert told() == []


@pytest.mark.parametrize(("setting", "count"), [("1", 0), ("0", 3), ("", 3)])
def test_the_variable_turns_it_off(told, monkeypatch, setting, count):
    monkeypatch.setenv(notices.QUIET, setting)
    assert len(told()) == count


def test_the_logger_turns_it_off(told):
    logger = logging.getLogger("normgrad")
    logger.setLevel(logging.ERROR)
    try:
        assert told() == []
    finally:
        logger.setLevel(logging.NOTSET)


SAID = """
from normgrad.backends.cpu.objects import store
store.LONG = 0.0
store.addresses(["arithmetic: count"])
"""


def test_a_program_without_logging_says_it_on_stderr(tmp_path):
    environment = {**os.environ, cache.VARIABLE: str(tmp_path), notices.QUIET: ""}
    command = [sys.executable, "-c", SAID]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr.splitlines() == [message(0, 1), message(1, 1)]
