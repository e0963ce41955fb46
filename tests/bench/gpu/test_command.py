"""``normgrad bench --device cuda`` from end to end: without a device, and on one that is none."""

import re

import pytest

from normgrad.bench import run as cpu_run
from normgrad.bench.gpu import device, results, suite
from normgrad.cli.bench_cuda import profile_command

CASE = "train/8x16x8x8/float32/contiguous"


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def cuda(torch, fake, monkeypatch):
    """There is a device."""
    made = []

    def make(torch):
        made.append(fake(torch))
        return made[-1]

    monkeypatch.setattr(device, "missing", lambda torch: None)
    monkeypatch.setattr(device, "Device", make)
    return made


def lines_of(result):
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_without_a_device(torch, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "missing", lambda torch: "PyTorch 9 finds no CUDA device")
    for profile in ([], ["--profile"]):
        result = cli("--device", "cuda", "--out", tmp_path / "out", *profile)
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
        (("--device", "cuda", "--startup"), "--startup: with --device cuda; allowed: with"),
        (("--profile",), "--profile: with --device cpu; allowed: with --device cuda"),
        (("--add",), "--add: with --device cpu; allowed: with --device cuda"),
        (("--no-compile",), "--no-compile: with --device cpu; allowed: with --device cuda"),
        (("--device", "cuda", "--filter", "cropped"), "--filter: 'cropped' is in no case's id"),
    ],
)
def test_what_it_does_not_take(cli, arguments, line):
    result = cli(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"normgrad: {line}")


def run_it(cli, out, *arguments, pattern=CASE):
    words = ("--device", "cuda", "--no-compile", "--repeat", 1, "--out", out)
    return cli(*words, "--filter", pattern, *arguments)


def test_a_case_into_a_folder(cli, cuda, tmp_path):
    result = run_it(cli, tmp_path / "new" / "folder")
    assert result.exit_code == 0, result.stderr
    (table,) = (tmp_path / "new" / "folder").iterdir()
    assert table.name == "cuda-nvidia-h200-filtered.csv"
    found = results.read(table)
    command = f"normgrad bench --device cuda --no-compile --filter {CASE} --repeat 1"
    assert found.facts["command"] == command
    assert {row.case for row in found.rows} == {CASE}
    assert {(row.contender, row.timing) for row in found.rows} == {
        (name, timing)
        for name in ("ours", "out", "plan", "aten::native_batch_norm_backward", "copy")
        for timing in ("events", "graph")
    }
    assert all(row.t_us > 0 and row.rounds == 1 for row in found.rows)
    # Twice 64 KiB, in calls that move 96 KiB.
    assert {row.copies for row in found.rows if row.contender != "copy"} == {3}
    text = lines_of(result)
    assert any(line.startswith(f"{CASE} graph ") for line in text)
    assert "torch.compile left out all all cases" in text
    assert "liger_kernel not installed all all cases" in text
    assert any(line.startswith("aten::cudnn_batch_norm_backward ") for line in text)
    assert "liger_kernel: not installed (all cases)" in found.facts["not_measured"]
    assert f"written {table}" in " ".join(text)
    assert f"profile {profile_command(CASE)}" in text
    assert "nan" not in result.stdout


def test_the_profile_command_is_of_one_case():
    command = profile_command("group-norm/4x320x64x64/groups-32/float32/contiguous")
    assert command.startswith("ncu --set full --profile-from-start off ")
    assert "normgrad bench --device cuda --profile --filter '^group-norm/" in command
    (pattern,) = re.findall("'(.*)'", command)
    assert len(cpu_run.select(suite.suite(), pattern)) == 1


def test_profile(cli, cuda, tmp_path):
    pattern = f"^{CASE}$"
    result = cli("--device", "cuda", "--profile", "--filter", pattern, "--out", tmp_path / "out")
    assert (result.exit_code, lines_of(result)) == (0, [f"called {CASE} once"])
    assert [fake.profiles for fake in cuda] == [1]
    assert not (tmp_path / "out").exists()


def test_parts_are_added(cli, cuda, tmp_path):
    for pattern in (CASE, CASE.replace("train", "eval"), CASE):
        assert run_it(cli, tmp_path, "--add", pattern=pattern).exit_code == 0
    (table,) = tmp_path.iterdir()
    assert table.name == "cuda-nvidia-h200.csv"
    found = results.read(table)
    assert list(dict.fromkeys(row.case for row in found.rows)) == [
        *(CASE, CASE.replace("train", "eval")),
    ]
    assert found.facts["command"].count("; ") == 1
    old = table.read_bytes()
    table.write_bytes(old.replace(b"# driver: 570.1", b"# driver: 1"))
    result = run_it(cli, tmp_path, "--add")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "driver 1 there, 570.1 here; allowed with --add: a file of the same" in result.stderr


def test_ours_cannot(cli, cuda, tmp_path, monkeypatch):
    """As long as there is no backend: what was there stays."""
    import normgrad

    def refuse(*arguments, **options):
        raise ValueError("grad_out: on device cuda:0; allowed: cpu")

    monkeypatch.setattr(normgrad, "plan", refuse)
    result = run_it(cli, tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        "normgrad: bench: none of 1 cases could be measured; nothing was written\n"
    )
    text = " ".join(lines_of(result))
    assert "the case ValueError: grad_out: on device cuda:0; allowed: cpu 1" in text
    assert list(tmp_path.iterdir()) == []
    result = cli("--device", "cuda", "--profile", "--filter", CASE)
    assert result.exit_code == 2
    assert lines_of(result)[0].startswith(f"not called {CASE}: ValueError: ")


def test_a_device_that_is_lost(cli, torch, fake, tmp_path, monkeypatch):
    """What was measured before is kept."""

    class Lost(fake):
        def free(self):
            cases.append(None)
            if len(cases) > 2:  # twice for the first case
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
            return super().free()

    cases = []
    monkeypatch.setattr(device, "missing", lambda torch: None)
    monkeypatch.setattr(device, "Device", Lost)
    result = run_it(cli, tmp_path, pattern="^(train|eval)/8x16x8x8/float32/contiguous$")
    assert result.exit_code == 0, result.stderr
    (table,) = tmp_path.iterdir()
    assert {row.operator for row in results.read(table).rows} == {"train"}
    text = " ".join(lines_of(result))
    assert "the case RuntimeError: CUDA error: an illegal memory access was encountered" in text


def test_a_case_too_large(cli, torch, fake, tmp_path, monkeypatch):
    """The others are measured."""
    monkeypatch.setattr(device, "missing", lambda torch: None)
    monkeypatch.setattr(device, "Device", lambda torch: fake(torch, free=2 << 20, captures=False))
    result = run_it(cli, tmp_path, pattern="^elemt/(8x16x8x8|32x64x56x56)/float32/contiguous$")
    assert result.exit_code == 0, result.stderr
    (table,) = tmp_path.iterdir()
    found = results.read(table)
    assert {row.case for row in found.rows} == {"elemt/8x16x8x8/float32/contiguous"}
    assert {row.timing for row in found.rows} == {"events"}
    text = " ".join(lines_of(result))
    assert "the case needs 0.385 GB of device memory, 0.0021 free 1 " in text
    assert "ours, in a graph RuntimeError: not while a stream is captured 1 " in text
