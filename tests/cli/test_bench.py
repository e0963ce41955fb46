"""``normgrad bench``: layers beside PyTorch's, and a model of the user's."""

import sys

import pytest
from typer.testing import CliRunner

from normgrad.cli import show
from normgrad.cli.app import app

torch = pytest.importorskip("torch")

from normgrad.bench import layers  # noqa: E402
from normgrad.cli import bench as command  # noqa: E402


@pytest.fixture
def cli(monkeypatch):
    """A function that runs the command on small inputs, with few turns."""
    few = [("BatchNorm2d", (3,), (2, 3, 4, 4)), ("RMSNorm", (8,), (6, 8))]
    monkeypatch.setattr(layers, "_LAYERS", few)
    threads = torch.get_num_threads()

    def invoke(*arguments):
        words = ["bench", *map(str, arguments)]
        return CliRunner().invoke(app, words, catch_exceptions=False)

    yield invoke
    torch.set_num_threads(threads)


def errors(result):
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def test_layers_are_timed_by_turns(cli):
    """Each pass has a table that fits 80 columns; the largest gain has the longest bar."""
    result = cli("--quick", "--threads", 1)
    assert result.exit_code == 0, result.stderr
    text = result.stdout.splitlines()
    lines = [" ".join(line.split()) for line in text]
    assert [line for line in lines if line in ("training", "evaluation")] == [
        "training", "evaluation"
    ]  # fmt: skip
    names = ("BatchNorm2d 2×3×4×4", "BatchNorm2d, channels-last 2×3×4×4", "RMSNorm 6×8")
    for name in names:
        of_name = [line for line in lines if line.startswith(f"{name} ")]
        assert len(of_name) == 2, name
        for line in of_name:
            *_, theirs, ours, gain, _ = line.split()
            assert float(gain) == pytest.approx(float(theirs) / float(ours), rel=0.02)
    assert any("████" in line for line in lines)
    assert max(map(len, (line for line in text if "×" in line))) <= 80
    assert any("1 thread, float32" in line for line in lines)
    means = f"times as fast as PyTorch {torch.__version__} (geometric mean)"
    for timed_pass in ("training", "evaluation"):
        assert sum(line.startswith(f"{timed_pass}: ") and means in line for line in lines) == 1


def test_both_layers_compute_the_same(monkeypatch):
    """What is timed agrees: the output in evaluation, and each gradient of a training step."""
    found = []

    def measure(calls, *_, **__):
        found.append([calls[name]() for name in ("torch", "ours")])
        return layers.timing.Times({"torch": 2.0, "ours": 1.0}, 1, 0.0)

    monkeypatch.setattr(layers.timing, "measure", measure)
    every = layers.cases()
    assert {case.layer for case in every} == {name for name, *_ in layers._LAYERS}
    for case in every:
        small = case._replace(shape=(4, case.shape[1], *[3] * (len(case.shape) - 2)))
        if case.layer in ("LayerNorm", "RMSNorm"):
            small = case._replace(shape=(2, *case.shape[-1:]))
        assert layers.measure(small, torch.float32, 0.0).gain == 2
        torch.testing.assert_close(*found.pop(), rtol=1e-4, atol=1e-4)


def test_bars_are_drawn_in_eighths():
    shares = [1, 0.75, 0.5 + 1 / 32, 1 / 32, 0]
    assert [*map(command._bar, shares)] == ["████", "███", "██▏", "▏", "▏"]


def test_a_picture(cli, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure
    save, inside = figure.savefig, []

    def checked(drawn, *arguments, **options):
        drawn.draw_without_rendering()
        for axes in drawn.axes:
            frame = axes.get_window_extent()
            inside.extend(text.get_window_extent().x1 <= frame.x1 for text in axes.texts)
        save(drawn, *arguments, **options)

    monkeypatch.setattr(figure, "savefig", checked)
    path = tmp_path / "layers.svg"
    result = cli("--quick", "--dtype", "bfloat16", "--plot", path)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"written    {path}"
    assert path.read_bytes().startswith(b"<?xml")
    assert inside == [True] * 6  # the bars' labels


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--dtype", "int8"), "--dtype: 'int8'; allowed: float32, bfloat16, float16"),
        (("--plot", "a.txt"), "--plot: a.txt; allowed: .png, .svg, .pdf"),
        (("--threads", "100000"), "--threads: "),
    ],
)
def test_what_it_does_not_take(cli, arguments, line):
    assert errors(cli(*arguments)).startswith(f"normgrad: {line}")


def test_without_torch(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert errors(cli()) == "normgrad: bench: needs torch: pip install 'normgrad[torch]'"


MODEL = """
import torch
number = 3
def make():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
    return model, torch.ones(4, 6)
def other():
    return [1]
"""


def test_a_model_of_the_user_s(cli, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("normgrad.torch.conversion.gain.STEP_SECONDS", 0)
    (tmp_path / "models_of_mine.py").write_text(MODEL)
    result = cli("--model", "models_of_mine:make")
    assert result.exit_code == 0, result.stderr
    words = [line.split()[0] for line in result.stdout.splitlines()]
    assert words[:2] == ["step", "norms"]
    assert "1 torch.nn.BatchNorm1d: " in result.stdout
    assert words[-1] == "verdict"
    assert {path.name for path in tmp_path.iterdir()} <= {"models_of_mine.py", "__pycache__"}


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("no_such_module:make", "No module named 'no_such_module'; allowed: MODULE:FUNCTION"),
        ("models_of_mine:nothing", "has no attribute 'nothing'; allowed: MODULE:FUNCTION"),
        ("models_of_mine:other", "returns a list; allowed: a model, and a tensor or a tuple"),
        ("models_of_mine:number", "returns a NoneType; allowed: a model, and a tensor or a tuple"),
        ("models_of_mine", "no function; allowed: MODULE:FUNCTION"),
        ("", "Empty module name; allowed: MODULE:FUNCTION"),
    ],
)
def test_what_is_no_model(cli, tmp_path, monkeypatch, named, text):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "models_of_mine", raising=False)
    (tmp_path / "models_of_mine.py").write_text(MODEL)
    line = errors(cli("--model", named))
    assert line.startswith("Error: --model: ") or line.startswith("normgrad: --model: "), line
    assert text in line


def test_lines_say_how_far_a_long_run_is(monkeypatch, capsys):
    monkeypatch.setattr(show, "EVERY", 0)
    with show.progress(3, "cases") as advance:
        advance("first")
        advance("second", 2)
    assert (
        capsys.readouterr().err == "normgrad: 1 of 3 cases: first\nnormgrad: 3 of 3 cases: second\n"
    )
