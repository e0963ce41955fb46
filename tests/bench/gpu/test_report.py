"""What the documents say of GPUs."""

import pytest
from measuring import picture, report
from measuring.suite import Layout, Operator

BLOCK = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "docs" / "performance" / "gpus.md"
    path.parent.mkdir(parents=True)
    path.write_text(BLOCK)
    return path


def test_a_run(tmp_path, page, row, content, results):
    shape = (256, 64, 56, 56)
    found = results(
        row(shape=shape, speedup=1.5, ours=600.0),
        row(shape=shape, speedup=0.75, ours=800.0, layout=Layout.CHANNELS_LAST),
        row(Operator.LAYER_BATCH_NORM, speedup=2.5, ours=2000),
    )
    (tmp_path / "cuda-nvidia-h200.csv").write_bytes(content(found))
    (tmp_path / "cuda-nvidia-h200-quick.csv").write_text("not read")
    report.write(tmp_path, tmp_path)
    lines = page.read_text().splitlines()
    assert "## NVIDIA H200" in lines
    assert any("L2 50 MiB; host Some CPU. driver 570.1, CUDA 12.8" in line for line in lines)
    assert "| train | 1.06 | 1.06 | 1 |" in lines  # √(1.5 · 0.75)
    assert "| layer-batch-norm | 2.5 | – | – |" in lines
    assert "Every case: [cuda-nvidia-h200.csv](../../cuda-nvidia-h200.csv)." in lines


def test_a_damaged_run(tmp_path, page):
    (tmp_path / "cuda-x.csv").write_text("# gpu: x\na,b\n1,2\n")
    with pytest.raises(report.ReportError, match=r"cuda-x\.csv: no file of a run"):
        report.write(tmp_path, tmp_path)
    assert page.read_text() == BLOCK


def test_the_picture_names_the_gpu(row, results):
    pytest.importorskip("matplotlib")
    drawn = picture.draw(results(row(Operator.TRAIN)))[".svg"]
    assert b"gradients, GPU" in drawn
    assert b"on NVIDIA H200" in drawn
