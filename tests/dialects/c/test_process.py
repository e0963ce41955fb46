"""The libraries in every kind of process: threads, forks, dlopen, a Python that runs already."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from common import FULL, sampled

from normgrad.dialects.c import build
from normgrad.dialects.c.declarations import functions_of

from .conftest import STRICT, python_environment, run

PROGRAMS = Path(__file__).parent / "programs"
MISUSE = Path(__file__).parent / "misuse"
EXAMPLES = Path(__file__).parents[3] / "examples" / "capi"


def compiled(libraries, tmp_path, name, dialect):
    return libraries.compile(PROGRAMS / f"{name}.c", tmp_path / name, dialect, ["-pthread", "-ldl"])


def test_many_threads_call_at_once(libraries, tmp_path):
    done = run(compiled(libraries, tmp_path, "threads", "aclnn"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "wrong: 0\n", "")


@pytest.mark.parametrize("threads", [{}, {"NORMGRAD_CAPI_STREAMS": "threads"}], ids=["", "threads"])
def test_streams_and_events_of_many_threads_and_forks(libraries, tmp_path, threads):
    done = run(compiled(libraries, tmp_path, "storm", "aclnn"), env=threads)
    assert (done.returncode, done.stdout, done.stderr) == (0, "wrong: 0\n", "")


def test_events_that_wait_for_each_other_keep_nothing(libraries, tmp_path):
    program = compiled(libraries, tmp_path, "ping_pong", "aclnn")
    done = run(program, env={"NORMGRAD_CAPI_STREAMS": "threads"})
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) < 8  # a task of some 100 bytes for each wait would be 27


@pytest.mark.parametrize("kibibytes", [0, 64], ids=["smallest", "small"])
def test_a_thread_with_a_small_stack(libraries, tmp_path, kibibytes):
    """Python and kernels run on another thread's stack then; a full run compiles too."""
    program = compiled(libraries, tmp_path, "stacks", "aclnn")
    cold = {"NORMGRAD_CACHE_DIR": str(tmp_path / "kernels")} if FULL else {}
    done = run(program, kibibytes, env=cold)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 0 0 161001 107000 Ascend910B3\n\n"


def test_a_configuration_needs_no_stack_of_the_thread_s(libraries, tmp_path):
    """Whatever it nests."""
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    script = """
import ctypes, threading
acl = ctypes.CDLL({lib!r} + "/libascendcl.so")
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
def work():
    print(acl.aclInit({deep!r}), acl.aclGetRecentErrMsg().decode())
threading.stack_size(192 << 10)
thread = threading.Thread(target=work)
thread.start()
thread.join()
""".format(lib=str(libraries.out / "lib"), deep=os.fsencode(deep))
    done = run(sys.executable, "-c", script, env=python_environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"100000 aclInit: configPath: {str(deep)!r} (maximum recursion ")


def test_forks(libraries, tmp_path):
    done = run(compiled(libraries, tmp_path, "forks", "infiniop"))
    lines = dict(line.split(": ") for line in done.stdout.splitlines())
    assert lines == {
        "before the first call": "0",
        "after it": "0",
        "child of a child": "0",
        "while threads call": "0",
        "the threads": "0",
        "parent": "0",
    }
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("milliseconds", sampled([30, 150, 300], 1))
def test_a_fork_during_the_first_computation(libraries, tmp_path, milliseconds):
    """It waits for what is being loaded."""
    done = run(compiled(libraries, tmp_path, "first_fork", "aclnn"), milliseconds)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0\n", "")


def test_the_interrupt_stays_the_program_s(libraries, tmp_path):
    program = compiled(libraries, tmp_path, "signals", "aclnn")
    done = run(program, "default")
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "computed: 0\n")
    done = run(program, "own")
    assert (done.returncode, done.stdout) == (0, "computed: 0\nseen: 2, then 107000\n")


def test_the_program_s_arithmetic_is_its_own(libraries, tmp_path):
    done = run(compiled(libraries, tmp_path, "arithmetic", "aclnn"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0 1 0 0 1 0 0 7c00\n", "")


def test_texts_of_several_threads(libraries, tmp_path):
    done = run(compiled(libraries, tmp_path, "texts", "aclnn"))
    text = "aclrtFree: devPtr: 0x1234 "
    assert done.stdout == f"0\n{text}|{text}\n[]\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_opened_and_closed(libraries, tmp_path):
    program = compiled(libraries, tmp_path, "plugins", "infiniop")
    lib = libraries.out / "lib"
    done = run(program, lib / "libinfiniop.so", lib / "libinfinirt.so")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0 0 3\n" * 3, "")


@pytest.mark.parametrize(
    ("library", "also"),
    [
        ("opapi", ("nnopbase", "ascendcl")),
        ("opapi_nn", ("opapi", "nnopbase", "ascendcl")),
        ("nnopbase", ("ascendcl",)),
        ("infiniop", ("infinirt",)),
    ],
)
def test_a_handle_finds_the_functions_of_the_libraries_below(libraries, library, also):
    names = [each.name for part in (library, *also) for each in functions_of(part)]
    script = f"""
import ctypes
library = ctypes.CDLL({str(libraries.out / "lib" / f"lib{library}.so")!r})
print([name for name in {names!r} if not hasattr(library, name)])
"""
    done = run(sys.executable, "-I", "-S", "-c", script)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize("name", ["libopapi.so", "libopapi_math.so"])
def test_a_program_that_has_one_handle_and_links_nothing(libraries, tmp_path, name):
    program = tmp_path / "one_handle"
    source = PROGRAMS / "one_handle.cpp"
    include = f"-I{libraries.out / 'include'}"
    command = ["g++", "-std=c++17", *STRICT, include, str(source), "-ldl", "-o", str(program)]
    subprocess.run(command, check=True)
    done = run(program, libraries.out / "lib" / name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1 2\n", "")


def test_the_program_ends_while_threads_call(libraries, tmp_path):
    program = compiled(libraries, tmp_path, "exits", "aclnn")
    for _ in range(3):
        done = run(program, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (7, "ending\n", "")


IN_PYTHON = """
import ctypes, sys
{before}
lib = {lib!r}
names = ("libascendcl.so", "libnnopbase.so", "libopapi.so", "libinfiniop.so", "libinfinirt.so")
acl, base, op, infini, rt = (ctypes.CDLL(f"{{lib}}/{{name}}") for name in names)
handle, memory = ctypes.c_void_p(), ctypes.c_void_p()
print(acl.aclInit(None), acl.aclrtSetDevice(0))
print(acl.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(64), 0))
print(infini.infiniopCreateHandle(ctypes.byref(handle)), infini.infiniopDestroyHandle(handle))
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
print(acl.aclrtFree(ctypes.c_void_p(12345)), acl.aclGetRecentErrMsg().decode())
print(acl.aclrtFree(memory), acl.aclFinalize())
"""
ALLOWED = "allowed: what aclrtMalloc or aclrtMallocAlign32 allocated"
OUTPUT = f"""0 0
0
0 0
107000 aclrtFree: devPtr: 0x3039 is in no block; {ALLOWED}
0 0
"""


@pytest.mark.parametrize(
    "before",
    ["", "import torch", "import normgrad.dialects.aclnn", "import numba, numpy"],
    ids=["bare", "torch", "normgrad", "numba"],
)
def test_inside_a_running_python(libraries, before):
    if "torch" in before:
        pytest.importorskip("torch")
    script = IN_PYTHON.format(before=before, lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-W", "error", "-c", script, env=python_environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, OUTPUT, "")


def test_inside_a_python_without_normgrad(libraries):
    """The same interpreter with nothing but its standard library: what was baked in is used."""
    script = IN_PYTHON.format(before="", lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-I", "-S", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, OUTPUT, "")


def test_with_the_gil_held(libraries):
    """As a CPython extension that calls the library without letting go of the GIL, and others."""
    script = """
import ctypes, threading
lib = {lib!r}
acl = ctypes.PyDLL(f"{{lib}}/libascendcl.so")
other = ctypes.CDLL(f"{{lib}}/libinfinirt.so")
threads = [threading.Thread(target=other.infinirtInit) for _ in range(8)]
threads += [threading.Thread(target=acl.aclrtGetSocName) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(acl.aclInit(None), acl.aclFinalize())
""".format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment(), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0\n", "")


def test_a_python_that_forks_while_another_thread_starts_the_library(libraries):
    """Whoever forked goes on; in the child the library says why it cannot start."""
    script = """
import ctypes, os, threading, time
acl = ctypes.CDLL({lib!r} + "/libascendcl.so")
thread = threading.Thread(target=acl.aclInit, args=(None,))
thread.start()
time.sleep(0.05)
child = os.fork()
if child == 0:
    os._exit(acl.aclrtSetDevice(0) not in (0, 100001, 500000))
print(os.waitpid(child, 0)[1])
thread.join()
print(acl.aclrtSetDevice(0))
""".format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment(), timeout=60)
    assert (done.returncode, done.stdout) == (0, "0\n0\n")


def test_an_interrupt_in_a_call_reaches_the_python_that_made_it(libraries):
    """The first comes while the library starts, the others anywhere."""
    script = """
import ctypes, os, signal, threading, time
acl = ctypes.CDLL({lib!r} + "/libascendcl.so")
for _ in range(20):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            acl.aclrtSetDevice(5)
    except KeyboardInterrupt:
        print("interrupted")
""".format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment(), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n" * 20, "")


def another_python():
    """A CPython of another version, or None."""
    for minor in range(10, 15):
        found = shutil.which(f"python3.{minor}")
        if minor == sys.version_info.minor or found is None:
            continue
        code = "import sys; print(sys.version_info.minor, sys.executable)"
        done = subprocess.run([found, "-c", code], capture_output=True, text=True, check=False)
        version, _, executable = done.stdout.strip().partition(" ")
        if version == str(minor):
            return executable
    return None


def test_inside_a_python_of_another_version(libraries):
    found = another_python()
    if found is None:
        pytest.skip("no Python of another version")
    script = """
import ctypes
acl = ctypes.CDLL({lib!r} + "/libascendcl.so")
print(acl.aclInit(None))
""".format(lib=str(libraries.out / "lib"))
    done = run(found, "-c", script)
    assert (done.returncode, done.stdout) == (0, "500000\n")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert re.match(r"normgrad: the process runs Python 3\.[\d.]+; allowed: ", done.stderr)
    assert f"allowed: {version}, which the C libraries were built for\n" in done.stderr


@pytest.mark.parametrize("when", ["early", "late"])
def test_sub_interpreters_and_the_end_of_python(libraries, tmp_path, when):
    """In a program that runs Python by itself."""
    variables = sysconfig.get_config_vars()
    folder, version = variables["LIBDIR"], variables["py_version_short"]
    python = [f"-I{path}" for path in build._python_headers()]
    python += [f"-L{folder}", f"-Wl,-rpath,{folder}", f"-lpython{version}"]
    program = libraries.compile(PROGRAMS / "interpreters.c", tmp_path / "program", "aclnn", python)
    # The program's Python is the one that a shell finds: of the virtual environment of these tests.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(program, when, env=python_environment(PATH=path))
    assert (done.returncode, done.stderr) == (0, "")
    refused = "500000 aclInit: called by a sub-interpreter; allowed: the main interpreter"
    ended = "361001 aclnnBatchNormBackward: the Python that served this process has ended"
    calls = {"main": "0 ", "sub-interpreter": refused if when == "early" else "0 "}
    order = ["sub-interpreter", "main"] if when == "early" else ["main", "sub-interpreter"]
    assert done.stdout.splitlines() == [
        *(f"{name}: {calls[name]}" for name in order),
        "main again: 0 ",
        "end of Python: 0 ",
        f"after it: {ended}",
        "memory: 0 ",
        f"a new Python: {ended}",
    ]


def test_a_namespace_of_its_own(libraries, tmp_path):
    program = compiled(libraries, tmp_path, "namespaces", "aclnn")
    done = run(program, libraries.out / "lib" / "libascendcl.so")
    said = "the C libraries cannot start: dlmopen has loaded them; allowed: dlopen"
    assert (done.returncode, done.stderr) == (0, f"normgrad: {said}\n")
    assert done.stdout == f"500000 aclInit: {said}\n"


# A Python that cannot be started


@pytest.mark.parametrize(
    ("function", "wrong", "message"),
    [
        (
            "_libpython",
            lambda: Path("/nowhere/libpython.so"),
            "cannot load the Python that the C libraries were built for (/nowhere/libpython.so: ",
        ),
        (
            "_search_path",
            lambda: [str(Path(os.__file__).parent)],
            "the C libraries cannot start: ModuleNotFoundError: No module named 'normgrad'; if it "
            "has moved, build the C libraries again: `normgrad capi build`",
        ),
        ("_search_path", lambda: ["/nowhere"], "the C libraries cannot start: "),
    ],
    ids=["no libpython", "no normgrad", "no standard library"],
)
def test_what_does_not_start_fails_with_the_dialect_s_error(
    tmp_path, monkeypatch, function, wrong, message, libraries
):
    monkeypatch.setattr(build, function, wrong)
    monkeypatch.setattr(build, "_FLAGS", [*build._FLAGS, "-O0"])
    build.build(tmp_path / "out")
    program = compiled(type(libraries)(tmp_path / "out"), tmp_path, "broken", "aclnn")
    done = run(program)
    assert done.returncode == 0
    function = "aclnnBatchNormStatsGetWorkspaceSize"
    assert done.stdout.startswith(f"500000 561000 {function}: {message}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("normgrad: ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"normgrad: {message}")


# What the environment says


def test_a_report_names_what_failed_and_what_is_left(libraries, tmp_path):
    program = compiled(libraries, tmp_path, "leaks", "aclnn")
    assert run(program).stderr == ""
    done = run(program, env={"NORMGRAD_CAPI_REPORT": "1"})
    mistake = f"error 107000: aclrtFree: devPtr: 0x10 is in no block; {ALLOWED}"
    assert done.stderr.splitlines() == [
        f"normgrad: {mistake}",
        "normgrad: 3 calls failed:",
        f"normgrad:   {mistake} (3 times)",
        "normgrad: never destroyed: Stream from aclrtCreateStream in main",
        "normgrad: never destroyed: aclTensor(bfloat16, NC, dims (2, 3), strides (3, 1), offset 0) "
        "and 2 more from aclCreateTensor in make_tensor",
        "normgrad: never destroyed: aclBoolArray(True, False, True) from aclCreateBoolArray in "
        "main",
        "normgrad: never freed: 72 bytes in 3 blocks from aclrtMalloc in make_tensor",
        "normgrad: never freed: 25 bytes from aclrtMalloc in main",
    ]
    # A program without stderr, or with one that cannot be written, goes on: its statuses are its
    # exit status.
    for redirection in ("2>&-", "2>/dev/full"):
        command = f"{program} {redirection}"
        broken = run("/bin/sh", "-c", command, env={"NORMGRAD_CAPI_REPORT": "1"})
        assert (broken.returncode, broken.stdout) == (0, ""), redirection


def test_a_report_names_what_devices_may_refuse(libraries, tmp_path):
    done = run(compiled(libraries, tmp_path, "devices", "aclnn"), env={"NORMGRAD_CAPI_REPORT": "1"})
    lines = (
        "device: aclCreateTensor: tensorData: 8 bytes behind a multiple of 32; allowed: such a "
        "multiple on devices",
        f"device: aclCreateTensor: viewDims: ({1 << 40}, {1 << 40}); allowed: fewer elements than "
        "an int64 counts on devices",
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        *(f"normgrad: {line}" for line in lines),
        "normgrad: 3 calls that may fail on devices:",
        f"normgrad:   {lines[0]} (2 times)",
        f"normgrad:   {lines[1]}",
    ]


def test_what_a_static_destructor_frees_is_no_leak(libraries, tmp_path):
    program = libraries.compile(PROGRAMS / "statics.cpp", tmp_path / "statics")
    done = run(program, env={"NORMGRAD_CAPI_REPORT": "1"})
    mistake = f"error 107000: aclrtFree: devPtr: memory that aclrtFree has freed; {ALLOWED}"
    assert (done.returncode, done.stdout) == (0, "0\n107000\n")
    assert done.stderr == f"normgrad: {mistake}\nnormgrad: 1 call failed:\nnormgrad:   {mistake}\n"
    done = run(program, "some", env={"NORMGRAD_CAPI_REPORT": "1"})
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert done.stderr == "normgrad: never freed: 64 bytes from aclrtMalloc in main\n"


def test_a_report_that_is_an_error(libraries, tmp_path):
    """A program with findings fails, and what it has printed is there."""
    environment = {"NORMGRAD_CAPI_REPORT": "error"}
    leaks = run(compiled(libraries, tmp_path, "leaks", "aclnn"), env=environment)
    assert leaks.returncode == 1
    assert (
        leaks.stderr.splitlines()[-1] == "normgrad: never freed: 25 bytes from aclrtMalloc in main"
    )
    statics = libraries.compile(PROGRAMS / "statics.cpp", tmp_path / "statics")
    done = run(statics, "some", env=environment)
    assert (done.returncode, done.stdout) == (1, "0\n")
    right = libraries.compile(EXAMPLES / "batch_norm_backward.c", tmp_path / "right")
    done = run(right, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    script = IN_PYTHON.format(before="", lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment(**environment))
    assert (done.returncode, done.stdout) == (1, OUTPUT)


def test_products(libraries, tmp_path):
    program = compiled(libraries, tmp_path, "products", "aclnn")
    names = [
        "Ascend910B4",
        "Atlas A3",
        "Ascend910A",
        "Ascend950DT",
        "Ascend310P1",
        "Atlas 200I/500 A2",
    ]
    done = run(program, *names, env={"NORMGRAD_ACL_PRODUCT": "Ascend 9000"})
    lines = done.stdout.splitlines()
    assert lines[0].startswith("100000 aclInit: product: 'Ascend 9000'; allowed: Atlas training ")
    assert lines[1:] == [
        "0 Ascend910B4",
        "0 Ascend910_9391",
        "0 Ascend910A",
        "0 Ascend950DT",
        "0 Ascend310P1",
        "0 Ascend310B1",
    ]


def test_an_unknown_product_before_aclinit(libraries):
    script = f"""
import ctypes
op = ctypes.CDLL({str(libraries.out / "lib" / "libopapi.so")!r})
op.aclrtGetSocName.restype = op.aclGetRecentErrMsg.restype = ctypes.c_char_p
print(op.aclrtGetSocName(), op.aclGetRecentErrMsg().decode())
size, executor = ctypes.c_uint64(), ctypes.c_void_p()
places = ctypes.byref(size), ctypes.byref(executor)
print(op.aclnnBatchNormStatsGetWorkspaceSize(None, ctypes.c_double(0), None, None, *places),
      op.aclGetRecentErrMsg().decode())
"""
    done = run(sys.executable, "-c", script, env=python_environment(NORMGRAD_ACL_PRODUCT="A9"))
    said = "product: 'A9'; allowed: Atlas training series, Atlas A2, "
    first, second = done.stdout.splitlines()
    assert first.startswith(f"None aclrtGetSocName: {said}")
    assert second.startswith(f"161002 aclnnBatchNormStatsGetWorkspaceSize: {said}")


@pytest.mark.parametrize("when", ["warm", "cold"])
def test_memory_that_runs_out(libraries, tmp_path, when):
    """Statuses, and right results once there is some again."""
    program = libraries.compile(
        PROGRAMS / "limits.c", tmp_path / "limits", "aclnn", libraries.flags("infiniop")
    )
    done = run(program, when)
    size = f"size: {1 << 30} bytes; allowed: what the machine has"
    llvmlite = (
        "aclnnBatchNormBackward: phase 2: importing llvmlite: no memory for 201326592 bytes; "
        "allowed: what the system has left"
    )
    expected = [f"aclrtMalloc: {size}", f"infinirtMalloc: {size}"]
    if when == "warm":
        expected += ["0 0 207001 1 0 0 1 1"]
    else:  # there is no room for what computes
        expected += [llvmlite, "0 0 207001 1 361001 0 0 0"]
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", expected)


def test_host_memory(libraries, tmp_path):
    """Tensors over the program's own arrays, where that is asked for."""
    program = compiled(libraries, tmp_path, "host_memory", "aclnn")
    assert run(program).stdout == "161002 0.0000 0.0000 0.0000\n"
    # dy − mean(dy) is ±1/2, of no slope, times 1/sqrt(1.25).
    allowed = run(program, env={"NORMGRAD_CAPI_HOST_MEMORY": "1"})
    assert allowed.stdout == "0 0.4472 -0.4472 0.0000\n", allowed.stderr
