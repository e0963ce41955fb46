"""Opening shared libraries: with what they need beside them, and what cannot be opened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from trials import apart, compiled

from normgrad import testing
from normgrad.testing import SubjectError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.mark.full
def test_companions_on_the_loaders_path(ours, tmp_path, monkeypatch):
    flags = (f'-DREAL="{ours / "libopapi.so"}"', f"-L{ours}", "-lnnopbase")
    library = compiled("opapi.c", tmp_path / "libopapi.so", *flags)
    status, said, _ = apart(library, "case", tmp_path)
    assert status == 4
    assert "cannot be loaded: libnnopbase.so: " in said
    monkeypatch.setenv("LD_LIBRARY_PATH", str(ours))
    status, said, rows = apart(library, "case(topic='masks', kind='train')", tmp_path)
    assert (status, {row["verdict"] for row in rows.values()}) == (0, {"passed"}), said


def refused(path):
    with pytest.raises(SubjectError) as caught:
        testing.load(str(path))
    return str(caught.value)


def test_no_such_file(tmp_path):
    for name in ("libinfiniop.so", "libopapi.so.2.1"):
        path = tmp_path / name
        assert refused(path) == f"{path}: no such file; allowed: a shared library"


def test_no_library(tmp_path):
    path = tmp_path / "libinfiniop"
    path.write_text("not a library, though it is a file")
    assert refused(path).startswith(f"{path}: cannot be loaded: ")


def test_a_library_that_speaks_neither(tmp_path):
    source, path = tmp_path / "neither.c", tmp_path / "libneither.so"
    source.write_text("int nothing;\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", path], check=True)
    assert refused(path) == (
        f"{path}: neither dialect's functions; allowed: a library with "
        "infiniopCreateBatchNormBackwardDescriptor or aclnnBatchNormBackwardGetWorkspaceSize, "
        "or a Python class that calls it, as module:Name"
    )


def test_a_library_without_its_companions(tmp_path):
    source = tmp_path / "part.c"
    source.write_text("int infiniopCreateBatchNormBackwardDescriptor(void) { return 0; }\n")
    path = compiled(source, tmp_path / "libpart.so")
    assert refused(path) == (
        f"{path}: no infiniopCreateHandle; allowed: a library that has it, itself or in "
        "libinfinirt.so in its folder or on the loader's path"
    )


def test_what_is_expected_does_not_come_from_our_libraries():
    """They are tested too: the suites know no more of them than the declarations."""
    package = Path(testing.__file__).parent
    imports = {
        line.strip()
        for path in package.glob("*.py")
        for line in re.findall("^ *(?:from|import) .*dialects[.]c.*", path.read_text("utf-8"), re.M)
    }
    assert imports == {
        "from ..dialects.c.declarations import functions_of",
        "from ..dialects.c.signatures import Function",
    }
