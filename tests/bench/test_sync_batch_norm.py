"""``benchmarks/sync_batch_norm.py``: its arithmetic, and two processes that come to an end."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from measuring import results

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "sync_batch_norm.py"


@pytest.fixture
def program(monkeypatch):
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("sync_batch_norm_benchmark", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_turn_takes_as_long_as_the_slower_rank(program):
    ranks = [{"sync": [1.0, 5.0], "torch": [2.0, 2.0]}, {"sync": [3.0, 4.0], "torch": [1.0, 3.0]}]
    assert program.slowest(ranks) == {"sync": [3.0, 5.0], "torch": [2.0, 3.0]}


def test_a_row(program):
    turns = {"sync": [5e-6, 6e-6, 9e-6], "batch norm": [4e-6] * 3, "torch": [8e-6] * 3}
    row = program.row((2, 4, 3, 3), "float32", "contiguous", turns)
    assert (row.shape, row.ranks, row.rounds) == ("2x4x3x3", 2, 3)
    assert row.t_sync_us == pytest.approx(6)
    assert (row.t_batch_norm_us, row.t_torch_us) == (pytest.approx(4), pytest.approx(8))
    assert (row.overhead_us, row.ratio) == (pytest.approx(2), pytest.approx(1.5))
    assert row.spread == pytest.approx(2 / 6)


def test_steps_in_a_turn(program):
    steps = [program.steps_in_a_turn(program.shape_of(shape)) for shape in program.SHAPES]
    assert steps[0] == 32
    assert min(steps) == 1


@pytest.mark.full
def test_two_processes(program, tmp_path):
    if not program.dist.is_available():
        pytest.skip("torch without torch.distributed")
    path = tmp_path / "sync.csv"
    words = [sys.executable, PROGRAM, "--rounds", "1", "--shape", "2x4x3x3", "--csv", path]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    facts, rows = results.read_table(path)
    assert facts["command"] == "python benchmarks/sync_batch_norm.py --rounds 1 --shape 2x4x3x3"
    assert [(row["dtype"], row["layout"]) for row in rows] == list(program.KINDS)
    for row in rows:
        assert min(float(row[f"t_{name}_us"]) for name in ("sync", "batch_norm", "torch")) > 0
    assert len(done.stdout.splitlines()) == 1 + len(program.KINDS)


@pytest.mark.parametrize("shape", ["2x4", "2x4x3x0", "2x4x3x"])
def test_a_shape_that_is_none(program, shape):
    with pytest.raises(ValueError, match=r"2x4|literal"):
        program.shape_of(shape)
