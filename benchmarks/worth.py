"""What conversion brings to whole training steps of eight models, as docs/worth.md shows it.

``python benchmarks/worth.py [THREADS]`` prints the table: estimates by the norms alone, beside the
steps. ``python benchmarks/worth.py activations [THREADS]`` prints what the activations after norms
cost in the converted models: the most that computing them in the norms' passes could save.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import models
import torch
from torch import nn

import normgrad.torch as nt
from normgrad.bench import timing
from normgrad.torch import estimating

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
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.LeakyReLU)
SECONDS = 20.0


def example(shape: tuple[int, ...]) -> torch.Tensor:
    """An input: images, volumes, points, or numbers of words."""
    torch.manual_seed(0)
    return torch.randint(1000, shape) if len(shape) == 2 else torch.randn(shape)


def worth() -> None:
    """Print the table of steps."""
    estimating.STEP_SECONDS = SECONDS
    print("| model | input | step, PyTorch's | norms' share | by the norms | measured | spread |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for kind, (make, shape) in KINDS.items():
        found = nt.estimate(make(), example(shape))
        print(
            f"| {kind} | {shape} | {found.stock * 1e3:.0f} ms | {found.share:.0%} "
            f"| {1 / (1 - found.gain):.2f} | {found.stock / found.converted:.2f} "
            f"| {found.spread:.0%} |",
            flush=True,
        )


def activations() -> None:
    """Print the steps' times with the activations over those without."""
    print("| model | with / without activations | spread |")
    print("| --- | ---: | ---: |")
    for kind, (make, shape) in KINDS.items():
        with_them, without = nt.convert(make()), nt.convert(make())
        count = 0
        for layer in without.modules():
            for name, child in layer.named_children():
                if isinstance(child, ACTIVATIONS):
                    setattr(layer, name, nn.Identity())
                    count += 1
        if not count:
            continue
        x = example(shape)

        def step(model: Any, x: torch.Tensor = x) -> Callable[[], None]:
            return lambda: model(x).square().mean().backward()

        calls = {"with": step(with_them), "without": step(without)}
        times = timing.measure(calls, SECONDS)
        ratio = times.medians["with"] / times.medians["without"]
        print(f"| {kind}, {count} | {ratio:.3f} | {times.spread:.0%} |", flush=True)


if __name__ == "__main__":
    numbers = [word for word in sys.argv[1:] if word.isdecimal()]
    torch.set_num_threads(int(numbers[0]) if numbers else 2)
    (activations if "activations" in sys.argv else worth)()
