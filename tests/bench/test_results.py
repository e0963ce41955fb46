"""The files: what is written is what is read, and never half of it."""

import dataclasses
import math
import os
import stat
from pathlib import Path

import pytest
from measuring import picture, report, results, startup
from measuring.results import Row
from measuring.suite import Case, Layout, Operator, Part


def test_there_and_back(row, results_file):
    rows = (row(), row(Operator.REDUCE, speedup=1.23456789, threads=2))
    found = results.read(results_file(*rows))
    assert found.facts["cpu"] == "Some CPU (R) 9000"
    assert found.facts["command"] == "normgrad bench"
    assert found.cache == 16 << 20
    assert {"normgrad", "python", "numpy", "numba", "torch", "date", "cores"} <= set(found.facts)
    for name, value in rows[0].cells.items():
        same = pytest.approx(value, rel=1e-5, nan_ok=True) if isinstance(value, float) else value
        assert found.rows[0].cells[name] == same
    assert found.rows[1].us["torch"] == 123.457  # six digits are more than there are
    assert found.rows[1].contender == "aten::a, b"


@pytest.fixture
def results_file(tmp_path, request):
    make, content = map(request.getfixturevalue, ("results", "content"))

    def write(*rows):
        found = make(*rows)
        path = tmp_path / "cpu-some.csv"
        results.write(path, content(found))
        return path

    return write


def test_what_is_not_known_of_a_layer_is_an_empty_cell(row, results_file):
    layer = row(Operator.LAYER_BATCH_NORM)
    path = results_file(row(), layer)
    cells = path.read_text().splitlines()[-1].split(",")
    columns = list(layer.cells)
    empty = {
        "t_python_us",
        "t_plan_us",
        "t_numpy_us",
        "t_triad_us",
        "plan_speedup",
        "xtriad",
        "gbs",
    }
    empty |= {"bound", "path"}
    # The contender has a comma in it.
    assert cells.pop(columns.index("contender")) == '"aten::a'
    assert {name for name, cell in zip(columns, cells, strict=True) if not cell} == empty
    _, found = results.read(path).rows
    assert math.isnan(found.figure("plan", "bound"))
    assert math.isnan(found.figure("plan"))
    assert (found.us, found.path) == ({"ours": 100, "torch": 400}, "")
    assert found.case.part is Part.LAYERS


@pytest.mark.parametrize(
    ("operator", "column"),
    [
        (Operator.TRAIN, "bound"),
        (Operator.STATS, "plan"),
        (Operator.LAYER_GROUP_NORM, "torch"),
    ],
)
def test_a_figure_that_is_missing(row, results_file, operator, column):
    made = row(operator)
    path = results_file(dataclasses.replace(made, us={**made.us, column: math.nan}))
    with pytest.raises(ValueError, match=f"{operator.value}/32x64.*: no {results.TIMES[column]}"):
        results.read(path)


def test_the_files_in_the_checkout():
    """They are read as they are, those too that hold gradients alone."""
    folder = Path(__file__).parents[2] / "benchmarks" / "results"
    for path in folder.glob("cpu-*.csv"):
        found = results.read(path)
        assert sum(row.case.part is Part.GRADIENTS for row in found.rows) >= 364


def test_facts_stay_on_their_lines(row):
    text = results.table_of({"cpu": "a\nb", "date": "today"}, [row().cells]).decode()
    assert text.splitlines()[:2] == ["# cpu: a b", "# date: today"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((",operator,", ",operators,"), ("# cache_bytes", "# cash"), (",0.01,", ",little,")),
        (",train,", ",trains,"),
    ],
)
def test_what_is_no_such_file(row, results_file, old, new):
    path = results_file(row())
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=r"allowed|no |could not|not a valid"):
        results.read(path)


def test_starts_there_and_back(tmp_path):
    times = dict(zip(startup.TIMES, (9.0, 1.5, 2.0, 3.0, 0.5), strict=True))
    start = {"kernels": "compiled", "runs": 3, **times}
    path = tmp_path / "startup.csv"
    results.write(path, results.table_of({"cpu": "x"}, [start]))
    facts, rows = results.read_table(path)
    assert (facts, report.starts(rows)) == ({"cpu": "x"}, report.starts([start]))


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file"
    results.write(path, b"old")
    assert path.read_bytes() == b"old"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.write(path, b"new and longer")
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == [("file", b"old")]


def test_row():
    case = Case(Operator.EVAL, (2, 4, 3, 3), layout=Layout.CHANNELS_LAST)
    us = {"ours": 2, "plan": 1.5, "torch": 8, "bound": 0.5}
    cells = Row(case, 2, us, 7, 0.125, "kernel", "triad", "rows").cells
    assert (cells["case"], cells["shape"], cells["threads"]) == (case.id, "2x4x3x3", 2)
    assert cells["speedup"] == pytest.approx(4)
    assert cells["plan_speedup"] == pytest.approx(16 / 3)
    assert cells["xtriad"] == pytest.approx(3)
    assert cells["gbs"] == pytest.approx(864 / 1.5 / 1e3)
    assert (cells["t_plan_us"], cells["t_triad_us"]) == (1.5, 0.5)
    assert list(cells)[-3:] == ["rounds", "spread", "path"]


@pytest.mark.parametrize(
    ("cpu", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "intel-xeon-platinum-8375c-cpu-2-90ghz"),
        ("AMD EPYC 7R13 (znver3)", "amd-epyc-7r13-znver3"),
        ("../../etc", "etc"),
        ("", "unknown"),
    ],
)
def test_slug(cpu, slug):
    assert results.slug(cpu) == slug


@pytest.mark.parametrize(
    ("count", "text"),
    [(100, "100 B"), (1536, "1.5 KiB"), (480 << 20, "480 MiB"), (3 << 30, "3 GiB")],
)
def test_spelled_bytes(count, text):
    assert results.spelled_bytes(count) == text


def test_picture(row, results):
    pytest.importorskip("matplotlib")
    rows = [row(operator) for operator in Operator]
    rows += [row(layout=layout, threads=2, xtriad=3) for layout in Layout]
    files = picture.draw(results(*rows))
    assert files[".png"].startswith(b"\x89PNG")
    assert b"</svg>" in files[".svg"]
    assert files == picture.draw(results(*rows))


def test_picture_without_layers(row, results):
    pytest.importorskip("matplotlib")
    layer = row(Operator.LAYER_BATCH_NORM)
    assert picture.draw(results(layer)) == {}
    forward = row(Operator.FORWARD)
    assert set(picture.draw(results(forward))) == set(picture.ENDINGS)
    assert picture.draw(results(forward, layer)) == picture.draw(results(forward))
