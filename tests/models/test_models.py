"""convert on models of public libraries; by `nox -s models`, which installs them.

Every model is compared with an unconverted copy, in float64, training and evaluating: outputs, all
gradients, and what became of the running statistics.
"""

from __future__ import annotations

import copy
import csv
import os
import re
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
from layer_pairs import InFloat64  # noqa: E402 - it imports torch
from public_models import MODELS  # noqa: E402 - it imports torch

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "models-amd-epyc-znver3.csv"

pytestmark = [
    pytest.mark.every_case,
    pytest.mark.skipif("NORMGRAD_MODELS" not in os.environ, reason="by nox -s models"),
    # The libraries use what PyTorch deprecates.
    pytest.mark.filterwarnings("ignore"),
]


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = [*output.values()]
    parts = output if isinstance(output, (list, tuple)) else []
    return [tensor for part in parts for tensor in tensors(part)]


def step(model, tried, training):
    """Outputs, gradients and buffers."""
    model.train(training).zero_grad()
    torch.manual_seed(1)
    positional, named = tried.arguments(model)
    torch.manual_seed(2)  # of dropout, and of the boxes that a detector samples
    # torchvision compiles a function of its own.
    with torch.compiler.set_stance("force_eager"), InFloat64():
        outputs = tensors(model(*positional, **named))
    loss = sum(output.square().mean() for output in outputs if output.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*outputs, *(g for g in gradients if g is not None), *model.buffers()]


def difference(ours, theirs):
    """The greatest error relative to the tensor's norm, or to 1e-6 of the largest one's."""
    least = 1e-6 * max(float(value.detach().double().norm()) for value in theirs)
    return max(
        float((a.detach().double() - b.detach().double()).norm())
        / max(float(b.detach().double().norm()), least)
        for a, b in zip(ours, theirs, strict=True)
        if a.numel()
    )


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_did(name, library):
    tried = MODELS[name]
    torch.manual_seed(0)
    theirs = tried.build(library).double()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = nt.convert(copy.deepcopy(theirs))
    done = nt.converted(ours)
    layers = {kind.rpartition(".")[2]: count for kind, count in done.layers.items()}
    assert (layers, len(done.left)) == (tried.layers, tried.left)
    assert any("normgrad" in str(each.message) for each in caught) == bool(tried.left)
    found = []
    for training in (True, False):
        results = (step(model, tried, training) for model in (ours, theirs))
        found.append(difference(*results))
        assert found[-1] < 1e-8
    kinds = [type(layer) for layer in theirs.modules()]
    assert [type(layer) for layer in nt.revert(ours).modules()] == kinds
    print(row(name, tried, *found))


def row(name, tried, *found):
    """A model's row in docs/pytorch/models.md."""
    layers = ", ".join(f"{count} {kind}" for kind, count in tried.layers.items())
    cells = (name, layers, tried.left or "", *(f"{each:.0e}" for each in found))
    return f"| {' | '.join(map(str, cells))} |".replace("|  |", "| |")


def shown(page):
    """A page's rows of public models."""
    text = Path(__file__).parents[2].joinpath("docs", page).read_text("utf-8")
    libraries = "torchvision|timm|transformers|diffusers|seg|MONAI|torch_g|ultra"
    return re.findall(rf"^(\| (?:{libraries})\w* .*)$", text, re.M)


def test_the_documents_have_these_models():
    """Their names, layers and numbers of layers left; errors are those of one run."""
    expected = [row(name, tried).removesuffix(" |") for name, tried in MODELS.items()]
    assert [line.rsplit("|", 3)[0].rstrip() for line in shown("pytorch/models.md")] == expected
    with RESULTS.open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        assert [each["model"] for each in rows if each["set"] == "public"] == [*MODELS]
