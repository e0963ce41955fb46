"""AddressSanitizer and UndefinedBehaviorSanitizer find mistakes, and nothing in right programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import run
from .test_examples import EXAMPLES as FOLDER
from .test_examples import SANITIZED

PROGRAMS = Path(__file__).parent / "programs"
#: Whether memory leaks is not the question here.
WITHOUT_LEAKS = {"ASAN_OPTIONS": "detect_leaks=0"}


@pytest.mark.parametrize(
    ("kind", "found", "line"),
    [
        ("own", "use-after-poison", "((volatile float *)block)[3]"),
        ("operand", "heap-use-after-free", "status |= infiniopBatchNormBackward("),
    ],
)
def test_a_use_of_freed_memory(compile_for, tmp_path, kind, found, line):
    source = PROGRAMS / "freed.c"
    program = compile_for("address", source, tmp_path / "freed", "infiniop")
    right = run(program, "none", env=WITHOUT_LEAKS)
    assert (right.returncode, right.stdout, right.stderr) == (0, "0\n", "")
    done = run(program, kind, env=WITHOUT_LEAKS)
    assert done.returncode != 0
    assert f"AddressSanitizer: {found} on address" in done.stderr
    number = next(i for i, each in enumerate(source.read_text().splitlines(), 1) if line in each)
    assert f"freed.c:{number}" in done.stderr


def test_destructors_of_a_thread_s_data_can_call(compile_for, tmp_path):
    program = compile_for("address", PROGRAMS / "thread_ends.c", tmp_path / "program", "aclnn")
    done = run(program, env=WITHOUT_LEAKS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("107000 aclrtFree: devPtr: 1 bytes behind the start of a block")


def test_threads_that_fail_while_the_report_is_printed(compile_for, tmp_path):
    program = compile_for("address", PROGRAMS / "reports.c", tmp_path / "program", "aclnn")
    done = run(program, env={**WITHOUT_LEAKS, "NORMGRAD_CAPI_REPORT": "1"})
    assert done.returncode == 0
    assert "AddressSanitizer" not in done.stderr


@pytest.mark.parametrize("sanitizer", ["address", "undefined"])
@pytest.mark.parametrize(("name", "dialect"), SANITIZED)
def test_no_finding_in_an_example(compile_for, tmp_path, name, dialect, sanitizer):
    program = compile_for(sanitizer, FOLDER / name, tmp_path / "program", dialect)
    done = run(program, env={**WITHOUT_LEAKS, "NORMGRAD_CAPI_REPORT": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "largest difference" in done.stdout
