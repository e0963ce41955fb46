"""The adapters of other libraries' kernels, where these are installed, and the page's table."""

from __future__ import annotations

import csv
import importlib
import os
from importlib import metadata
from pathlib import Path

import pytest

from normgrad import testing
from normgrad.testing import Topic, loading

pytestmark = [pytest.mark.cpu, pytest.mark.every_case]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "verify"
#: The line before the table in docs/verify/libraries.md.
MARKER = "<!-- compare.py -->\n"


@pytest.fixture
def compare(monkeypatch):
    """The script that tries the adapters."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(FOLDER)
    pytest.importorskip("typer")
    return importlib.import_module("compare")


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


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
        plain = [each for each in loading.cases_of(runner, True) if each.topic is Topic.PLAIN]
        judged = [testing.run(case, runner) for case in plain if runner.has(case)]
        wrong = {
            each["finding"].partition(":")[0]
            for each in rows(compare.FINDINGS)
            if each["library"] == name
        }
        assert any(each.passed or each.case.operator in wrong for each in judged), spec
        assert all(each.units is not None for each in judged), spec


def test_the_page_has_the_table_of_the_results(compare):
    page = (ROOT / "docs" / "verify" / "libraries.md").read_text("utf-8")
    table = "\n".join(compare.table())
    assert page.partition(MARKER)[2].lstrip("\n").startswith(f"{table}\n")


def test_the_page_of_findings_is_of_the_results(compare):
    assert compare.PAGE.read_text("utf-8") == "\n".join([*compare.page(), ""])


def test_the_results_are_of_one_run_of_each_library(compare):
    runs = rows(compare.RUNS)
    assert [each["library"] for each in runs] == [*compare.LIBRARIES]
    found = rows(compare.FINDINGS)
    for run in runs:
        name = run["library"]
        verdicts = {each["case"]: each["verdict"] for each in rows(compare.RESULTS / f"{name}.csv")}
        for word in compare.WORDS[1:]:
            assert int(run[word]) == [*verdicts.values()].count(word)
        assert int(run["passed"]) + len(verdicts) == int(run["offered"])
        smallest = {each["smallest case"] for each in found if each["library"] == name}
        assert smallest <= {case for case, word in verdicts.items() if word == "wrong"}
        assert bool(smallest) == ("wrong" in verdicts.values())


def test_a_program_shows_every_finding(compare):
    for each in rows(compare.FINDINGS):
        scripts = compare.scripts_of(each)
        assert scripts, each["finding"]
        for script in scripts:
            assert (compare.RESULTS / script).is_file()
