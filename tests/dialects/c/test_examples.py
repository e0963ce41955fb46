"""The examples build without a warning, with either build system, and check their own numbers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import run

EXAMPLES = Path(__file__).parents[3] / "examples" / "capi"
PROGRAMS = {
    "batch_norm_backward.c": "aclnn",
    "sync_batch_norm.cpp": "aclnn",
    "group_norm_backward.cpp": "aclnn",
    "infiniop_batch_norm_backward.c": "infiniop",
}
#: The same for runs under a sanitizer, which take seconds: one dialect's examples are alike.
SANITIZED = [
    pytest.param(*each, marks=() if each[0] == "batch_norm_backward.c" else pytest.mark.full)
    for each in PROGRAMS.items()
]


def test_no_example_is_left_out():
    assert sorted(PROGRAMS) == sorted(
        path.name for suffix in ("c", "cpp") for path in EXAMPLES.glob(f"*.{suffix}")
    )
    listed = (EXAMPLES / "CMakeLists.txt").read_text("utf-8")
    assert all(f"example({name} " in listed for name in PROGRAMS)


@pytest.mark.parametrize(("name", "dialect"), PROGRAMS.items())
def test_an_example(libraries, tmp_path, name, dialect):
    program = libraries.compile(EXAMPLES / name, tmp_path / "program", dialect)
    done = run(program, env={"NORMGRAD_CAPI_REPORT": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    # Nothing failed, and everything was destroyed and freed.
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert "largest difference" in last
    limit = 1.05 / 1024 if name == "group_norm_backward.cpp" else 1e-5
    assert 0 < float(last.split(":")[1]) < limit


@pytest.mark.full
def test_cmake(libraries, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    for command in (
        ["cmake", "-S", EXAMPLES, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={libraries.out}"],
        ["cmake", "--build", tmp_path],
        ["ctest", "--test-dir", tmp_path],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "100% tests passed, 0 tests failed out of 4" in done.stdout


def test_a_vendor_s_build_file(libraries, tmp_path):
    """What the vendor's documents link, with no path of ours in it, run after their environment."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    (tmp_path / "CMakeLists.txt").write_text(
        f"""
        cmake_minimum_required(VERSION 3.14)
        project(ACLNN_EXAMPLE)
        add_compile_options(-std=c++11)
        set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "./bin")
        add_executable(host {EXAMPLES / "batch_norm_backward.c"})
        set(ASCEND_PATH $ENV{{ASCEND_HOME_PATH}})
        include_directories(${{ASCEND_PATH}}/include ${{ASCEND_PATH}}/include/aclnnop)
        set_source_files_properties({EXAMPLES / "batch_norm_backward.c"} PROPERTIES LANGUAGE CXX)
        target_link_libraries(host PRIVATE
            ${{ASCEND_PATH}}/lib64/libascendcl.so ${{ASCEND_PATH}}/lib64/libnnopbase.so
            ${{ASCEND_PATH}}/lib64/libopapi_nn.so ${{ASCEND_PATH}}/lib64/libopapi_math.so)
        """
    )
    assert (libraries.out / "set_env.sh").resolve() == libraries.out / "bin" / "setenv.bash"
    commands = (
        f"source {libraries.out}/set_env.sh && cmake -B build -S . -DCMAKE_SKIP_RPATH=TRUE && "
        "cmake --build build && $(find . -name host -type f)"
    )
    done = subprocess.run(
        ["bash", "-c", commands], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest difference" in done.stdout


def test_what_is_measured_can_be_built(libraries, tmp_path):
    source = EXAMPLES.parents[1] / "benchmarks" / "capi.c"
    program = libraries.compile(source, tmp_path / "capi")
    done = run(program, 1, 2, 4, 3)
    assert done.returncode == 0, done.stderr
    first, *figures = done.stdout.splitlines()
    assert first == "first"
    values = {name: float(value) for value, name in (line.split(" ", 1) for line in figures)}
    assert list(values)[:2] == ["both phases", "phase 2 of a repeated executor"]
    assert len(values) == 6
    assert all(value > 0 for value in values.values())
