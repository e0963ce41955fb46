"""Streams that are checked: what a program does before queued work is done, and only that."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from documents import PAGES, blocks

from .conftest import python_environment, run
from .test_examples import EXAMPLES as FOLDER
from .test_examples import PROGRAMS as EXAMPLES

PROGRAMS = Path(__file__).parent / "programs"
CHECKED = {"NORMGRAD_CAPI_STREAMS": "checked"}

#: Of each case of races.c, its finding, but for the numbers of calls and streams.
FOUND = dict(
    line.strip().split(" | ")
    for line in """
    right | nothing
    addresses | nothing
    no synchronize | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    no event | aclrtMemcpyAsync on a stream writes dst; 2. NORM reads it as input, UNORDERED
    event too early | NORM writes gradInput; 2. aclrtMemcpyAsync on a stream reads it as src
    workspace freed | NORM writes workspace; 2. aclrtFree frees it as devPtr, EARLY
    workspace shared | NORM writes workspace; 2. NORM writes it as workspace, UNORDERED
    tensor and array destroyed | nothing
    input overwritten | NORM reads gradOut; 2. aclrtMemset writes it as devPtr, EARLY
    host memory used again | reads src; 2. the program changed that memory before it was done
    host memory twice | nothing
    host memory read too early | nothing
    stream destroyed | NORM; 2. aclrtDestroyStream ends its stream EARLY
    time too early | NORM; 2. aclrtEventElapsedTime asks for the time after it EARLY
    never waited for | nothing
    end | NORM; 2. the program ends without waiting for it
    """.strip().splitlines()
)
SHORT = {
    "aclnnBatchNormBackward on a stream": "NORM",
    "before that is done": "EARLY",
    "with no event between them that a stream waits for": "UNORDERED",
}


def findings(stderr):
    """The races of each case, without the numbers of calls and streams."""
    found, case = {}, None
    for line in stderr.splitlines():
        words = line.split()
        if line.startswith("case: "):
            case = found.setdefault(line.removeprefix("case: "), [])
        elif case is not None and line.startswith("normgrad: race: 1. "):
            plain = " ".join(word for word in words[3:] if not word.strip(",;").startswith("#"))
            plain = re.sub(r"stream \d+", "a stream", plain)
            plain = re.sub(r" in (launch|launch_again|rms_norm|gather|main|end)\b", "", plain)
            for long, short in SHORT.items():
                plain = plain.replace(long, short)
            case.append(plain)
    return found


def test_races(libraries, tmp_path):
    program = libraries.compile(PROGRAMS / "races.c", tmp_path / "races")
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "asked: 1\nearly: right\n")
    assert "normgrad" not in done.stderr
    done = run(program, env=CHECKED)
    # After a finding the results are those that there are without. What is read too early is NaN.
    assert (done.returncode, done.stdout) == (0, "asked: 2\nearly: nan\n")
    found = findings(done.stderr)
    assert list(found) == list(FOUND)
    for case, expected in FOUND.items():
        (line,) = found[case] or ["nothing"]
        assert expected in line, case


def test_a_race_names_the_program_s_functions_and_lines(libraries, tmp_path):
    source = PROGRAMS / "races.c"
    # Some addr2line name the wrong file of DWARF 5 for code of a header.
    program = libraries.compile(source, tmp_path / "races", extra=["-gdwarf-4"])
    lines = run(program, env=CHECKED).stderr.splitlines()
    race = next(line for line in lines if line.startswith("normgrad: race") and "Memcpy #" in line)
    code = source.read_text("utf-8").splitlines()
    shared = source.with_suffix(".h").read_text("utf-8").splitlines()
    launch = "    MUST(aclnnBatchNormBackward(workspace, size, executor, stream));"
    read = "    MUST(aclrtMemcpy(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST));"
    begin = code.index('    begin("no synchronize");')
    places = shared.index(launch) + 1, code.index(read, begin) + 1
    if shutil.which("addr2line") is None:
        pytest.skip("no addr2line")
    first, second = race.split("; 2. ")
    assert f" in launch (races.h:{places[0]}) on stream " in first
    assert f" in main (races.c:{places[1]}) reads it as src, " in second


def tutorials():
    """The programs that tutorials show as right, each with its dialect."""
    for page in PAGES:  # a translation has the same code
        for block in blocks(page):
            if block.argument == "host.c" and not page.startswith("docs/zh/"):
                yield pytest.param(
                    block.code, "acl" if "aclInit" in block.code else "infini", id=page
                )


@pytest.mark.parametrize(("code", "dialect"), [*tutorials()])
def test_no_finding_in_a_tutorial(libraries, tmp_path, code, dialect):
    source = tmp_path / "host.c"
    source.write_text(code, "utf-8")
    done = run(libraries.compile(source, tmp_path / "host", dialect), env=CHECKED)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n0 are not what the formula says\n" in done.stdout


@pytest.mark.parametrize(("name", "dialect"), EXAMPLES.items())
def test_no_finding_in_an_example(libraries, tmp_path, name, dialect):
    program = libraries.compile(FOLDER / name, tmp_path / "program", dialect)
    done = run(program, env=CHECKED)
    assert (done.returncode, done.stderr) == (0, "")
    assert "largest difference" in done.stdout


def test_a_mode_that_is_none(libraries):
    script = """
import ctypes
acl = ctypes.CDLL({lib!r} + "/libascendcl.so")
rt = ctypes.CDLL({lib!r} + "/libinfinirt.so")
for message in (acl.aclGetRecentErrMsg, rt.normgradGetRecentErrMsg):
    message.restype = ctypes.c_char_p
print(acl.aclInit(None), acl.aclGetRecentErrMsg().decode())
print(rt.infinirtInit(), rt.normgradGetRecentErrMsg().decode())
""".format(lib=str(libraries.out / "lib"))
    environment = python_environment(NORMGRAD_CAPI_STREAMS="fast")
    done = run(sys.executable, "-c", script, env=environment)
    said = "NORMGRAD_CAPI_STREAMS: 'fast'; allowed: 'checked', or none"
    assert done.stdout.splitlines() == [
        f"100000 aclInit: {said}", f"3 infinirtInit: {said}"
    ]  # fmt: skip


INFINI = """
import ctypes, sys
import numpy as np
rt, op = (ctypes.CDLL({lib!r} + f"/lib{{name}}.so") for name in ("infinirt", "infiniop"))
def must(status): assert status == 0, status
def made(function, *arguments):
    pointer = ctypes.c_void_p()
    must(function(ctypes.byref(pointer), *arguments))
    return pointer
def case(name): print("case:", name, file=sys.stderr, flush=True)
N = ctypes.c_size_t
one, two = made(rt.infinirtStreamCreate), made(rt.infinirtStreamCreate)
event = made(rt.infinirtEventCreate)
x = np.arange(24, dtype=np.float32)
device = made(rt.infinirtMalloc, N(96))
def at(array): return array.ctypes.data_as(ctypes.c_void_p)
def upload(stream): must(rt.infinirtMemcpyAsync(device, at(x), N(96), 1, stream))
case("right")
upload(one)
must(rt.infinirtEventRecord(event, one))
must(rt.infinirtStreamWaitEvent(two, event))
must(rt.infinirtMemsetAsync(device, 0, N(96), two))
must(rt.infinirtEventRecord(event, two))
status = ctypes.c_int(-1)
asked = 0
while status.value != 0 and asked < 100:
    must(rt.infinirtEventQuery(event, ctypes.byref(status)))
    asked += 1
plain, free, total = made(rt.infinirtEventCreateWithFlags, 1), N(), N()
must(rt.infinirtGetMemInfo(0, 0, ctypes.byref(free), ctypes.byref(total)))
print(asked, rt.infinirtEventElapsedTime(ctypes.byref(status), event, plain), total.value > 0)
case("no event")
upload(one)
must(rt.infinirtMemsetAsync(device, 0, N(96), two))
must(rt.infinirtDeviceSynchronize())
case("freed")
upload(one)
must(rt.infinirtFree(device))
must(rt.infinirtDeviceSynchronize())
case("freed on another stream")
device = made(rt.infinirtMallocAsync, N(96), one)
upload(one)
must(rt.infinirtFreeAsync(device, two))
must(rt.infinirtDeviceSynchronize())
print(rt.infinirtFree(device))
case("operator")
handle = made(op.infiniopCreateHandle)
def descriptor(*shape):
    sizes = (ctypes.c_size_t * len(shape))(*shape)
    return made(op.infiniopCreateTensorDescriptor, N(len(shape)), sizes, None, 13)
looks = [descriptor(*(2, 3, 4) if each in (0, 3, 4) else (3,)) for each in range(8)]
operator = ctypes.c_void_p()
must(op.infiniopCreateBatchNormBackwardDescriptor(handle, ctypes.byref(operator), *looks))
size = ctypes.c_size_t()
must(op.infiniopGetBatchNormBackwardWorkspaceSize(operator, ctypes.byref(size)))
arrays = [np.ones(24 if each in (0, 3, 4) else 3, np.float32) for each in range(8)]
scratch = made(rt.infinirtMalloc, size)
must(op.infiniopBatchNormBackward(operator, scratch, size, *map(at, arrays), one))
print(arrays[2])
must(op.infiniopDestroyBatchNormBackwardDescriptor(operator))
print(arrays[2])
case("no stream")
device = made(rt.infinirtMalloc, N(96))
must(op.infiniopCreateBatchNormBackwardDescriptor(handle, ctypes.byref(operator), *looks))
upload(None)
must(op.infiniopBatchNormBackward(operator, scratch, size, *map(at, arrays), None))
print(arrays[2])
must(op.infiniopDestroyBatchNormBackwardDescriptor(operator))
case("no stream, after another")
must(op.infiniopCreateBatchNormBackwardDescriptor(handle, ctypes.byref(operator), *looks))
must(rt.infinirtMemsetAsync(at(arrays[2]), 0, N(12), one))
must(op.infiniopBatchNormBackward(operator, scratch, size, *map(at, arrays), None))
must(op.infiniopDestroyBatchNormBackwardDescriptor(operator))
case("end")
upload_again = made(rt.infinirtMalloc, N(96))
must(rt.infinirtMemsetAsync(upload_again, 0, N(96), None))
"""


def test_races_of_infinirt(libraries):
    script = INFINI.format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment(**CHECKED))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 3 True\n3\n[nan nan nan]\n[8. 8. 8.]\n[8. 8. 8.]\n"
    found = findings(done.stderr)
    assert {case: len(lines) for case, lines in found.items()} == {
        "right": 0,
        **dict.fromkeys(("no event", "freed", "freed on another stream", "operator"), 1),
        "no stream": 0,
        **dict.fromkeys(("no stream, after another", "end"), 1),
    }
    assert "infinirtMemsetAsync on a stream writes it as ptr, UNORDERED" in found["no event"][0]
    assert "infinirtFree frees it as ptr, EARLY" in found["freed"][0]
    assert "infinirtFreeAsync on a stream frees it" in found["freed on another stream"][0]
    assert "infiniopDestroyBatchNormBackwardDescriptor ends its desc" in found["operator"][0]
    assert "infiniopBatchNormBackward on the" in found["no stream, after another"][0]
    assert "on the default stream; 2. the program ends without" in found["end"][0]
