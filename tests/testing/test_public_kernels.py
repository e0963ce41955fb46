"""The adapters of other libraries' kernels, where these are installed, and the page's table."""

from __future__ import annotations

import importlib
import os
from importlib import metadata
from pathlib import Path

import pytest

from normgrad import testing
from normgrad.testing import Topic, Verdict, suites

pytestmark = [pytest.mark.cpu, pytest.mark.every_case]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "verify"


@pytest.fixture
def compare(monkeypatch):
    """The script that tries the adapters."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(FOLDER)
    pytest.importorskip("jinja2")
    return importlib.import_module("compare")


def test_every_adapter_is_python_and_tried(compare):
    used = {spec.partition(":")[0] for each in compare.LIBRARIES.values() for spec in each.specs}
    files = {path.stem for path in FOLDER.glob("*_norms.py")}
    assert files == used - {"normgrad", "torch"}
    for name in files:
        compile((FOLDER / f"{name}.py").read_text("utf-8"), name, "exec", dont_inherit=True)


@pytest.mark.parametrize("name", ["eager", "flax", "keras", "mlx", "onnx", "onednn", "liger"])
def test_an_adapter_meets_a_plain_call(compare, name, monkeypatch):
    library = compare.LIBRARIES[name]
    try:
        for package in library.packages:
            metadata.version(package)
    except metadata.PackageNotFoundError as error:
        pytest.skip(f"no {error}")
    if name == "liger" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton is not interpreted")
    if name == "onednn" and "OCL_ICD_FILENAMES" not in os.environ:
        pytest.skip("oneDNN finds no CPU")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    for spec in library.specs:
        runner = testing.load(spec)
        plain = [each for each in suites.cases_of(runner, True) if each.topic is Topic.PLAIN]
        verdicts = {testing.run(case, runner).verdict for case in plain if runner.has(case)}
        assert Verdict.MET in verdicts, spec


def test_the_page_has_the_table_of_the_results(compare):
    page = (ROOT / "docs" / "verify.md").read_text("utf-8")
    lines = list(compare.tables())
    assert len(lines) == 2 + len(list(compare.RESULTS.glob("verify-*.csv")))
    assert "\n".join(lines) in page
    for path in compare.RESULTS.glob("verify-*.csv"):
        name = path.stem.removeprefix("verify-")
        assert (compare.PAGES / f"{name}.html").is_file()
        assert name in compare.LIBRARIES
