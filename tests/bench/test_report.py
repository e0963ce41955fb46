"""The documents' tables: from the files, between the markers, and nowhere else."""

from pathlib import Path

import pytest
from measuring import report, results
from measuring.suite import CALL, IMAGES, Layout, Operator

BLOCK = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"


@pytest.fixture
def checkout(tmp_path, row, content, request):
    """A checkout with a full run, and a part of one, among its results."""
    make = request.getfixturevalue("results")
    folder = tmp_path / "benchmarks" / "results"
    rows = [
        row(speedup=2, xtriad=1.5, ours=3000),
        row(speedup=8, xtriad=1.0, ours=1000, layout=Layout.CHANNELS_LAST),
        row(Operator.ELEMT, speedup=0.5, xtriad=1.2),
        row(speedup=6, threads=2),
        row(speedup=6, threads=2, layout=Layout.CHANNELS_LAST),
        row(Operator.ELEMT, speedup=6, threads=2),
        row(Operator.FORWARD, speedup=1.5, xtriad=2),
        row(Operator.FORWARD, speedup=3, xtriad=2, threads=2),
        row(Operator.LAYER_BATCH_NORM, speedup=2.5, ours=2000),
        row(Operator.LAYER_BATCH_NORM, speedup=3.5, ours=1000, threads=2),
        row(shape=CALL, ours=5, speedup=2),
        row(Operator.RESNET18, IMAGES, ours=2e5, speedup=0.5),
        row(Operator.ACLNN_NEW, CALL, ours=140),
    ]
    found = make(*rows)
    facts = {**found.facts, "commit": "0123abc"}
    results.write(folder / "cpu-some.csv", content(results.Results(facts, found.rows)))
    results.write(folder / "cpu-some-quick.csv", b"not read")
    (tmp_path / "docs" / "performance").mkdir(parents=True)
    (tmp_path / "docs" / "performance" / "cpus.md").write_text(BLOCK)
    return tmp_path


def read(checkout, *names):
    text = checkout.joinpath(*names).read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n\n")
    assert text.endswith(f"\n\n{report.END}\nafter\n")
    assert "old" not in text
    assert "nan" not in text
    return text


def test_the_page_of_cpus(checkout):
    """Each machine's picture, means and file."""
    folder = checkout / "benchmarks" / "results"
    # Left alone, as it has no markers.
    (checkout / "README.md").write_text("no markers\n")
    names = [path.relative_to(checkout).as_posix() for path in report.write(folder, checkout)]
    assert names == ["docs/performance/cpus.md", "docs/performance/cpu-some.svg"]
    assert (checkout / "README.md").read_text() == "no markers\n"
    lines = read(checkout, "docs", "performance", "cpus.md").splitlines()
    assert "## Some CPU (R) 9000" in lines
    assert "![Times as fast as PyTorch, by size](cpu-some.svg)" in lines
    assert "Every case: [cpu-some.csv](../../benchmarks/results/cpu-some.csv)." in lines
    assert any(line.endswith(", commit 0123abc.") for line in lines)
    picture = (checkout / "docs" / "performance" / "cpu-some.svg").read_text()
    assert "Some CPU (R) 9000, 2 threads, " in picture
    assert "commit 0123abc" in picture


def test_the_table_of_the_readme(row, request):
    channels_last = {"layout": Layout.CHANNELS_LAST}
    half = {"dtype": "bfloat16", **channels_last}
    found = request.getfixturevalue("results")(
        row(Operator.LAYER_BATCH_NORM, speedup=2.5),
        row(Operator.LAYER_BATCH_NORM, speedup=9, threads=2),
        row(Operator.LAYER_EVAL, CALL, speedup=1.1, **channels_last),
        row(Operator.LAYER_BATCH_NORM, CALL, speedup=1.5, **channels_last),
        row(Operator.LAYER_GROUP_NORM, speedup=0.9),
        row(Operator.LAYER_GROUP_NORM, speedup=1),
        row(Operator.LAYER_GROUP_NORM, speedup=12, **half),
        row(Operator.LAYER_GROUP_NORM, speedup=16, **half),
        row(Operator.RMS_NORM, speedup=4),
        row(Operator.FORWARD_RMS_NORM, speedup=1),
        row(Operator.RESNET18, IMAGES, speedup=0.5),
    )
    lines = report.gains([(found, Path("cpu-some.csv"))]).splitlines()
    device = "Some CPU (R) 9000"
    columns = f"{device}, contiguous | {device}, channels-last |"
    assert lines[0] == f"| forward and backward, one thread | {columns}"
    assert lines[2] == "| BatchNorm2d in training, from 2¹⁵ elements | 2.50 | – |"
    assert lines[4] == "| GroupNorm, from 2¹⁵ elements | 0.95 (0.90–1.0) | 14 (12–16) |"
    assert lines[6] == "| RMS norm, from 2¹⁵ elements | 2.0 (1.0–4.0) | – |"
    assert lines[7] == "| BatchNorm2d, smaller | – | 1.3 (1.1–1.5) |"
    assert lines[9] == "| training step of resnet18 (batch norm) | 0.50 | – |"
    assert lines[-1].endswith(f": {device} on {found.facts['date'][:10]}.")


def test_whole_models_in_the_readme(checkout):
    """Their own lines, by whether they have RMS norms."""
    (checkout / "README.md").write_text(BLOCK)
    rows = [
        {"model": "a", "has_rms_norm": "1", "share": "0.3", "measured": "1.2"},
        {"model": "b", "has_rms_norm": "0", "share": "0.1", "measured": "0.9"},
        {"model": "c", "has_rms_norm": "0", "share": "0.2", "measured": "1.6"},
    ]
    folder = checkout / "benchmarks" / "results"
    results.write(folder / "models-some.csv", results.table_of({"cpu": "x"}, rows))
    assert report.write(folder, checkout)[0] == checkout / "README.md"
    lines = read(checkout, "README.md").splitlines()
    assert "| BatchNorm2d in training, from 2¹⁵ elements | 2.50 | – |" in lines
    assert "| training steps of models with RMS norms | 1.20 | – |" in lines
    assert "| training steps of other models | 1.2 (0.90–1.6) | – |" in lines
    picture = (checkout / "docs" / "performance" / "cpu-some.svg").read_text()
    assert "whole training steps of 3 models" in picture


def test_the_summary(checkout):
    report.write(checkout / "benchmarks" / "results", checkout)
    lines = read(checkout, "docs", "performance", "cpus.md").splitlines()
    assert "| train | 4 | 4 | 1.22 | 6 | 6 | 1 |" in lines
    assert "| elemt | 0.5 | 0.5 | 1.2 | 6 | 6 | 1 |" in lines
    assert "| **all gradients** | 2 | 2 | 1.22 | 6 | 6 | 1 |" in lines
    rest = lines[lines.index("| forward | 1.5 | 1.5 | 2 | 3 | 3 | 2 |") + 1 :]
    assert rest[:2] == [
        "| **all forward passes** | 1.5 | 1.5 | 2 | 3 | 3 | 2 |",
        "| **all calls** | 2 | 2 | 1 | – | – | – |",
    ]
    assert "| **all training steps** | 0.5 | – | – | – | – | – |" in rest


def test_gradients_alone(checkout, row, content, request):
    """What a file from before there were other parts holds."""
    folder = checkout / "benchmarks" / "results"
    found = request.getfixturevalue("results")(row())
    results.write(folder / "cpu-some.csv", content(found))
    report.write(folder, checkout)
    lines = read(checkout, "docs", "performance", "cpus.md").splitlines()
    assert "| **all gradients** | 4 | 4 | 1 |" in lines
    assert not any("forward" in line or "layers" in line for line in lines)


def test_again_changes_nothing(checkout):
    folder = checkout / "benchmarks" / "results"
    assert report.write(folder, checkout)
    assert report.write(folder, checkout) == []


def test_no_runs(checkout):
    folder = checkout / "benchmarks" / "results"
    (folder / "cpu-some.csv").unlink()
    with pytest.raises(report.ReportError, match="no file of a full run"):
        report.write(folder, checkout)


def test_a_damaged_run(checkout):
    folder = checkout / "benchmarks" / "results"
    (folder / "cpu-other.csv").write_text("# cpu: x\na,b\n1,2\n")
    with pytest.raises(report.ReportError, match=r"cpu-other\.csv: no file of a run"):
        report.write(folder, checkout)
    assert (checkout / "docs" / "performance" / "cpus.md").read_text() == BLOCK


def test_no_markers(checkout):
    (checkout / "docs" / "performance" / "cpus.md").write_text("none\n")
    with pytest.raises(report.ReportError, match=r"none of README\.md, .* has <!--"):
        report.write(checkout / "benchmarks" / "results", checkout)


@pytest.mark.parametrize(
    "text",
    [
        f"{report.BEGIN} no end",
        f"no begin {report.END}",
        f"{report.END} {report.BEGIN}",
        f"{report.BEGIN} {report.BEGIN} {report.END}",
        f"{report.BEGIN} {report.END} {report.END}",
    ],
)
def test_markers_that_do_not_pair(text):
    with pytest.raises(report.ReportError, match="do not pair"):
        report.replace_between(text, "new")


def test_no_markers_at_all():
    assert report.replace_between("text", "new") is None
