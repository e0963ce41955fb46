"""examples/digits/train.py trains, in one process and in two, and says what is wrong."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("no scikit-learn", allow_module_level=True)

SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
ONE = [sys.executable, "-W", "error", str(SCRIPT)]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
#: What each training prints: a line for each epoch, and one at the end.
EPOCH = r"{} epoch  1: loss (\d\.\d{{4}}), test accuracy (\d+\.\d\d)%"
END = r"{}: test accuracy (\d+\.\d\d)%, \d+\.\d ms per step"


def run(command, *options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )


def numbers(lines, layers):
    """The loss and the accuracy of a training of one epoch, from its two lines."""
    epoch = re.fullmatch(EPOCH.format(layers), lines[0])
    end = re.fullmatch(END.format(layers), lines[1])
    assert epoch, lines[0]
    assert end, lines[1]
    assert epoch[2] == end[1]
    return float(epoch[1]), float(epoch[2])


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("digits_train", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits_train"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["digits_train"]


def test_one_process(script, tmp_path):
    """The weights that it saves are those of PyTorch's layers."""
    saved = tmp_path / "one.pt"
    done = run(ONE, "--epochs", 1, "--min-accuracy", 0, "--save", saved)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    _, accuracy = numbers(lines, "normgrad")
    assert lines[2:] == [f"wrote {saved}"]
    model = script.network()
    model.load_state_dict(torch.load(saved))
    _, testing = script.digits(0)
    assert len(testing) == 360
    assert 100 * script.accuracy(model, testing) == pytest.approx(accuracy, abs=0.3)


@pytest.mark.full
def test_the_same_bits_for_the_same_seed(tmp_path):
    weights = []
    for saved in (tmp_path / "one.pt", tmp_path / "two.pt"):
        done = run(ONE, "--epochs", 1, "--min-accuracy", 0, "--save", saved)
        assert (done.returncode, done.stderr) == (0, "")
        weights.append(torch.load(saved))
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.full
def test_comparing_in_one_process(tmp_path):
    """Both trainings begin with the same weights and see the same images."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "training.png"
    done = run(ONE, "--epochs", 1, "--compare", "--picture", picture)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    ours, theirs = numbers(lines[:2], "normgrad"), numbers(lines[2:4], "torch")
    assert ours == pytest.approx(theirs, rel=0.02)
    assert lines[4:] == [f"wrote {picture}", "the test accuracy is below 97%"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_two_processes(tmp_path):
    """One of them speaks; the layers are synchronised, the weights PyTorch's."""
    pytest.importorskip("matplotlib")
    picture, saved = tmp_path / "training.svg", tmp_path / "weights.pt"
    options = ["--epochs", 1, "--min-accuracy", 0, "--compare", "--picture", picture]
    done = run(TWO, SCRIPT, *options, "--save", saved)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    ours, theirs = numbers(lines[:2], "normgrad"), numbers(lines[2:4], "torch")
    assert ours[0] == pytest.approx(theirs[0], rel=0.1)
    assert lines[4:] == [f"wrote {picture}", f"wrote {saved}"]
    assert picture.read_text("utf-8").startswith("<?xml")
    assert not any(name.startswith("module.") for name in torch.load(saved))


@pytest.mark.full
def test_interrupted():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*ONE, "--epochs", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    ) as process:  # fmt: skip
        assert process.stdout.readline().startswith("normgrad epoch  1")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == ""


def refusal(script, monkeypatch, capsys, *options):
    """What is said last about options, and nothing is printed."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    with pytest.raises(SystemExit) as raised:
        script.parse()
    assert raised.value.code == 2
    output, errors = capsys.readouterr()
    assert output == ""
    return errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--epochs 0", "argument --epochs: '0'; allowed: 1 to 1,000,000"),
        ("--batch-size many", "argument --batch-size: 'many'; allowed: 1 to 1,000,000"),
        ("--lr nan", "argument --lr: 'nan'; allowed: 0 to 1,000"),
        ("--seed -1", "argument --seed: '-1'; allowed: 0 to 4,294,967,295"),
        ("--threads 0", "argument --threads: '0'; allowed: 1 to 1,000,000"),
        ("--min-accuracy 101", "argument --min-accuracy: '101'; allowed: 0 to 100"),
        ("--layers ours", "invalid choice: 'ours'"),
        ("--layers torch --compare", "argument --compare: not allowed with argument --layers"),
        ("--picture a.png", "--picture: given without --compare, which draws it"),
        ("--compare --picture a.xyz", "--picture: 'a.xyz'; allowed: "),
        ("--compare --picture {0}/b/a.png", "--picture: '{0}/b/a.png': No such file or directory"),
        ("--save {0}", "--save: '{0}': Is a directory"),
    ],
)
def test_wrong_arguments(script, monkeypatch, capsys, tmp_path, options, said):
    if "--compare" in options:
        pytest.importorskip("matplotlib")
    errors = refusal(script, monkeypatch, capsys, *options.format(tmp_path).split())
    assert said.format(tmp_path) in errors.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "package"), [("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")]
)
def test_missing_packages(script, monkeypatch, capsys, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    errors = refusal(script, monkeypatch, capsys, "--compare")
    assert errors == f"{package} is missing: pip install {package}\n"


def test_checking_a_path_leaves_no_trace(script, monkeypatch, tmp_path):
    new, old = tmp_path / "new.pt", tmp_path / "old.pt"
    old.write_bytes(b"before")
    for path in (new, old):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--save", str(path)])
        assert script.parse().save == path
    assert not new.exists()
    assert old.read_bytes() == b"before"


def test_the_picture_is_small():
    assert SCRIPT.with_name("training.png").stat().st_size < 150_000
