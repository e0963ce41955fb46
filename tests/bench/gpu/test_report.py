"""What docs/performance.md says of GPUs."""

import pytest

from normgrad.bench import report
from normgrad.bench.gpu import report as gpu_report
from normgrad.bench.results import table_of
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


def test_a_run(checkout, rows, results):
    found = results(
        rows(ours=600.0, others={"aten::a": 1200.0, "b": 900.0}, copy=500.0),
        rows(ours=800.0, others={"aten::a": 600.0}, copy=500.0, layout=Layout.CHANNELS_LAST),
        rows(Operator.EVAL, shape=(8, 16, 8, 8), ours=4.0, others={"aten::a": 8.0}),
        rows(Operator.ELEMT, others={}),
    )
    facts = {**found.facts, "not_measured": "liger_kernel: not installed (all cases)"}
    (checkout / "cuda-nvidia-h200.csv").write_bytes(table_of(facts, found.rows))
    (checkout / "cuda-nvidia-h200-quick.csv").write_text("not read")
    assert report.write(checkout, checkout) == [checkout / "docs" / "performance.md"]
    text = lines(checkout)
    assert "### NVIDIA H200" in text
    assert any("driver 570.1, CUDA 12.8, cuDNN 91002" in line for line in text)
    assert any(line.endswith("`normgrad bench --device cuda`.") for line in text)
    assert "Not measured: liger_kernel: not installed (all cases)." in text
    assert any(line.startswith("| effective TB/s, each gradient of") for line in text)
    assert "| train | 1.06 | 1.06 |" in text  # √(1.5 · 0.75), all of them in float32
    assert "| train | 1.5 | 0.75 | 1.06 |" in text  # by layout
    assert "| train/256x256x56x56/float32/contiguous | 600 | 4.11 | 4.93 | 83% | b | 1.5 |" in text
    assert any(line.startswith("| elemt/256x256x56x56") and "| – | – |" in line for line in text)
    assert "| eval/8x16x8x8/float32/contiguous | 4 | 8 | 0.5 |" in text
    assert gpu_report.NOTHING.splitlines()[0] not in text


def test_none_was_measured(checkout, rows, results, request):
    """A run on a CPU alone: nothing is said that is not so."""
    from normgrad.bench.results import table_of as table

    found = request.getfixturevalue("cpu_results")
    (checkout / "cpu-some.csv").write_bytes(table(found.facts, found.rows))
    report.write(checkout, checkout)
    text = lines(checkout)
    assert "normgrad bench --device cuda" in text
    assert not any(line.startswith("|") for line in text)


@pytest.fixture
def cpu_results(row):
    from normgrad.bench import results

    return results.Results(results.facts("CPU", "normgrad bench", 1 << 20), (row(),))


def test_what_is_said_of_cpus_stays_without_a_run_there(checkout, rows, results):
    document = checkout / "docs" / "performance.md"
    document.write_text(f"{report.BEGIN}\nthe CPU's\n{report.END}\n{BLOCK}")
    found = results(rows())
    (checkout / "cuda-x.csv").write_bytes(table_of(found.facts, found.rows))
    report.write(checkout, checkout)
    assert document.read_text().startswith(f"{report.BEGIN}\nthe CPU's\n{report.END}\nbefore\n")
    assert "### NVIDIA H200" in document.read_text()


def test_a_damaged_run(checkout):
    (checkout / "cuda-x.csv").write_text("# gpu: x\na,b\n1,2\n")
    with pytest.raises(report.ReportError, match=r"cuda-x\.csv: no file of a run"):
        report.write(checkout, checkout)
    assert (checkout / "docs" / "performance.md").read_text() == BLOCK
