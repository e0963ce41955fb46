"""What conversion brings to whole training steps of eight models, as docs/worth.md shows it.

``python benchmarks/worth.py [THREADS]`` prints the table: estimates by the norms alone, beside the
steps. ``python benchmarks/worth.py public [THREADS]`` prints it for the models that `nox -s models`
converts, with the libraries that session installs. ``python benchmarks/worth.py activations
[THREADS]`` prints the share of activations in the converted models' steps: the most that computing
them in the norms' passes could save.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import models
import public_models
import torch
from torch import nn
from torch.utils import _pytree as pytree

import normgrad.torch as nt
from normgrad.torch.conversion import gain

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


def kinds() -> None:
    """Print the table of steps of the models by kind."""
    print_header("model | input")
    for kind, (make, shape) in KINDS.items():
        print_row(f"{kind} | {shape}", SECONDS, make(), example(shape))


def public() -> None:
    """Print the table of steps of public models."""
    print_header("model")
    for name, tried in public_models.MODELS.items():
        torch.manual_seed(0)
        model = tried.build(public_models.library)
        arguments = pytree.tree_map_only(torch.Tensor, in_float32, tried.arguments(model))
        print_row(name, PUBLIC_SECONDS, model, *arguments[0], **arguments[1])


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the model takes it: in float32, unless it holds integers."""
    return tensor.float() if tensor.is_floating_point() else tensor


def print_header(names: str) -> None:
    """Print the table's header, which begins with the columns that name a model."""
    print(f"| {names} | step, PyTorch's | norms' share | predicted | measured | spread |")
    print(f"|{' --- |' * len(names.split(' | '))}{' ---: |' * 5}")


def print_row(names: str, seconds: float, model: nn.Module, *example: Any, **named: Any) -> None:
    """Print a model's row: the estimate by its norms alone beside its steps."""
    gain.STEP_SECONDS = seconds
    estimate = nt.estimate(model, *example, **named)
    stock = f"{estimate.stock * 1e3:.{0 if estimate.stock >= 0.01 else 1}f} ms"
    cells = f"{1 / (1 - estimate.gain):.2f} | {estimate.stock / estimate.converted:.2f}"
    line = f"| {names} | {stock} | {estimate.share:.0%} | {cells} | {estimate.spread:.0%} |"
    print(line, flush=True)


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
    tables = {"activations": activations, "public": public}
    next((table for name, table in tables.items() if name in words), kinds)()
