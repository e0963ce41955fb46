"""What the documents say of GPUs."""

import pytest
from measuring import picture, report
from measuring.results import Results
from measuring.suite import Layout, Operator

BLOCK = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").write_text(BLOCK)
    return tmp_path


def lines(checkout, name):
    text = (checkout / "docs" / "performance" / f"{name}.md").read_text()
    assert "nan" not in text
    return text.splitlines()


def test_a_run(checkout, row, content, results):
    shape = (256, 64, 56, 56)
    found = results(
        row(shape=shape, speedup=1.5, ours=600.0),
        row(shape=shape, speedup=0.75, ours=800.0, layout=Layout.CHANNELS_LAST),
        row(Operator.LAYER_BATCH_NORM, speedup=2.5, ours=2000),
    )
    facts = {
        **found.facts,
        "not_measured": "aten::x: RuntimeError: 1; allowed: 2 (a); other: no (b)",
    }
    (checkout / "cuda-nvidia-h200.csv").write_bytes(content(Results(facts, found.rows)))
    (checkout / "cuda-nvidia-h200.svg").write_text("<svg/>")
    (checkout / "cuda-nvidia-h200-quick.csv").write_text("not read")
    report.write(checkout, checkout)
    assert "### NVIDIA H200" in (checkout / "docs" / "performance.md").read_text()
    text = lines(checkout, "cuda-nvidia-h200")
    assert text[0] == "# NVIDIA H200"
    assert any("L2 50 MiB; host Some CPU. driver 570.1, CUDA 12.8" in line for line in text)
    assert any(line.endswith("`normgrad bench --device cuda`.") for line in text)
    at = text.index("Not measured:")
    assert text[at + 2 : at + 4] == [
        "- aten::x: RuntimeError: 1; allowed: 2 (a)",
        "- other: no (b)",
    ]
    assert "![Times over the bandwidth-bound (triad) time](../../cuda-nvidia-h200.svg)" in text
    # √(1.5 · 0.75), all of them in float32; and by layout.
    assert "| train | 1.06 | 1.5 | 0.75 | 1.06 |" in text
    assert "## ResNet-50 at batch 256, training: gradients" in text
    assert "| train/256x64x56x56/float32/contiguous | 600 | 600 | 900 | 600 | 1.5 |" in text
    assert "| layer-batch-norm/32x64x56x56/float32/contiguous | 2,000 | 5,000 | 2.5 |" in text
    text = (checkout / "benchmarks" / "targets.md").read_text().splitlines()
    limit = "each of 2¹⁶ elements or more, gradients"
    assert f"| torch / ours, {limit} | ≥ 1 | 0.75 | **missed** by 1 of 2 |" in text
    assert any(line.startswith(f"- torch / ours, {limit} (≥ 1), GPU: 1 of 2: ") for line in text)


def test_what_was_measured_in_parts(checkout, row, content, results):
    found = results(row())
    facts = {**found.facts, "command": "normgrad bench --add; normgrad bench --quick"}
    (checkout / "cuda-x.csv").write_bytes(content(Results(facts, found.rows)))
    report.write(checkout, checkout)
    text = lines(checkout, "cuda-x")
    assert any(line.endswith("`normgrad bench --add`, `normgrad bench --quick`.") for line in text)


def test_a_damaged_run(checkout):
    (checkout / "cuda-x.csv").write_text("# gpu: x\na,b\n1,2\n")
    with pytest.raises(report.ReportError, match=r"cuda-x\.csv: no file of a run"):
        report.write(checkout, checkout)
    assert (checkout / "docs" / "performance.md").read_text() == BLOCK


def test_the_picture_names_the_gpu(row, results):
    pytest.importorskip("matplotlib")
    drawn = picture.draw(results(row(Operator.TRAIN)))[".svg"]
    assert b"gradients, GPU" in drawn
    assert b"on NVIDIA H200" in drawn
