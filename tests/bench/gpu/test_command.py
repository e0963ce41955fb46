"""``measure.py run --device cuda`` from end to end: without a device, and on one that is none."""

import re

import pytest
from measuring import results

CASE = "train/8x16x8x8/float32/contiguous"


torch = pytest.importorskip("torch")

from measuring import contenders, device  # noqa: E402


@pytest.fixture
def cuda(fake, monkeypatch):
    """There is a device."""
    made = []

    def make():
        made.append(fake())
        return made[-1]

    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "Cuda", make)
    return made


def lines_of(result):
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_without_a_device(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: "PyTorch 9 finds no CUDA device")
    result = cli("run", "--device", "cuda", "--out", tmp_path / "out")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line == (
        "normgrad: --device: cuda; PyTorch 9 finds no CUDA device, so that nothing was "
        "measured or written; allowed: cpu, or cuda where PyTorch finds an NVIDIA GPU"
    )
    text = lines_of(result)
    assert any(re.match(r"\d+ gradients PyTorch 9 finds no CUDA device \d+ ", x) for x in text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--device", "tpu"), "--device: 'tpu'; allowed: cpu, cuda"),
        (("--device", "cuda", "--threads", "1"), "--threads: with --device cuda; allowed: with"),
        (("--device", "cuda", "--cache", "1"), "--cache: with --device cuda; allowed: with"),
        (("--add",), "--add: with --device cpu; allowed: with --device cuda"),
        (("--no-compile",), "--no-compile: with --device cpu; allowed: with --device cuda"),
        (("--device", "cuda", "--filter", "nowhere"), "--filter: 'nowhere' is in no case's id"),
    ],
)
def test_what_it_does_not_take(cli, arguments, line):
    result = cli("run", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"normgrad: {line}")


def run_it(cli, out, *arguments, pattern=CASE):
    words = ("--device", "cuda", "--no-compile", "--repeat", 1, "--out", out)
    return cli("run", *words, "--filter", pattern, *arguments)


def test_a_case_into_a_folder(cli, cuda, tmp_path):
    result = run_it(cli, tmp_path / "new" / "folder")
    assert result.exit_code == 0, result.stderr
    table, *pictures = sorted((tmp_path / "new" / "folder").iterdir())
    assert table.name == "cuda-nvidia-h200-filtered.csv"
    assert [path.suffix for path in pictures] == [".png", ".svg"]
    assert b"on NVIDIA H200" in pictures[1].read_bytes()
    found = results.read(table)
    command = f"benchmarks/measure.py run --device cuda --no-compile --filter {CASE} --repeat 1"
    assert found.facts["command"] == command
    (row,) = found.rows
    assert (row.case.id, row.threads, row.rounds) == (CASE, results.ON_GPU, 1)
    assert row.contender == "aten::native_batch_norm_backward"
    assert row.bound.startswith("triad")
    assert row.path
    assert set(row.us) == {"ours", "plan", "torch", "bound"}
    assert min(row.us.values()) > 0
    text = lines_of(result)
    assert any(line.startswith(f"{CASE} – ") for line in text)
    # cuDNN's is for CUDA alone.
    assert any(line.startswith("aten::cudnn_batch_norm_backward ") for line in text)
    assert found.facts["not_measured"].startswith("aten::cudnn_batch_norm_backward: ")
    assert found.facts["not_measured"].endswith(f" ({CASE})")
    assert f"written {table}, .png, .svg" in " ".join(text)
    assert "nan" not in result.stdout


def test_a_layer(cli, cuda, tmp_path):
    case = "layer-batch-norm/8x16x8x8/float32/contiguous"
    assert run_it(cli, tmp_path, pattern=case).exit_code == 0
    (table,) = tmp_path.iterdir()  # it has no picture
    (row,) = results.read(table).rows
    assert (row.case.id, row.contender, row.path) == (case, "torch.nn.BatchNorm2d", "")


def test_parts_are_added(cli, cuda, tmp_path):
    evaluation = CASE.replace("train", "eval")
    for case in (CASE, evaluation, CASE):
        assert run_it(cli, tmp_path, "--add", pattern=f"^{case}$").exit_code == 0
    (table,) = tmp_path.glob("*.csv")
    assert table.name == "cuda-nvidia-h200.csv"
    found = results.read(table)
    assert [row.case.id for row in found.rows] == [CASE, evaluation]
    assert found.facts["command"].count("; ") == 1
    old = table.read_bytes()
    table.write_bytes(old.replace(b"# driver: 570.1", b"# driver: 1"))
    result = run_it(cli, tmp_path, "--add")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "driver 1 there, 570.1 here; allowed with --add: a file of the same" in result.stderr


def test_ours_cannot(cli, cuda, tmp_path, monkeypatch):
    """What was there stays."""
    import normgrad

    def refuse(*arguments, **options):
        raise ValueError("grad_out: on device cuda:0; allowed: cpu")

    monkeypatch.setattr(normgrad, "plan", refuse)
    result = run_it(cli, tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        "normgrad: run: none of 1 cases could be measured; nothing was written\n"
    )
    text = " ".join(lines_of(result))
    assert "the case ValueError: grad_out: on device cuda:0; allowed: cpu 1" in text
    assert list(tmp_path.iterdir()) == []


def test_nobody_to_compare_with(cli, cuda, tmp_path, monkeypatch):
    monkeypatch.setattr(contenders, "disagreement", lambda *results: "disagrees")
    result = run_it(cli, tmp_path)
    assert result.exit_code == 2
    text = " ".join(lines_of(result))
    assert "aten::native_batch_norm_backward disagrees 1 " in text
    assert "the case nobody to compare with 1 " in text


def test_a_device_that_is_lost(cli, fake, tmp_path, monkeypatch):
    """What was measured before is kept."""

    class Lost(fake):
        def copies(self, tensor_bytes):
            looks.append(None)
            if len(looks) > 1:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
            return super().copies(tensor_bytes)

    looks = []
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "Cuda", Lost)
    result = run_it(cli, tmp_path, pattern="^train/(8x16x8x8|64x128)/float32/contiguous$")
    assert result.exit_code == 0, result.stderr
    (table,) = tmp_path.glob("*.csv")
    (row,) = results.read(table).rows
    text = " ".join(lines_of(result))
    assert "the case RuntimeError: CUDA error: an illegal memory access was encountered" in text
    assert len(looks) == 2
    assert row.case.id == CASE
