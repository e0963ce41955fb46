"""``benchmarks/measure.py`` from end to end."""

import os
import subprocess
import sys
from pathlib import Path

import measure
import measuring.results as files
import pytest
from measuring import startup
from measuring.suite import IMAGES, Operator

from normgrad.support import cache

CASE = "train/8x16x8x8/float32/contiguous"
BENCHMARKS = str(Path(measure.__file__).parent)


def errors(result):
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def test_a_case_into_a_folder(cli, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "folder"
    result = cli("run", "--filter", CASE, "--repeat", 1, "--threads", "1", "--out", out)
    assert result.exit_code == 0, result.stderr
    (table,) = out.glob("*.csv")
    assert table.stem.startswith("cpu-")
    assert table.stem.endswith("-filtered")
    assert sorted(path.suffix for path in out.iterdir()) == [".csv", ".png", ".svg"]
    found = files.read(table)
    assert [(row.case.id, row.threads, row.rounds) for row in found.rows] == [(CASE, 1, 1)]
    (row,) = found.rows
    assert row.contender == "aten::native_batch_norm_backward"
    assert row.path.split()[0] in ("rows", "columns", "tiles")
    assert set(row.us) == {"ours", "plan", "torch", "bound"}
    assert min(row.us.values()) > 0
    assert (
        found.facts["command"]
        == f"benchmarks/measure.py run --threads 1 --filter {CASE} --repeat 1"
    )
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1].startswith(
        "case threads ours, µs ours in Python, µs plan, µs NumPy, µs torch, µs triad, µs"
    )
    assert any(line.startswith(f"{CASE} 1 ") for line in lines)
    mean = "torch / public function, geometric mean ≥ 2.4 "
    assert any(line.startswith(mean) for line in lines)
    assert f"written {table}, .png, .svg" in lines


def test_a_layer_into_a_folder(cli, tmp_path):
    """It has no picture, and one of another run goes."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    arguments = ("--repeat", 1, "--threads", "1", "--out", tmp_path)
    assert cli("run", "--filter", "stats/64x128/float32", *arguments).exit_code == 0
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".png", ".svg"]
    case = "layer-batch-norm/8x16x8x8/float32/contiguous"
    result = cli("run", "--filter", case, *arguments)
    assert result.exit_code == 0, result.stderr
    (table,) = tmp_path.iterdir()
    (row,) = files.read(table).rows
    assert (row.case.id, row.contender) == (case, "torch.nn.BatchNorm2d")
    assert min(row.us["ours"], row.us["torch"]) > 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    (line,) = (line for line in lines if line.startswith(f"{case} 1 "))
    assert line.split()[3:6] == ["–", "–", "–"]
    assert "nan" not in result.stdout
    assert f"written {table}" in lines


def test_without_torch(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    line = errors(cli("run", "--quick", "--out", tmp_path / "out"))
    assert line == "normgrad: run: needs torch: pip install 'normgrad[torch]'"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--filter", "no such case"), "--filter: 'no such case' is in no case's id; allowed: "),
        (("--filter", "("), "--filter: '(': missing ), unterminated subpattern"),
        (("--threads", "0"), "--threads: '0'; allowed: numbers from 1 to "),
        (("--threads", "1,many"), "--threads: '1,many'; allowed: numbers from 1 to "),
    ],
)
def test_what_it_does_not_take(cli, arguments, line):
    assert errors(cli("run", *arguments)).startswith(f"normgrad: {line}")


def test_a_folder_that_is_a_file(cli, tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "file"
    out.write_text("a file")
    assert errors(cli("run", "--quick", "--out", out)) == (
        f"normgrad: {out}: cannot be written to (File exists)"
    )


def test_interrupted(tmp_path):
    """One line, status 130, and the old file as it was."""
    pytest.importorskip("torch")
    old = tmp_path / "cpu-x-quick.csv"
    old.write_bytes(b"old")
    code = (
        "import sys\n"
        f"sys.path.insert(0, {BENCHMARKS!r})\n"
        "from measuring import results, run\n"
        "def runs(*arguments):\n"
        "    raise KeyboardInterrupt\n"
        "    yield\n"
        "run.run = runs\n"
        "results.slug = lambda cpu: 'x'\n"
        "from measure import main\n"
        f"sys.argv = ['measure.py', 'run', '--quick', '--out', {str(tmp_path)!r}]\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "normgrad: interrupted\n"
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(old.name, b"old")]


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    old = tmp_path / "cpu-x-filtered.csv"
    old.write_bytes(b"old")
    code = (
        "import sys\n"
        f"sys.path.insert(0, {BENCHMARKS!r})\n"
        "from measuring import results, run\n"
        "measured = run._measured\n"
        "def interrupted(case, *arguments):\n"
        "    if case.operator.value == 'eval':\n"
        "        raise KeyboardInterrupt\n"
        "    return measured(case, *arguments)\n"
        "run._measured = interrupted\n"
        "results.slug = lambda cpu: 'x'\n"
        "from measure import main\n"
        "sys.argv = ['measure.py', 'run', *sys.argv[1:]]\n"
        "main()\n"
    )
    words = ["--filter", "^(train|eval)/8x16x8x8/float32/contiguous", "--repeat", "1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--threads", "1", "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (130, "normgrad: interrupted\n")
    new = tmp_path / "cpu-x-interrupted.csv"
    assert [row.case.id for row in files.read(new).rows] == [CASE]
    assert old.read_bytes() == b"old"
    assert f"written    {new}, .png, .svg" in done.stdout


def test_a_checkout_is_needed_for_models(cli, tmp_path, monkeypatch):
    """What can be measured is, and the rest is said."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    from measuring import steps

    monkeypatch.setattr(steps, "MODELS", tmp_path / "benchmarks" / "models.py")
    steps._models.cache_clear()
    pattern = f"{CASE}$|^step-unet/16x3x64x64/float32/contiguous"
    out = tmp_path / "out"
    result = cli("run", "--filter", pattern, "--repeat", 1, "--threads", "1", "--out", out)
    assert result.exit_code == 0, result.stderr
    (table,) = out.glob("*.csv")
    found = files.read(table)
    assert [row.case.id for row in found.rows] == [CASE]
    assert found.facts["not_measured"].startswith("the case: FileNotFoundError: ")
    assert "not measured" in result.stdout


def test_report(cli, tmp_path, monkeypatch, row, content, results):
    monkeypatch.chdir(tmp_path)
    assert errors(cli("report")).endswith("no file of a full run; make one with measure.py run")
    found = results(row(Operator.RESNET18, IMAGES, speedup=4))
    files.write(measure.RESULTS / "cpu-x.csv", content(found))
    assert "has <!-- bench: begin -->" in errors(cli("report"))
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench: begin -->\n<!-- bench: end -->\n")
    result = cli("report")
    assert (result.exit_code, result.stdout) == (
        0,
        "written    README.md\n",
    )
    text = readme.read_text()
    assert "| training step of resnet18 (batch norm) | 4.00 | – |" in text
    assert cli("report", measure.RESULTS).exit_code == 0
    assert readme.read_text() == text


def test_startup(cli, tmp_path, monkeypatch):
    """The command, on processes that are not started."""

    def start(cache):
        times = {"process_ms": 840.0, "numpy_ms": 99.0, "import_ms": 51.0}
        return {**times, "first_call_ms": 498.0, "second_call_ms": 0.25}

    monkeypatch.setattr(startup, "_start", start)
    result = cli("startup", "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    (path,) = tmp_path.iterdir()
    found, rows = files.read_table(path)
    kernels = [(start["kernels"], start["runs"]) for start in rows]
    assert kernels == [("compiled", "3"), ("from disk", "7")]
    assert found["command"] == "benchmarks/measure.py startup"
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "from disk 7 840 99 51 498 0.25" in lines


@pytest.mark.full
def test_a_start_is_measured():
    """One process, with whatever kernels there are."""
    found = startup._start(cache.folder())
    assert set(found) == {
        *("process_ms", "numpy_ms", "import_ms", "first_call_ms", "second_call_ms")
    }
    assert found["process_ms"] > found["first_call_ms"] > 0


def test_a_start_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(startup, "_CHILD", "raise TypeError")
    with pytest.raises(RuntimeError, match="measured failed: TypeError"):
        startup._start(tmp_path)
