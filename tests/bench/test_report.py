"""The documents' tables: from the files, between the markers, and nowhere else."""

import pytest
from measuring import report, results, startup
from measuring.suite import CALL, IMAGES, Layout, Operator

BLOCK = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"


@pytest.fixture
def checkout(tmp_path, row, content, request):
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
        row(shape=CALL, ours=5, speedup=2),
        row(Operator.RESNET18, IMAGES, ours=2e5, speedup=0.5),
        row(Operator.ACLNN_NEW, CALL, ours=140),
    ]
    found = make(*rows)
    results.write(folder / "cpu-some.csv", content(found))
    results.write(folder / "cpu-some-quick.csv", b"not read")
    results.write(folder / "cpu-some.svg", b"<svg/>")
    times = dict(zip(startup.TIMES, (8000.0, 99.0, 51.0, 7654.0, 0.5), strict=True))
    start = {"kernels": "compiled", "runs": 3, **times}
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


def generated(checkout, *names):
    """The lines of a document that is generated whole."""
    text = checkout.joinpath(*names).read_text()
    assert "nan" not in text
    assert "This page is generated" in text
    return text.splitlines()


def test_the_page_of_a_machine(checkout):
    folder = checkout / "benchmarks" / "results"
    # Left alone, as it has no markers.
    (checkout / "README.md").write_text("no markers\n")
    names = [path.relative_to(checkout).as_posix() for path in report.write(folder, checkout)]
    assert names == [
        "docs/performance.md", "docs/performance/cpu-some.md", "docs/performance/cpu-some.svg",
        "benchmarks/targets.md",
    ]  # fmt: skip
    assert (checkout / "README.md").read_text() == "no markers\n"
    lines = generated(checkout, "docs", "performance", "cpu-some.md")
    assert lines[0] == "# Some CPU (R) 9000"
    assert (
        "![Times over the bandwidth-bound (triad) time](../../benchmarks/results/cpu-some.svg)"
        in lines
    )
    assert "| train | 4 | 2 | 8 | 4 |" in lines  # by dtype: √(2·8), by layout, and all
    resnet = [
        line.split(" | ") for line in lines if line.startswith("| train/32x64x56x56/float32/cont")
    ]
    # ours, plan, torch and memory in µs, torch / ours; with one thread and with two.
    assert [cells[1:] for cells in resnet] == [
        ["3,000", "3,000", "6,000", "2,000", "2", "100", "100", "600", "100", "6 |"]
    ]
    after = lines[lines.index("## Forward passes: geometric means") :]
    # Times as fast as torch, a call and a plan, and times the memory's.
    assert after.count("| forward | 1.5 | 1.5 | 1.5 |") == 2
    assert after.count("| forward | 3 | 3 | 3 |") == after.count("| forward | 2 | 2 | 2 |") == 2
    after = after[after.index("## Layers: geometric means") :]
    assert "| layer-batch-norm | 2.5 | 2.5 | 2.5 |" in after
    layer = "| layer-batch-norm/32x64x56x56/float32/contiguous | 2,000 | 5,000 | 2.5 | 1,000"
    assert f"{layer} | 3,500 | 3.5 |" in after
    assert "| train/4x8x4/float32/contiguous | 5 | 5 | 5 | 10 | 5 | 2 |" in after
    assert "| step-resnet18/16x3x64x64/float32/contiguous | 200,000 | 100,000 | 0.5 |" in after
    assert "| aclnn-new/4x8x4/float32/contiguous | 140 |" in after
    assert "| compiled | 3 | 8,000 | 99 | 51 | 7,654 | 0.5 |" in lines


def test_the_targets(checkout):
    report.write(checkout / "benchmarks" / "results", checkout)
    lines = generated(checkout, "benchmarks", "targets.md")
    assert "## Some CPU (R) 9000" in lines
    name = "torch / public function, geometric mean"
    mean = f"{(2 * 8 * 0.5 * 1.5) ** 0.25:.3g}"
    other = f"{(6 * 6 * 6 * 3) ** 0.25:.3g}"
    assert f"| {name} | ≥ 2.4 | {mean} | **missed** | {other} | met |" in lines
    elemt = "`elemt/32x64x56x56/float32/contiguous` 0.5"
    wanted = "torch / public function, each of 2¹² elements or more (≥ 0.95), 1 thread: 1 of 4"
    assert f"- {wanted}: {elemt}" in lines
    # What a mean was missed by is named too.
    misses = f"- {name} (≥ 2.4), 1 thread: 3 of 4: {elemt}"
    assert any(line.startswith(misses) for line in lines)


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
    lines = report.gains([(found, None, None)]).splitlines()
    device = "Some CPU (R) 9000"
    columns = f"{device}, contiguous | {device}, channels-last |"
    assert lines[0] == f"| forward and backward, one thread | {columns}"
    assert lines[2] == "| BatchNorm2d in training, from 2¹⁵ elements | 2.50 | – |"
    assert lines[4] == "| GroupNorm, from 2¹⁵ elements | 0.95 (0.90–1.0) | 14 (12–16) |"
    assert lines[6] == "| RMS norm, from 2¹⁵ elements | 2.0 (1.0–4.0) | – |"
    assert lines[7] == "| BatchNorm2d, smaller | – | 1.3 (1.1–1.5) |"
    assert lines[9] == "| training step of resnet18 (batch norm) | 0.50 | – |"
    assert lines[-1].endswith(f": {device} on {found.facts['date'][:10]}.")


def test_the_readme(checkout):
    (checkout / "README.md").write_text(BLOCK)
    (checkout / "docs" / "performance.md").unlink()
    written = report.write(checkout / "benchmarks" / "results", checkout)
    assert written[0] == checkout / "README.md"
    assert "| BatchNorm2d in training, from 2¹⁵ elements | 2.50 |" in read(checkout, "README.md")


def test_the_overview(checkout):
    """Each machine's means and picture, with a link to its page."""
    report.write(checkout / "benchmarks" / "results", checkout)
    lines = read(checkout, "docs", "performance.md").splitlines()
    assert "### Some CPU (R) 9000" in lines
    assert "![Times as fast as PyTorch, by size](performance/cpu-some.svg)" in lines
    assert "| gradients | 2 | 6 |" in lines
    assert "| training steps | 0.5 | – |" in lines
    assert any("[every table](performance/cpu-some.md)" in line for line in lines)


def test_the_summary(checkout):
    report.write(checkout / "benchmarks" / "results", checkout)
    lines = generated(checkout, "docs", "performance", "cpu-some.md")
    assert "| train | 4 | 4 | 1.22 | 6 | 6 | 1 |" in lines
    assert "| elemt | 0.5 | 0.5 | 1.2 | 6 | 6 | 1 |" in lines
    assert "| **all gradients** | 2 | 2 | 1.22 | 6 | 6 | 1 |" in lines
    rest = lines[lines.index("| forward | 1.5 | 1.5 | 2 | 3 | 3 | 2 |") + 1 :]
    assert rest[:2] == [
        "| **all forward passes** | 1.5 | 1.5 | 2 | 3 | 3 | 2 |",
        "| **all calls** | 2 | 2 | 1 | – | – | – |",
    ]
    assert "| **all training steps** | 0.5 | – | – | – | – | – |" in rest
    assert any(line.endswith("`normgrad bench`.") for line in lines)


def test_gradients_alone(checkout, row, content, request):
    """What a file from before there were other parts holds."""
    folder = checkout / "benchmarks" / "results"
    found = request.getfixturevalue("results")(row())
    results.write(folder / "cpu-some.csv", content(found))
    report.write(folder, checkout)
    lines = generated(checkout, "docs", "performance", "cpu-some.md")
    assert "## Gradients: geometric means" in lines
    assert not any(line.startswith(("## Forward passes", "## Layers")) for line in lines)
    steps = "| training steps: converted / stock, each | ≤ 1 | – | no such case |"
    assert steps in generated(checkout, "benchmarks", "targets.md")


def test_layers_alone(checkout, row, content, request):
    folder = checkout / "benchmarks" / "results"
    found = request.getfixturevalue("results")(row(Operator.LAYER_GROUP_NORM))
    results.write(folder / "cpu-some.csv", content(found))
    report.write(folder, checkout)
    lines = generated(checkout, "docs", "performance", "cpu-some.md")
    assert "## Layers, forward and backward" in lines
    assert not any(line.startswith("## Gradients") for line in lines)


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
