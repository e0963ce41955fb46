"""Measure the gain of whole training steps from conversion, as docs/worth.md shows it.

``python benchmarks/worth.py [THREADS]`` times models of eight kinds, and with ``public`` before
THREADS the models that `nox -s models` converts, with the libraries that session installs. Each
prints a table, and replaces its rows in benchmarks/results/models-NAME.csv, named by the CPU.
``python benchmarks/worth.py activations [THREADS]`` prints the share of activations in the
converted models' steps: the most that computing them in the norms' passes could save.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import public_models
import torch
from measuring import results
from torch import nn
from torch.utils import _pytree as pytree

import normgrad.torch as nt
from normgrad.cli import info
from normgrad.torch.conversion import gain

#: A measured model's row in the file, by column.
_Row = dict[str, Any]

#: The models by kind, and the inputs of a step.
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "CNN: ResNet-18, batch norm": (models.ResNet18, (4, 3, 128, 128)),
    "CNN: MobileNetV2, batch norm": (models.MobileNetV2, (4, 3, 128, 128)),
    "ViT, layer norm": (models.ViT, (8, 3, 112, 112)),
    "GPT-like, layer norm": (models.GPT, (8, 256)),
    "Llama-like, RMS norm": (lambda: models.GPT(models.FamilyRMSNorm), (8, 256)),
    "diffusion U-Net, group norm": (models.UNet, (8, 3, 32, 32)),
    "PointNet-like, BatchNorm1d": (models.PointNet, (16, 3, 1024)),
    "3-D U-Net, instance norm": (models.UNet3d, (1, 1, 32, 32, 32)),
}
#: PyTorch's operators of ReLU, ReLU6, SiLU and LeakyReLU.
ACTIVATIONS = "^aten::(relu|clamp_min|threshold|hardtanh|silu|leaky_relu)"
#: How many steps are profiled.
STEPS = 15
#: For how long steps take turns, of a kind and of a public model.
SECONDS, PUBLIC_SECONDS = 20.0, 8.0


def example(shape: tuple[int, ...]) -> torch.Tensor:
    """An input: images, volumes, points, or numbers of words."""
    torch.manual_seed(0)
    return torch.randint(1000, shape) if len(shape) == 2 else torch.randn(shape)


def kinds() -> list[_Row]:
    """Time steps of the models by kind."""
    print_header("model | input")
    return [
        measured("kinds", kind, str(shape), SECONDS, make(), example(shape))
        for kind, (make, shape) in KINDS.items()
    ]


def public() -> list[_Row]:
    """Time steps of public models."""
    print_header("model | input")
    rows = []
    for name, tried in public_models.MODELS.items():
        torch.manual_seed(0)
        model = tried.build(public_models.library)
        arguments = pytree.tree_map_only(torch.Tensor, in_float32, tried.arguments(model))
        rows.append(
            measured("public", name, "", PUBLIC_SECONDS, model, *arguments[0], **arguments[1])
        )
    return rows


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the model takes it: in float32, unless it holds integers."""
    return tensor.float() if tensor.is_floating_point() else tensor


def print_header(names: str) -> None:
    """Print the table's header, which begins with the columns that name a model."""
    print(f"| {names} | step of PyTorch, ms | norms' share | predicted | measured | spread |")
    print(f"|{' --- |' * len(names.split(' | '))}{' ---: |' * 5}")


def measured(
    group: str, name: str, input: str, seconds: float, model: nn.Module, *example: Any, **named: Any
) -> _Row:
    """Time a model's steps beside the estimate by its norms alone, and print the row."""
    gain.STEP_SECONDS = seconds
    estimate = nt.estimate(model, *example, **named)
    row = {
        "set": group,
        "model": name,
        "input": input,
        # T5's layer norm has no mean.
        "has_rms_norm": int(any(re.search("RMS|T5LayerNorm|RmsNorm", type(each).__name__)
                                for each in model.modules())),
        "stock_ms": f"{estimate.stock * 1e3:.{0 if estimate.stock >= 0.01 else 1}f}",
        "share": f"{estimate.share:.2f}",
        "predicted": f"{1 / (1 - estimate.gain):.2f}",
        "measured": f"{estimate.stock / estimate.converted:.2f}",
        "spread": f"{estimate.spread:.2f}",
    }  # fmt: skip
    print(f"| {name} | {input} | {' | '.join(list(row.values())[4:])} |", flush=True)
    return row


def keep(rows: list[_Row]) -> None:
    """Replace a set's rows in this machine's file."""
    cpu = info.cpu_name()
    path = Path("benchmarks", "results", f"models-{results.slug(cpu)}.csv")
    earlier, others = results.read_table(path) if path.exists() else ({}, [])
    kept = [row for row in others if row["set"] != rows[0]["set"]]
    command = "python " + " ".join(["benchmarks/worth.py", *sys.argv[1:]])
    commands = [each for each in earlier["command"].split("; ") if each != command] if kept else []
    facts = results.facts(cpu, "; ".join([*commands, command]))
    facts["threads"] = str(torch.get_num_threads())
    results.write(path, results.table_of(facts, [*kept, *rows]))


def activations() -> None:
    """Print the share of the converted models' steps in activations, forward and backward."""
    print("| model | forward | backward |")
    print("| --- | ---: | ---: |")
    for kind, (make, shape) in KINDS.items():
        model, x = nt.convert(make()), example(shape)
        step(model, x)
        with torch.profiler.profile() as profile:
            for _ in range(STEPS):
                step(model, x)
        spent = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
        total = sum(spent.values())
        named = {key: time for key, time in spent.items() if re.search(ACTIVATIONS, key)}
        backward = sum(time for key, time in named.items() if key.endswith("_backward"))
        forward = sum(named.values()) - backward
        print(f"| {kind} | {forward / total:.1%} | {backward / total:.1%} |", flush=True)


def step(model: nn.Module, x: torch.Tensor) -> None:
    """One forward and backward pass."""
    model(x).square().mean().backward()


if __name__ == "__main__":
    words = sys.argv[1:]
    numbers = [word for word in words if word.isdecimal()]
    torch.set_num_threads(int(numbers[0]) if numbers else 2)
    if "activations" in words:
        activations()
    else:
        keep(public() if "public" in words else kinds())
