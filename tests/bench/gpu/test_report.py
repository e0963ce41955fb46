"""What docs/performance.md says of GPUs."""

from dataclasses import replace

import pytest

from normgrad.bench import picture, report
from normgrad.bench.results import Results, facts, table_of
from normgrad.bench.suite import Layout, Operator

BLOCK = f"before\n{report.GPU_BEGIN}\nold\n{report.GPU_END}\nafter\n"


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").write_text(BLOCK)
    return tmp_path


def lines(checkout):
    text = (checkout / "docs" / "performance.md").read_text()
    assert text.startswith(f"before\n{report.GPU_BEGIN}\n\n")
    assert text.endswith(f"\n\n{report.GPU_END}\nafter\n")
    assert "old" not in text
    assert "nan" not in text
    return text.splitlines()


def test_a_run(checkout, row, results):
    shape = (256, 256, 56, 56)
    found = results(
        row(shape=shape, speedup=1.5, ours=600.0),
        row(shape=shape, speedup=0.75, ours=800.0, layout=Layout.CHANNELS_LAST),
        row(Operator.LAYER_BATCH_NORM, speedup=2.5, ours=2000),
    )
    facts = {**found.facts, "not_measured": "aten::x: RuntimeError: no (a)"}
    (checkout / "cuda-nvidia-h200.csv").write_bytes(table_of(facts, found.rows))
    (checkout / "cuda-nvidia-h200.svg").write_text("<svg/>")
    (checkout / "cuda-nvidia-h200-quick.csv").write_text("not read")
    assert report.write(checkout, checkout) == [checkout / "docs" / "performance.md"]
    text = lines(checkout)
    assert "### NVIDIA H200" in text
    assert any("L2 50 MiB; host Some CPU. driver 570.1, CUDA 12.8" in line for line in text)
    assert any(line.endswith("`normgrad bench --device cuda`.") for line in text)
    assert "Not measured: aten::x: RuntimeError: no (a)." in text
    assert "![Times over the memory's own time](../cuda-nvidia-h200.svg)" in text
    limit = "each gradient of 2¹⁶ elements or more"
    assert f"| torch / ours, {limit} | ≥ 1 | 0.75 | **missed** by 1 of 2 |" in text
    assert any(line.startswith(f"- torch / ours, {limit} (≥ 1), GPU: 1 of 2: ") for line in text)
    assert "| train | 1.06 | 1.06 |" in text  # √(1.5 · 0.75), all of them in float32
    assert "| train | 1.5 | 0.75 | 1.06 |" in text  # by layout
    assert "#### ResNet-50 at batch 256, training: gradients" in text
    assert "| 256x256x56x56 float32 contiguous | 0.6 | 0.6 | 0.9 | 0.6 | 1.5 | 1 |" in text
    assert "| layer-batch-norm/32x64x56x56/float32/contiguous | 2 | 5 | 2.5 |" in text
    assert report.NO_GPU.splitlines()[0] not in text


def test_what_was_measured_in_parts(checkout, row, results):
    found = results(row())
    facts = {**found.facts, "command": "normgrad bench --add; normgrad bench --quick"}
    (checkout / "cuda-x.csv").write_bytes(table_of(facts, found.rows))
    report.write(checkout, checkout)
    text = lines(checkout)
    assert any(line.endswith("`normgrad bench --add`, `normgrad bench --quick`.") for line in text)


def test_none_was_measured(checkout, row):
    """A run on a CPU alone: nothing is said that is not so."""
    found = Results(facts("CPU", "normgrad bench", 1 << 20), (replace(row(), threads=1),))
    (checkout / "cpu-some.csv").write_bytes(table_of(found.facts, found.rows))
    report.write(checkout, checkout)
    text = lines(checkout)
    assert "normgrad bench --device cuda" in text
    assert not any(line.startswith("|") for line in text)


def test_what_is_said_of_cpus_stays_without_a_run_there(checkout, row, results):
    document = checkout / "docs" / "performance.md"
    document.write_text(f"{report.BEGIN}\nthe CPU's\n{report.END}\n{BLOCK}")
    found = results(row())
    (checkout / "cuda-x.csv").write_bytes(table_of(found.facts, found.rows))
    report.write(checkout, checkout)
    assert document.read_text().startswith(f"{report.BEGIN}\nthe CPU's\n{report.END}\nbefore\n")
    assert "### NVIDIA H200" in document.read_text()


def test_a_damaged_run(checkout):
    (checkout / "cuda-x.csv").write_text("# gpu: x\na,b\n1,2\n")
    with pytest.raises(report.ReportError, match=r"cuda-x\.csv: no file of a run"):
        report.write(checkout, checkout)
    assert (checkout / "docs" / "performance.md").read_text() == BLOCK


def test_the_picture_has_the_cpus_targets_on_cpus_alone(row, results):
    pytest.importorskip("matplotlib")
    measured = row(Operator.TRAIN)
    drawn = picture.draw(results(measured))[".svg"]
    assert b"gradients, GPU" in drawn
    assert b"target" not in drawn
    assert b"target" in picture.draw(results(replace(measured, threads=1)))[".svg"]
