"""Streams that have threads, and ThreadSanitizer, which finds what a program does not order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from documents import PAGES, blocks

from .conftest import python_environment, run
from .test_examples import EXAMPLES as FOLDER
from .test_examples import SANITIZED

PROGRAMS = Path(__file__).parent / "programs"
#: ThreadSanitizer reports each race, even at an address that it has named before.
OPTIONS = "exitcode=0:suppress_equal_addresses=0:suppress_equal_stacks=0"
THREADS = {"NORMGRAD_CAPI_STREAMS": "threads"}

#: Of each case of races.c, what stands in the lines of the program that ThreadSanitizer names for
#: the two sides of the race; or nothing.
FOUND = {
    "right": (),
    "addresses": (),
    "no synchronize": ("aclnnBatchNormBackward", "aclrtMemcpy"),
    "no event": ("aclrtMemcpyAsync", "aclnnBatchNormBackward"),
    "event too early": ("aclnnBatchNormBackward", "aclrtMemcpyAsync"),
    "workspace freed": ("aclnnBatchNormBackward", "aclrtFree"),
    "workspace shared": ("aclnnBatchNormBackward", "aclnnBatchNormBackward"),
    "tensor and array destroyed": (),
    "input overwritten": ("aclnnBatchNormBackward", "aclrtMemset"),
    "host memory used again": ("aclrtMemcpyAsync", "staged[3] = 100"),
    "host memory twice": (),
    "host memory read too early": ("aclrtMemcpyAsync", 'printf("early'),
    "stream destroyed": (),  # which waits
    "time too early": (),  # which is a status
}
FOUND_OF_INFINI = {
    "right": (),
    "no event": ("infinirtMemcpyAsync", "infinirtMemsetAsync"),
    "freed": ("infinirtMemcpyAsync", "infinirtFree"),
    "freed on another stream": ("infinirtMemcpyAsync", "infinirtFreeAsync"),
    "operator destroyed": (),
    "no stream": (),
    "no stream, after another": ("infinirtMemsetAsync", "infiniopBatchNormBackward"),
}


def lines_of_races(stderr):
    """The places in the program that each case's first race names, as (file, line)."""
    found, case = {}, None
    for line in stderr.splitlines():
        if line.startswith("case: "):
            case = found.setdefault(line.removeprefix("case: "), [])
            side = None
        elif re.match(r"  (Previous )?(atomic )?(read|write) of size", line, re.I):
            side = len(case)
        elif line.startswith("  ") and not line.startswith("    "):
            side = None  # about the location or the threads
        elif side is not None and side == len(case):
            place = re.search(r" \S*?(\w+\.[ch]):(\d+)", line)
            if place and "races" in place[1]:
                case.append((place[1], int(place[2])))
    return found


@pytest.mark.parametrize(
    ("name", "dialect", "found"),
    [("races", "aclnn", FOUND), ("infini_races", "infiniop", FOUND_OF_INFINI)],
)
def test_races(compile_for, tmp_path, name, dialect, found):
    program = compile_for("thread", PROGRAMS / f"{name}.c", tmp_path / name, dialect)
    done = run(program, env={"TSAN_OPTIONS": OPTIONS})
    assert done.returncode == 0, done.stdout + done.stderr
    races = lines_of_races(done.stderr)
    assert list(races) == list(found)
    for case, sides in found.items():
        texts = [
            (PROGRAMS / file).read_text("utf-8").splitlines()[line - 1]
            for file, line in races[case][:2]
        ]
        assert len(texts) == len(sides), (case, done.stderr)
        for side in sides:
            assert any(side in text for text in texts), (case, texts)


def test_streams_at_once_give_the_right_results(libraries, tmp_path):
    """A program that orders nothing passes where streams have no threads."""
    program = libraries.compile(PROGRAMS / "races.c", tmp_path / "races")
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "asked: 1\nearly: right\ntime: done\n")
    assert "normgrad" not in done.stderr


def tutorials():
    """The programs that tutorials show as right, each with its dialect."""
    for page in PAGES:  # a translation has the same code
        for block in blocks(page):
            if block.argument == "host.c" and not page.startswith("docs/zh/"):
                yield pytest.param(
                    block.code, "aclnn" if "aclInit" in block.code else "infiniop", id=page
                )


@pytest.mark.parametrize(("code", "dialect"), [*tutorials()])
def test_no_finding_in_a_tutorial(libraries, compile_for, tmp_path, code, dialect):
    source = tmp_path / "host.c"
    source.write_text(code, "utf-8")
    for program, environment in (
        (compile_for("thread", source, tmp_path / "sanitized", dialect), {}),
        (libraries.compile(source, tmp_path / "host", dialect), THREADS),
    ):
        done = run(program, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\n0 are not what the formula says\n" in done.stdout


def test_a_read_that_does_not_wait_is_named(compile_for, tmp_path):
    """Even where the program then frees the memory, so that the free is a race, too."""
    (code,) = (each.values[0] for each in tutorials() if each.values[1] == "aclnn")
    wait = next(line for line in code.splitlines() if "aclrtSynchronizeStream(" in line)
    source = tmp_path / "races.c"
    source.write_text(code.replace(wait, ""), "utf-8")
    done = run(
        compile_for("thread", source, tmp_path / "program", "aclnn"), env={"TSAN_OPTIONS": OPTIONS}
    )
    lines = source.read_text("utf-8").splitlines()
    first = done.stderr.partition("==================\nWARNING")[2].partition("=====")[0]
    named = [lines[int(number) - 1] for number in re.findall(r"races\.c:(\d+)", first)]
    assert any("aclrtMemcpy(" in line for line in named), done.stderr
    assert any("aclnnBatchNormBackward(" in line for line in named), done.stderr


@pytest.mark.parametrize(("name", "dialect"), SANITIZED)
def test_no_finding_in_an_example(compile_for, tmp_path, name, dialect):
    done = run(compile_for("thread", FOLDER / name, tmp_path / "program", dialect))
    assert (done.returncode, done.stderr) == (0, "")
    assert "largest difference" in done.stdout


@pytest.mark.parametrize(
    ("variable", "value", "allowed", "stderr"),
    [
        ("NORMGRAD_CAPI_STREAMS", "fast", "'threads', or none", ""),
        ("NORMGRAD_CAPI_HOST_MEMORY", "yes", "1, 0, or none", ""),
        ("NORMGRAD_CAPI_REPORT", "true", "1, error, 0, or none", "normgrad: error 100000: aclInit"),
    ],
)
def test_a_setting_that_is_not_allowed(libraries, variable, value, allowed, stderr):
    """A report is printed even for a wrong value, so that nobody takes silence for success."""
    script = """
import ctypes
acl = ctypes.CDLL({lib!r} + "/libascendcl.so")
rt = ctypes.CDLL({lib!r} + "/libinfinirt.so")
for message in (acl.aclGetRecentErrMsg, rt.normgradGetRecentErrMsg):
    message.restype = ctypes.c_char_p
print(acl.aclInit(None), acl.aclGetRecentErrMsg().decode())
print(rt.infinirtInit(), rt.normgradGetRecentErrMsg().decode())
""".format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment(**{variable: value}))
    said = f"{variable}: '{value}'; allowed: {allowed}"
    assert done.stderr.startswith(stderr)
    assert bool(done.stderr) == bool(stderr)
    assert done.stdout.splitlines() == [
        f"100000 aclInit: {said}", f"3 infinirtInit: {said}"
    ]  # fmt: skip
