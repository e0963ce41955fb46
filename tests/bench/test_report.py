"""The documents' tables: from the files, between the markers, and nowhere else."""

import pytest

from normgrad.bench import report, results, startup
from normgrad.bench.suite import Layout, Operator

BLOCK = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"


@pytest.fixture
def checkout(tmp_path, row, request):
    """A checkout with a full run, a part of one and a start among its results."""
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
    ]
    found = make(*rows)
    results.write(folder / "cpu-some.csv", results.table_of(found.facts, found.rows))
    results.write(folder / "cpu-some-quick.csv", b"not read")
    results.write(folder / "cpu-some.svg", b"<svg/>")
    start = startup.Start("compiled", "batch_norm_backward", "float32", 3, 8000, 99, 51, 7654, 0.5)
    results.write(folder / "startup-some.csv", results.table_of(found.facts, [start]))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").write_text(BLOCK)
    return tmp_path


def read(checkout, *names):
    text = checkout.joinpath(*names).read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n\n")
    assert text.endswith(f"\n\n{report.END}\nafter\n")
    assert "old" not in text
    return text


def test_the_details(checkout):
    folder = checkout / "benchmarks" / "results"
    # Left alone, as it has no markers.
    (checkout / "README.md").write_text("no markers\n")
    assert report.write(folder, checkout) == [checkout / "docs" / "performance.md"]
    assert (checkout / "README.md").read_text() == "no markers\n"
    text = read(checkout, "docs", "performance.md")
    lines = text.splitlines()
    assert "### Some CPU (R) 9000" in lines
    assert "![Times over the memory's own time](../benchmarks/results/cpu-some.svg)" in lines
    assert (
        "| torch / ours, geometric mean of all gradients | ≥ 3 | 2 | **missed** | ≥ 3 | 6 | met |"
        in lines
    )
    assert "| train | 4 | 4 |" in lines  # by dtype: √(2·8), and all
    assert "| train | 2 | 8 | 4 |" in lines  # by layout
    assert any(
        line.startswith(
            "- torch / ours, each gradient of 2¹⁶ elements or more (≥ 1), 1 thread: 1 of 3"
        )
        and "`elemt/32x64x56x56/float32/contiguous` 0.5" in line
        for line in lines
    )
    resnet = [line.split(" | ") for line in lines if line.startswith("| 32x64x56x56 float32 cont")]
    # ours, out=, torch and triad in ms, torch / ours, ×triad; with one thread and with two.
    assert [cells[1:7] for cells in resnet] == [["3", "3", "6", "2", "2", "1.5"]]
    assert resnet[0][7:] == ["0.1", "0.1", "0.6", "0.1", "6", "1 |"]
    after = lines[lines.index("#### The forward pass") :]
    # Each by dtype and by layout: times as fast as torch, and times the memory's.
    assert after.count("| forward | 1.5 | 1.5 |") == after.count("| forward | 3 | 3 |") == 2
    assert after.count("| forward | 2 | 2 |") == 4
    after = after[after.index("#### Layers, forward and backward") :]
    assert after.count("| layer-batch-norm | 2.5 | 2.5 |") == 2
    layer = "| layer-batch-norm/32x64x56x56/float32/contiguous | 2 | 5 | 2.5 | 1 | 3.5 | 3.5 |"
    assert layer in after
    assert "nan" not in text
    assert "| compiled, batch_norm_backward float32 | 8,000 | 99 | 51 | 7,654 | 0.5 |" in lines


def test_the_summary(checkout):
    (checkout / "README.md").write_text(BLOCK)
    (checkout / "docs" / "performance.md").unlink()
    folder = checkout / "benchmarks" / "results"
    assert report.write(folder, checkout) == [checkout / "README.md"]
    lines = read(checkout, "README.md").splitlines()
    assert "| train | 4 | 1.22 | 6 | 1 |" in lines
    assert "| elemt | 0.5 | 1.2 | 6 | 1 |" in lines
    assert "| **all gradients** | 2 | 1.22 | 6 | 1 |" in lines
    assert lines[lines.index("| forward | 1.5 | 2 | 3 | 2 |") + 1 :][:3] == [
        "| **all forward passes** | 1.5 | 2 | 3 | 2 |",
        "| layer-batch-norm | 2.5 | – | 3.5 | – |",
        "| **all layers** | 2.5 | – | 3.5 | – |",
    ]
    assert any("`normgrad bench`. Geometric means over 5 cases:" in line for line in lines)


def test_gradients_alone(checkout, row, request):
    """What a file from before there were other parts holds."""
    folder = checkout / "benchmarks" / "results"
    found = request.getfixturevalue("results")(row())
    results.write(folder / "cpu-some.csv", results.table_of(found.facts, found.rows))
    report.write(folder, checkout)
    text = read(checkout, "docs", "performance.md")
    assert "#### Gradients: times as fast as PyTorch" in text
    assert "| torch / ours, geometric mean of all layers | – | – | no such case |" in text
    assert "#### The forward pass" not in text
    assert "#### Layers" not in text


def test_layers_alone(checkout, row, request):
    folder = checkout / "benchmarks" / "results"
    found = request.getfixturevalue("results")(row(Operator.LAYER_GROUP_NORM))
    results.write(folder / "cpu-some.csv", results.table_of(found.facts, found.rows))
    report.write(folder, checkout)
    text = read(checkout, "docs", "performance.md")
    assert "#### Layers, forward and backward" in text
    assert "#### Gradients" not in text
    assert "nan" not in text


def test_again_changes_nothing(checkout):
    folder, document = checkout / "benchmarks" / "results", checkout / "docs" / "performance.md"
    report.write(folder, checkout)
    once = document.read_text()
    report.write(folder, checkout)
    assert document.read_text() == once


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
    assert (checkout / "docs" / "performance.md").read_text() == BLOCK


def test_no_markers(checkout):
    (checkout / "docs" / "performance.md").write_text("none\n")
    with pytest.raises(report.ReportError, match="has the marker"):
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
